"""Files that torch saves: what their pickle describes, and some numbers of the storages beside it.

Such a file is a zip whose entries are not compressed: a pickle, which is followed and not carried
out, and the raw bytes of each storage, of which only what is asked for is read.
"""

from __future__ import annotations

import math
import struct
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import numpy.typing as npt

from firstbad.tools.inert_pickle import OLD_TORCH, Made, Name, Refused, first_number, follow
from firstbad.tools.readers.weights import blocks_of

MAX_PICKLE_BYTES = 32 * 2**20
MAX_OPERATIONS = 1_000_000
"""Adam's state takes about 80 for each parameter."""
MAX_DIRECTORY_BYTES = 16 * 2**20
"""Some 90 for each storage."""
MAX_DIMENSIONS = 16
MAX_DEPTH = 16
_END, _END_64, _AT_64, _ENTRY, _LOCAL = b"PK\5\6", b"PK\6\6", b"PK\6\7", b"PK\1\2", b"PK\3\4"
_TAIL_BYTES = 22 + 0xFFFF + 20
"""The end record with its longest remark, and what points at the record with 64 bits."""
_LAYOUTS = {
    "torch.DoubleStorage": ("float64", "<f8"),
    "torch.FloatStorage": ("float32", "<f4"),
    "torch.HalfStorage": ("float16", "<f2"),
    "torch.BFloat16Storage": ("bfloat16", "<u2"),
    "torch.LongStorage": ("int64", "<i8"),
    "torch.IntStorage": ("int32", "<i4"),
    "torch.ShortStorage": ("int16", "<i2"),
    "torch.CharStorage": ("int8", "i1"),
    "torch.ByteStorage": ("uint8", "u1"),
    "torch.BoolStorage": ("bool", "u1"),
}
_BROKEN = (ValueError, IndexError, KeyError, TypeError, OverflowError, struct.error)

Numbers = npt.NDArray[np.generic]


