"""A TRL output directory (ms-swift and Unsloth write the same files)."""

from __future__ import annotations

from pathlib import Path

from firstbad.tools.errors import UserError
from firstbad.tools.paths import Root
from firstbad.tools.readers.folder import read_folder
from firstbad.tools.run import Run

PREFIX = "trl"
LOOKS_FOR = "a folder with trainer_state.json, checkpoint-<step>/ or completions/*.parquet"
# With the prefix given, what is left of a crashed run is enough.
_REMAINS = (
    r"(checkpoint-\d+/)?trainer_state\.json|completions/[^/]*\d\.parquet|"
    r"(.*/)?events\.out\.tfevents\..*|(training_)?args\.(json|bin)|[^/]+\.(log|out)"
)


def recognises(path: Path) -> bool:
    """Whether a path looks like a TRL output directory."""
    return path.is_dir() and (
        (path / "trainer_state.json").is_file()
        or any(path.glob("checkpoint-*/trainer_state.json"))
        or any(path.glob("completions/completions_*.parquet"))
    )


def read(path: Path) -> Run:
    """Read a TRL output directory.

    Raises:
        UserError: no folder, or nothing in it that TRL writes.
    """
    if not path.is_dir():
        raise UserError(f"`{path}` is no folder; looked for {LOOKS_FOR}")
    root = Root(path)
    if not root.matching(_REMAINS):
        raise UserError(f"`{path}` is no TRL run; looked for {LOOKS_FOR}")
    return read_folder(root, f"{PREFIX}:{path}", LOOKS_FOR, framework="trl")
