"""Step counts inside torch's saved optimizer and scheduler, read off without unpickling.

A `.pt` file is a zip: a pickle that describes, and raw storages beside it. The pickle is not run:
its operations are listed, as a disassembler does, and the few that name a step are followed.
"""

from __future__ import annotations

import math
import pickletools
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

MAX_PICKLE_BYTES = 32 * 2**20
MAX_OPERATIONS = 1_000_000
"""Adam's state takes about 80 for each parameter."""
_UNPACK = {"FloatStorage": "<f", "DoubleStorage": "<d", "LongStorage": "<q", "IntStorage": "<i"}
_NUMBERS = ("BININT", "BININT1", "BININT2", "INT", "LONG1", "LONG", "BINFLOAT", "FLOAT")
_BROKEN = (
    OSError, ValueError, KeyError, IndexError, EOFError, RuntimeError,
    zipfile.BadZipFile, zlib.error, struct.error,
)  # fmt: skip

_Token = tuple[str, object]
"""Kind (`text`, `number`, `global`, `tensor` or another) and value."""


def optimizer_steps(path: Path) -> int | None:
    """Largest `step` of any parameter in an optimizer's state; None where it can't be read."""
    return max(step_counts(path), default=None)


def step_counts(path: Path) -> tuple[int, ...]:
    """`step` of each parameter in an optimizer's state, in its order; none where unread."""
    return _numbers_named("step", path)


def scheduler_steps(path: Path) -> int | None:
    """`last_epoch` of a scheduler's state; None where it can't be read."""
    return max(_numbers_named("last_epoch", path), default=None)


def _numbers_named(name: str, path: Path) -> tuple[int, ...]:
    try:
        with zipfile.ZipFile(path) as archive:
            entry = next(i for i in archive.infolist() if i.filename.endswith("/data.pkl"))
            if entry.file_size > MAX_PICKLE_BYTES:
                return ()
            tokens = list(_tokens(archive.read(entry)))
            folder = entry.filename.removesuffix("data.pkl")
            return tuple(
                int(value)
                for i, token in enumerate(tokens)
                if token == ("text", name)
                and (value := _value(tokens[i + 1 : i + 12], archive, folder)) is not None
                and math.isfinite(value)
            )
    except (*_BROKEN, StopIteration):
        return ()


def _tokens(data: bytes) -> Iterator[_Token]:
    """Texts, numbers, global names and ends of tensors, with what the memo repeats put in.

    Raises:
        ValueError: no pickle, or one of more operations than any state has.
    """
    memo: dict[object, _Token] = {}
    last: _Token = ("", None)
    for done, (op, arg, _) in enumerate(pickletools.genops(data)):
        if done >= MAX_OPERATIONS:
            raise ValueError("too many operations")
        if op.name in ("BINPUT", "LONG_BINPUT", "PUT"):
            memo[arg] = last
            continue
        if op.name == "MEMOIZE":
            memo[len(memo)] = last
            continue
        if op.name in ("BINGET", "LONG_BINGET", "GET"):
            last = memo.get(arg, ("", None))
        elif "UNICODE" in op.name:
            last = ("text", arg)
        elif op.name in _NUMBERS:
            last = ("number", arg)
        elif op.name == "GLOBAL":
            last = ("global", str(arg).rpartition(" ")[2])
        elif op.name == "BINPERSID":
            last = ("tensor", None)
        elif op.name in ("MARK", "TUPLE", "EMPTY_TUPLE"):
            last = ("", None)
            continue
        else:
            last = ("", None)
        yield last


def _value(after: list[_Token], archive: zipfile.ZipFile, folder: str) -> float | None:
    """The number that follows a name: plain, or a tensor of one number in its own storage.

    A tensor reads: rebuild, "storage", its type, its key, its device, its size, end.
    """
    if after and after[0][0] == "number":
        return float(str(after[0][1]))
    kinds = [kind for kind, _ in after]
    if kinds[:7] != ["global", "text", "global", "text", "text", "number", "tensor"]:
        return None
    layout, key, size = _UNPACK.get(str(after[2][1])), after[3][1], after[5][1]
    if layout is None or size != 1:
        return None
    stored = archive.getinfo(f"{folder}data/{key}")
    if stored.file_size != struct.calcsize(layout):
        return None
    return float(struct.unpack(layout, archive.read(stored))[0])