class _Stored(NamedTuple):
    """An entry of the zip: where its bytes begin, and how many they are."""

    start: int
    size: int


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file that torch saved, of which nothing is read until it is asked for."""

    path: Path
    dtype: str
    """As torch calls it: `float32`, `bfloat16`, ..."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """Numbers from one place to the next along each dimension."""
    offset: int
    """Place of its first number in the storage."""
    layout: str
    at: _Stored | None
    """The storage; None where the file does not hold it."""

    @property
    def size(self) -> int:
        """Numbers in it."""
        return math.prod(self.shape)

    def sample(self) -> Numbers:
        """(n,) numbers at up to 2,048 places, in blocks over the tensor; bfloat16 as float32.

        Tensors of equal shape are read at the same places. Empty where the file lacks the storage.

        Raises:
            Refused: the file became shorter.
        """
        layout = np.dtype(self.layout)
        if self.at is None or not self.size:
            return np.empty(0, layout)
        starts, length = blocks_of(self.size)
        flat = (np.array(starts)[:, None] + np.arange(length)).ravel()
        along = np.unravel_index(flat, self.shape) if self.shape else ()
        places = np.full(len(flat), self.offset)
        for place, stride in zip(along, self.strides, strict=True):
            places = places + place * stride
        pieces = []
        with self.path.open("rb", buffering=0) as stream:
            for run in np.split(places, np.flatnonzero(np.diff(places) != 1) + 1):
                stream.seek(self.at.start + int(run[0]) * layout.itemsize)
                data = stream.read(len(run) * layout.itemsize)
                if len(data) != len(run) * layout.itemsize:
                    raise Refused("it became shorter while it was read")
                pieces.append(np.frombuffer(data, layout))
        found = np.concatenate(pieces)
        if self.dtype == "bfloat16":  # the upper half of a float32
            found = (found.astype(np.uint32) << 16).view(np.float32)
        return found


@dataclass(frozen=True)
class _Storage:
    """What the pickle calls a storage: kind of its numbers and name of its entry."""

    dtype: str
    layout: str
    at: _Stored | None

    @property
    def size(self) -> int:
        return 0 if self.at is None else self.at.size // np.dtype(self.layout).itemsize


def read_torch_file(path: Path) -> object:
    """What `torch.save` was given: plain values, lists and maps; tensors as `StoredTensor`.

    Objects of other classes stay inert. Nothing that the file names is imported or called.

    Raises:
        Refused: no such file, of the old form, or larger than states are; one line says what.
    """
    try:
        with path.open("rb") as stream:
            size = path.stat().st_size
            entries = _directory(stream, size)
            name = next((name for name in entries if name.endswith("/data.pkl")), None)
            if name is None:
                raise Refused("it is a zip without data.pkl")
            if entries[name].size > MAX_PICKLE_BYTES:
                raise Refused(f"its pickle has {entries[name].size:,} bytes, more than states take")
            folder = name.removesuffix("data.pkl")
            if _bytes_of(stream, entries.get(f"{folder}byteorder"), most=8) == b"big":
                raise Refused("its numbers are stored with the high byte first")
            pickled = _bytes_of(stream, entries[name], most=MAX_PICKLE_BYTES)
    except OSError:
        raise Refused("it cannot be opened") from None
    storages = {
        name.removeprefix(f"{folder}data/"): entry
        for name, entry in entries.items()
        if name.startswith(f"{folder}data/")
    }
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of an odd escape in a text; it would be printed
            found = follow(
                BytesIO(pickled),
                most=MAX_OPERATIONS,
                kind="saved states",
                outside=lambda called: _storage(called, storages),
            )
    except Refused:
        raise
    except _BROKEN:
        raise Refused("its pickle is cut off, or none") from None
    return _Tensors(path).of(found)


def _directory(stream: IO[bytes], size: int) -> dict[str, _Stored]:
    """Entries of the zip by name.

    Raises:
        Refused: no zip, a damaged one, or one that is compressed.
    """
    head = stream.read(64)
    if first_number(head) == OLD_TORCH:
        raise Refused(
            "it is in the form that torch wrote before 1.6; save it again with a newer one"
        )
    if not head.startswith(_LOCAL):
        raise Refused("it is no zip as torch writes it")
    stream.seek(max(0, size - _TAIL_BYTES))
    tail = stream.read(_TAIL_BYTES)
    end = tail.rfind(_END)
    try:
        if end < 0:
            raise Refused("it is cut off")
        length, start = struct.unpack_from("<2L", tail, end + 12)
        if tail[max(0, end - 20) : end].startswith(_AT_64):
            (place,) = struct.unpack_from("<Q", tail, end - 12)
            stream.seek(min(place, size))
            record = stream.read(56)
            if not record.startswith(_END_64):
                raise Refused("it is a damaged zip")
            length, start = struct.unpack_from("<2Q", record, 40)
        if length > MAX_DIRECTORY_BYTES:
            raise Refused("it is a zip of more entries than states take")
        stream.seek(min(start, size))
        return dict(_entry(stream, size, *found) for found in _entries(stream.read(length)))
    except (struct.error, UnicodeDecodeError, OSError, OverflowError):
        raise Refused("it is a damaged zip") from None


def _entries(directory: bytes) -> list[tuple[str, int, int]]:
    """Name, bytes and place of the local header of each entry, as the directory gives them."""
    found, at = [], 0
    while directory[at : at + 4] == _ENTRY:
        method, packed, whole, n_name, n_extra, n_remark, start = struct.unpack_from(
            "<6xH8x2L3H8xL", directory, at + 4
        )
        name = directory[at + 46 : at + 46 + n_name].decode()
        extra = directory[at + 46 + n_name : at + 46 + n_name + n_extra]
        long = _long_fields(extra)
        # Fields that need more than 32 bits follow in this order.
        whole = long.pop(0) if whole == 0xFFFFFFFF and long else whole
        packed = long.pop(0) if packed == 0xFFFFFFFF and long else packed
        start = long.pop(0) if start == 0xFFFFFFFF and long else start
        if method != 0 or packed != whole:
            raise Refused("it is compressed, which torch does not do")
        found.append((name, whole, start))
        at += 46 + n_name + n_extra + n_remark
    return found


def _long_fields(extra: bytes) -> list[int]:
    """The numbers of 64 bits among the extra fields of an entry."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, at)
        if kind == 1:
            return list(struct.unpack_from(f"<{min(length, 24) // 8}Q", extra, at + 4))
        at += 4 + length
    return []


