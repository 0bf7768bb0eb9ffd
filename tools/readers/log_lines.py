"""What one line of a console log is: metrics, a warning, an error, part of a traceback."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

from firstbad.tools.readers.log import number

# Lines may be made to be slow: nothing here looks far ahead from more than a few places.
_STEP = re.compile(r"\b(?:global[ _])?step\s*(?:[:=#]\s*)?(\d{1,15})(?:\s*/\s*(\d+))?\b", re.I)
# What may stand before `step N` in a metric line: times, levels, process tags. No other words.
_BEFORE = re.compile(
    r"\([^)]{0,200}\)|\[[^\]]{0,200}\]|\d[\d:.,TZ+/-]*|\b(?:INFO|global|train(?:ing)?|epoch)\b|"
    r"[\w.]{1,200}:(?=\s)",
    re.I,
)
_NUMBER = r"[-+]?(?:nan|inf(?:inity)?|(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)"
_PAIR = re.compile(
    rf"(?<![\w/.@-])([A-Za-z_][\w/.@()-]{{0,120}})['\"]?\s*[:=]\s*['\"]?({_NUMBER})(?![\w.:])", re.I
)
_DICT_PAIR = re.compile(r"['\"]([^'\"]{1,200})['\"]: ['\"]?([-+]?[\w.]+(?:[eE][-+]?\d+)?)['\"]?")
_ERROR = re.compile(
    r"\b(?:ERROR|CRITICAL|FATAL)\b|^\s*(?:\w+\.)*\w*(?:Error|Exception)\b:|"
    r"CUDA out of memory|Segmentation fault|core dumped|\bNCCL (?:timeout|error)\b|^Killed\b"
)
_WARNING = re.compile(r"\bWARN(?:ING)?\b|\b\w*Warning:")
_NAMED = re.compile(
    r"(?:rank \d+: )?(?:[A-Za-z_]\w*\.)*\w*"
    r"(?:Error|Exception|Interrupt|Exit|Timeout|Expired|Failure|StopIteration)(?::|$| \()"
)
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(: .*|:|)$")
TRACEBACK = "Traceback (most recent call last)"


def stepped_metrics(line: str) -> tuple[int, dict[str, str]] | None:
    """Step and values of a metric line; None for other lines, even if they name a step."""
    match = _STEP.search(line)
    if match is None:
        return None
    before, values = line[: match.start()], _values(line[match.end() :])
    if not (match[2] or values) or severity(before):
        return None
    return None if re.search(r"[A-Za-z]", _BEFORE.sub("", before)) else (int(match[1]), values)


def severity(line: str) -> Literal["error", "warning"] | None:
    """Whether a line reports an error or a warning."""
    if _ERROR.search(line):
        return "error"
    return "warning" if _WARNING.search(line) else None


def _values(text: str) -> dict[str, str]:
    """`key=value` or `key: value` pairs, or verl's ` - key:value` with any text in its keys."""
    if " - " not in text:
        return dict(_PAIR.findall(text))
    pairs = {}
    for part in text.split(" - "):
        key, _, value = part.strip().rpartition(":")
        value = value.removeprefix("np.float64(").removeprefix("np.float32(").rstrip(")")
        if key and number(value) is not None:
            pairs[key] = value
    return pairs


def printed_dict(line: str) -> dict[str, str]:
    """A dict of metrics as Hugging Face prints it, its values numbers or strings."""
    if "{" not in line or "': " not in line:
        return {}
    pairs = dict(_DICT_PAIR.findall(line[line.index("{") :]))
    numbers = {key: value for key, value in pairs.items() if number(value) is not None}
    return numbers if len(numbers) >= 2 else {}


def names_exception(text: str) -> bool:
    """Whether a text is what Python prints last of an exception: `TimeoutError: no answer`."""
    return _NAMED.match(text) is not None


def read_traceback(lines: Iterator[str]) -> tuple[str, str]:
    """The exception that ends a traceback with the place that raised it, and the next line."""
    place = ""
    for line in lines:
        if line.startswith((" ", "\t")):
            place = line.strip() if line.strip().startswith("File ") else place
        elif _EXCEPTION.match(line):
            return f"{line} ({place})" if place else line, ""
        elif line:  # another process printed into it
            return f"{TRACEBACK} ({place})", line
    return f"{TRACEBACK} ({place})", ""
