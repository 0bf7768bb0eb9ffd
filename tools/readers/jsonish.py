"""JSON as programs really write it: NaN, byte order marks, UTF-16, cut-off ends."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from firstbad.tools.errors import UserError

MAX_KEYS = 20_000


def decode(data: bytes) -> tuple[str, str | None]:
    """Text of a file, and a remark when its encoding was not UTF-8.

    Bytes that no encoding explains are replaced rather than refused.
    """
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", "replace"), "UTF-16"
    # UTF-16 without a mark shows as a zero byte beside each ASCII letter.
    head = data[:64]
    if len(head) >= 4 and b"\0" in head:
        if not any(head[1::2]):
            return data.decode("utf-16-le", "replace"), "UTF-16 without a mark"
        if not any(head[0::2]):
            return data.decode("utf-16-be", "replace"), "UTF-16 without a mark"
    try:
        return data.decode("utf-8-sig"), None
    except UnicodeDecodeError:
        pass
    text = data.decode("utf-8-sig", "replace")
    beyond_ascii = len(text) - len(text.encode("ascii", "ignore"))
    if beyond_ascii <= 2 * text.count("\ufffd"):  # hardly any of it was UTF-8
        try:
            return data.decode("cp1252"), "Windows-1252"
        except UnicodeDecodeError:
            pass
    return text, "UTF-8, its unreadable bytes replaced"


_HALF = re.compile(r"\\u[dD][89a-fA-F]")
_ESCAPES = re.compile(
    r"\\\\|\\u[dD][89abAB]\w\w\\u[dD][c-fC-F]\w\w|\\u[dD][89a-fA-F]\w\w", re.ASCII
)


def _whole_characters(text: str) -> str:
    """JSON text whose halves of surrogate pairs, which no file can hold, are replaced."""
    if not _HALF.search(text):
        return text
    return _ESCAPES.sub(lambda found: "?" if len(found[0]) == 6 else found[0], text)


def loads(text: str) -> Any:
    """`json.loads`, with integers of thousands of digits as infinite rather than as an error.

    Raises:
        ValueError, RecursionError: not JSON.
    """
    text = _whole_characters(text)
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except ValueError:  # Python refuses to read an integer of more than 4,300 digits
        return json.loads(text, parse_int=_whole)


def _whole(digits: str) -> int | float:
    return int(digits) if len(digits) < 4000 else float(digits)


def parse(data: bytes, name: str) -> object:
    """The value of a JSON file.

    Raises:
        UserError: not JSON.
    """
    text, _ = decode(data)
    try:
        return loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"`{name}` is not JSON: {_short(error)}") from None


def parse_object(data: bytes, name: str) -> dict[str, object]:
    """The value of a JSON file that must be an object.

    Raises:
        UserError: not JSON, or something else than an object.
    """
    value = parse(data, name)
    if not isinstance(value, dict):
        raise UserError(f"`{name}` holds a JSON {type(value).__name__}, expected an object")
    return value


def lines(text: str) -> Iterator[tuple[int, dict[str, object] | None]]:
    """Objects of a JSON-lines text with their line numbers; None for a line that is none."""
    text = _whole_characters(text)
    numbered = [
        (number, line)
        for number, raw in enumerate(text.split("\n"), 1)
        if (line := raw.strip("\r\0 \t"))
    ]
    try:
        # One parse of all lines is much faster than a parse of each.
        values = json.loads("[" + ",".join(line for _, line in numbered) + "]")
    except (ValueError, RecursionError):
        values = ()
    whole = len(values) == len(numbered)
    for i, (number, line) in enumerate(numbered):
        value = values[i] if whole else _one(line)
        yield number, value if isinstance(value, dict) else None


def _one(line: str) -> object:
    try:
        return loads(line)
    except (ValueError, RecursionError):
        return None


def salvage_rows(text: str, key: str) -> list[dict[str, object]]:
    """The complete objects of `"key": [{...}, {...}, ...` in a text that was cut off."""
    text = _whole_characters(text)
    start = re.search(rf'"{re.escape(key)}"\s*:\s*\[', text)
    rows: list[dict[str, object]] = []
    if start is None:
        return rows
    decoder = json.JSONDecoder()
    at = start.end()
    between = re.compile(r"[\s,]*")
    while True:
        at = between.match(text, at).end()  # type: ignore[union-attr]  # matches empty text too
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            return rows
        if not isinstance(value, dict):
            return rows
        rows.append(value)


def flatten(value: dict[str, object], separator: str = "/") -> dict[str, object]:
    """Nested objects as one, their keys joined; lists are kept as they are.

    At most MAX_KEYS: in YAML a few lines with references can stand for billions of keys.
    """
    flat: dict[str, object] = {}
    waiting: list[tuple[str, object]] = list(value.items())
    for key, item in waiting:
        if isinstance(item, dict) and item and len(waiting) < MAX_KEYS:
            waiting.extend((f"{key}{separator}{name}", inner) for name, inner in item.items())
        else:
            flat[str(key)] = item
    return flat


def _short(error: Exception) -> str:
    return str(error).split("\n", 1)[0][:120] or type(error).__name__
