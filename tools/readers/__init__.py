"""Readers: from the files that frameworks write to a `Run`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from firstbad.tools.errors import UserError
from firstbad.tools.readers import printed, table, tensorboard, trl
from firstbad.tools.run import Run


@dataclass(frozen=True)
class Reader:
    """One source: how it is named, recognised and read."""

    prefix: str
    looks_for: str
    recognises: Callable[[Path], bool]
    read: Callable[[Path], Run]


# One line per source; without a prefix the first that recognises the path reads it.
READERS = (
    Reader(trl.PREFIX, trl.LOOKS_FOR, trl.recognises, trl.read),
    Reader(*table.reader("jsonl")),
    Reader(*table.reader("csv")),
    Reader(*table.reader("parquet")),
    Reader(tensorboard.PREFIX, tensorboard.LOOKS_FOR, tensorboard.recognises, tensorboard.read),
    Reader(printed.PREFIX, printed.LOOKS_FOR, printed.recognises, printed.read),
)


def open_run(ref: str) -> Run:
    """Read a run from `PREFIX:PATH`, or from a path whose reader is recognised.

    Raises:
        UserError: nothing there, or nothing that a reader knows; the text says what was looked for.
    """
    by_prefix = {reader.prefix: reader for reader in READERS}
    named = re.match(r"([a-z][a-z0-9_+-]+):(?!//)(.+)", ref, re.S)
    if named and not Path(ref).exists():
        if named[1] not in by_prefix:
            raise UserError(f"no reader `{named[1]}`; there are: {', '.join(by_prefix)}")
        path = _existing(named[2])
        return by_prefix[named[1]].read(path)
    path = _existing(ref)
    try:
        _refuse_several(path)
        reader = next((reader for reader in READERS if reader.recognises(path)), None)
    except OSError as error:
        raise UserError(f"`{ref}` cannot be read: {error.strerror}") from None
    if reader is not None:
        return reader.read(path)
    if inside := _runs_inside(path):
        raise UserError(f"`{path}` is no run, but holds one: name `{path / inside[0]}`")
    looked_for = "; ".join(f"{reader.prefix}: {reader.looks_for}" for reader in READERS)
    raise UserError(f"`{ref}` is not a run that can be read; looked for {looked_for}")


def _refuse_several(path: Path) -> None:
    """Two runs read as one would make a fault of their difference."""
    if not path.is_dir() or trl.recognises(path):
        return
    inside = _runs_inside(path)
    if len(inside) > 1:
        names = ", ".join(inside[:6]) + (", ..." if len(inside) > 6 else "")
        raise UserError(f"`{path}` holds {len(inside)} runs: {names}; name one of them")


def _runs_inside(path: Path) -> list[str]:
    """Runs in a folder, by relative path, up to three levels down and 2,000 folders in all."""
    found: list[str] = []
    level = [path] if path.is_dir() else []
    looked = 0
    for _ in range(3):
        below: list[Path] = []
        for folder in level:
            for child in sorted(folder.iterdir()):
                looked += 1
                if looked > 2000 or child.is_symlink() or not child.is_dir():
                    continue
                below.append(child)
        found += [str(p.relative_to(path)) for p in below if trl.recognises(p)]
        level = [p for p in below if not trl.recognises(p)]
    return sorted(found)


def _existing(text: str) -> Path:
    path = Path(text).expanduser()
    try:
        if path.exists():
            return path
    except (OSError, ValueError):
        pass
    raise UserError(f"`{text}` does not exist")
