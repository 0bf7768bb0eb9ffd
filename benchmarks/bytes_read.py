"""Bytes that an investigation reads of each kind of file, beside what the files hold.

    python benchmarks/bytes_read.py RUN [--json]

Counted where the bytes come in: at Python's files and at Arrow's. What is read once more for the
digest that the evidence names is counted apart.
"""

from __future__ import annotations

import argparse
import builtins
import io
import json
import os
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

COUNTED: dict[str, list[int]] = defaultdict(lambda: [0, 0])
"""Kind -> bytes read to be used, bytes read to be digested."""
DIGESTING = [False]


class Counted(io.FileIO):
    """A file that counts what is read from it."""

    kind = ""

    def _count(self, n: int | None) -> None:
        COUNTED[self.kind][DIGESTING[0]] += n or 0

    def readinto(self, buffer: Any) -> Any:
        """As usual."""
        n = super().readinto(buffer)
        self._count(n)
        return n

    def read(self, size: int | None = -1) -> Any:
        """As usual."""
        data = super().read(size)
        self._count(len(data or b""))
        return data

    def readall(self) -> Any:
        """As usual."""
        data = super().readall()
        self._count(len(data or b""))
        return data


def kind_of(path: Path) -> str:
    """What a file is, by its suffix or the start of its name."""
    return "tfevents" if "tfevents" in path.name else path.suffix.lower() or path.name


def watch(root: Path) -> None:
    """Count from now on what is read below a folder."""
    import pyarrow as pa

    from firstbad.tools import paths

    real, of_a_file, inside = builtins.open, paths.digest_file, f"{root}{os.sep}"

    def opened(file: Any, mode: str = "r", buffering: int = -1, *rest: Any, **more: Any) -> Any:
        name = os.fspath(file) if isinstance(file, (str, os.PathLike)) else ""
        if mode != "rb" or not str(name).startswith(inside):
            return real(file, mode, buffering, *rest, **more)
        raw = Counted(name, "rb")
        raw.kind = kind_of(Path(str(name)))
        return raw if buffering == 0 else io.BufferedReader(raw)

    def digested(path: Path) -> str:
        DIGESTING[0] = True
        try:
            return of_a_file(path)
        finally:
            DIGESTING[0] = False

    builtins.open = io.open = opened  # type: ignore[assignment]
    pa.OSFile = lambda path: pa.PythonFile(opened(path, "rb"), "r")
    paths.digest_file = digested


def measure(root: Path) -> dict[str, dict[str, int]]:
    """Files, bytes held, read and digested, by kind."""
    from firstbad.agent.investigate import investigate

    held: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for path in root.rglob("*"):
        if path.is_file():
            held[kind_of(path)][0] += 1
            held[kind_of(path)][1] += path.stat().st_size
    watch(root)
    with tempfile.TemporaryDirectory() as out:
        investigate(str(root), out=Path(out))
    return {
        kind: {"files": n, "held": size, "read": COUNTED[kind][0], "digested": COUNTED[kind][1]}
        for kind, (n, size) in sorted(held.items())
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = measure(arguments.run.resolve())
    if arguments.json:
        print(json.dumps(found))
        return
    print(f"{'kind':14s} {'files':>6s} {'held':>12s} {'read':>12s} {'digested':>12s}  bytes")
    for kind, n in found.items():
        print(
            f"{kind:14s} {n['files']:6d} {n['held']:12,d} {n['read']:12,d} {n['digested']:12,d}"
            f"  {n['read'] / max(1, n['held']):.2f} of what is held"
        )


if __name__ == "__main__":
    main()
