"""What takes long to make of a file of this package, kept beside Python's own compiled modules.

It lies in the `__pycache__` of the file's folder, or where Python was told to keep such files, and
under the same rules: who can write there can change the modules as well, so that reading it asks
for no more trust than an import. Nothing of a run is ever kept here.
"""

from __future__ import annotations

import hashlib
import marshal
import os
import sys
from contextlib import suppress
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

from firstbad import __version__

_LATEST = f"{sys.version}|{__version__}"


def kept(source: Path, content: bytes) -> Any:
    """What was kept of a file of this content; None when nothing was."""
    with suppress(OSError, NotImplementedError, ValueError, EOFError, TypeError):
        data = _place(source).read_bytes()
        key = _key(content)
        if data.startswith(key):
            return marshal.loads(data[len(key) :])
    return None


def keep(source: Path, content: bytes, made: Any) -> None:
    """Keep what was made of a file of this content, for `kept`; silent where that can't be done.

    `made` is a code object, or consists of dictionaries, lists, texts, numbers and None.
    """
    if sys.dont_write_bytecode:
        return
    with suppress(OSError, NotImplementedError, ValueError):
        data = _key(content) + marshal.dumps(made)
        place = _place(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        half = place.with_name(f"{place.name}.{os.getpid()}")
        half.write_bytes(data)
        half.replace(place)  # as a whole, since others may read it now


def _place(source: Path) -> Path:
    folder = Path(cache_from_source(str(source))).parent
    return folder / f"{source.name}.{sys.implementation.cache_tag}"


def _key(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=32, salt=_salt()).digest()


def _salt() -> bytes:
    return hashlib.blake2b(_LATEST.encode(), digest_size=16).digest()
