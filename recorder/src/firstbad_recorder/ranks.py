"""Several processes of one training: each records on its own, and all keep the same steps."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator

from firstbad_recorder.folder import KEEPS, Folder

RANKS = "ranks"
SECONDS = 5.0
"""Between two looks at the other ranks: each looks at a file of every other one."""


class Ranks:
    """Where one process records, and what the others want kept.

    Rank 0 records in the folder itself, every other one in `ranks/0003` below it. Whoever has an
    alarm appends a line to `keeps.jsonl` of its own folder; the others look at the sizes of these
    files, so that nothing waits for anything.
    """

    def __init__(self, path: str | os.PathLike[str], rank: int) -> None:
        """`path`: of the whole record."""
        self._root = os.fspath(path)
        self.rank = int(rank)
        self.folder = self._root if rank == 0 else os.path.join(self._root, RANKS, f"{rank:04d}")
        self._read: dict[str, int] = {}
        """Bytes read of each other rank's file."""
        self._looked = -SECONDS
        """When, on the clock that never goes back."""
        self._held = 0
        """Steps that were held since then."""

    def tell(self, step: int, mark: str, why: str, folder: Folder) -> None:
        """Have the other ranks keep a step, and those around it where it is the first bad one."""
        folder.append(KEEPS, {"step": step, "mark": mark, "why": why, "rank": self.rank})

    def begin(self) -> None:
        """Pass over what earlier processes have asked for."""
        for file in self._others():
            self._read[file] = os.stat(file).st_size

    def is_time(self, n_held: int) -> bool:
        """Whether to look, asked at each step that is held.

        After some seconds, or where steps are so quick that what another rank wants kept could
        leave the ring before: so many are held at a time.
        """
        self._held += 1
        return time.monotonic() - self._looked >= SECONDS or 2 * self._held > n_held

    def news(self) -> Iterator[tuple[int, str, str]]:
        """Steps that other ranks have asked for since the last time, how to mark them, and why."""
        self._looked, self._held = time.monotonic(), 0
        for file in self._others():
            yield from self._lines(file)

    def _others(self) -> list[str]:
        """Files of the other ranks that are there."""
        folders = [self._root]
        try:
            with os.scandir(os.path.join(self._root, RANKS)) as entries:
                folders += sorted(entry.path for entry in entries)
        except OSError:
            if self.rank == 0:
                return []  # the usual case: one process
        files = [os.path.join(folder, KEEPS) for folder in folders if folder != self.folder]
        return [file for file in files if os.path.exists(file)]

    def _lines(self, file: str) -> Iterator[tuple[int, str, str]]:
        start, size = self._read.get(file, 0), os.stat(file).st_size
        if size <= start:
            return
        with open(file, "rb") as stream:
            stream.seek(start)
            data = stream.read(size - start)
        data = data[: data.rfind(b"\n") + 1]  # the last line may still be on its way
        self._read[file] = start + len(data)
        for line in data.splitlines():
            try:
                said = json.loads(line)
                why = f"rank {int(said['rank'])}: {str(said['why'])[:500]}"
                yield int(said["step"]), str(said["mark"]), why
            except (ValueError, KeyError, TypeError, OverflowError):
                continue
