"""Prompts and completions as plain text, whatever form the data keeps them in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

MAX_CHARACTERS = 200_000


def canonical_text(value: object, depth: int = 8) -> str:
    """A string as it is; the contents of a list of messages joined by newlines.

    What is nested deeper than `depth` is no message and has no text.
    """
    if value is None or depth == 0:
        return ""
    if isinstance(value, dict):
        # A part of a multimodal message is {"type": "text", "text": ...}.
        return canonical_text(value.get("content", value.get("text")), depth - 1)
    if isinstance(value, (list, tuple)):
        texts = (canonical_text(item, depth - 1) for item in value)
        return "\n".join(text for text in texts if text)
    return str(value)


def as_text(value: object, most: int = 10_000) -> str:
    """A name or a short text, whatever its writer took for one."""
    try:
        return str(value)[:most]
    except (RecursionError, ValueError):  # nested beyond reason, or a number without end
        return ""


def answer_text(value: object) -> str | None:
    """A right answer as text; None when there is none."""
    if value is None or value == "":
        return None
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, list) and len(value) == 1 and not isinstance(value[0], list):
        return answer_text(value[0])
    if not isinstance(value, (list, dict)):
        return str(value)
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except RecursionError:
        return None


def tidy(texts: list[str]) -> int:
    """Shorten texts of more than MAX_CHARACTERS in place; how many there were.

    Halves of surrogate pairs, which JSON lets through and no file can hold, are replaced.
    """
    if all(map(str.isascii, texts)) and max(map(len, texts), default=0) <= MAX_CHARACTERS:
        return 0
    count = 0
    for i, text in enumerate(texts):
        if len(text) > MAX_CHARACTERS:
            texts[i] = text = text[:MAX_CHARACTERS]
            count += 1
        if not text.isascii():
            texts[i] = text.encode("utf-8", "replace").decode("utf-8")
    return count


def column_texts(column: Any) -> list[str]:
    """Texts of an Arrow column of strings or of lists of {role, content}.

    Works on whole columns: a nested `to_pylist` would take ten times as long.
    """
    import pyarrow as pa

    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):  # no chunk at all
        return []
    kind = array.type
    if pa.types.is_dictionary(kind):
        array = array.dictionary_decode()
        kind = array.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return [text or "" for text in _strings(array)]
    contents = _contents(array)
    if contents is None:
        return [canonical_text(value) for value in array.to_pylist()]
    lengths = _lengths(array)
    if len(contents) == len(array) and min(lengths, default=1) == 1:
        return contents
    texts, at = [], 0
    for length in lengths:
        texts.append("\n".join(text for text in contents[at : at + length] if text))
        at += length
    return texts


# `flatten` and `value_lengths` load Arrow's compute functions, which takes longer than to read a
# few hundred steps; only a null needs them, which may hide elements.


def _elements(array: Any) -> Any:
    """Elements of all lists of a list array, as one array."""
    if array.null_count or not len(array):
        return array.flatten()
    return array.values[array.offsets[0].as_py() : array.offsets[-1].as_py()]


def _lengths(array: Any) -> list[int]:
    """Elements of each list of a list array; 0 for a null."""
    if array.null_count:
        return [length or 0 for length in array.value_lengths().to_pylist()]
    return [end - start for start, end in pairwise(array.offsets.to_pylist())]


def _contents(array: Any) -> list[str] | None:
    """`content` of every message of a list column, or None when it has another form."""
    import pyarrow as pa

    kind = array.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return None
    inner = kind.value_type
    if not pa.types.is_struct(inner) or inner.get_field_index("content") < 0:
        return None
    if not pa.types.is_string(inner.field("content").type):
        return None
    return [text or "" for text in _strings(_elements(array).field("content"))]


def _strings(array: Any) -> Sequence[str | None]:
    """Texts of a string array; bytes that are no UTF-8 are replaced."""
    import pyarrow as pa

    try:
        texts: list[str | None] = array.to_pylist()
    except UnicodeDecodeError:
        raw = array.cast(pa.large_binary()).to_pylist()
        texts = [None if data is None else data.decode("utf-8", "replace") for data in raw]
    return texts
