"""Which finish reasons say that generation cut a row."""

from __future__ import annotations

CUT = ("length", "max_tokens", "max_length", "truncated")


def is_cut(reason: str | None) -> bool:
    """Whether this reason says so; None says nothing."""
    return reason is not None and reason.lower() in CUT
