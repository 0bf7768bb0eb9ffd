"""Readers: from the files that frameworks write to a `Run`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from firstbad.tools.errors import UserError
from firstbad.tools.readers import printed, recorder, table, tensorboard, trl
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
    Reader(recorder.PREFIX, recorder.LOOKS_FOR, recorder.recognises, recorder.read),
    Reader(*table.reader("jsonl")),
    Reader(*table.reader("csv")),
    Reader(*table.reader("parquet")),
    Reader(tensorboard.PREFIX, tensorboard.LOOKS_FOR, tensorboard.recognises, tensorboard.read),
    Reader(printed.PREFIX, printed.LOOKS_FOR, printed.recognises, printed.read),
)


_SYSTEM = ("/proc/", "/sys/")
"""Files that are no files: endless ones among them."""


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
        _refuse_several(path)
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
    """Runs in a folder, by relative path, up to three levels down and 2,000 entries in all."""
    found: list[str] = []
    level = [path] if path.is_dir() else []
    room = 2000
    for _ in range(3):
        below = []
        for folder in level:
            children = _folders(folder)[:room]
            room -= len(children)
            below += children
        runs = [child for child in below if _recognised(child)]
        found += [str(run.relative_to(path)) for run in runs]
        level = [child for child in below if child not in runs]
    return sorted(found)


def _folders(folder: Path) -> list[Path]:
    """Folders in a folder, none where it may not be read."""
    try:
        children = sorted(folder.iterdir())
        return [child for child in children if not child.is_symlink() and child.is_dir()]
    except OSError:
        return []


def _recognised(path: Path) -> bool:
    try:
        return trl.recognises(path)
    except OSError:
        return False


def _existing(text: str) -> Path:
    path = Path(text).expanduser()
    if any(c < " " or c == "\x7f" for c in text):  # bytes that are no UTF-8 do no harm
        raise UserError(f"{text!a} is no name in one line: give it another")
    try:
        if path.exists():
            if f"{path.resolve()}/".startswith(_SYSTEM):
                raise UserError(f"`{text}` is the system's own: no run lies there")
            if path.is_dir() or path.is_file():
                return path
            raise UserError(f"`{text}` is neither a file nor a folder")
    except (OSError, ValueError):
        pass
    raise UserError(f"`{text}` does not exist")
