"""Per-token dumps in npz, safetensors and Parquet."""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firstbad.tools.errors import UserError
from firstbad.tools.readers import open_run
from firstbad.tools.registry import run_tool
from firstbad.tools.run import Run

FIELDS: dict[str, Any] = {
    "prompt_ids": np.array([[0, 5], [6, 7]], np.int16),
    "prompt_mask": np.array([[False, True], [True, True]]),
    "completion_ids": np.array([[1, 2, 3], [4, 5, 0]], np.int16),
    "completion_mask": np.array([[1, 1, 1], [1, 1, 0]], bool),
    "loss_mask": np.array([[0, 1, 1], [1, 1, 0]], bool),
    "logps": np.array([[-1, -2, -3], [-4, -5, 0]], np.float16),
    "old_per_token_logps": np.full((2, 3), -1.5, np.float32),
    "ref_per_token_logps": np.full((2, 3), -2.5, np.float32),
    "sampling_per_token_logps": np.full((2, 3), -3.5, np.float32),
    "entropies": np.full((2, 3), 0.25, np.float32),
    "advantages": np.array([0.5, -0.5], np.float16),
    "mystery": np.zeros((2, 3)),
}
CANONICAL = {
    "prompt_token_id",
    "prompt_mask",
    "token_id",
    "completion_mask",
    "loss_mask",
    "logp_new",
    "logp_old",
    "logp_ref",
    "logp_engine",
    "entropy",
    "advantage",
}
SAFE = {"float16": "F16", "float32": "F32", "float64": "F64", "int16": "I16", "bool": "BOOL"}


def npz(path: Path, arrays: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)


