"""Putting a function around another one, so that what is recorded beside it can't break it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_MARK = "firstbad_wrapped"


def wrap(
    owner: Any,
    name: str,
    made: Callable[[Callable[..., Any]], Callable[..., Any]],
    *,
    once: bool = False,
) -> bool:
    """Put `made(original)` in the place of a function of an object, a class or a module.

    What other libraries wrote on the function stays on it.

    Args:
        owner: Whose function it is.
        name: Of the function.
        made: Makes the new one of the original.
        once: Leaves alone what was wrapped before.

    Returns:
        False where there is none of that name, or it was wrapped before.
    """
    original = getattr(owner, name, None)
    if not callable(original) or (once and hasattr(original, _MARK)):
        return False
    replaced = made(original)
    with suppress(AttributeError, TypeError):  # a callable object may have no name
        functools.update_wrapper(replaced, original)
    if once:
        setattr(replaced, _MARK, True)
    setattr(owner, name, replaced)
    return True
