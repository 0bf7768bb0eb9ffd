"""Pickles that would carry something out, under every name a run may have them."""

from __future__ import annotations

import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

LeftOut = Callable[..., list[str]]


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def payloads(mark: Path) -> dict[str, bytes]:
    """One for each operation that imports or calls."""
    call = text(f"touch {mark}")
    code = text(f"open({str(mark)!r}, 'w')")
    return {
        "GLOBAL REDUCE": b"\x80\x02cposix\nsystem\n" + call + b"\x85R.",
        "STACK_GLOBAL": b"\x80\x04\x8c\x02os\x8c\x06system\x93" + call + b"\x85R.",
        "INST": b"(" + call + b"ios\nsystem\n.",
        "OBJ": b"(cos\nsystem\n" + call + b"o.",
        "NEWOBJ_EX": b"\x80\x04csubprocess\nPopen\n("
        + call
        + b"t}"
        + text("shell")
        + b"\x88s\x92.",
        "BUILD": b"\x80\x02ctrl\nC\n)\x81}"
        + text("__setstate__")
        + b"cos\nsystem\ns"
        + call
        + b"b.",
        "eval": b"\x80\x02cbuiltins\neval\n" + code + b"\x85R.",
        "exec": b"\x80\x02c__builtin__\nexec\n" + code + b"\x85R.",
        "EXT1": b"\x80\x02\x82\x01" + call + b"\x85R.",
        "PERSID": b"P" + str(mark).encode() + b"\n.",
        "BINPERSID": b"\x80\x02cos\nsystem\n" + call + b"\x85RQ.",
    }


FILES = (
    "training_args.bin",
    "checkpoint-60/training_args.bin",
    "checkpoint-60/optimizer.pt",
    "checkpoint-60/scheduler.pt",
    "checkpoint-60/rng_state.pth",
    "checkpoint-60/pytorch_model.bin",
    "rollouts/1.pkl",
    "batch_dumps/step_9.pkl",
    "batch_dumps/step_9.pt",
)


@pytest.mark.parametrize("operation", payloads(Path()))
def test_nothing_is_carried_out(run: Path, mark: Path, left_out: LeftOut, operation: str) -> None:
    """As a bare pickle, as torch's zip, and where a state's first parameter has its step."""
    body = payloads(mark)[operation]
    for i, name in enumerate(FILES):
        path = run / name
        path.parent.mkdir(exist_ok=True)
        if i % 4 == 3:
            path.write_bytes(body)
            continue
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data.pkl", body)
            archive.writestr("archive/data/0", struct.pack("<f", 60))
    left_out()


def test_nothing_is_carried_out_by_the_command(
    run: Path, mark: Path, survive: Callable[..., Any]
) -> None:
    for name in ("training_args.bin", "checkpoint-60/optimizer.pt"):
        with zipfile.ZipFile(run / name, "w") as archive:
            archive.writestr("archive/data.pkl", payloads(mark)["GLOBAL REDUCE"])
    assert '"outcome": "undetermined"' in survive(run, by_command=True).out


@pytest.mark.parametrize("name", ["r.pkl", "r.jsonl", "r.json", "r.csv", "r.parquet", "r.log"])
def test_a_pickle_alone_is_refused(
    tmp_path: Path, mark: Path, survive: Callable[..., Any], name: str
) -> None:
    (tmp_path / name).write_bytes(payloads(mark)["GLOBAL REDUCE"])
    answer = survive(tmp_path / name, by_command=True)
    assert answer.code == 2
    assert answer.out == ""


class Call:
    """Pickled as a call."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.mark}",)


def test_arrays_of_objects_are_left_out(run: Path, mark: Path, left_out: LeftOut) -> None:
    objects = np.array([Call(mark)], object)
    np.savez(
        run / "batch_dumps" / "step_00009.npz",
        completion_ids=objects,
        logps=objects,
        completion_mask=np.ones((2, 3)),
    )
    left_out(captures=3)
