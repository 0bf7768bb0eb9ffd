"""Write files whole or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from firstbad.tools.errors import UserError


def write_atomic(path: Path, text: str, *, flush: bool = True) -> None:
    """Write a file so that it is never seen half written, whenever the process is killed.

    `flush`: it lies on the disk before this returns, for when the power fails. Without, it may be
    empty then.

    Raises:
        UserError: no room, or no right to.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("w", encoding="utf-8", newline="") as file:
            file.write(text)
            if flush:
                file.flush()
                os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise UserError(f"`{path}` can't be written: {reason_of(error)}") from error


def reason_of(error: OSError) -> str:
    """Why the system refused, in words."""
    return (error.strerror or type(error).__name__).lower()
