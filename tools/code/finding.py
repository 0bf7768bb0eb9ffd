"""What a pattern finds, and what a pattern is."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from firstbad.tools.code.syntax import Module


@dataclass(frozen=True)
class Found:
    """One place in the code."""

    node: ast.expr
    cause: str
    """Of the closed list: what it would be if it were the code that ran."""
    why: str
    shown: str
    """A demonstration: numbers that the same arithmetic gives, computed here."""


@dataclass(frozen=True)
class Pattern:
    """A way of writing a loss that breaks numbers."""

    name: str
    find: Callable[[Module], Iterator[Found]]
