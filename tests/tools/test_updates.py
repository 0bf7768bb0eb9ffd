"""How often a rollout batch is trained, and what a logged row averages over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from firstbad.tools.run import Run
from firstbad.tools.updates import mixes_batches

MakeRun = Callable[..., Run]
Measure = Callable[..., dict[str, Any]]
TWICE = {"gradient_accumulation_steps": 2, "num_iterations": 2, "logging_steps": 2}


@pytest.mark.parametrize(
    ("config", "mixes"),
    [
        ({"gradient_accumulation_steps": 2}, False),
        ({"gradient_accumulation_steps": 2, "logging_steps": 1}, False),
        # One batch, trained twice, or in two parts, or four times and logged after every second.
        (TWICE, False),
        ({"gradient_accumulation_steps": 2, "steps_per_generation": 4, "logging_steps": 2}, False),
        ({"gradient_accumulation_steps": 2, "num_iterations": 4, "logging_steps": 2}, False),
        # Ten batches, two and a half, or half of one.
        ({"gradient_accumulation_steps": 2, "logging_steps": 10}, True),
        ({**TWICE, "logging_steps": 5}, True),
        ({"gradient_accumulation_steps": 1, "steps_per_generation": 4, "logging_steps": 2}, True),
        ({"logging_steps": 2}, True),
    ],
)
def test_what_a_logged_row_averages_over(
    make_run: MakeRun, config: dict[str, object], mixes: bool
) -> None:
    assert mixes_batches(make_run(config=config)) == mixes
    if config.get("logging_steps", 1) != 1:
        assert mixes_batches(make_run(config=config, framework="other"))


@pytest.mark.parametrize(("resumed", "mixes"), [(31, False), (32, True)])
def test_a_resume_between_two_rows_moves_the_batches(
    make_run: MakeRun, resumed: int, mixes: bool
) -> None:
    run = make_run(config=TWICE, events=[("resume", resumed, "resumed")])
    assert mixes_batches(run) == mixes


@pytest.mark.parametrize("factor", [1.0, 4.0])
def test_the_loss_of_a_row_that_is_one_batch_is_recomputed(
    simulate: MakeRun, measure: Measure, factor: float
) -> None:
    def log(values: dict[str, np.ndarray[Any, Any]], steps: np.ndarray[Any, Any]) -> None:
        values["loss"][steps >= 31] *= factor

    found = measure("check_loss_identity", simulate(1, config=TWICE, log=log))
    assert found["factor"] == (None if factor == 1 else factor)
    assert found["first_bad_step"] == (None if factor == 1 else 31)
    assert measure("recompute_means", simulate(1, config=TWICE))["share_differs"] == 0
