"""Where firstbad keeps what it writes: `FIRSTBAD_HOME`, else the user's data folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def home() -> Path:
    """The folder of incidents and logs; it need not exist yet."""
    named = os.environ.get("FIRSTBAD_HOME")
    if named:
        return Path(named).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "firstbad"
    data = os.environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local" / "share") / "firstbad"


def incidents_folder(out: Path | None = None) -> Path:
    """The folder whose children are incident folders, as an absolute path: `out` where given."""
    return (out.expanduser() if out is not None else home() / "incidents").absolute()
