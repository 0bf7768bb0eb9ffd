"""Learning rates of the groups of a saved optimizer."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firstbad.tools.evidence import Evidence
from firstbad.tools.run import Checkpoint, Run
from synthetic.torch_files import adam_state, save_torch

TOOL = "compare_group_rates"

MakeRun = Callable[..., Run]
Measure = Callable[..., dict[str, Any]]
Measured = Callable[..., Evidence]
Saved = Callable[..., Checkpoint]


@pytest.fixture(name="saved")
def _saved(tmp_path: Path) -> Saved:
    """A checkpoint whose groups have these rates: `saved(20, 1e-4, 1e-2)`."""

    def build(step: int, *rates: float) -> Checkpoint:
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        pair = np.ones(4, np.float32), np.ones(4, np.float32)
        state = adam_state(*[pair] * len(rates), step=step)
        (group,) = state["param_groups"]
        state["param_groups"] = [{**group, "params": [i], "lr": r} for i, r in enumerate(rates)]
        save_torch(folder / "optimizer.pt", state)
        return Checkpoint(step, folder, ("optimizer.pt",), step)

    return build


def test_by_hand(make_run: MakeRun, measure: Measure, saved: Saved) -> None:
    # Of 1e-4, 1e-4 and 0.03 the middle one is 1e-4: a factor of 300.
    run = make_run(checkpoints=(saved(20, 1e-4, 1e-4, 0.03), saved(40, 5e-5, 5e-5, 0.015)))
    found = measure(TOOL, run)
    assert (found["n_states"], found["n_groups"]) == (2, 3)
    assert (found["rate_usual"], found["rate_highest"]) == (1e-4, 0.03)
    assert found["factor"] == pytest.approx(300)
    assert (found["first_bad_step"], found["from_start"]) == (20, True)


def test_a_group_that_comes_to_it_later(make_run: MakeRun, measure: Measure, saved: Saved) -> None:
    run = make_run(checkpoints=(saved(20, 1e-4, 1e-4), saved(40, 1e-4, 1e-2)))
    found = measure(TOOL, run)
    assert (found["last_good_step"], found["first_bad_step"]) == (20, 40)
    assert found["sampled"] is True


@pytest.mark.parametrize(
    ("rates", "factor"),
    [
        ((1e-4, 1e-4), 1.0),
        ((1e-4, 1.6e-3), 16.0),  # the second matrix of an adapter
        (tuple(1e-4 * 0.8**n for n in range(24)), 0.8**-12),  # falling with depth: middle of 24
        ((1e-4,), 1.0),
    ],
)
def test_rates_that_are_meant(
    make_run: MakeRun, measure: Measure, saved: Saved, rates: tuple[float, ...], factor: float
) -> None:
    found = measure(TOOL, make_run(checkpoints=(saved(20, *rates),)))
    assert found["factor"] == pytest.approx(factor, rel=1e-3)
    assert found["first_bad_step"] is None


@pytest.mark.parametrize("rate", [float("inf"), float("nan"), -1e-4, 1e30, 10**400])
def test_a_rate_that_no_update_can_use(
    make_run: MakeRun, measure: Measure, saved: Saved, rate: float
) -> None:
    run = make_run(
        checkpoints=(saved(20, 1e-4, 1e-4), saved(40, 1e-4, rate), saved(60, rate, rate))
    )
    found = measure(TOOL, run)
    assert (found["n_states"], found["unusable_states"]) == (3, 2)
    assert (found["last_good_step"], found["first_bad_step"]) == (20, 40)
    assert found["factor"] == pytest.approx(1)
    alone = measure(TOOL, make_run(checkpoints=(saved(80, rate),)))
    assert (alone["unusable_states"], alone["factor"], alone["from_start"]) == (1, None, True)


@pytest.mark.parametrize("rate", [-1.84e-17, -1e-22])
def test_a_schedule_that_ends_at_0_but_for_rounding(
    make_run: MakeRun, measure: Measure, saved: Saved, rate: float
) -> None:
    """`rate -= peak / steps` does."""
    run = make_run(checkpoints=(saved(20, 1e-4, 1e-4), saved(40, rate, rate)))
    assert measure(TOOL, run)["unusable_states"] == 0


def test_a_rate_of_0_is_legal(make_run: MakeRun, measure: Measure, saved: Saved) -> None:
    """In a warm-up's first step, at the end of a schedule, for a group that is frozen."""
    run = make_run(checkpoints=(saved(1, 0.0, 1e-4), saved(20, 1e-4, 1e-4), saved(40, 0.0, 0.0)))
    found = measure(TOOL, run)
    assert (found["n_states"], found["unusable_states"], found["first_bad_step"]) == (2, 0, None)


def test_without_data(make_run: MakeRun, missing: Callable[..., str], saved: Saved) -> None:
    assert "no saved state of Adam" in missing(TOOL, make_run())
    assert "above 0" in missing(TOOL, make_run(checkpoints=(saved(20, 0.0, 0.0),)))


def test_the_logged_rate_is_usual_too(make_run: MakeRun, measure: Measure, saved: Saved) -> None:
    """Rates that fall with depth by a half each: the highest is the one that is logged."""
    rates = tuple(1e-4 * 0.5**n for n in range(24))
    run = make_run(checkpoints=(saved(20, *rates),), signals={"learning_rate": [1e-4] * 40})
    assert measure(TOOL, run)["factor"] == pytest.approx(1)
    assert measure(TOOL, make_run(checkpoints=(saved(30, *rates),)))["factor"] > 1000


def test_groups_of_another_optimizer_are_left_out(
    make_run: MakeRun, measure: Measure, tmp_path: Path
) -> None:
    """Muon beside AdamW: its rate is that of an orthogonal update."""
    folder = tmp_path / "checkpoint-20"
    folder.mkdir()
    pair = np.ones(4, np.float32), np.ones(4, np.float32)
    state = adam_state(pair, pair, step=20)
    (group,) = state["param_groups"]
    muon = {"lr": 0.02, "momentum": 0.95, "params": [1]}
    state["param_groups"] = [{**group, "params": [0]}, muon]
    save_torch(folder / "optimizer.pt", state)
    found = measure(TOOL, make_run(checkpoints=(Checkpoint(20, folder, ("optimizer.pt",), 20),)))
    assert (found["n_groups"], found["factor"]) == (1, 1.0)


def test_the_tensors_of_the_fast_group_are_named_where_their_shape_is_their_own(
    make_run: MakeRun, evidence: Measured, saved: Saved
) -> None:
    checkpoint = saved(20, 1e-4, 1e-4, 0.03)
    header = {
        "embed": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]},
        "head": {"dtype": "F32", "shape": [2, 3], "data_offsets": [16, 40]},
    }
    text = json.dumps(header).encode()
    data = struct.pack("<Q", len(text)) + text + bytes(40)
    (checkpoint.path / "model.safetensors").write_bytes(data)
    named = replace(checkpoint, files=(*checkpoint.files, "model.safetensors"))
    assert evidence(TOOL, make_run(checkpoints=(named,))).quote == (
        "The group holds 1 tensor: `embed` (4)."
    )


def test_a_shape_of_several_tensors_names_none(
    make_run: MakeRun, evidence: Measured, saved: Saved
) -> None:
    found = evidence(TOOL, make_run(checkpoints=(saved(20, 1e-4, 1e-4, 0.03),)))
    assert found.quote == "The group holds 1 tensor: 1 of shape 4."
    assert evidence(TOOL, make_run(checkpoints=(saved(40, 1e-4, 1e-4),))).quote == ""
