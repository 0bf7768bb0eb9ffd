"""A console log alone: what is left when a run wrote nothing else."""

from __future__ import annotations

from pathlib import Path

from firstbad.tools.errors import UserError
from firstbad.tools.paths import File, Root
from firstbad.tools.readers.aliases import framework_of
from firstbad.tools.readers.console import read_console
from firstbad.tools.readers.folder import read_folder
from firstbad.tools.readers.naming import name_signals
from firstbad.tools.run import Run

PREFIX = "log"
LOOKS_FOR = (
    "a .log/.out/.txt file with metric lines such as `step 12/100 reward=0.5`, or its folder"
)
_SUFFIXES = (".log", ".out", ".err", ".txt")


def recognises(path: Path) -> bool:
    """Whether a file, or a file in a folder, has metric lines."""
    if path.is_file():
        return path.suffix.lower() in _SUFFIXES
    return path.is_dir() and bool(read_console(Root(path)).log)


def read(path: Path) -> Run:
    """Read a console log.

    Raises:
        UserError: no metric line in it.
    """
    ref = f"{PREFIX}:{path}"
    if path.is_dir():
        return read_folder(Root(path), ref, LOOKS_FOR)
    path = path.resolve()
    root = Root(path.parent)
    console = read_console(root, [File(path, path.name, path.stat().st_size)])
    if not console.log:
        raise UserError(f"`{path.name}` has no metric line; looked for {LOOKS_FOR}")
    framework = framework_of(console.log.series)
    signals, notes = name_signals(console.log, framework)
    run = Run(ref, root.path, framework, signals, events=tuple(console.events), notes=notes)
    run.sources, run.event_sources = tuple(console.sources), tuple(console.looked_through)
    root.notes_go_to(run)
    return run
