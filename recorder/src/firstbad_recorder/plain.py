"""Values of a training loop as strict JSON: what JSON does not know becomes its text."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import datetime, timezone
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


def as_plain(value: object, depth: int = 20) -> object:
    """The JSON form of a setting; what JSON does not know becomes its text."""
    kind = type(value)
    if kind is str:
        return as_text(value)
    if kind is float or kind is int:  # most of what is written: before the slower questions
        return _scalar(value)
    try:
        if depth and isinstance(value, Mapping):
            return {as_text(key): as_plain(item, depth - 1) for key, item in value.items()}
        if depth and isinstance(value, (list, tuple)):
            return [as_plain(item, depth - 1) for item in value]
        return as_text(value) if isinstance(value, str) else _scalar(value)
    except Exception:  # even the question what it is may raise
        return as_text(value)


def _scalar(value: object) -> object:
    try:
        return as_number(value)
    except Exception:
        return as_text(value)


def as_line(record: Mapping[str, object]) -> bytes:
    """A JSON object and a line end; its own texts may be long, as those of a rollout are."""
    found: dict[str, object] = {}
    for key, value in record.items():
        text = type(value) is str
        found[as_text(key)] = str(value)[:MAX_ROLLOUT_TEXT] if text else as_plain(value)
    return json.dumps(found, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def as_text(value: object) -> str:
    """The text of a value, cut at MAX_TEXT characters."""
    try:
        return str(value)[:MAX_TEXT]
    except Exception:
        return f"<{type(value).__name__} without a text>"


def reason_of(error: BaseException) -> str:
    """Kind of error without paths and values, so that equal causes are counted together."""
    detail = error.strerror if isinstance(error, OSError) else None
    return f"{type(error).__name__}: {detail}" if detail else type(error).__name__


def now() -> str:
    """UTC, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
