"""Steps that a tool asks for, and the files that they lie in."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from firstbad.tools.evidence import Source


class Asked:
    """A part of a run that is read step by step, and remembers which steps were asked for."""

    def __init__(self, sources: Callable[[int], Sequence[Source]]) -> None:
        """`sources` names the files of a step."""
        self.sources = sources
        self.asked: set[int] = set()
        """Steps that were asked for since the set was last emptied."""
        self._files: dict[frozenset[int], tuple[Source, ...]] = {}

    def files(self) -> tuple[Source, ...]:
        """The files of the steps that were asked for, by step; most tools ask for the same."""
        steps = frozenset(self.asked)
        if steps not in self._files:
            self._files[steps] = tuple(s for step in sorted(steps) for s in self.sources(step))
        return self._files[steps]
