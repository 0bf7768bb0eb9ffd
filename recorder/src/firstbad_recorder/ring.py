"""The last steps on disk, so that those around a failure are still there when it shows.

Each held step is a finished folder; it is deleted when it is too old, and only renamed when it is
kept. A process that is killed leaves them all.
"""

from __future__ import annotations

import json
import os

from firstbad_recorder.folder import RING, STEPS, Folder
from firstbad_recorder.plain import as_line

ENDED = "ring"
"""How steps are marked that were held when the process ended."""
_RANK = ("baseline", ENDED, "call", "after", "last_good", "first_bad")
"""Of several reasons to keep a step the last one counts."""
MOST_BASELINES = 16


class Ring:
    """Held steps of one folder."""

    def __init__(
        self, folder: Folder, most_steps: int, most_bytes: int, baseline_every: int
    ) -> None:
        """`baseline_every`: steps between those that are kept as healthy samples; 0: none.

        Where there are MOST_BASELINES, they grow rarer by half, so that a long run has no more.
        """
        self._folder = folder
        self._most_steps, self._most_bytes = most_steps, most_bytes
        self._every = baseline_every
        self._baselines: list[int] = []
        self._held: dict[int, int] = {}
        """Bytes of each held step, oldest first."""
        self._due: list[tuple[int, str, str]] = []
        """Steps that are still to come: at least that step, how to mark it, why."""
        self._marks: dict[int, str] = {}
        """How kept steps are marked."""

    def adopt(self) -> None:
        """Keep what an earlier process held when it was killed."""
        for name in self._folder.names(RING):
            self._held[int(name)] = 0
            self.keep(int(name), ENDED, "held when an earlier process ended")
        self._held.clear()

    def hold(self, step: int, files: dict[str, bytes]) -> None:
        """Hold a step, and keep it if it was waited for.

        Raises:
            OSError: it can't be written.
        """
        self._held.pop(step, None)
        if not self._folder.put(f"{RING}/{step:08d}", files):
            return
        self._held[step] = sum(map(len, files.values()))
        for due in [d for d in self._due if step >= d[0]]:
            self._due.remove(due)
            self.keep(step, due[1], due[2])
        if step in self._held and self.is_due(step):
            self._taken(step)
            self.keep(step, "baseline", "a sample of every " + str(self._every))
        while len(self._held) > self._most_steps or sum(self._held.values()) > self._most_bytes:
            oldest = next(iter(self._held))
            del self._held[oldest]
            self._folder.remove(f"{RING}/{oldest:08d}")

    def around(self, first_bad: int, why: str) -> None:
        """Keep the last step before a breach, its first one, and one after."""
        known = sorted({*self._held, *self._marks})
        before = [step for step in known if step < first_bad]
        if before:
            self.keep(before[-1], "last_good", why)
        bad = next((step for step in known if step >= first_bad), None)
        if bad is None:
            self._due += [(first_bad, "first_bad", why), (first_bad + 1, "after", why)]
            return
        self.keep(bad, "first_bad", why)
        after = next((step for step in known if step > bad), None)
        if after is None:
            self._due.append((bad + 1, "after", why))
        else:
            self.keep(after, "after", why)

    def keep(self, step: int, mark: str, why: str) -> None:
        """Keep a held step for good, or mark a kept one more strongly.

        Raises:
            OSError: it can't be renamed.
        """
        name, kept = f"{step:08d}", self._marks.get(step)
        if kept is not None and _RANK.index(kept) >= _RANK.index(mark):
            return
        if step in self._held:
            self._folder.move(f"{RING}/{name}", f"{STEPS}/{name}")
            del self._held[step]
        elif kept is None:
            return
        self._marks[step] = mark
        self._say(os.path.join(self._folder.path, STEPS, name, "step.json"), mark, why)

    def keep_all(self, mark: str, why: str) -> None:
        """Keep every held step."""
        for step in list(self._held):
            self.keep(step, mark, why)

    def keep_last(self, why: str) -> None:
        """Keep the newest held step, or the next one where none is held."""
        if self._held:
            self.keep(next(reversed(self._held)), "call", why)
        else:
            self._due.append((0, "call", why))

    def clear(self) -> None:
        """Delete what is held: the process ended in order."""
        for step in list(self._held):
            del self._held[step]
            self._folder.remove(f"{RING}/{step:08d}")

    def is_due(self, step: int) -> bool:
        """Whether a step would be kept as a healthy sample."""
        return bool(self._every) and (
            not self._baselines or step >= self._baselines[-1] + self._every
        )

    def _taken(self, step: int) -> None:
        """Count a healthy sample, and make them rarer where there are too many."""
        self._baselines.append(step)
        if len(self._baselines) > MOST_BASELINES:
            self._every *= 2
            for old in self._baselines[1::2]:
                if self._marks.get(old) == "baseline":
                    del self._marks[old]
                    self._folder.remove(f"{STEPS}/{old:08d}")
            self._baselines = self._baselines[::2]

    @staticmethod
    def _say(file: str, mark: str, why: str) -> None:
        with open(file, encoding="utf-8") as stream:
            about = json.load(stream)
        with open(file + ".tmp", "wb") as out:
            out.write(as_line({**about, "kept": mark, "why": why}))
        os.replace(file + ".tmp", file)
