"""Clip hits, and whether the optimizer feels them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firstbad.tools.flight import Flight, FlightStep, Norms
from firstbad.tools.run import Checkpoint, Run
from synthetic.torch_files import adam_state, save_torch

TOOL = "measure_clipping"

MakeRun = Callable[..., Run]
Measure = Callable[..., dict[str, Any]]


def test_hits_by_hand(make_run: MakeRun, measure: Measure) -> None:
    # 2 of 20 steps below the clip value of 0.5, both among the first five; median 1.5 / 0.5.
    norms = [1.5, 0.2, 1.5, 0.5, 1.5] + [1.5] * 15
    run = make_run(signals={"grad_norm_preclip": norms}, config={"max_grad_norm": 0.5})
    found = measure(TOOL, run)
    assert (found["n_steps"], found["clip_value"], found["hit_share"]) == (20, 0.5, 0.9)
    assert (found["late_hit_share"], found["norm_over_clip_median"]) == (1.0, 3.0)
    # From the third step on 17 of 18 are hits; from the first 18 of 20, which is not above 0.9.
    assert (found["last_good_step"], found["first_bad_step"]) == (2, 3)


def test_hits_that_do_not_last_are_not_dated(make_run: MakeRun, measure: Measure) -> None:
    norms = [2.0] * 15 + [0.1] * 15
    run = make_run(signals={"grad_norm_preclip": norms}, config={"max_grad_norm": 1.0})
    found = measure(TOOL, run)
    assert (found["hit_share"], found["first_bad_step"]) == (0.5, None)


@pytest.mark.parametrize(
    ("settings", "scale_free"),
    [
        ({"optim": "adamw_torch"}, True),
        ({"optim": "adafactor"}, True),
        ({"optim": "adalomo"}, True),
        ({"optim": "sgd"}, False),
        ({"optim": "schedule_free_sgd"}, False),
        ({"optim": "lomo"}, False),
        ({"learning_rate": 1e-6}, True),  # a trainer that names none uses AdamW
        ({}, None),
    ],
)
def test_which_optimizers_divide_by_the_gradient(
    make_run: MakeRun, measure: Measure, settings: dict[str, Any], scale_free: bool | None
) -> None:
    run = make_run(
        signals={"grad_norm_preclip": [2.0] * 30}, config={"max_grad_norm": 1.0, **settings}
    )
    assert measure(TOOL, run)["scale_free"] is scale_free


@pytest.mark.parametrize("adam", [True, False])
def test_the_saved_state_tells_the_optimizer(
    make_run: MakeRun, measure: Measure, tmp_path: Path, adam: bool
) -> None:
    ones = np.ones(3, np.float32)
    state = adam_state((ones, ones), step=9)
    if not adam:
        group = {"lr": 0.1, "momentum": 0.9, "params": [0]}
        state = {"state": {0: {"momentum_buffer": ones}}, "param_groups": [group]}
    save_torch(tmp_path / "optimizer.pt", state)
    run = make_run(
        signals={"grad_norm_preclip": [2.0] * 30},
        config={"max_grad_norm": 1.0},
        checkpoints=(Checkpoint(9, tmp_path, ("optimizer.pt",), 9),),
    )
    assert measure(TOOL, run)["scale_free"] is adam


def test_without_data(make_run: MakeRun, missing: Callable[..., str]) -> None:
    assert "norms" in missing(TOOL, make_run(config={"max_grad_norm": 1.0}))
    run = make_run(signals={"grad_norm_preclip": [1.0] * 20}, config={"max_grad_norm": 0.0})
    assert "max_grad_norm" in missing(TOOL, run)


def test_norms_on_both_sides_of_clipping(make_run: MakeRun, measure: Measure) -> None:
    norms = [Norms(before_clip=4.0, after_clip=1.0, clip_value=1.0), Norms(4.0, 1.5, 1.0)]
    kept = {3: FlightStep(3, norms=tuple(norms)), 5: FlightStep(5, norms=(Norms(2.0, None),))}
    run = make_run(
        signals={"grad_norm_preclip": [4.0] * 20},
        config={"max_grad_norm": 1.0},
        flight=Flight(list(kept), kept.__getitem__),
    )
    found = measure(TOOL, run)
    assert (found["n_captured"], found["after_over_clip"]) == (2, 1.5)
