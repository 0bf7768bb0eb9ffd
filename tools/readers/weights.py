"""Weights of a checkpoint: some numbers of each tensor, since a whole one may not fit in memory."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import IO, NamedTuple

import numpy as np
import numpy.typing as npt

from firstbad.tools.errors import UserError
from firstbad.tools.paths import File
from firstbad.tools.readers.tensors import safe_header
from firstbad.tools.run import Checkpoint

MOST_TENSORS = 1000
"""Of one checkpoint, spread evenly over the names of each file where it has more."""
BLOCKS, BLOCK = 16, 128
"""Numbers are read in blocks, spread evenly over a tensor; one of up to 2,048 is read whole."""
_FILE = re.compile(r"(adapter_)?model(-\d+-of-\d+)?\.safetensors")
_NAME = re.compile(r"[\w.\-]{1,200}", re.ASCII)
_MOST_HEADER = 16 * 2**20
_BITS = {"F64": "<u8", "F32": "<u4", "F16": "<u2", "BF16": "<u2"}

Bits = npt.NDArray[np.unsignedinteger]


class Tensor(NamedTuple):
    """A stored tensor: two that are equal have their numbers read at the same places."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Numbers in it."""
        return math.prod(self.shape)


def weight_files(checkpoint: Checkpoint) -> list[str]:
    """Names of the files that hold the weights: one, its shards, or the adapter alone."""
    return [name for name in checkpoint.files if _FILE.fullmatch(name)]


def sampled_weights(checkpoint: Checkpoint) -> dict[Tensor, Bits]:
    """Numbers of each floating-point tensor, as their bits; empty where no weights can be read.

    A file that is damaged is left out.
    """
    found: dict[Tensor, Bits] = {}
    names = weight_files(checkpoint)
    for name in names:
        path = checkpoint.path / name
        try:
            file = File(path, name, path.stat().st_size)
            with path.open("rb", buffering=0) as stream:
                tensors = _tensors(file, max(1, MOST_TENSORS // len(names)))
                found |= {tensor: _sample(stream, start, tensor) for tensor, start in tensors}
        except (OSError, UserError, KeyError, TypeError, ValueError):
            continue
    return found


def _tensors(file: File, most: int) -> Iterator[tuple[Tensor, int]]:
    """Tensors of floating-point numbers, and where the bytes of each begin.

    Raises:
        ValueError: a tensor that is not as long as its shape says, or lies outside the file.
    """
    header, start = safe_header(file, most_bytes=_MOST_HEADER)
    names = sorted(name for name in header if _NAME.fullmatch(name) and name != "__metadata__")
    for name in names[:: max(1, math.ceil(len(names) / most))]:
        entry = header[name]
        if entry["dtype"] not in _BITS:
            continue
        first, end = entry["data_offsets"]
        tensor = Tensor(name, entry["dtype"], tuple(entry["shape"]))
        whole = all(isinstance(n, int) and n >= 0 for n in (*tensor.shape, first, end))
        bytes_each = np.dtype(_BITS[tensor.dtype]).itemsize
        if not whole or end - first != tensor.size * bytes_each or start + end > file.size:
            raise ValueError(f"`{name}` is not where the header says")
        if tensor.size:
            yield tensor, start + first


def blocks_of(size: int) -> tuple[list[int], int]:
    """Where the blocks that are read of a tensor of `size` numbers begin, and how long each is."""
    if size <= BLOCKS * BLOCK:
        return [0], size
    return np.linspace(0, size - BLOCK, BLOCKS).astype(np.int64).tolist(), BLOCK


def _sample(stream: IO[bytes], start: int, tensor: Tensor) -> Bits:
    layout = np.dtype(_BITS[tensor.dtype])
    places, length = blocks_of(tensor.size)
    pieces = []
    for place in places:
        stream.seek(start + place * layout.itemsize)
        data = stream.read(length * layout.itemsize)
        if len(data) != length * layout.itemsize:
            raise ValueError("the file became shorter")
        pieces.append(np.frombuffer(data, layout))
    return np.concatenate(pieces)
