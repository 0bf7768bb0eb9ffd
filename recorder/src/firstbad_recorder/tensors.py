"""Ragged rows of numbers as a safetensors file, with the standard library alone.

The rows of one array lie flat behind one another; `offsets` says where each row begins. Arrays of
numpy and torch keep their bytes; a list is read number by number.
"""

from __future__ import annotations

import json
import operator
import sys
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from firstbad_recorder.plain import as_text

_INTEGERS = ("token_id", "position", "source", "turn", "expert_trainer", "expert_engine")
_SMALL = ("source",)
_KINDS = {"d": "F64", "f": "F32", "q": "I64", "B": "U8"}
_STORED = {"d": "<f8", "f": "<f4", "q": "<i8", "B": "|u1"}
ENGINE = "engine_token_id"
"""The one array whose rows may have other lengths: what the engine read and wrote."""


class Ragged:
    """Arrays over the same rows: R rows, N tokens in all."""

    def __init__(self, offsets: Any = None) -> None:
        """Start without arrays; `offsets` (R+1,): where rows begin in arrays that are flat."""
        self.arrays: dict[str, tuple[str, bytes]] = {}
        """Kind of number and bytes of each array."""
        self.dtypes: dict[str, str] = {}
        """What the arrays were computed in, where they say so."""
        self.lengths: list[int] | None = None
        if offsets is not None:
            ends = [operator.index(n) for n in _listed(offsets)]
            if not ends or ends[0] != 0 or ends != sorted(ends):
                raise ValueError("offsets must ascend from 0")
            self.lengths = [after - before for before, after in zip(ends, ends[1:])]
        self._flat = offsets is not None
        self._engine: list[int] | None = None  # lengths of the engine's rows

    def add(self, name: str, rows: Any) -> None:
        """Add an array: a row of numbers for each row, or one number for each row.

        Where offsets were given, an array of N numbers is flat: the rows behind one another.

        Raises:
            ValueError: its rows are not as long as those of the arrays before it.
            TypeError: it holds something else than numbers.
        """
        dtype = getattr(rows, "dtype", None)
        if dtype is None:
            rows = list(rows)
            dtype = next((d for row in rows if (d := getattr(row, "dtype", None))), None)
        kind = _kind(name, str(dtype))
        data = self._whole(name, rows, kind) if hasattr(rows, "shape") else None
        self.arrays[name] = (kind, self._listed(name, rows, kind) if data is None else data)
        if dtype is not None:
            self.dtypes[name] = str(dtype).rpartition(".")[2]

    def _whole(self, name: str, values: Any, kind: str) -> bytes | None:
        """Bytes of a numpy or torch array, in one go; None for one that is to be read by rows."""
        if name == ENGINE or hasattr(values, "mask"):  # a masked array has places without a value
            return None
        shape = tuple(values.shape)
        if self.lengths is None:
            if len(shape) != 2:
                return None
            self.lengths = [shape[1]] * shape[0]
        n_rows, n = len(self.lengths), sum(self.lengths)
        flat = len(shape) == 1 and self._flat and shape[0] == n
        padded = len(shape) == 2 and shape[0] == n_rows and self.lengths == [shape[1]] * n_rows
        if not (flat or padded):
            return None
        if hasattr(values, "detach"):  # torch; numpy has no bfloat16
            values = values.detach()
            whole = kind == "d" or not values.is_floating_point()
            values = (values if whole else values.float()).to("cpu").numpy()
        stored = values.astype(_STORED[kind], copy=False)
        if kind in "Bq" and (stored != values).any():
            raise ValueError("holds other values than whole numbers")
        found: bytes = stored.tobytes()
        return found

    def _listed(self, name: str, rows: Any, kind: str) -> bytes:
        found: list[Any] = [
            _listed(row) for row in (rows.tolist() if hasattr(rows, "tolist") else rows)
        ]
        if name == ENGINE:
            self._engine = [len(row) for row in found]
        elif self.lengths is None:
            if not all(isinstance(row, list) for row in found):
                raise ValueError("the first array must have a row of numbers for each row")
            self.lengths = [len(row) for row in found]
        elif self._flat and len(found) == sum(self.lengths) != len(self.lengths):
            found = [found]
        elif len(found) != len(self.lengths):
            raise ValueError("another number of rows than the arrays before it")
        else:
            for i, length in enumerate(self.lengths):
                if not isinstance(found[i], list):
                    found[i] = [found[i]] * length
            if [len(row) for row in found] != self.lengths:
                raise ValueError("rows of other lengths than the arrays before it")
        values: array[Any] = array(kind)
        for row in found:
            values.extend([float("nan") if v is None else v for v in row])
        return _little(values)

    def file(self) -> bytes:
        """The bytes of the safetensors file."""
        arrays = dict(self.arrays)
        if self.lengths is not None:
            arrays["offsets"] = ("q", _little(_offsets(self.lengths)))
        if self._engine is not None:
            arrays["engine_offsets"] = ("q", _little(_offsets(self._engine)))
        header: dict[str, object] = {}
        at = 0
        for name, (kind, data) in arrays.items():
            header[name] = {
                "dtype": _KINDS[kind],
                "shape": [len(data) // array(kind).itemsize],
                "data_offsets": [at, at + len(data)],
            }
            at += len(data)
        head = json.dumps(header, separators=(",", ":")).encode()
        head += b" " * (-len(head) % 8)
        return b"".join((len(head).to_bytes(8, "little"), head, *(d for _, d in arrays.values())))


def ragged(arrays: Mapping[str, Any]) -> tuple[Ragged, dict[str, str]]:
    """The arrays that can be written, and why others cannot.

    `offsets` sets the lengths of the rows, or else `token_id`.
    """
    try:
        found, left = Ragged(arrays.get("offsets")), {}
    except Exception as error:
        return Ragged(), {"offsets": _reason(error)}
    for name in sorted(arrays.keys() - {"offsets"}, key=lambda n: (n != "token_id", n)):
        try:
            found.add(str(name), arrays[name])
        except Exception as error:  # a value of the training loop may raise anything
            left[str(name)] = _reason(error)
    return found, left


def _reason(error: Exception) -> str:
    return as_text(error)[:80] or type(error).__name__


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
