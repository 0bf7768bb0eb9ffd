"""Saved states that lie about their tensors, and other files a stranger might leave in a run."""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from synthetic.torch_files import adam_state, save_torch

LeftOut = Callable[..., list[str]]
ROWS, COLUMNS = 300, 411


def state(path: Path) -> bytes:
    """The pickle of a sound state with one parameter of 300 x 411 numbers, left at `path`."""
    rng = np.random.default_rng(0)
    moments = (rng.random((ROWS, COLUMNS)).astype(np.float32),) * 2
    save_torch(path, adam_state(moments, step=60, rate=1e-4))
    with zipfile.ZipFile(path) as archive:
        return archive.read(f"{path.stem}/data.pkl")


def short(number: int) -> bytes:
    return b"M" + struct.pack("<H", number)


def long(number: int) -> bytes:
    return b"\x8a\x08" + struct.pack("<q", number)


SIZE = b"J" + struct.pack("<i", ROWS * COLUMNS)
LIES: dict[str, tuple[bytes, bytes]] = {
    "rows without end": (short(ROWS), long(2**61)),
    "fewer rows than none": (short(ROWS), long(-ROWS)),
    "a stride without end": (short(COLUMNS), long(2**61)),
    "a stride that goes back": (short(COLUMNS), long(-COLUMNS)),
    "numbers without end": (SIZE, long(2**62)),
    "fewer numbers than none": (SIZE, long(-5)),
    "rows that are no number": (short(ROWS), b"N"),
    "rows in rows": (short(ROWS), b"]"),
}


def rewritten(path: Path, members: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path) as archive:
        kept = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, body in (kept | members).items():
            archive.writestr(name, body)


@pytest.mark.parametrize("name", LIES)
def test_tensors_that_lie(run: Path, left_out: LeftOut, name: str) -> None:
    path = run / "checkpoint-60" / "optimizer.pt"
    body = state(path)
    true, false = LIES[name]
    assert true in body
    rewritten(path, {"optimizer/data.pkl": body.replace(true, false)})
    left_out()


def other_directory(path: Path) -> None:
    """Members are said to be encrypted."""
    body = bytearray(path.read_bytes())
    for mark, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        start = 0
        while (start := body.find(mark, start)) >= 0:
            body[start + at] |= 1
            start += 4
    path.write_bytes(bytes(body))


def twice(path: Path) -> None:
    """Two members of one name: a sound one, and one that says something else."""
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(path, "a") as archive:
        archive.writestr("optimizer/data.pkl", b"\x80\x02cos\nsystem\nX\x02\x00\x00\x00id\x85R.")


def upwards(path: Path) -> None:
    """Members that would lie outside, were anything unpacked."""
    rewritten(path, {"../../carried-out": b"x", "/tmp/carried-out": b"x"})


def crowded(path: Path) -> None:
    rewritten(path, {f"optimizer/data/x{i}": b"" for i in range(30_000)})


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])


@pytest.mark.parametrize("spoil", [other_directory, twice, upwards, crowded, cut_short])
def test_archives_that_lie(run: Path, left_out: LeftOut, spoil: Callable[[Path], None]) -> None:
    path = run / "checkpoint-60" / "optimizer.pt"
    state(path)
    spoil(path)
    left_out()


def test_an_index_that_points_elsewhere(run: Path, tmp_path: Path, left_out: LeftOut) -> None:
    """Shards outside of the run, devices, and what is no name at all."""
    outside = tmp_path / "outside.safetensors"
    outside.write_bytes(struct.pack("<Q", 2) + b"{}")
    names = ["../../outside.safetensors", str(outside), "/dev/zero", "..", "", "\x00", 7, None]
    index = {"weight_map": {f"w{i}": name for i, name in enumerate(names)}}
    for step in (40, 60):
        folder = run / f"checkpoint-{step}"
        folder.mkdir(exist_ok=True)
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        (folder / "model.safetensors").unlink(missing_ok=True)
    left_out()


TEXTS: dict[str, tuple[str, bytes]] = {
    "two bytes a letter": ("m.jsonl", '{"step":1,"kl2":1}\n'.encode("utf-16") * 50),
    "a mark of the byte order": ("m.csv", b"\xef\xbb\xbfstep,kl2\n1,2\n"),
    "zeros": ("m.jsonl", bytes(5_000_000)),
    "an endless line": ("m.jsonl", b'{"step":1,"text":"' + b"x" * 40_000_000),
    "lines of one letter": ("m.csv", b"a\n" * 3_000_000),
    "control letters": ("more.log", bytes(range(32)) * 30_000),
    "endless digits": ("m.csv", b"step,kl2\n" + b"9" * 2_000_000 + b",1\n"),
    "an exponent": ("m.jsonl", b'{"step":1e999999999,"kl2":1e-999999999}\n' * 50),
    "steps far away": ("m.jsonl", b'{"step":9007199254740993,"kl2":1}\n{"step":-5,"kl2":1}\n'),
}


@pytest.mark.parametrize("name", TEXTS)
def test_texts(run: Path, survive: Callable[..., Any], name: str) -> None:
    file, body = TEXTS[name]
    (run / file).write_bytes(body)
    answer = survive(run)
    assert answer.code in (0, 2)


@pytest.mark.parametrize("depth", [40, 400])
def test_columns_in_columns(run: Path, left_out: LeftOut, depth: int) -> None:
    """A type nested so deep that following it would end the process."""
    kind: Any = pa.float64()
    for _ in range(depth):
        kind = pa.struct([("a", kind)])
    schema = pa.schema([("step", pa.int64()), ("reward", kind)])
    table = pa.table([pa.array([1, 2]), pa.nulls(2, kind)], schema)
    for name in ("deep.parquet", "completions/completions_00009.parquet"):
        pq.write_table(table, run / name)
    left_out(rollouts=9)