def _entry(stream: IO[bytes], size: int, name: str, length: int, start: int) -> tuple[str, _Stored]:
    """Where the bytes of an entry begin: behind its own header, which is padded.

    Raises:
        Refused: it does not lie inside the file.
    """
    stream.seek(min(start, size))
    header = stream.read(30)
    n_name, n_extra = struct.unpack_from("<2H", header, 26)
    begin = start + 30 + n_name + n_extra
    if not header.startswith(_LOCAL) or begin + length > size:
        raise Refused("it is cut off")
    return name, _Stored(begin, length)


def _bytes_of(stream: IO[bytes], entry: _Stored | None, *, most: int) -> bytes:
    if entry is None:
        return b""
    stream.seek(entry.start)
    return stream.read(min(entry.size, most))


def _storage(called: object, storages: Mapping[str, _Stored]) -> object:
    """The storage that a pickle calls ("storage", kind, name of its entry, device, numbers)."""
    if not isinstance(called, tuple) or len(called) != 5 or not isinstance(called[1], Name):
        return None
    _, kind, key, _, _ = called
    layout = _LAYOUTS.get(kind.text)
    if layout is None or not isinstance(key, str):
        return None
    return _Storage(*layout, storages.get(key))


class _Tensors:
    """Puts tensors in the place of what would make them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.done: dict[int, object] = {}
        """By identity: a part that is named often is looked through once, also inside itself."""

    def of(self, value: object, depth: int = 0) -> object:
        """The value with tensors in it.

        Raises:
            Refused: nested too deep.
        """
        if depth > MAX_DEPTH:
            raise Refused("its values are nested deeper than states are")
        if isinstance(value, Made):
            return self._tensor(value, depth)
        if not isinstance(value, list | tuple | dict):
            return value
        if id(value) in self.done:
            return self.done[id(value)]
        self.done[id(value)] = None
        found: object
        if isinstance(value, dict):
            found = {k: self.of(v, depth + 1) for k, v in value.items()}
        elif isinstance(value, list):
            found = [self.of(item, depth + 1) for item in value]
        else:
            found = tuple(self.of(item, depth + 1) for item in value)
        self.done[id(value)] = found
        return found

    def _tensor(self, made: Made, depth: int) -> object:
        """The tensor, a map for an ordered one, or None."""
        made_by = made.of.text if isinstance(made.of, Name) else ""
        args = made.args if isinstance(made.args, tuple) else ()
        if made_by == "torch._utils._rebuild_parameter" and args:
            return self.of(args[0], depth + 1)
        if made_by.startswith("collections."):
            return self.of(made.state, depth + 1)
        if made_by != "torch._utils._rebuild_tensor_v2" or len(args) < 4:
            return None
        storage, offset, shape, strides = args[:4]
        if not isinstance(storage, _Storage) or not _whole((offset,)):
            return None
        if not _whole(shape) or not _whole(strides) or len(shape) != len(strides):
            return None
        last = offset + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        empty = 0 in shape or storage.at is None
        if not empty and (last >= storage.size or math.prod(shape) >= 2**62):
            return None
        return StoredTensor(
            self.path, storage.dtype, shape, strides, offset, storage.layout, storage.at
        )


def _whole(numbers: object) -> bool:
    """Whether it is a tuple of a few whole numbers that are not negative."""
    return (
        isinstance(numbers, tuple)
        and len(numbers) <= MAX_DIMENSIONS
        and all(isinstance(n, int) and 0 <= n < 2**62 for n in numbers)
    )
