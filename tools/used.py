"""Which files a measurement was read from, seen from what a tool asks of a run."""

from __future__ import annotations

from firstbad.tools.evidence import Source
from firstbad.tools.run import Run

PARTS = frozenset(
    {"signals", "config", "rollouts", "captures", "events", "vocabulary", "flight", "judge"}
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
        run.captures.asked.clear()
        run.flight.asked.clear()

    def __getattribute__(self, name: str) -> object:
        """The run's own attribute."""
        if name in PARTS:
            object.__getattribute__(self, "_asked").add(name)
        return object.__getattribute__(self, name)

    def files(self) -> tuple[Source, ...]:
        """Every file that was read so far for what was asked, each once, in a fixed order."""
        asked = frozenset(self._asked)
        found = [*self.sources] if "signals" in asked else []
        found += self.config.sources if "config" in asked else ()
        found += self.rollouts.grouped_by if self.rollouts.asked else ()
        found += self.flight.run_sources if "flight" in asked else ()
        for part in (self.rollouts, self.evaluations, self.captures, self.flight):
            for step in sorted(part.asked):
                found += part.sources(step)
        found += self.event_sources if "events" in asked else ()
        if "vocabulary" in asked and self.vocabulary is not None:
            found += self.vocabulary.sources
        if "judge" in asked and self.judge is not None:
            found.append(self.judge.source)
        return unique(found)


def unique(sources: list[Source]) -> tuple[Source, ...]:
    """Each file once, as what it was first read as."""
    found: dict[str, Source] = {}
    for source in sources:
        found.setdefault(source.ref, source)
    return tuple(found.values())
