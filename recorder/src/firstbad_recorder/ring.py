"""The last steps on disk, so that those around a failure are still there when it shows.

Each held step is a finished folder. It is deleted when newer ones need its place, and renamed and
marked when it is kept. A process that is killed leaves all that are held.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping

from firstbad_recorder.folder import RING, STEPS, Folder, replace
from firstbad_recorder.plain import as_line, reason_of

ENDED = "ring"
"""How steps are marked that were held when the process ended."""
CALL, FIRST_BAD = "call", "first_bad"
_RANK = ("baseline", ENDED, CALL, "after", "last_good", FIRST_BAD)
"""Of several reasons to keep a step the last one counts."""
MOST_BASELINES = 16
_MOST_DUE = 32


class Ring:
    """Held steps of one folder."""

    def __init__(
        self, folder: Folder, most_steps: int, most_bytes: int, baseline_every: int
    ) -> None:
        """`most_steps`, `most_bytes`: held at a time; a step that is written comes on top so long.

        `baseline_every`: steps between those that are kept as healthy samples; 0: none.

        Where there are MOST_BASELINES, they grow rarer by half, so that a long run has no more.
        """
        self._folder = folder
        self._most_steps, self._most_bytes = most_steps, most_bytes
        self._every = baseline_every
        self._baselines: list[int] = []
        """Ascending."""
        self._passed: int | None = None
        """The last due step, where it could not be kept."""
        self._held: dict[int, int] = {}
        """Bytes of each held step, oldest first."""
        self._due: list[tuple[int, str, str]] = []
        """Steps that are still to come: at least that step, how to mark it, why."""
        self._kept: set[int] = set()
        """Steps of this process that were kept."""
        self._stale: set[int] = set()
        """Steps from before their numbers went back, which come again."""
        self.newest: int | None = None
        """The step that was held last."""

    @property
    def n_held(self) -> int:
        """Steps that are held now."""
        return len(self._held)

    def adopt(self) -> None:
        """Keep what an earlier process held when it was killed."""
        for name in self._folder.names(STEPS):
            if self._about(int(name)).get("kept") == "baseline":
                self._baselines.append(int(name))
        self._held = {int(name): 0 for name in self._folder.names(RING)}
        self.keep_all(ENDED, "held when an earlier process ended")
        self.clear()  # what was kept before as something stronger
        self._kept.clear()  # a step of that number may come again
        self._folder.tidy()

    def hold(self, step: int, files: Mapping[str, bytes]) -> None:
        """Hold a step, and keep it if it was waited for.

        Raises:
            OSError: it can't be written.
        """
        if not self._put(step, files):
            return
        self._held.pop(step, None)
        self._held[step] = sum(map(len, files.values()))
        if self.newest is not None and step < self.newest:
            self._stale |= {n for n in {*self._held, *self._kept} if n > step}
        self._stale.discard(step)
        self.newest = step
        for due in [d for d in self._due if step >= d[0]]:
            self._due.remove(due)
            _, mark, why = due
            self.keep(step, mark, why)
            if mark == FIRST_BAD:
                self._wait(step + 1, "after", why)
        if step in self._held and self.is_due(step):
            self.keep(step, "baseline", f"a sample of every {self._every}")
            self._taken(step)
        while len(self._held) > self._most_steps or sum(self._held.values()) > self._most_bytes:
            self._forget()
        if step not in self._held and step not in self._kept:
            self._folder.drop("a step is larger than the ring")

    def want(self, step: int, mark: str, why: str) -> None:
        """Keep the first step from this one on, now or when it comes.

        Of a first bad one, also the last one before it and the next one after it.
        """
        known = sorted({*self._held, *self._kept} - self._stale)
        found = next((n for n in known if n >= step), None)
        if mark == FIRST_BAD and (before := [n for n in known if n < step]):
            self.keep(before[-1], "last_good", why)
        if found is None:
            self._wait(step, mark, why)
            return
        self.keep(found, mark, why)
        if mark == FIRST_BAD:
            self.want(found + 1, "after", why)

    def keep(self, step: int, mark: str, why: str) -> None:
        """Keep a held step for good, or mark a kept one more strongly."""
        name, about, held = f"{step:08d}", self._about(step), step in self._held
        earlier = _strength(about.get("kept"))
        if earlier > _strength(mark) or not (held or step in self._kept):
            return
        try:
            if held:
                del self._held[step]
                self._folder.move(f"{RING}/{name}", f"{STEPS}/{name}")
                about = self._about(step)
            elif earlier == _strength(mark):
                return
            self._kept.add(step)
            about |= {"kept": mark, "why": why}
            replace(self._file(step), as_line(about))
        except OSError as error:  # the next one may be fine
            self._folder.drop(reason_of(error))

    def keep_all(self, mark: str, why: str) -> None:
        """Keep every held step."""
        for step in list(self._held):
            self.keep(step, mark, why)

    def keep_newest(self, most: int, mark: str, why: str) -> None:
        """Keep the newest held steps."""
        for step in sorted(self._held)[-most:]:
            self.keep(step, mark, why)

    def clear(self) -> None:
        """Delete what is held: the process ended in order."""
        while self._held:
            self._forget()

    def _put(self, step: int, files: Mapping[str, bytes]) -> bool:
        """Write a step; where there is no room, older ones make some."""
        while True:
            try:
                return self._folder.put(f"{RING}/{step:08d}", files)
            except OSError as error:
                if error.errno != errno.ENOSPC or not self._held:
                    raise
                self._forget()

    def _forget(self) -> None:
        oldest = next(iter(self._held))
        del self._held[oldest]
        self._folder.remove(f"{RING}/{oldest:08d}")

    def _wait(self, step: int, mark: str, why: str) -> None:
        if len(self._due) < _MOST_DUE:
            self._due.append((step, mark, why))
        else:
            self._folder.drop("more steps are waited for than can be")

    def is_due(self, step: int) -> bool:
        """Whether a step would be kept as a healthy sample."""
        tried = self._baselines if self._passed is None else [*self._baselines, self._passed]
        last = max((n for n in tried if n <= step), default=None)
        return bool(self._every) and not (last is not None and step < last + self._every)

    def passed(self, step: int) -> None:
        """A step is over: one that was due and could not be kept is not tried again at once.

        What is measured more closely in a due step takes time, which would be lost at every step.
        """
        if self.is_due(step):
            self._passed = step

    def _taken(self, step: int) -> None:
        """Count a healthy sample; where there are too many, they become rarer by half."""
        self._baselines = sorted([*self._baselines, step])
        if len(self._baselines) > MOST_BASELINES:
            self._every *= 2
            for old in self._baselines[1::2]:
                if self._about(old).get("kept") == "baseline":
                    self._kept.discard(old)
                    self._folder.remove(f"{STEPS}/{old:08d}")
            self._baselines = self._baselines[::2]

    def _file(self, step: int) -> str:
        return os.path.join(self._folder.path, STEPS, f"{step:08d}", "step.json")

    def _about(self, step: int) -> dict[str, object]:
        """What `step.json` of a kept step says; empty where it can't be read."""
        try:
            with open(self._file(step), encoding="utf-8") as stream:
                about = json.load(stream)
        except (OSError, ValueError):
            return {}
        return about if isinstance(about, dict) else {}


def _strength(mark: object) -> int:
    return _RANK.index(mark) if mark in _RANK else -1
