"""Ragged rows of numbers as a safetensors file, with the standard library alone.

The rows of one array lie flat behind one another; `offsets` says where each row begins.
"""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

_INTEGERS = ("token_id", "position", "source", "turn", "expert_trainer", "expert_engine")
_SMALL = ("source",)
_KINDS = {"d": "F64", "f": "F32", "q": "I64", "B": "U8"}
ENGINE = "engine_token_id"
"""The one array whose rows may have other lengths: what the engine read and wrote."""


class Ragged:
    """Arrays over the same rows: R rows, N tokens in all."""

    def __init__(self) -> None:
        """Start without arrays."""
        self.arrays: dict[str, array[Any]] = {}
        self.dtypes: dict[str, str] = {}
        """What the arrays were computed in, where they say so."""
        self.lengths: list[int] | None = None
        self._engine: list[int] | None = None  # lengths of the engine's rows

    def add(self, name: str, rows: Any) -> None:
        """Add an array: a row of numbers for each row, or one number for each row.

        Raises:
            ValueError: its rows are not as long as those of the arrays before it.
            TypeError: it holds something else than numbers.
        """
        dtype = getattr(rows, "dtype", None)
        if dtype is None:
            rows = list(rows)
            dtype = next((d for row in rows if (d := getattr(row, "dtype", None))), None)
        found: list[Any] = [
            _listed(row) for row in (rows.tolist() if hasattr(rows, "tolist") else rows)
        ]
        if name == ENGINE:
            self._engine = [len(row) for row in found]
        elif self.lengths is None:
            if not all(isinstance(row, list) for row in found):
                raise ValueError("the first array must have a row of numbers for each row")
            self.lengths = [len(row) for row in found]
        elif len(found) != len(self.lengths):
            raise ValueError("another number of rows than the arrays before it")
        else:
            for i, length in enumerate(self.lengths):
                if not isinstance(found[i], list):
                    found[i] = [found[i]] * length
            if [len(row) for row in found] != self.lengths:
                raise ValueError("rows of other lengths than the arrays before it")
        kind = _kind(name, str(dtype))
        values: array[Any] = array(kind)
        for row in found:
            values.extend([float("nan") if v is None else v for v in row])
        self.arrays[name] = values
        if dtype is not None:
            self.dtypes[name] = str(dtype).rpartition(".")[2]

    def file(self) -> bytes:
        """The bytes of the safetensors file."""
        arrays = dict(self.arrays)
        if self.lengths is not None:
            arrays["offsets"] = _offsets(self.lengths)
        if self._engine is not None:
            arrays["engine_offsets"] = _offsets(self._engine)
        header: dict[str, object] = {}
        at = 0
        for name, values in arrays.items():
            size = len(values) * values.itemsize
            header[name] = {
                "dtype": _KINDS[values.typecode],
                "shape": [len(values)],
                "data_offsets": [at, at + size],
            }
            at += size
        head = json.dumps(header, separators=(",", ":")).encode()
        head += b" " * (-len(head) % 8)
        return len(head).to_bytes(8, "little") + head + b"".join(map(_little, arrays.values()))


def ragged(arrays: Mapping[str, Any]) -> tuple[Ragged, dict[str, str]]:
    """The arrays that can be written, and why others cannot; `token_id` sets the row lengths."""
    found, left = Ragged(), {}
    for name in sorted(arrays, key=lambda n: (n != "token_id", n)):
        try:
            found.add(str(name), arrays[name])
        except Exception as error:  # a value of the training loop may raise anything
            left[str(name)] = str(error)[:80] or type(error).__name__
    return found, left


def _kind(name: str, dtype: str) -> str:
    if name in _SMALL or name.endswith("_mask") or name.startswith("loss_mask"):
        return "B"
    if name in _INTEGERS or name == ENGINE:
        return "q"
    return "d" if "float64" in dtype else "f"


def _listed(row: Any) -> Any:
    """A row as a list, one number as it is."""
    if hasattr(row, "tolist"):
        row = row.tolist()
    return list(row) if isinstance(row, (list, tuple)) else row


def _offsets(lengths: Sequence[int]) -> array[int]:
    found = array("q", [0])
    for length in lengths:
        found.append(found[-1] + length)
    return found


def _little(values: array[Any]) -> bytes:
    if sys.byteorder == "big":
        values = array(values.typecode, values)
        values.byteswap()
    return values.tobytes()
