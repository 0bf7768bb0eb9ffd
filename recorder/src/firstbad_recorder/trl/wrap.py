"""Wrapping a method of one object, so that what is recorded beside it can't break it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Any


def wrap(owner: Any, name: str, made: Callable[[Callable[..., Any]], Callable[..., Any]]) -> bool:
    """Put `made(original)` in the place of a method of one object; False where it has none."""
    original = getattr(owner, name, None)
    if not callable(original):
        return False
    replaced = made(original)
    with suppress(AttributeError, TypeError):  # a callable object may have no name
        functools.update_wrapper(replaced, original)
    setattr(owner, name, replaced)
    return True
