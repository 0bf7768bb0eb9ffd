"""Distances between checkpoints against the sum of the learning rates between them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firstbad.tools.run import Checkpoint, Run
from synthetic.torch_files import adam_state, save_torch

TOOL = "measure_weight_moves"
RATE = 1e-4

MakeRun = Callable[..., Run]
Measure = Callable[..., dict[str, Any]]
Saved = Callable[..., Checkpoint]


@pytest.fixture(name="saved")
def _saved(tmp_path: Path) -> Saved:
    """A checkpoint with these weights: `saved(60, array, rates=(1e-4,))`."""

    def build(step: int, weights: Any, *, dtype: str = "F32", **state: Any) -> Checkpoint:
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        stored = np.asarray(weights, "<f4" if dtype == "F32" else "<f2")
        entry = {"dtype": dtype, "shape": [len(stored)], "data_offsets": [0, stored.nbytes]}
        header = json.dumps({"layers.0.mlp": entry}).encode()
        data = len(header).to_bytes(8, "little") + header + stored.tobytes()
        (folder / "model.safetensors").write_bytes(data)
        if state:
            groups = [adam_state(step=step, rate=r) for r in state["rates"]]
            value = {"state": {}, "param_groups": [g["param_groups"][0] for g in groups]}
            if state.get("momentum"):
                value["param_groups"] = [{"lr": 0.1, "momentum": 0.9, "params": [0]}]
            save_torch(folder / "optimizer.pt", value)
        return Checkpoint(step, folder, tuple(p.name for p in folder.iterdir()), step)

    return build


@pytest.fixture(name="updated")
def _updated() -> Callable[..., Any]:
    """Weights after steps of AdamW from its definition, the second moments lost at one of them."""

    def train(steps: int, *, lost_at: int | None = None) -> list[Any]:
        rng = np.random.default_rng(0)
        w, m, v = np.full(500, 0.1), np.zeros(500), np.zeros(500)
        found = [w.copy()]
        for step in range(1, steps + 1):
            if step == lost_at:
                v = np.zeros(500)
            g = rng.normal(0.2, 1.0, 500)
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            w = w - RATE * (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.999**step)) + 1e-8)
            found.append(w.copy())
        return found

    return train


def test_a_distance_by_hand(make_run: MakeRun, measure: Measure, saved: Saved) -> None:
    # Ten steps at 1e-4 take each weight 0.0005 along: half of the 0.001 that the rates allow.
    weights = np.full(1000, 0.1)
    run = make_run(
        signals={"learning_rate": [RATE] * 20},
        config={"learning_rate": RATE},
        checkpoints=(saved(10, weights), saved(20, weights + 0.0005)),
    )
    found = measure(TOOL, run)
    assert (found["n_pairs"], found["step_before"], found["step_after"]) == (1, 10, 20)
    assert found["moved_over_rates"] == pytest.approx(0.5, rel=1e-3)
    assert found["relative_distance"] == pytest.approx(0.005, rel=1e-3)
    assert found["relative_per_step"] == pytest.approx(0.0005, rel=1e-3)
    assert found["adam"] is True  # what a trainer uses that names none
    assert found["first_bad_step"] is None


def test_weight_decay_is_part_of_the_move(
    make_run: MakeRun, measure: Measure, saved: Saved
) -> None:
    weights = np.full(1000, 10.0)
    run = make_run(
        signals={"learning_rate": [RATE] * 20},
        config={"learning_rate": RATE, "weight_decay": 0.1},
        checkpoints=(saved(10, weights), saved(20, weights + 0.002)),
    )
    # 0.002 over 0.001 (1 + 0.1 x 10)
    assert measure(TOOL, run)["moved_over_rates"] == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize(
    ("lost_at", "over_rates", "first"), [(None, (0.0, 0.5), None), (61, (1.5, 9.0), 61)]
)
def test_adam_stays_below_its_rate_unless_second_moments_are_lost(
    make_run: MakeRun,
    measure: Measure,
    saved: Saved,
    updated: Callable[..., Any],
    lost_at: int | None,
    over_rates: tuple[float, float],
    first: int | None,
) -> None:
    """At the resume first moments and the count of steps come back, the second moments do not."""
    path = updated(120, lost_at=lost_at)
    run = make_run(
        signals={"learning_rate": [RATE] * 120},
        config={"optim": "adamw_torch"},
        events=[("resume", 61, "resumed")],
        checkpoints=(saved(60, path[60]), saved(120, path[120])),
    )
    found = measure(TOOL, run)
    assert over_rates[0] < found["moved_over_rates"] < over_rates[1]
    assert found["first_bad_step"] == first
    assert found["last_good_step"] == (120 if first is None else 60)


def test_groups_with_another_rate_than_the_logged_one(
    make_run: MakeRun, measure: Measure, saved: Saved
) -> None:
    weights = np.full(1000, 0.1)
    run = make_run(
        signals={"learning_rate": [RATE] * 20},
        checkpoints=(saved(10, weights), saved(20, weights + 0.008, rates=(RATE, 16 * RATE))),
    )
    assert measure(TOOL, run)["moved_over_rates"] == pytest.approx(0.5, rel=1e-3)


@pytest.mark.parametrize(
    ("settings", "state", "adam"),
    [
        ({"optim": "adamw_torch_fused"}, {}, True),
        ({"optim": "sgd"}, {}, False),
        ({"optim": "adafactor"}, {}, False),
        ({}, {}, None),
        ({"optim": "adamw_torch"}, {"rates": (RATE,), "momentum": True}, False),
    ],
)
def test_which_optimizer(
    make_run: MakeRun, measure: Measure, saved: Saved, settings: Any, state: Any, adam: Any
) -> None:
    weights = np.full(1000, 0.1)
    run = make_run(
        config=settings, checkpoints=(saved(10, weights), saved(20, weights + 1, **state))
    )
    found = measure(TOOL, run)
    assert found["adam"] is adam
    assert found["moved_over_rates"] is None  # no rate is logged


def test_without_data(make_run: MakeRun, missing: Callable[..., str], saved: Saved) -> None:
    assert "no two checkpoints" in missing(TOOL, make_run())
    half = (saved(10, np.ones(9), dtype="F16"), saved(20, np.ones(9), dtype="F16"))
    assert "32 bits" in missing(TOOL, make_run(checkpoints=half))
    near = (saved(30, np.ones(9)), saved(32, np.ones(9)))
    assert "no two" in missing(TOOL, make_run(checkpoints=near))
