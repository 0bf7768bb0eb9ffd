"""Values of a training loop as strict JSON: what JSON does not know becomes its text."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from functools import partial
from typing import Any

MAX_TEXT = 10_000
MAX_ROLLOUT_TEXT = 1_000_000


def as_number(value: Any) -> object:
    """The JSON form of one number.

    Raises:
        TypeError: it is not a number, nor an object whose `.item()` gives one.
        OverflowError: it is an integer of more than 64 bits.
    """
    if not (value is None or isinstance(value, (int, float))):
        value = value.item()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        if value.bit_length() > 63:
            raise OverflowError
        return int(value)
    if not isinstance(value, float):
        raise TypeError
    if math.isfinite(value):
        return float(value)
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def as_text(value: object, most: int = MAX_TEXT, cut: Callable[[str], None] | None = None) -> str:
    """The text of a value, of so many characters at most; `cut` is told where it had more."""
    try:
        text = str(value)
    except Exception:
        return f"<{type(value).__name__} without a text>"
    if cut is not None and len(text) > most:
        cut(f"a text is cut at {most:,} characters")
    return text[:most]


def as_plain(value: object, depth: int = 20, text: Callable[[object], str] = as_text) -> object:
    """The JSON form of a setting; what JSON does not know becomes its `text`."""
    kind = type(value)
    if kind is str:
        return text(value)
    if kind is float or kind is int:  # most of what is written: before the slower questions
        return _scalar(value, text)
    try:
        if depth and isinstance(value, Mapping):
            return {text(key): as_plain(item, depth - 1, text) for key, item in value.items()}
        if depth and isinstance(value, (list, tuple)):
            return [as_plain(item, depth - 1, text) for item in value]
        return text(value) if isinstance(value, str) else _scalar(value, text)
    except Exception:  # even the question what it is may raise
        return text(value)


def _scalar(value: object, text: Callable[[object], str]) -> object:
    try:
        return as_number(value)
    except Exception:
        return text(value)


def as_line(record: Mapping[str, object], cut: Callable[[str], None] | None = None) -> bytes:
    """A JSON object and a line end; its texts may be long, as those of a rollout are.

    Those of more than MAX_ROLLOUT_TEXT characters are cut, and `cut` is told.
    """
    text = partial(as_text, most=MAX_ROLLOUT_TEXT, cut=cut)
    found = {text(key): as_plain(value, text=text) for key, value in record.items()}
    return json.dumps(found, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def reason_of(error: BaseException) -> str:
    """Kind of error without paths and values, so that equal causes are counted together."""
    detail = error.strerror if isinstance(error, OSError) else None
    return f"{type(error).__name__}: {detail}" if detail else type(error).__name__


def now() -> str:
    """UTC, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
