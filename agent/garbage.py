"""Fewer searches for garbage in cycles while an investigation runs."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

NEW_OBJECTS = 20_000
"""Objects made, less those freed, from which on the newest are searched; Python's own: 700."""


@contextmanager
def rarely_collected() -> Iterator[None]:
    """Search for cycles more rarely.

    An investigation loads much that stays and leaves few cycles behind; at Python's own pace a
    tenth of its time goes into looking through all that is loaded.
    """
    before = gc.get_threshold()
    if not 0 < before[0] < NEW_OBJECTS:  # switched off, or rarer already
        yield
        return
    gc.set_threshold(NEW_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
