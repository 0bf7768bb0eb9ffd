"""Wrapping a method of a trainer, and what its caller gave it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from firstbad_recorder.wrap import wrap

__all__ = ["named", "wrap"]


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
