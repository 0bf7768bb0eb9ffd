"""Wrapping a method of one object, so that what is recorded beside it can't break it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
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


def named(
    names: Sequence[str], original: Callable[..., Any], args: Sequence[Any], more: Mapping[str, Any]
) -> dict[str, Any]:
    """First arguments of a call by the names that TRL gives them.

    A subclass may call them otherwise, or take `*args, **kwargs`: its place tells which one it is.
    """
    own = [
        one.name
        for one in inspect.signature(original).parameters.values()
        if one.kind is one.POSITIONAL_OR_KEYWORD
    ]
    renamed = dict(zip(own, names))
    given = {k if k in names else renamed.get(k, k): v for k, v in more.items()}
    return {**dict(zip(names, args)), **given}
