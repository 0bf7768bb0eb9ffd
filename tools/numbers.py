"""One way to write a number in a sentence: in summaries, claims and memos alike."""

from __future__ import annotations

import math
import re

from firstbad.tools.evidence import Scalar

MISSING = "–"
"""Shown where a value could not be had."""


def number(value: Scalar, *, digits: int = 4, step: bool = False) -> str:
    """A number in words: ints whole, floats to `digits` significant ones.

    Args:
        value: what was measured; None is shown as a dash, text is returned as it is.
        digits: significant digits of a float.
        step: True for a step, which is a name rather than an amount and takes no separators.
    """
    if value is None:
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if isinstance(value, int) or step:
        whole = round(value)
        return str(whole) if step or abs(whole) < 1000 else f"{whole:,}"
    return _float(value, digits)


def percent(share: float | None) -> str:
    """A share as whole percent; no more digits than it takes to be told from 0 and from 100 %."""
    if share is None:
        return MISSING
    value = 100 * share
    for decimals in range(4):
        text = f"{value:,.{decimals}f}"
        if float(text.replace(",", "")) not in (0, 100) or value in (0, 100):
            return f"{text} %"
    return f"below {10.0**-decimals:g} %" if value < 50 else f"{value:.6g} %"


def is_step(name: str) -> bool:
    """Whether a measure or column of this name holds steps."""
    words = re.split(r"[^a-z]+", name.lower())
    return ("step" in words or words[:1] == ["steps"]) and "time" not in words


def _float(value: float, digits: int) -> str:
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    size = math.floor(math.log10(abs(value)))
    if size < -4 or size >= 9:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        return f"{_trim(mantissa)}e{int(exponent)}"
    text = f"{value:,.{max(digits - 1 - size, 0)}f}"
    return _trim(text) if abs(value) >= 1000 else _trim(text.replace(",", ""))


def _trim(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text
