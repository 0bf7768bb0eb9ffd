"""Several processes of one training: each records on its own, and all keep the same steps."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

from firstbad_recorder.folder import KEEPS, Folder

RANKS = "ranks"


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
        self._first = True

    def tell(self, first: int, why: str, folder: Folder) -> None:
        """Have the other ranks keep the steps around one."""
        folder.append(KEEPS, {"first": first, "why": why, "rank": self.rank})

    def news(self) -> Iterator[tuple[int, str]]:
        """Steps that other ranks have asked for since the last time, and why."""
        others = [self._root]
        try:
            ranks = os.path.join(self._root, RANKS)
            others += [entry.path for entry in os.scandir(ranks) if entry.is_dir()]
        except OSError:
            if self.rank == 0:
                return  # the usual case: one process
        for folder in sorted(others):
            if folder != self.folder:
                yield from self._lines(os.path.join(folder, KEEPS))
        self._first = False

    def _lines(self, file: str) -> Iterator[tuple[int, str]]:
        try:
            size = os.stat(file).st_size
        except OSError:
            return
        start = self._read.get(file, size if self._first else 0)
        self._read[file] = size
        if size <= start:
            return
        with open(file, "rb") as stream:
            stream.seek(start)
            data = stream.read(size - start)
        for line in data.splitlines():
            try:
                said = json.loads(line)
                yield int(said["first"]), f"rank {int(said['rank'])}: {str(said['why'])[:500]}"
            except (ValueError, KeyError, TypeError):
                continue
