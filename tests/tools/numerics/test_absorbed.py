"""Weights that are stored with 32 bits and hold 16."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from firstbad.tools.run import Checkpoint, Run

TOOL = "check_stored_weights"

MakeRun = Callable[..., Run]
Measure = Callable[..., dict[str, Any]]
Weights = npt.NDArray[np.float32]


def save(folder: Path, step: int, weights: Weights, name: str = "layers.0.mlp") -> Checkpoint:
    place = folder / f"checkpoint-{step}"
    place.mkdir()
    entry = {"dtype": "F32", "shape": [len(weights)], "data_offsets": [0, 4 * len(weights)]}
    text = json.dumps({name: entry}).encode()
    data = struct.pack("<Q", len(text)) + text + weights.astype("<f4").tobytes()
    (place / "model.safetensors").write_bytes(data)
    return Checkpoint(step=step, path=place, files=("model.safetensors",), state_step=step)


def coarse(weights: Weights) -> Weights:
    """As bfloat16 would hold them."""
    return ((weights.view(np.uint32) + 0x8000) & 0xFFFF0000).view(np.float32)


def trained(
    folder: Path, keep: Callable[[Weights], Weights], step_size: float
) -> tuple[Checkpoint, ...]:
    """Two checkpoints, 40 updates apart, each update kept in the form given."""
    rng = np.random.default_rng(0)
    weights = keep(rng.normal(0, 0.02, 2000).astype(np.float32))
    first = save(folder, 40, weights)
    for _ in range(40):
        step = rng.choice([-1, 1], 2000).astype(np.float32) * np.float32(step_size)
        weights = keep(weights + step)
    return first, save(folder, 80, weights)


def test_updates_below_half_a_unit_of_bfloat16(
    make_run: MakeRun, measure: Measure, tmp_path: Path
) -> None:
    found = measure(TOOL, make_run(checkpoints=trained(tmp_path, coarse, 0.0)))
    assert (found["on_grid_share"], found["unchanged_share"]) == (0, 1)
    assert found["first_bad_step"] is None, "nothing was updated at all"
    (tmp_path / "more").mkdir()
    # A weight of 0.02 has a unit of 2^-13: a step of 1e-6 is lost but for numbers near 0.
    saved = trained(tmp_path / "more", coarse, 1e-6)
    found = measure(TOOL, make_run(checkpoints=saved))
    assert found["on_grid_share"] == 1
    assert 0.3 < found["unchanged_share"] < 1
    assert (found["from_start"], found["first_bad_step"]) == (True, 41)
    assert (found["step_before"], found["step_after"]) == (40, 80)


def test_weights_of_32_bits_all_move(make_run: MakeRun, measure: Measure, tmp_path: Path) -> None:
    found = measure(TOOL, make_run(checkpoints=trained(tmp_path, lambda w: w, 1e-6)))
    assert found["on_grid_share"] < 0.01
    assert found["unchanged_share"] < 0.2, "half of an even number of steps up, half down"
    assert found["first_bad_step"] is None


def test_bold_steps_in_16_bits_are_not_lost(
    make_run: MakeRun, measure: Measure, tmp_path: Path
) -> None:
    found = measure(TOOL, make_run(checkpoints=trained(tmp_path, coarse, 1e-2)))
    assert found["on_grid_share"] == 1
    assert found["unchanged_share"] < 0.3
    assert found["first_bad_step"] is None


def test_a_base_of_16_bits_of_which_a_part_trains_in_32(
    make_run: MakeRun, measure: Measure, tmp_path: Path
) -> None:
    base = coarse(np.random.default_rng(1).normal(0, 0.02, 2000).astype(np.float32))
    tuned = base.copy()
    tuned[:50] += np.float32(1e-6)
    saved = (save(tmp_path, 40, base), save(tmp_path, 80, tuned))
    found = measure(TOOL, make_run(checkpoints=saved))
    assert found["unchanged_share"] > 0.97
    assert found["on_grid_share"] < 0.1, "the numbers that train are what counts"
    assert found["first_bad_step"] is None


@pytest.mark.parametrize("name", ["model.embed_tokens", "lm_head", "rotary.inv_freq"])
def test_what_need_not_train_is_left_out(
    make_run: MakeRun, missing: Callable[..., str], tmp_path: Path, name: str
) -> None:
    weights = np.ones(2000, np.float32)
    saved = (save(tmp_path, 40, weights, name), save(tmp_path, 80, weights, name))
    assert "32 bits" in missing(TOOL, make_run(checkpoints=saved))


def test_one_checkpoint(make_run: MakeRun, missing: Callable[..., str], tmp_path: Path) -> None:
    saved = (save(tmp_path, 40, np.ones(2000, np.float32)),)
    assert "two checkpoints" in missing(TOOL, make_run(checkpoints=saved))
