"""Wrapping a method of one object, so that what is recorded beside it can't break it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def wrap(owner: Any, name: str, made: Callable[[Callable[..., Any]], Callable[..., Any]]) -> bool:
    """Put `made(original)` in the place of a method of one object; False where it has none."""
    original = getattr(owner, name, None)
    if not callable(original):
        return False
    replaced = made(original)
    try:
        functools.update_wrapper(replaced, original)
    except (AttributeError, TypeError):  # a callable object without a name
        pass
    setattr(owner, name, replaced)
    return True
