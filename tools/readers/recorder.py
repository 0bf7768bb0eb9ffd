"""A folder of firstbad-recorder, format version 1."""

from __future__ import annotations

from pathlib import Path

from firstbad.tools.errors import UserError
from firstbad.tools.paths import Root
from firstbad.tools.readers.folder import read_folder
from firstbad.tools.readers.jsonish import parse
from firstbad.tools.readers.record import is_record
from firstbad.tools.run import Run

PREFIX = "rec"
LOOKS_FOR = "a folder of firstbad-recorder, with its run.json and metrics.jsonl"
VERSION = 1
_MAX_BYTES = 16 * 2**20


def recognises(path: Path) -> bool:
    """Whether a path is a folder that the recorder wrote."""
    return path.is_dir() and is_record(_run_file(path))


def read(path: Path) -> Run:
    """Read a record.

    Raises:
        UserError: no record, one of another version, or nothing in it.
    """
    if not path.is_dir() or not is_record(said := _run_file(path)):
        raise UserError(f"`{path}` is no record; looked for {LOOKS_FOR}")
    version = said.get("schema_version") if isinstance(said, dict) else None
    if version != VERSION:
        raise UserError(f"`{path}`: expected a record of version {VERSION}, found {version}")
    return read_folder(Root(path), f"{PREFIX}:{path}", LOOKS_FOR)


def _run_file(path: Path) -> object:
    try:
        return parse(Root(path).read("run.json", _MAX_BYTES), "run.json")
    except UserError:
        return None
