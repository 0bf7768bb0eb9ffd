"""Named arrays from npz, safetensors and Parquet files, without pickle."""

from __future__ import annotations

import json
import math
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from firstbad.tools.errors import UserError
from firstbad.tools.paths import File
from firstbad.tools.readers.arrow import open_parquet, read_parquet

Array = npt.NDArray[np.generic]
SUFFIXES = (".npz", ".safetensors", ".parquet")
MAX_BYTES = 4 * 2**30
MAX_UNPACKED = 2**30
"""Bytes of the fields that are read of a file: a few kilobytes can stand for as many zeros."""
MAX_NUMBERS = 2**25
"""Of one field: 2,048 rows of 16,384 tokens."""
_LEAST_WIDTH = 16
"""Tokens that rows have at least, where there are millions of them."""
_MAX_HEADER = 100 * 2**20
# What a damaged file makes the readers of its kind raise.
_BROKEN = (
    OSError, ValueError, KeyError, TypeError, EOFError, MemoryError, zipfile.BadZipFile,
    zlib.error, NotImplementedError,
)  # fmt: skip
_SAFE = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4",
    "I16": "<i2", "I8": "i1", "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?",
}  # fmt: skip


def field_names(file: File) -> list[str]:
    """Names of the arrays in a file, without reading them.

    Raises:
        UserError: cut off, or no file of its kind.
    """
    try:
        if file.suffix == ".npz":
            with zipfile.ZipFile(file.path) as archive:
                return [name.removesuffix(".npy") for name in archive.namelist()]
        if file.suffix == ".safetensors":
            return [name for name in safe_header(file)[0] if name != "__metadata__"]
        return list(open_parquet(file.path, file.name).schema_arrow.names)
    except _BROKEN:
        raise UserError(f"`{file.name}` is cut off or no {file.suffix} file") from None


def read_arrays(
    file: File, wanted: Callable[[str], bool] = lambda name: True
) -> tuple[dict[str, Array], dict[str, str]]:
    """Arrays by name, and the dtype that each is stored in; only those whose name is wanted.

    Raises:
        UserError: not readable, or too large.
    """
    if file.size > MAX_BYTES:
        raise UserError(f"`{file.name}` is larger than {MAX_BYTES / 2**30:.0f} GiB")
    read = {".npz": _npz, ".safetensors": _safetensors}.get(file.suffix, _parquet)
    try:
        arrays, stored = read(file, wanted)
    except UserError:
        raise
    except _BROKEN as error:
        raise _unreadable(file, error) from None
    numbers = {name: array for name, array in arrays.items() if array.dtype.kind in "biuf"}
    for name, array in numbers.items():
        _bounded(file, name, array.shape)
    return numbers, stored


def _bounded(file: File, name: str, shape: Iterable[int]) -> None:
    """Refuse a field whose shape alone would take all memory, be it with numbers or without."""
    if math.prod(max(1, length) for length in shape) > MAX_NUMBERS:
        raise UserError(f"`{file.name}`: `{name}` has more than {MAX_NUMBERS:,} numbers")


def _unpacked(file: File, sizes: Iterable[int]) -> None:
    if sum(sizes) > min(MAX_UNPACKED, MAX_BYTES):
        raise UserError(f"`{file.name}` unpacks to more than {MAX_UNPACKED / 2**30:.0f} GiB")


def _npz(file: File, wanted: Callable[[str], bool]) -> tuple[dict[str, Array], dict[str, str]]:
    arrays: dict[str, Array] = {}
    stored: dict[str, str] = {}
    with np.load(file.path, allow_pickle=False) as archive:
        entries = {e.filename.removesuffix(".npy"): e for e in archive.zip.infolist()}
        names = [name for name in entries if wanted(name)]
        _unpacked(file, (entries[name].file_size for name in names))
        for name in names:
            try:
                array = archive[name]
            except ValueError:  # an array of Python objects needs pickle
                continue
            if isinstance(array, np.ndarray):  # anything else comes as bytes
                arrays[name] = array
                stored[name] = str(array.dtype)
    return arrays, stored


def safe_header(file: File, *, most_bytes: int = _MAX_HEADER) -> tuple[dict[str, Any], int]:
    """What a safetensors file says of its tensors, not yet checked, and where their bytes begin.

    Raises:
        UserError: no such file, or one that is cut off, or whose tensors share bytes.
        TypeError, KeyError: entries that describe no tensor.
    """
    with file.path.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8).ljust(8, b"\0"))
        if not 2 <= length <= min(most_bytes, file.size - 8):
            raise UserError(f"`{file.name}` is no safetensors file")
        try:
            header = json.loads(stream.read(length))
        except (ValueError, RecursionError):
            header = None
    if not isinstance(header, dict):
        raise UserError(f"`{file.name}` has no safetensors header")
    spans = sorted(e["data_offsets"] for n, e in header.items() if n != "__metadata__")
    ends = [0, *(end for _, end in spans)]
    if 8 + length + max(ends) > file.size:
        raise UserError(f"`{file.name}` is cut off")
    # One stretch of bytes could stand for thousands of tensors.
    if any(not end <= first <= last for end, (first, last) in zip(ends, spans, strict=False)):
        raise UserError(f"`{file.name}` has tensors that overlap")
    return header, 8 + length


