"""Files that torch saves: numbers come out at their places, and nothing in the file is run."""

from __future__ import annotations

import contextlib
import os
import pickle
import pickletools
import struct
import time
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstbad.tools.inert_pickle import Refused
from firstbad.tools.readers import torch_file
from firstbad.tools.readers.torch_file import StoredTensor, read_torch_file
from synthetic.torch_files import Bf16, save_torch

REAL = Path(__file__).parents[2] / "runs" / "robin" / "checkpoint-120" / "optimizer.pt"


@pytest.fixture(name="saved")
def _saved(tmp_path: Path) -> Any:
    """Save a value and read it back: `saved({"a": array})`."""

    def build(value: object) -> Any:
        save_torch(tmp_path / "state.pt", value)
        return read_torch_file(tmp_path / "state.pt")

    return build


def zipped(path: Path, pickled: bytes, **entries: bytes) -> Path:
    """A file of the form, around any pickle."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("state/data.pkl", pickled)
        for name, data in entries.items():
            archive.writestr(f"state/data/{name}", data)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(Refused) as error:
        read_torch_file(path)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_plain_values_and_tensors_come_out(saved: Any) -> None:
    found = saved({"state": {0: {"step": np.array(7, np.float32)}}, "lr": 1e-4, "on": True})
    assert (found["lr"], found["on"]) == (1e-4, True)
    step = found["state"][0]["step"]
    assert (step.dtype, step.shape, step.size) == ("float32", (), 1)
    assert step.sample().tolist() == [7.0]


@pytest.mark.parametrize("layout", ["f8", "f4", "f2", "i8", "i4", "u1"])
def test_each_kind_of_number(saved: Any, layout: str) -> None:
    values = np.arange(6).astype(layout).reshape(2, 3)
    tensor = saved([values])[0]
    assert tensor.shape == (2, 3)
    assert tensor.sample().tolist() == [0, 1, 2, 3, 4, 5]
    assert tensor.sample().dtype == values.dtype


def test_bfloat16_is_the_upper_half_of_a_float32(saved: Any) -> None:
    # Of 257 eight bits are kept, as of every number: 256.
    tensor = saved([Bf16([1.0, -2.5, 2.0**100, 257.0])])[0]
    assert tensor.dtype == "bfloat16"
    assert tensor.sample().dtype == np.float32
    assert tensor.sample().tolist() == [1.0, -2.5, 2.0**100, 256.0]


def test_strides_and_offset_are_respected(saved: Any) -> None:
    whole = np.arange(24, dtype=np.float32)
    grid = np.ndarray((4, 6), np.float32, whole)
    found = saved({"turned": grid.T, "part": grid[1:3, 2:4], "same": grid})
    assert found["turned"].strides == (1, 6)
    assert found["turned"].sample().tolist() == grid.T.ravel().tolist()
    assert found["part"].offset == 8
    assert found["part"].sample().tolist() == [8, 9, 14, 15]
    assert found["same"].at == found["part"].at


def test_of_a_large_tensor_little_is_read(saved: Any) -> None:
    big = np.arange(3_000_000, dtype=np.float32).reshape(1500, 2000)
    tensor = saved([big])[0]
    tracemalloc.start()
    numbers = tensor.sample()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**20
    assert len(numbers) == 2048
    # 16 blocks of 128 from the first number to the last.
    assert (numbers[0], numbers[127], numbers[-1]) == (0, 127, 2_999_999)


def test_a_storage_that_is_not_there_has_no_numbers() -> None:
    found: Any = read_torch_file(REAL)  # the moments were left out of the recorded run
    assert found["state"][0]["step"].sample().tolist() == [120.0]
    assert found["state"][0]["exp_avg"].shape == (37, 64)
    assert len(found["state"][0]["exp_avg"].sample()) == 0


def test_what_the_file_names_is_not_carried_out(tmp_path: Path) -> None:
    victim = tmp_path / "written"

    class Call:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {victim}",)

    for protocol in range(6):
        path = zipped(tmp_path / "state.pt", pickle.dumps({"state": Call()}, protocol))
        assert "names `posix.system`" in refusal(path) or "names `nt.system`" in refusal(path)
    assert not victim.exists()
    inert = zipped(
        tmp_path / "state.pt", b"\x80\x02}(X\x01\x00\x00\x00acnumpy\nload\n(X\x01\x00\x00\x00xtRu."
    )
    assert read_torch_file(inert) == {"a": None}


HOSTILE = {
    "empty": b"",
    "no zip": b"PK junk",
    "a pickle alone": pickle.dumps({"state": {}}),
    "a zip with nothing in it": b"PK\5\6" + bytes(18),
    "a header and no end": b"PK\3\4" + bytes(60),
    "an end that points far away": b"PK\3\4" + bytes(60) + b"PK\5\6" + b"\xff" * 18,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_no_such_file(tmp_path: Path, name: str) -> None:
    (tmp_path / "state.pt").write_bytes(HOSTILE[name])
    assert refusal(tmp_path / "state.pt")
    assert "cannot be opened" in refusal(tmp_path / "none.pt")


def test_the_form_before_1_6_is_recognised(tmp_path: Path) -> None:
    old = pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1001, 2) + pickle.dumps({}, 2)
    (tmp_path / "state.pt").write_bytes(old)
    assert "before 1.6" in refusal(tmp_path / "state.pt")


def test_a_compressed_file_is_refused_unread(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "state.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("state/data.pkl", bytes(200 * 2**20))
    tracemalloc.start()
    assert "compressed" in refusal(tmp_path / "state.pt")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10 * 2**20


def test_a_directory_without_end_is_refused_unread(tmp_path: Path) -> None:
    end = b"PK\5\6" + struct.pack("<4H2LH", 0, 0, 9, 9, 2**31, 0, 0)
    (tmp_path / "state.pt").write_bytes(b"PK\3\4" + bytes(99) + end)
    assert "more entries" in refusal(tmp_path / "state.pt")


def test_the_pickle_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = zipped(tmp_path / "deep.pt", b"\x80\x02" + b"]" * 50_000 + b"a" * 49_999 + b".")
    assert "nested deeper" in refusal(deep)
    short = zipped(tmp_path / "short.pt", b"\x80\x02}.")
    monkeypatch.setattr(torch_file, "MAX_OPERATIONS", 3)
    assert read_torch_file(short) == {}
    monkeypatch.setattr(torch_file, "MAX_OPERATIONS", 2)
    assert "operations" in refusal(short)
    monkeypatch.setattr(torch_file, "MAX_PICKLE_BYTES", 3)
    assert "4 bytes" in refusal(short)


def test_references_to_references_are_looked_through_once(tmp_path: Path) -> None:
    # Each list holds the one before it 200 times: 200**14 leaves for whoever counts them.
    body = b"\x80\x02]q\x00"
    for i in range(14):
        body += b"](" + (b"h" + bytes([i])) * 200 + b"eq" + bytes([i + 1])
    begun = time.process_time()
    read_torch_file(zipped(tmp_path / "state.pt", body + b"."))
    assert time.process_time() - begun < 5


@pytest.mark.parametrize(
    ("offset", "shape", "strides"),
    [(1, (2, 3), (3, 1)), (0, (7,), (1,)), (0, (2,), (2**40,)), (-1, (2,), (1,)), (0, (2,), ())],
    ids=["offset beyond", "too long", "stride beyond", "before the start", "strides missing"],
)
def test_a_tensor_that_does_not_lie_in_its_storage(
    tmp_path: Path, offset: int, shape: Any, strides: Any
) -> None:
    save_torch(tmp_path / "good.pt", [np.arange(6, dtype=np.float32)])
    with zipfile.ZipFile(tmp_path / "good.pt") as archive:
        pickled = archive.read("good/data.pkl")
    asked = pickle.dumps((offset, shape, strides), 2)[2:-1]
    begin = pickled.index(b"QK\x00") + 1
    end = pickled.index(b"\x89", begin)
    changed = pickled[:begin] + _spread(asked) + pickled[end:]
    found: Any = read_torch_file(
        zipped(tmp_path / "bad.pt", changed, **{"0": np.arange(6, dtype="<f4").tobytes()})
    )
    assert found == [None]


def _spread(pickled: bytes) -> bytes:
    """The three items of a pickled tuple, without the tuple and what keeps it."""
    operations = pickletools.genops(pickled + b".")
    (*_, last) = (place for op, _, place in operations if op.name == "TUPLE3")
    assert last is not None
    return pickled[:last]


def test_a_file_that_became_shorter(saved: Any, tmp_path: Path) -> None:
    tensor = saved([np.arange(5000, dtype=np.float32)])[0]
    assert isinstance(tensor, StoredTensor)
    with (tmp_path / "state.pt").open("rb+") as stream:
        stream.truncate(3000)
    with pytest.raises(Refused, match="shorter"):
        tensor.sample()


@given(st.binary(max_size=60), st.integers(0, 400))
def test_any_bytes_give_a_value_or_a_refusal(
    tmp_path_factory: pytest.TempPathFactory, noise: bytes, at: int
) -> None:
    path = tmp_path_factory.mktemp("noise") / "state.pt"
    good = REAL.read_bytes()
    for written in (
        good[:at] + noise + good[at:],
        good[: -at or None] + noise + good[len(good) - at :],
    ):
        path.write_bytes(written)
        with contextlib.suppress(Refused):
            assert read_torch_file(path) is None or read_torch_file(path)


def test_a_zip_with_64_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is written for files of more than 4 GiB."""
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 8)
    save_torch(tmp_path / "state.pt", {"a": np.arange(6, dtype=np.float32), "b": np.ones(3)})
    data = (tmp_path / "state.pt").read_bytes()
    assert b"PK\6\6" in data
    found: Any = read_torch_file(tmp_path / "state.pt")
    assert found["a"].sample().tolist() == [0, 1, 2, 3, 4, 5]
    assert found["b"].sample().tolist() == [1, 1, 1]
