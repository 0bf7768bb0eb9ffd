"""Token dumps that lie about their size: npz, safetensors and Parquet."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

LeftOut = Callable[..., list[str]]
FIELDS = ("completion_ids", "logps")
MEGABYTE = bytes(2**20)


def npy(shape: tuple[int, ...], data: bytes = b"", descr: str = "<f4") -> bytes:
    """An array whose header says what it likes."""
    head = io.BytesIO()
    form = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(head, form)
    return head.getvalue() + data


def npz(path: Path, members: Mapping[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)


def zip_bomb(path: Path) -> None:
    """A megabyte that unpacks to more than one gigabyte."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in FIELDS:
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                member.write(npy((1, 2**28)))
                for _ in range(640):
                    member.write(MEGABYTE)


def zip_that_lies(path: Path) -> None:
    """Its directory gives 200 bytes for members of ten megabytes."""
    npz(path, {name: npy((1, 2_500_000), 10 * MEGABYTE) for name in FIELDS})
    data = bytearray(path.read_bytes())
    at = data.find(b"PK\x01\x02")
    while at >= 0:
        data[at + 24 : at + 28] = struct.pack("<I", 200)
        at = data.find(b"PK\x01\x02", at + 4)
    path.write_bytes(data)


def zip_in_zip(path: Path) -> None:
    inner = MEGABYTE
    for _ in range(4):
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in FIELDS:
                archive.writestr(f"{name}.npy", inner)
        inner = out.getvalue()
    path.write_bytes(inner)


def of(*members: bytes) -> Callable[[Path], None]:
    return lambda path: npz(path, dict(zip(FIELDS, members, strict=True)))


NPZ: dict[str, Callable[[Path], None]] = {
    "a zip bomb": zip_bomb,
    "a directory that lies": zip_that_lies,
    "zips in zips": zip_in_zip,
    "ten thousand million numbers": of(npy((1, 10**10)), npy((1, 10**10))),
    "a million million rows of nothing": of(npy((10**12, 0)), npy((10**12, 0))),
    "nothing by a million million": of(npy((0, 10**12)), npy((0, 10**12))),
    "a negative length": of(npy((-2, 3), bytes(24)), npy((2, -3), bytes(24))),
    "a dtype of objects": of(npy((2, 3), bytes(48), "|O"), npy((2, 3), bytes(48), "|O")),
    "a header that is code": of(
        b"\x93NUMPY\x01\x00\x40\x00" + b"__import__('os').system('touch x')".ljust(64),
        npy((2, 3), bytes(24)),
    ),
    "one dimension": of(npy((6,), bytes(24)), npy((6,), bytes(24))),
    "three dimensions": of(npy((1, 2, 3), bytes(24)), npy((1, 2, 3), bytes(24))),
    "thirty dimensions": of(npy((1,) * 30, bytes(4)), npy((1,) * 30, bytes(4))),
    "texts": of(npy((2, 3), bytes(24), "<U1"), npy((2, 3), bytes(24), "<U1")),
    "dates": of(npy((2, 3), bytes(48), "<M8[s]"), npy((2, 3), bytes(48), "<m8[s]")),
    "complex": of(npy((2, 3), bytes(48), "<c8"), npy((2, 3), bytes(48), "<c8")),
}


@pytest.mark.parametrize("name", NPZ)
def test_npz(run: Path, left_out: LeftOut, name: str) -> None:
    NPZ[name](run / "batch_dumps" / "step_00009.npz")
    left_out(captures=3)


def test_an_npz_of_many_members_is_not_unpacked(run: Path, left_out: LeftOut) -> None:
    small = npy((2, 3), bytes(24))
    many = {f"a{i}": small for i in range(5000)}
    npz(run / "batch_dumps" / "step_00009.npz", {**many, **dict.fromkeys(FIELDS, small)})
    left_out(captures=3)


Header = bytes | Mapping[str, object]


def tensor(
    shape: object = (2, 3), offsets: object = (0, 24), dtype: object = "F32"
) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def both(entry: object, other: object = None) -> dict[str, object]:
    return dict(zip(FIELDS, (entry, other or tensor(offsets=(24, 48))), strict=True))


DEEP = b"[" * 200_000 + b"]" * 200_000
WIDE = 2_000_000
SAFETENSORS: dict[str, tuple[Header, int | None]] = {
    "past the end": (both(tensor(offsets=(0, 10**12))), None),
    "before the beginning": (both(tensor(offsets=(-24, 0))), None),
    "backwards": (both(tensor(offsets=(24, 0))), None),
    "a negative length": (both(tensor((-2, -3))), None),
    "more than there is": (both(tensor((10**9, 10**9))), None),
    "rows of nothing": (both(tensor((10**18, 0), (0, 0)), tensor((10**18, 0), (0, 0))), None),
    "one stretch many times": (
        {f"a{i}": tensor((1, WIDE), (0, WIDE), "I8") for i in range(3000)}
        | both(tensor((1, WIDE), (0, WIDE), "I8"), tensor((1, WIDE), (0, WIDE), "I8")),
        None,
    ),
    "no numbers": (both(tensor("abc", ["a", "b"]), 5), None),
    "infinite": (both(tensor((2, float("inf")), (0, float("nan")))), None),
    "a dtype of its own": (both(tensor(dtype=["F32"])), None),
    "a deep header": (b'{"a":' + DEEP + b"}", None),
    "a header of 2**63 bytes": (b"{}", 2**63),
    "a header of no bytes": (b"{}", 0),
    "a list": (b"[1, 2]", None),
}


def safetensors(path: Path, header: Header, length: int | None = None) -> None:
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(
        struct.pack("<Q", len(head) if length is None else length) + head + bytes(WIDE)
    )


@pytest.mark.parametrize("name", SAFETENSORS)
def test_safetensors(run: Path, survive: Callable[..., Any], name: str) -> None:
    """As a dump, and as the weights of checkpoints."""
    safetensors(run / "batch_dumps" / "step_00009.safetensors", *SAFETENSORS[name])
    for step in (10, 20, 60):
        safetensors(run / f"checkpoint-{step}" / "model.safetensors", *SAFETENSORS[name])
    answer = survive(run)
    assert answer.code == 0
    assert answer.told["errors"] == []
    assert answer.told["steps"][2] in (2, 3)


def test_a_sound_file_is_still_read(run: Path, left_out: LeftOut) -> None:
    """The look-alike: the same writer, offsets that hold, and holes between tensors."""
    header = both(tensor(dtype="I32"), tensor(offsets=(32, 56)))
    safetensors(run / "batch_dumps" / "step_00009.safetensors", header)
    assert not [note for note in left_out(captures=3) if "step_00009" in note]


@pytest.mark.parametrize("columns", ["rows", "tokens", "one long row"])
def test_parquet_dumps(run: Path, left_out: LeftOut, columns: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if columns == "rows":
        field = pa.array(np.zeros(20_000_000, np.int8))
    elif columns == "tokens":
        field = pa.ListArray.from_arrays([0, 2_000_000], pa.array(np.zeros(2_000_000, np.int8)))
    else:  # padded to the longest, they would be 10 ** 11 numbers
        ends = np.concatenate([[0, 10**6], 10**6 + np.arange(1, 100_000)])
        values = pa.array(np.zeros(int(ends[-1]), np.int8))
        field = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), values)
    table = pa.table(dict.fromkeys(FIELDS, field))
    pq.write_table(table, run / "batch_dumps" / "step_00009.parquet", compression="zstd")
    left_out(captures=3)