@dataclass(frozen=True)
class Stored:
    """One array of a safetensors file, by its header."""

    name: str
    kind: str
    """Dtype in the words of the format."""
    shape: tuple[int, ...]
    first: int
    """Place of its first byte in the file."""

    @property
    def dtype(self) -> str:
        """As numpy names it, or `bfloat16`."""
        return "bfloat16" if self.kind == "BF16" else str(np.dtype(_SAFE[self.kind]))

    @property
    def size(self) -> int:
        """Numbers."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return self.size * np.dtype(_SAFE[self.kind]).itemsize


def safe_entries(
    file: File, wanted: Callable[[str], bool] = lambda name: True
) -> dict[str, Stored]:
    """Arrays of numbers in a safetensors file by name, checked, and none of them read.

    Raises:
        UserError: not readable, or too large.
    """
    if file.size > MAX_BYTES:
        raise UserError(f"`{file.name}` is larger than {MAX_BYTES / 2**30:.0f} GiB")
    found: dict[str, Stored] = {}
    try:
        header, start = safe_header(file)
        for name, entry in header.items():
            if name == "__metadata__" or entry["dtype"] not in _SAFE or not wanted(name):
                continue
            if any(length < 0 for length in entry["shape"]):
                raise UserError(f"`{file.name}`: `{name}` has a negative length")
            first, end = entry["data_offsets"]
            one = Stored(name, entry["dtype"], tuple(map(int, entry["shape"])), start + first)
            _bounded(file, name, one.shape)
            if end - first != one.nbytes:
                raise ValueError(f"`{name}` has other bytes than its shape")
            found[name] = one
        _unpacked(file, (one.nbytes for one in found.values()))
    except UserError:
        raise
    except _BROKEN as error:
        raise _unreadable(file, error) from None
    return found


def read_stored(file: File, one: Stored) -> Array:
    """One array of a safetensors file, and no byte besides.

    Raises:
        UserError: the file is gone, or shorter than its header said.
    """
    try:
        with file.path.open("rb", buffering=0) as stream:
            stream.seek(one.first)
            data = stream.read(one.nbytes)
        # By hand: the numpy loader of the library refuses bfloat16.
        array = np.frombuffer(data, _SAFE[one.kind]).reshape(one.shape)
    except _BROKEN as error:
        raise _unreadable(file, error) from None
    if one.kind == "BF16":  # the upper half of a float32
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return array


def _safetensors(
    file: File, wanted: Callable[[str], bool]
) -> tuple[dict[str, Array], dict[str, str]]:
    entries = safe_entries(file, wanted)
    return {n: read_stored(file, e) for n, e in entries.items()}, {
        n: e.dtype for n, e in entries.items()
    }


def _unreadable(file: File, error: BaseException) -> UserError:
    reason = str(error).split("\n", 1)[0][:120] or type(error).__name__
    return UserError(f"`{file.name}` cannot be read: {reason}")


def _parquet(file: File, wanted: Callable[[str], bool]) -> tuple[dict[str, Array], dict[str, str]]:
    """One row a sequence; lists of unequal length are padded at the end."""
    import pyarrow as pa

    opened = open_parquet(file.path, file.name)
    names = [name for name in opened.schema_arrow.names if wanted(name)]
    _bounded(file, "rows", (opened.metadata.num_rows, _LEAST_WIDTH))
    table = read_parquet(file.path, file.name, names, most_bytes=MAX_UNPACKED // 2)
    arrays: dict[str, Array] = {}
    stored: dict[str, str] = {}
    for field in table.schema:
        column = table.column(field.name).combine_chunks()
        inner = field.type
        if pa.types.is_list(inner) or pa.types.is_large_list(inner):
            inner = inner.value_type
            if _is_number(inner):
                lengths = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
                _bounded(file, field.name, (len(lengths), int(lengths.max(initial=0))))
                arrays[field.name] = _padded(_flat(column.flatten()), lengths)
        elif _is_number(inner):
            arrays[field.name] = _flat(column)
        if field.name in arrays:
            stored[field.name] = str(inner)
    return arrays, stored


def _is_number(kind: Any) -> bool:
    import pyarrow as pa

    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    )


def _flat(column: Any) -> Array:
    return np.asarray(column.to_numpy(zero_copy_only=False))


def _padded(values: Array, lengths: Array) -> Array:
    counts = lengths.astype(np.int64)
    inside = np.arange(counts.max(initial=0)) < counts[:, None]
    blank = np.nan if values.dtype.kind == "f" else 0
    out = np.full(inside.shape, blank, values.dtype)
    out[inside] = values
    return out


def joined(parts: list[Mapping[str, Array]]) -> dict[str, Array]:
    """Rows of several files under one another, padded at the end to the longest.

    Raises:
        UserError: one long row would widen all others beyond what fits in memory.
    """
    names = [name for name in parts[0] if all(name in part for part in parts)]
    out: dict[str, Array] = {}
    for name in names:
        arrays = [part[name] for part in parts]
        if any(array.ndim != arrays[0].ndim or array.ndim == 0 for array in arrays):
            continue
        shape = np.max([array.shape[1:] for array in arrays], axis=0).astype(int)
        if sum(map(len, arrays)) * math.prod(shape.tolist()) > MAX_NUMBERS:
            raise UserError(
                f"`{name}` has more than {MAX_NUMBERS:,} numbers in all files of a step"
            )
        blank = np.nan if arrays[0].dtype.kind == "f" else 0
        padded = [
            np.pad(
                array,
                [(0, 0), *((0, int(w - h)) for w, h in zip(shape, array.shape[1:], strict=True))],
                constant_values=blank,
            )
            for array in arrays
        ]
        out[name] = np.concatenate(padded)
    return out
