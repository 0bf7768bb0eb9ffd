"""Arrays as a training loop has them: numpy and torch, flat and padded, in any precision."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firstbad_recorder import Recorder

LENGTHS = [3, 1, 2]
OFFSETS = [0, 3, 4, 6]


def arrays(file: Path) -> dict[str, np.ndarray]:
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    kinds = {"F32": "<f4", "F64": "<f8", "I64": "<i8", "U8": "u1"}
    return {
        name: np.frombuffer(
            data[slice(*(8 + length + at for at in entry["data_offsets"]))], kinds[entry["dtype"]]
        )
        for name, entry in json.loads(data[8 : 8 + length]).items()
    }


def stored(folder: Path, **tokens: Any) -> tuple[dict[str, np.ndarray], dict[str, str], list[str]]:
    """Arrays of a captured step, what they were computed in, and why others are not there."""
    recorder = Recorder(folder)
    recorder.capture(1, tokens=tokens)
    recorder.close()
    step = folder / "steps/00000001"
    file = step / "tokens.safetensors"
    dropped = json.loads((folder / "run.json").read_text())["dropped_by_reason"]
    computed = json.loads((step / "step.json").read_text()).get("compute_dtypes", {})
    return arrays(file) if file.exists() else {}, computed, list(dropped)


def flat(library: Any) -> dict[str, Any]:
    numbers = [-0.5, -1.0, float("nan"), -2.0, float("-inf"), -3.0]
    return {
        "offsets": library.asarray(OFFSETS),
        "token_id": library.asarray([1, 2, 3, 4, 5, 6]),
        "logp_new": library.asarray(numbers, dtype=library.float32),
        "logp_old": library.asarray(numbers, dtype=library.float64),
        "entropy": library.asarray(numbers, dtype=library.float16),
        "loss_mask": library.asarray([True, False, True, True, False, True]),
        "attention_mask": library.asarray([1.0, 1.0, 0.0, 1.0, 1.0, 1.0]),
        "advantage": library.asarray([0.25, -0.5, 1.0]),
        "source": library.asarray([2, 3, 3, 3, 2, 3]),
    }


def expect(found: dict[str, np.ndarray]) -> None:
    numbers = [-0.5, -1.0, np.nan, -2.0, -np.inf, -3.0]
    for name, dtype in (("logp_new", "f4"), ("logp_old", "f8"), ("entropy", "f4")):
        assert found[name].dtype == np.dtype(dtype)
        assert np.array_equal(found[name], numbers, equal_nan=True)
    assert found["offsets"].tolist() == OFFSETS
    assert found["token_id"].tolist() == [1, 2, 3, 4, 5, 6]
    assert found["loss_mask"].tolist() == [1, 0, 1, 1, 0, 1]
    assert found["attention_mask"].tolist() == [1, 1, 0, 1, 1, 1]
    assert found["advantage"].tolist() == [0.25, 0.25, 0.25, -0.5, 1.0, 1.0]
    assert found["source"].tolist() == [2, 3, 3, 3, 2, 3]


def test_numpy_arrays_that_are_flat(tmp_path: Path) -> None:
    found, computed, left = stored(tmp_path, **flat(np))
    assert left == []
    expect(found)
    assert computed["entropy"] == "float16"
    assert computed["logp_old"] == "float64"


def test_torch_arrays_that_are_flat(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    tokens = flat(torch)
    tokens["logp_new"] = tokens["logp_new"].requires_grad_()
    tokens["varentropy"] = torch.tensor([0.5, 1.0, 1.5, 2.0, 2.5, 3.0], dtype=torch.bfloat16)
    tokens["loss_mask.kl"] = torch.tensor([0, 1, 1, 1, 0, 1], dtype=torch.bfloat16)
    found, computed, left = stored(tmp_path, **tokens)
    assert left == []
    expect(found)
    assert found["varentropy"].dtype == np.float32
    assert found["varentropy"].tolist() == [0.5, 1.0, 1.5, 2.0, 2.5, 3.0]
    assert found["loss_mask.kl"].tolist() == [0, 1, 1, 1, 0, 1]
    assert computed["varentropy"] == "bfloat16"


def padded(library: Any) -> dict[str, Any]:
    return {
        "token_id": library.asarray([[1, 2, 0], [3, 4, 5]]),
        "logp_new": library.asarray([[-0.5, -1.0, 0.0], [-1.5, -2.0, -2.5]], dtype=library.float16),
        "loss_mask": library.asarray([[True, True, False], [True, True, True]]),
        "advantage": library.asarray([0.5, -0.5]),
    }


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_arrays_that_are_padded(tmp_path: Path, name: str) -> None:
    found, computed, left = stored(tmp_path, **padded(pytest.importorskip(name)))
    assert left == []
    assert found["offsets"].tolist() == [0, 3, 6]
    assert found["logp_new"].tolist() == [-0.5, -1.0, 0.0, -1.5, -2.0, -2.5]
    assert found["loss_mask"].tolist() == [1, 1, 0, 1, 1, 1]
    assert found["advantage"].tolist() == [0.5] * 3 + [-0.5] * 3
    assert computed["logp_new"] == "float16"


def test_masked_places_have_no_value(tmp_path: Path) -> None:
    values = np.ma.masked_array([[-0.5, -1.0]], [[False, True]])
    found, _, left = stored(tmp_path, token_id=[[1, 2]], logp_new=values)
    assert left == []
    assert np.array_equal(found["logp_new"], [-0.5, np.nan], equal_nan=True)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("loss_mask", np.array([[0.5, 1.0]])),  # a weight is no mask: 0.5 would be stored as 0
        ("loss_mask", np.array([[-1, 300]])),
        ("loss_mask", np.array([[np.nan, 1.0]])),
        ("position", np.array([[0.5, 1.0]])),
        ("loss_mask", [[0.5, 1.0]]),
        ("logp_new", np.array([["a", "b"]])),
        ("logp_new", np.zeros((1, 2, 3))),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")
def test_values_that_would_be_changed_are_left_out_and_counted(
    tmp_path: Path, name: str, values: Any
) -> None:
    found, _, left = stored(tmp_path, **{"token_id": np.array([[1, 2]]), name: values})
    assert set(found) == {"token_id", "offsets"}
    assert [reason.partition(":")[0] for reason in left] == [f"array `{name}`"]


@pytest.mark.parametrize(
    "offsets", [[1, 3], [0, 3, 2], [], [0.5, 1.0], ["a"], 3, [0, float("nan")]]
)
def test_offsets_that_make_no_sense_cost_the_arrays_and_not_the_step(
    tmp_path: Path, offsets: Any
) -> None:
    found, computed, left = stored(tmp_path, offsets=offsets, token_id=[1, 2, 3])
    assert found == computed == {}
    assert [reason.partition(":")[0] for reason in left] == ["array `offsets`"]
