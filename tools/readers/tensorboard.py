"""A folder of TensorBoard event files."""

from __future__ import annotations

import re
from pathlib import Path

from firstbad.tools.errors import UserError
from firstbad.tools.paths import Root
from firstbad.tools.readers.board import NAME
from firstbad.tools.readers.folder import read_folder
from firstbad.tools.run import Run

PREFIX = "tb"
LOOKS_FOR = "a folder with events.out.tfevents.* files"


def recognises(path: Path) -> bool:
    """Whether a folder has an event file, not too deep."""
    return path.is_dir() and any(re.fullmatch(NAME, file.name) for file in Root(path).files)


def read(path: Path) -> Run:
    """Read a folder of event files, and whatever else lies in it.

    Raises:
        UserError: no folder, or no event file in it.
    """
    if not recognises(path):
        raise UserError(f"`{path}` was not recognised; looked for {LOOKS_FOR}")
    return read_folder(Root(path), f"{PREFIX}:{path}", LOOKS_FOR)
