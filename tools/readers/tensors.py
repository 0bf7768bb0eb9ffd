"""Named arrays from npz, safetensors and Parquet files, without pickle."""

from __future__ import annotations

import json
import struct
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from firstbad.tools.errors import UserError
from firstbad.tools.paths import File
from firstbad.tools.readers.arrow import open_parquet, read_parquet

Array = npt.NDArray[np.generic]
SUFFIXES = (".npz", ".safetensors", ".parquet")
MAX_BYTES = 4 * 2**30
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


def read_arrays(file: File) -> tuple[dict[str, Array], dict[str, str]]:
    """Arrays by name, and the dtype that each is stored in.

    Raises:
        UserError: not readable, or too large.
    """
    if file.size > MAX_BYTES:
        raise UserError(f"`{file.name}` is larger than {MAX_BYTES / 2**30:.0f} GiB")
    try:
        if file.suffix == ".npz":
            return _npz(file)
        if file.suffix == ".safetensors":
            return _safetensors(file)
        return _parquet(file)
    except UserError:
        raise
    except _BROKEN as error:
        reason = str(error).split("\n", 1)[0][:120] or type(error).__name__
        raise UserError(f"`{file.name}` cannot be read: {reason}") from None


def _npz(file: File) -> tuple[dict[str, Array], dict[str, str]]:
    arrays: dict[str, Array] = {}
    stored: dict[str, str] = {}
    with zipfile.ZipFile(file.path) as packed:
        if sum(entry.file_size for entry in packed.infolist()) > MAX_BYTES:
            raise UserError(f"`{file.name}` unpacks to more than {MAX_BYTES / 2**30:.0f} GiB")
    with np.load(file.path, allow_pickle=False) as archive:
        for name in archive.files:
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
        UserError: no such file, or one that is cut off.
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
    ends = [e["data_offsets"][1] for n, e in header.items() if n != "__metadata__"]
    if 8 + length + max(ends, default=0) > file.size:
        raise UserError(f"`{file.name}` is cut off")
    return header, 8 + length


def _safetensors(file: File) -> tuple[dict[str, Array], dict[str, str]]:
    """Read by hand: the numpy loader of the library refuses bfloat16."""
    header, start = safe_header(file)
    data = file.path.read_bytes()[start:]
    arrays: dict[str, Array] = {}
    stored: dict[str, str] = {}
    for name, entry in header.items():
        if name == "__metadata__" or entry["dtype"] not in _SAFE:
            continue
        first, end = entry["data_offsets"]
        array = np.frombuffer(data[first:end], _SAFE[entry["dtype"]]).reshape(entry["shape"])
        if entry["dtype"] == "BF16":  # the upper half of a float32
            array = (array.astype(np.uint32) << 16).view(np.float32)
        arrays[name] = array
        stored[name] = "bfloat16" if entry["dtype"] == "BF16" else str(array.dtype)
    return arrays, stored


def _parquet(file: File) -> tuple[dict[str, Array], dict[str, str]]:
    """One row a sequence; lists of unequal length are padded at the end."""
    import pyarrow as pa

    table = read_parquet(file.path, file.name)
    arrays: dict[str, Array] = {}
    stored: dict[str, str] = {}
    for field in table.schema:
        column = table.column(field.name).combine_chunks()
        inner = field.type
        if pa.types.is_list(inner) or pa.types.is_large_list(inner):
            inner = inner.value_type
            if _is_number(inner):
                lengths = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
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
    """Rows of several files under one another, padded at the end to the longest."""
    names = [name for name in parts[0] if all(name in part for part in parts)]
    out: dict[str, Array] = {}
    for name in names:
        arrays = [part[name] for part in parts]
        if any(array.ndim != arrays[0].ndim or array.ndim == 0 for array in arrays):
            continue
        shape = np.max([array.shape[1:] for array in arrays], axis=0).astype(int)
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