def safetensors(
    path: Path, arrays: Mapping[str, Any], dtypes: Mapping[str, str] | None = None
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    header: dict[str, Any] = {"__metadata__": {"step": "1"}}
    data = b""
    for name, array in arrays.items():
        raw = array.tobytes()
        header[name] = {
            "dtype": (dtypes or {}).get(name) or SAFE[str(array.dtype)],
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def run_of(make: Any, tmp_path: Path) -> Run:
    make.state("trainer_state.json", [{"step": 1, "reward": 1.0}])
    return open_run(str(tmp_path))


@pytest.mark.parametrize("kind", ["npz", "safetensors"])
def test_fields_get_their_canonical_names(make: Any, tmp_path: Path, kind: str) -> None:
    write = npz if kind == "npz" else safetensors
    write(tmp_path / f"batch_dumps/step_00070.{kind}", FIELDS)
    write(tmp_path / f"batch_dumps/step_00002.{kind}", FIELDS)
    run = run_of(make, tmp_path)
    assert run.captures.steps.tolist() == [2, 70]
    capture = run.captures.at(70)
    assert set(capture.arrays) == CANONICAL
    assert capture.unmapped == ("mystery",)
    assert capture.storage_dtypes["logp_new"] == "float16"
    assert capture.storage_dtypes["token_id"] == "int16"
    for field, name in (("logps", "logp_new"), ("completion_ids", "token_id")):
        np.testing.assert_array_equal(capture.arrays[name], FIELDS[field])
    loss_mask = capture.mask("loss_mask")
    assert loss_mask is not None
    assert loss_mask.tolist() == FIELDS["loss_mask"].tolist()
    (source,) = run.captures.sources(70)
    assert source.ref == f"batch_dumps/step_00070.{kind}"
    assert source.digest is not None
    assert [c.step for c in run.captures] == [2, 70]


def test_passes_made_on_purpose_are_compared(make: Any, tmp_path: Path) -> None:
    sides = {
        "logp_recheck": np.full((2, 3), -1.0, np.float32),
        "logp_layout": np.full((2, 3), -1.25, np.float32),
        "expert_trainer": np.full((2, 3), 7),
        "expert_engine": np.array([[7, 8, 7], [7, 7, 7]]),
    }
    npz(tmp_path / "batch_dumps/step_00001.npz", {**FIELDS, **sides})
    run = run_of(make, tmp_path)
    assert sides.keys() <= run.captures.at(1).arrays.keys()
    layout = run_tool(
        "compare_logprobs", run, {"left": "trainer", "right": "layout"}, evidence_id="E1"
    )
    assert layout.metrics is not None
    assert layout.metrics["mean"] == 0.25
    routing = run_tool("compare_routing", run, {}, evidence_id="E2")
    assert routing.metrics is not None
    assert routing.metrics["difference_apart"] == 2.5


def test_bfloat16_becomes_float32(make: Any, tmp_path: Path) -> None:
    wanted = np.array([[-1.5, -2.0, -0.0078125]], np.float32)
    stored = (wanted.view(np.uint32) >> 16).astype(np.uint16)
    ids = np.array([[1, 2, 3]], np.int16)
    path = tmp_path / "dumps/step_3.safetensors"
    safetensors(path, {"logps": stored, "completion_ids": ids}, {"logps": "BF16"})
    capture = run_of(make, tmp_path).captures.at(3)
    np.testing.assert_array_equal(capture.arrays["logp_new"], wanted)
    assert capture.arrays["logp_new"].dtype == np.float32
    assert capture.storage_dtypes["logp_new"] == "bfloat16"


def test_ragged_parquet_is_padded(make: Any, tmp_path: Path) -> None:
    rows = [
        {"completion_ids": [1, 2, 3], "logps": [-1.0, -2.0, -3.0], "advantages": 0.5, "t": "x"},
        {"completion_ids": [4], "logps": [-4.0], "advantages": -0.5, "t": "y"},
    ]
    make.parquet("dumps/tokens_12.parquet", rows)
    capture = run_of(make, tmp_path).captures.at(12)
    assert capture.arrays["token_id"].tolist() == [[1, 2, 3], [4, 0, 0]]
    logps = capture.numbers("logp_new")
    assert logps is not None
    assert logps[1, 0] == -4.0
    assert np.isnan(logps[1, 1:]).all()
    assert capture.arrays["advantage"].tolist() == [0.5, -0.5]


def test_a_users_own_names(make: Any, tmp_path: Path) -> None:
    npz(tmp_path / "d/7.npz", {"my_lp": np.zeros((1, 2)), "ids": np.ones((1, 2), np.int64)})
    run = run_of(make, tmp_path)
    assert not run.captures
    (note,) = [note for note in run.notes if note.code == "fields_unknown"]
    assert "ids, my_lp" in note.text
    make.text("firstbad.yaml", "capture_fields: {my_lp: logp_old, ids: token_id}\n")
    capture = run_of(make, tmp_path).captures.at(7)
    assert set(capture.arrays) == {"logp_old", "token_id"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("capture_fields: {a: nothing}", "there are: token_id"),
        ("capture_fields: [a]", "must map"),
        ("a: [", "not YAML"),
    ],
)
def test_wrong_names_of_a_user(make: Any, tmp_path: Path, text: str, message: str) -> None:
    make.text("firstbad.yaml", text)
    with pytest.raises(UserError, match=message):
        run_of(make, tmp_path)


def test_an_array_of_another_shape_is_left_out(make: Any, tmp_path: Path) -> None:
    npz(tmp_path / "d/step1.npz", {**FIELDS, "logps": np.zeros((2, 4)), "entropies": np.zeros(3)})
    capture = run_of(make, tmp_path).captures.at(1)
    assert "logp_new" not in capture.arrays
    assert "logps of shape (2, 4)" in capture.unmapped
    assert "entropies of shape (3,)" in capture.unmapped


WIDE = np.array([[0, 1, 1, 1, 1], [1, 1, 1, 1, 0]], bool)
"""A loss mask over prompt (2) and completion (3)."""


def test_a_loss_mask_over_prompt_and_completion_is_read_as_two(make: Any, tmp_path: Path) -> None:
    npz(tmp_path / "d/step1.npz", {**FIELDS, "loss_mask": WIDE})
    capture = run_of(make, tmp_path).captures.at(1)
    assert capture.arrays["prompt_loss_mask"].tolist() == WIDE[:, :2].tolist()
    assert capture.arrays["loss_mask"].tolist() == WIDE[:, 2:].tolist()
    assert capture.unmapped == ("mystery",)


@pytest.mark.parametrize("width", [4, 6])
def test_a_loss_mask_of_any_other_width_is_left_out(make: Any, tmp_path: Path, width: int) -> None:
    npz(tmp_path / "d/step1.npz", {**FIELDS, "loss_mask": np.ones((2, width), bool)})
    capture = run_of(make, tmp_path).captures.at(1)
    assert not {"loss_mask", "prompt_loss_mask"} & capture.arrays.keys()
    assert f"loss_mask of shape (2, {width})" in capture.unmapped


def test_ranks_with_prompts_of_other_lengths_keep_their_masks_in_place(
    make: Any, tmp_path: Path
) -> None:
    narrow = {
        "prompt_ids": np.array([[5]]),
        "completion_ids": np.array([[1, 2, 3, 4]]),
        "loss_mask": np.array([[0, 1, 1, 1, 1]], bool),
    }
    wide = {n: FIELDS[n] for n in ("prompt_ids", "completion_ids")} | {"loss_mask": WIDE}
    npz(tmp_path / "d/step_5_rank0.npz", wide)
    npz(tmp_path / "d/step_5_rank1.npz", narrow)
    arrays = run_of(make, tmp_path).captures.at(5).arrays
    assert arrays["loss_mask"].tolist() == [[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1]]
    assert arrays["prompt_loss_mask"].tolist() == [[0, 1], [1, 1], [0, 0]]


def test_one_token_per_row(make: Any, tmp_path: Path) -> None:
    one = {"completion_ids": np.ones((2, 1), np.int64), "logps": np.zeros((2, 1))}
    npz(tmp_path / "d/step1.npz", {**one, "advantages": np.zeros((2, 1))})
    arrays = run_of(make, tmp_path).captures.at(1).arrays
    assert arrays["token_id"].shape == (2, 1)
    assert arrays["advantage"].shape == (2,)


def test_files_of_several_ranks(make: Any, tmp_path: Path) -> None:
    npz(tmp_path / "d/step_5_rank0.npz", FIELDS)
    wide = {"completion_ids": np.full((1, 4), 9, np.int16), "logps": np.zeros((1, 4), np.float16)}
    npz(tmp_path / "d/step_5_rank1.npz", {**wide, **{}})
    npz(tmp_path / "d/6_rank0.npz", wide)  # the last number that is not called a rank
    npz(tmp_path / "d/step_6_rank1.npz", {k: v[:, :2] for k, v in wide.items()})
    run = run_of(make, tmp_path)
    assert run.captures.steps.tolist() == [5, 6]
    six = run.captures.at(6).arrays
    assert six["token_id"].tolist() == [[9, 9, 9, 9], [9, 9, 0, 0]]


def test_pickles_are_not_opened(make: Any, tmp_path: Path) -> None:
    npz(tmp_path / "d/step_1.npz", {**FIELDS, "objects": np.array([{}, []], object)})
    capture = run_of(make, tmp_path).captures.at(1)
    assert set(capture.arrays) == CANONICAL


@pytest.mark.parametrize("kind", ["npz", "safetensors", "parquet"])
def test_a_dump_that_was_cut_off(make: Any, tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"d/step_1.{kind}"
    if kind == "parquet":
        make.parquet(f"d/step_1.{kind}", [{"completion_ids": [1], "logps": [0.5]}])
    else:
        (npz if kind == "npz" else safetensors)(path, FIELDS)
    path.write_bytes(path.read_bytes()[:-20])
    make.text(f"d/step_2.{kind}", "no such thing at all")
    make.text(f"d/step_3.{kind}", "")
    run = run_of(make, tmp_path)
    assert not run.captures
    assert {"step_1", "step_2"} <= {n.text.split(".")[0][3:] for n in run.notes}


def test_a_dump_that_unpacks_to_too_much(make: Any, tmp_path: Path) -> None:
    npz(tmp_path / "d/step_1.npz", FIELDS)
    import firstbad.tools.readers.tensors as tensors

    run = run_of(make, tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensors, "MAX_BYTES", 100)
        with pytest.raises(UserError, match="larger|unpacks"):
            run.captures.at(1)


def test_other_folders_are_no_captures(make: Any, tmp_path: Path) -> None:
    for folder in ("checkpoint-5", "data", "completions", "tb"):
        npz(tmp_path / folder / "step_1.npz", FIELDS)
    npz(tmp_path / "step_1.npz", FIELDS)
    weights = {"model.layers.0": np.zeros(3, np.float32)}
    safetensors(tmp_path / "final/model-00001-of-00002.safetensors", weights)
    assert not run_of(make, tmp_path).captures


def test_broken_members_are_left_out(make: Any, tmp_path: Path) -> None:
    path = tmp_path / "d/step_1.npz"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("logps.npy", b"garbage")
        archive.writestr("completion_ids.npy", b"\x93NUMPY\x01\x00")
    assert run_of(make, tmp_path).captures.at(1).arrays == {}
