"""False plurals in a memo, such as "1 steps"."""

from __future__ import annotations

import re

_ONE = re.compile(r"(?<![\w.,/%`:-])(?<!step )(?<!layer )(?<!steps )1 (?:[a-z-]+ )?([a-z-]+s)\b")
_NO_PLURALS = {"across", "explains", "has", "is", "its", "leaps", "less", "this", "times", "was"}
_QUOTED = re.compile(r"```.*?```|^\|.*?$", re.S | re.M)
"""Rollouts and tables: what a run says."""


def false_plurals(memo: str) -> list[str]:
    """Counts of one with a noun in the plural."""
    return [m[0] for m in _ONE.finditer(_QUOTED.sub("", memo)) if m[1] not in _NO_PLURALS]
