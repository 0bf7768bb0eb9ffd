"""Token files of a record: what is read, and when."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from firstbad.tools.errors import UserError
from firstbad.tools.paths import File
from firstbad.tools.readers import open_run, ragged
from firstbad.tools.readers.tensors import Array, Stored, read_stored
from firstbad.tools.registry import run_tool
from firstbad.tools.run import Run
from firstbad_recorder import Recorder

R, T = 30, 40


@pytest.fixture(name="record")
def _record(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    source = np.full((R, T), 3)
    source[:, :10] = 2
    logp = -rng.random((R, T))
    with Recorder(tmp_path) as recorder:
        for step in (1, 2):
            recorder.scalars(step, loss=0.5)
            recorder.capture(
                step,
                tokens={
                    "token_id": rng.integers(2, 9, (R, T)),
                    "source": source,
                    "loss_mask": source == 3,
                    "attention_mask": np.ones((R, T), int),
                    "logp_old": logp,
                    "logp_new": logp,
                    "logp_engine": logp,
                    "entropy": -logp,
                    "advantage": np.ones(R),
                },
            )
    return tmp_path


@pytest.fixture(name="asked")
def _asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the arrays that are read, in order."""
    names: list[str] = []

    def noted(file: File, one: Stored) -> Array:
        names.append(one.name)
        return read_stored(file, one)

    monkeypatch.setattr(ragged, "read_stored", noted)
    return names


def opened(record: Path) -> Run:
    return open_run(str(record))


def test_an_array_is_read_when_it_is_asked_for(record: Path, asked: list[str]) -> None:
    capture = opened(record).captures.at(1)
    assert asked == ["offsets", "source"]
    assert "logp_new" in capture.arrays
    assert {"entropy", "prompt_token_id", "prompt_mask"} <= set(capture.arrays)
    assert len(capture.arrays) == len(list(capture.arrays))
    assert "logp_ref" not in capture.arrays
    assert capture.arrays.get("logp_ref") is None
    assert asked == ["offsets", "source"]
    assert capture.arrays["logp_new"].shape == (R, T - 10)
    assert capture.arrays["prompt_token_id"].shape == (R, 10)
    assert capture.arrays["token_id"] is capture.arrays["token_id"]
    assert asked == ["offsets", "source", "logp_new", "token_id"]


def test_bytes_are_known_before_they_are_read(record: Path, asked: list[str]) -> None:
    capture = opened(record).captures.at(1)
    told = capture.nbytes
    assert len(asked) == 2
    wide = [array for name, array in capture.arrays.items() if name != "advantage"]
    # One advantage for each row is kept as one number; it was counted as one for each token.
    assert told == sum(array.nbytes for array in wide) + 8 * R * (T - 10)


def test_a_tool_reads_what_it_needs(record: Path, asked: list[str]) -> None:
    found = run_tool("check_attention", opened(record), {}, evidence_id="E1")
    assert found.status == "measured"
    assert set(asked) == {"offsets", "source", "attention_mask"}


def test_a_file_that_is_cut_off_after_it_was_opened(record: Path) -> None:
    capture = opened(record).captures.at(1)
    file = record / "steps/00000001/tokens.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(UserError, match="cannot be read"):
        dict(capture.arrays)
