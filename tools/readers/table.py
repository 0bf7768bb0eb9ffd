"""CSV, JSON lines and Parquet: a file of metrics or rollouts, or a folder of them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from firstbad.tools.errors import UserError
from firstbad.tools.paths import File, Root
from firstbad.tools.readers.aliases import UNKNOWN, framework_of
from firstbad.tools.readers.folder import read_folder
from firstbad.tools.readers.naming import name_signals
from firstbad.tools.readers.rollout_rows import holds_rollouts
from firstbad.tools.readers.rows import SUFFIXES, first_rows
from firstbad.tools.readers.shelf import shelve
from firstbad.tools.readers.tables import find_tables, metrics_of
from firstbad.tools.run import Run, Signals

LOOKS_FOR = {
    prefix: f"a {'/'.join(suffixes)} file, or a folder of them, with a row a step or completions"
    for prefix, suffixes in SUFFIXES.items()
}


def recognises(prefix: str, path: Path) -> bool:
    """Whether a path is a file of this kind, or a folder with one that holds a run."""
    if path.is_file():
        return path.suffix.lower() in SUFFIXES[prefix]
    return path.is_dir() and bool(find_tables(Root(path), SUFFIXES[prefix]))


def read(prefix: str, path: Path) -> Run:
    """Read a table file or a folder of table files.

    Raises:
        UserError: nothing there that can be read.
    """
    ref = f"{prefix}:{path}"
    if path.is_dir():
        root = Root(path)
        if not find_tables(root, SUFFIXES[prefix]):
            told = "".join(f"; {note.text}" for note in root.notes[:3])
            raise UserError(f"`{path}` holds no run; looked for {LOOKS_FOR[prefix]}{told}")
        return read_folder(Root(path), ref, LOOKS_FOR[prefix])
    return _read_file(ref, path.resolve(), prefix)


def _read_file(ref: str, path: Path, prefix: str) -> Run:
    """A single file; its neighbours were not asked for and are not read."""
    if path.suffix.lower() not in SUFFIXES[prefix]:
        raise UserError(f"`{path.name}` is not {' or '.join(SUFFIXES[prefix])}")
    root = Root(path.parent)
    try:
        file = File(path, path.name, path.stat().st_size)
    except OSError:
        raise UserError(f"`{path}` cannot be read") from None
    if file.size == 0:
        raise UserError(f"`{path.name}` is empty")
    if holds_rollouts(first_rows(root, file)):
        rollouts = shelve(root, [file], None)
        if not rollouts:
            told = "".join(f"; {note.text}" for note in root.notes)
            raise UserError(f"`{path.name}` holds no rollouts{told}")
        run = Run(ref, root.path, UNKNOWN, Signals(), rollouts=rollouts)
    else:
        metrics = metrics_of(root, file)
        framework = framework_of(metrics.log.series)
        signals, notes = name_signals(metrics.log, framework)
        source = root.source(file, "metrics")
        run = Run(ref, root.path, framework, signals, events=tuple(metrics.events))
        run.sources = run.event_sources = (source,)
        run.notes = notes
    root.notes_go_to(run)
    return run


def reader(prefix: str) -> tuple[str, str, partial[bool], partial[Run]]:
    """Prefix, what is looked for, and the two functions of one kind of file."""
    return prefix, LOOKS_FOR[prefix], partial(recognises, prefix), partial(read, prefix)
