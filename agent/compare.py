"""Find where two JSON values, or two texts, part."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import SequenceMatcher
from typing import Any

SHOWN = 300
"""Characters of a differing line that are shown."""
LINES = 50
"""Differing places of a text that are listed."""


def compare_json(stored: Any, recomputed: Any, place: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Path, stored and recomputed value of each leaf that differs; exactly."""
    if isinstance(stored, dict) and isinstance(recomputed, dict):
        for key in dict.fromkeys([*stored, *recomputed]):
            inner = f"{place}.{key}" if place else str(key)
            if key not in stored or key not in recomputed:
                yield inner, stored.get(key, "absent"), recomputed.get(key, "absent")
            else:
                yield from compare_json(stored[key], recomputed[key], inner)
    elif isinstance(stored, list) and isinstance(recomputed, list):
        if len(stored) != len(recomputed):
            yield f"{place} (length)", len(stored), len(recomputed)
        for i, (old, new) in enumerate(zip(stored, recomputed, strict=False)):
            yield from compare_json(old, new, f"{place}[{i}]")
    elif isinstance(stored, bool) != isinstance(recomputed, bool) or stored != recomputed:
        yield place, stored, recomputed


def compare_lines(stored: str, recomputed: str) -> Iterator[tuple[int, str, str]]:
    """Line number, stored and recomputed text of each block of lines that differs."""
    if stored == recomputed:
        return
    old, new = stored.splitlines(keepends=True), recomputed.splitlines(keepends=True)
    blocks = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    changed = [
        (i, "".join(old[i:j]), "".join(new[k:m])) for tag, i, j, k, m in blocks if tag != "equal"
    ]
    for line, before, after in changed[:LINES]:
        yield line + 1, *_around(before, after)


def _around(old: str, new: str) -> tuple[str, str]:
    """Both texts from shortly before the place where they part."""
    same = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), 0)
    start = max(0, same - SHOWN // 3)
    return old[start : start + SHOWN], new[start : start + SHOWN]


def count_numbers(value: Any) -> int:
    """How many numbers a JSON value holds."""
    if isinstance(value, dict):
        return sum(count_numbers(v) for v in value.values())
    if isinstance(value, list):
        return sum(count_numbers(v) for v in value)
    return int(isinstance(value, (int, float)) and not isinstance(value, bool))
