"""Which files a measurement was read from, seen from what a tool asks of a run."""

from __future__ import annotations

from collections.abc import Sequence

from firstbad.tools.evidence import Source
from firstbad.tools.run import Run

PARTS = frozenset(
    {"signals", "config", "rollouts", "captures", "events", "vocabulary", "flight", "judge", "code"}
)


class Watched(Run):
    """A run as one tool sees it: it remembers which of its parts were asked for.

    Rollouts and captures count by step, so that a tool that reads one dump names one dump.
    """

    def __init__(self, run: Run) -> None:
        """Everything is shared with `run`; one tool works on it at a time."""
        self.__dict__.update(run.__dict__)
        self._asked: set[str] = set()
        run.rollouts.asked.clear()
        run.evaluations.asked.clear()
        run.captured_rows.asked.clear()
        run.captures.asked.clear()
        run.flight.asked.clear()

    def __getattribute__(self, name: str) -> object:
        """The run's own attribute."""
        if name in PARTS:
            object.__getattribute__(self, "_asked").add(name)
        return object.__getattribute__(self, name)

    def files(self, more: Sequence[Source] = ()) -> tuple[Source, ...]:
        """Every file that was read so far for what was asked, each once, in a fixed order.

        `more` are files beside those.
        """
        asked = frozenset(self._asked)
        found = [*self.sources] if "signals" in asked else []
        found += self.config.sources if "config" in asked else ()
        found += self.rollouts.grouped_by if self.rollouts.asked else ()
        found += self.flight.run_sources if "flight" in asked else ()
        for part in (
            self.rollouts,
            self.evaluations,
            self.captured_rows,
            self.captures,
            self.flight,
        ):
            found += part.files()
        found += self.event_sources if "events" in asked else ()
        if "vocabulary" in asked and self.vocabulary is not None:
            found += self.vocabulary.sources
        if "judge" in asked and self.judge is not None:
            found.append(self.judge.source)
        if "code" in asked and self.code is not None:
            found += self.code.sources
        once: dict[str, Source] = {}
        for source in (*found, *more):
            once.setdefault(source.ref, source)  # as what it was first read as
        return tuple(once.values())
