"""Parquet files whose footer lies or that unpack to far more than they hold, and text tables."""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

LeftOut = Callable[..., list[str]]
LAST = "completions/completions_00008.parquet"
LONG = "x " * 2_000_000


def same(text: str, rows: int) -> Any:
    """A column of equal texts, which takes a few bytes however many and long they are."""
    import pyarrow as pa

    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([text]))


def write(path: Path, columns: dict[str, Any]) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table(columns), path, compression="zstd", store_schema=False)
    return path


def patched(path: Path, change: Callable[[bytes], bytes]) -> Path:
    """The file with another footer."""
    data = path.read_bytes()
    (length,) = struct.unpack("<I", data[-8:-4])
    footer = change(data[-8 - length : -8])
    path.write_bytes(data[: -8 - length] + footer + struct.pack("<I", len(footer)) + b"PAR1")
    return path


def number(value: int) -> bytes:
    """A 64-bit field of a footer: its type, and a varint with the sign in the last bit."""
    value, out = value << 1, bytearray(b"\x16")
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def sizes_of(path: Path) -> list[int]:
    import pyarrow.parquet as pq

    group = pq.read_metadata(path).row_group(0)
    columns = [group.column(i).total_uncompressed_size for i in range(group.num_columns)]
    return [group.total_byte_size, *columns]


def texts(path: Path, rows: int, text: str) -> Path:
    score = np.linspace(0, 1, rows)
    column = same(text, rows)
    return write(path, {"prompt": column, "completion": column, "correctness_reward": score})


def lying_rows(path: Path) -> None:
    texts(path, 19, "a b")
    patched(path, lambda footer: footer.replace(number(19), number(2**50)))


def negative_rows(path: Path) -> None:
    texts(path, 19, "a b")
    patched(path, lambda footer: footer.replace(number(19), number(19)[:1] + b"\x25"))


def lying_sizes(path: Path) -> None:
    texts(path, 19_000, LONG)
    for size in sizes_of(path):
        short = number(1).ljust(len(number(size)), b"\0")
        as_long = bytes([short[0], *(0x82, *[0x80] * (len(short) - 3), 0)])
        patched(path, lambda footer, size=size, new=as_long: footer.replace(number(size), new))  # type: ignore[misc]
    assert sizes_of(path)[0] == 1


def half(path: Path) -> None:
    texts(path, 19, "a b")
    path.write_bytes(path.read_bytes()[:200])


def endless_footer(path: Path) -> None:
    texts(path, 19, "a b")
    path.write_bytes(path.read_bytes()[:-8] + struct.pack("<I", 2**31 + 5) + b"PAR1")


def no_footer(path: Path) -> None:
    path.write_bytes(b"PAR1" + bytes(2**16) + struct.pack("<I", 2**16) + b"PAR1")


LYING = {
    "many rows": lying_rows,
    "fewer rows than none": negative_rows,
    "small sizes": lying_sizes,
    "half of the file": half,
    "a footer longer than the file": endless_footer,
    "a footer of zeros": no_footer,
}


@pytest.mark.parametrize("name", LYING)
def test_a_footer_that_lies(run: Path, left_out: LeftOut, name: str) -> None:
    LYING[name](run / LAST)
    assert [note for note in left_out() if LAST in note]


@pytest.mark.parametrize("rows", [19_000, 5_000_000])
def test_a_dictionary_that_unpacks_to_gigabytes(run: Path, left_out: LeftOut, rows: int) -> None:
    texts(run / LAST, rows, LONG if rows < 20_000 else "a b")
    assert [note for note in left_out() if "rows were read" in note]


BOMBS: dict[str, Callable[[], dict[str, Any]]] = {
    "metrics.parquet": lambda: {"step": np.arange(20_000_000), "kl2": np.zeros(20_000_000)},
    "more.parquet": lambda: {
        "step": np.arange(50_000),
        "kl2": np.zeros(50_000),
        "text": same(LONG, 50_000),
    },
    "data/more.parquet": lambda: {"prompt": same(LONG, 50_000), "answer": same("7", 50_000)},
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_table_that_unpacks_to_gigabytes(run: Path, left_out: LeftOut, name: str) -> None:
    write(run / name, BOMBS[name]())
    assert [note for note in left_out() if f"`{name}` unpacks to more than" in note]


@pytest.mark.parametrize("rows", [12_000, 5_000_000])
def test_rollouts_of_many_steps_in_one_file(
    tmp_path: Path, survive: Callable[..., Any], rows: int
) -> None:
    completion = same(LONG if rows < 20_000 else "a b", rows)
    step, score = np.full(rows, 3), np.zeros(rows)
    columns = {"step": step, "prompt": same("p", rows), "completion": completion, "reward": score}
    write(tmp_path / "rollouts.parquet", columns)
    answer = survive(tmp_path / "rollouts.parquet")
    assert answer.told["errors"] == []
    assert answer.told["steps"] == [0, 1, 0]


def test_a_byte_of_a_footer_that_was_changed_ends_no_process(
    run: Path, survive: Callable[..., Any]
) -> None:
    """Among them the types of columns, over which Arrow aborts where their sizes are asked for."""
    sound = (run / "completions" / "completions_00001.parquet").read_bytes()
    start = len(sound) - 8 - int.from_bytes(sound[-8:-4], "little")
    for k in range(120):
        data = bytearray(sound)
        data[start + k] = 96
        (run / "completions" / f"completions_{200 + k:05d}.parquet").write_bytes(data)
    answer = survive(run)
    assert answer.code == 0
    assert answer.told["errors"] == []


def test_what_is_packed_is_not_unpacked(run: Path, left_out: LeftOut) -> None:
    for name in ("metrics.jsonl.gz", "rollouts.json", "metrics.jsonl", "m.csv", "m.parquet"):
        with gzip.open(run / name, "wb") as packed:
            for _ in range(100):
                packed.write(bytes(2**20))
    left_out()


TABLES = {
    "an open quote": ("m.csv", 'step,kl2\n1,"' + "x,\n" * 500_000),
    "wide": ("m.csv", "step" + ",c" * 50_000 + "\n1" + ",1" * 50_000 + "\n2" + ",1" * 50_000),
    "no line ends": ("m.csv", "step,kl2," * 200_000),
    "flat": ("m.json", "[" + "{}," * 300_000 + "{}]"),
    "a key a line": ("m.jsonl", "".join(f'{{"step":{s},"k{s}":1}}\n' for s in range(30_000))),
    "one key many times": ("m.jsonl", ('{"step":1' + ',"kl2":1' * 50_000 + "}\n") * 3),
}


@pytest.mark.parametrize("name", TABLES)
def test_text_tables(run: Path, survive: Callable[..., Any], name: str) -> None:
    path, text = TABLES[name]
    (run / path).write_text(text)
    answer = survive(run)
    assert answer.told["errors"] == []
    assert answer.told["steps"][1:] == [8, 2]


def test_words_for_what_is_no_number(run: Path, survive: Callable[..., Any]) -> None:
    row = '{"step":%d,"a":NaN,"b":"nan","c":Infinity,"d":"-inf","e":1e999,"f":"1_0","g":%s}\n'
    (run / "m.jsonl").write_text("".join(row % (s, "9" * 6000) for s in range(1, 60)))
    answer = survive(run)
    assert answer.told["errors"] == []
    json.dumps(answer.told, allow_nan=False)
