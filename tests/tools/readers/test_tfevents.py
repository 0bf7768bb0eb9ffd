"""The parser of TensorBoard files, on bytes made by hand."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstbad.tools.readers import open_run
from firstbad.tools.readers.tfevents import parse_events


def framed(record: bytes) -> bytes:
    return struct.pack("<Q", len(record)) + b"abcd" + record + b"efgh"


def sub(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | 2, len(data)]) + data


def test_a_simple_value() -> None:
    # wall_time=0, step=300 (varint ac 02), summary{value{tag "a", simple_value 1.5}}
    value = sub(1, b"a") + b"\x15" + struct.pack("<f", 1.5)
    record = b"\x09" + b"\0" * 8 + b"\x10\xac\x02" + sub(5, sub(1, value))
    found = parse_events(framed(record), "x")
    assert found.log.series["a"].steps == [300]
    assert found.log.series["a"].values == [1.5]
    assert found.cut_at is None


@pytest.mark.parametrize(
    "tensor",
    [
        b"\x08\x01" + sub(5, struct.pack("<f", 2.5)),  # float_val, packed
        b"\x08\x01" + b"\x2d" + struct.pack("<f", 2.5),  # float_val
        b"\x08\x02" + sub(6, struct.pack("<d", 2.5)),  # double_val, packed
        b"\x08\x02" + b"\x31" + struct.pack("<d", 2.5),  # double_val
        b"\x08\x01" + sub(2, b"") + sub(4, struct.pack("<f", 2.5)),  # tensor_content
        b"\x08\x02" + sub(2, b"") + sub(4, struct.pack("<d", 2.5)),
    ],
)
def test_a_value_in_a_tensor(tensor: bytes) -> None:
    plugin = sub(9, sub(1, sub(1, b"scalars")))
    record = b"\x10\x07" + sub(5, sub(1, sub(1, b"t") + plugin + sub(8, tensor)))
    found = parse_events(framed(record), "x")
    assert found.log.series["t"].values == [2.5]
    assert found.log.series["t"].steps == [7]


def test_texts_and_not_a_number(make: Any, tmp_path: Path) -> None:
    rows = [{"step": 1, "a": math.nan}, {"step": 2, "a": math.inf}, {"step": 3, "a": 0.5}]
    path = make.board("events.out.tfevents.1.h", rows, {"args/text_summary": "{}"})
    found = parse_events(path.read_bytes(), "x")
    assert found.texts == {"args/text_summary": "{}"}
    signal = open_run(str(tmp_path)).signals.unknown["a"]
    assert signal.nonfinite_steps == (1, 2)


def test_a_tail_that_was_cut_off_is_a_note(make: Any, tmp_path: Path) -> None:
    rows = [{"step": s, "train/reward": s * 0.5} for s in range(1, 5)]
    path = make.board("events.out.tfevents.1.h", rows)
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    run = open_run(str(tmp_path))
    assert run.signals.known["reward_mean"].steps.tolist() == [1, 2, 3]
    assert [note.code for note in run.notes if note.code == "file_cut"]


def test_later_files_win(make: Any, tmp_path: Path) -> None:
    make.board("b/events.out.tfevents.100.h", [{"step": s, "train/reward": 1} for s in (1, 2)])
    make.board("a/events.out.tfevents.200.h", [{"step": s, "train/reward": 2} for s in (2, 3)])
    run = open_run(str(tmp_path))
    assert run.signals.known["reward_mean"].values.tolist() == [1, 2, 2]
    assert [(e.kind, e.step) for e in run.events] == [("resume", 2)]


def test_the_end_of_training(make: Any, tmp_path: Path) -> None:
    rows = [{"step": 1, "train/reward": 1}, {"step": 1, "train/train_runtime": 5.0}]
    make.board("events.out.tfevents.100.h", rows)
    run = open_run(str(tmp_path))
    assert [(e.kind, e.step) for e in run.events] == [("end", 1)]
    assert list(run.signals.unknown) == []


def test_an_empty_file_is_not_a_run(make: Any, tmp_path: Path) -> None:
    from firstbad.tools.errors import UserError

    make.text("events.out.tfevents.1.h", "")
    with pytest.raises(UserError, match="holds no run"):
        open_run(str(tmp_path))


@given(st.binary(max_size=200))
def test_any_bytes_are_survived(data: bytes) -> None:
    parse_events(data, "x")
    parse_events(framed(data), "x")


@given(st.integers(0, 120), st.integers(0, 255))
def test_any_changed_byte_is_survived(at: int, value: int) -> None:
    inner = sub(1, b"a") + b"\x15" + struct.pack("<f", 1.5)
    whole = bytearray(framed(b"\x10\x01" + sub(5, sub(1, inner))) * 3)
    whole[at % len(whole)] = value
    parse_events(bytes(whole), "x")
