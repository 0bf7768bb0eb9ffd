"""Means before and after a step, for answers to a complaint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from firstbad.tools.run import Run

TOOL = "compare_around"

MakeRun = Callable[..., Run]
Measure = Callable[..., dict[str, Any]]


def test_hand_computed_around_a_step(make_run: MakeRun, measure: Measure) -> None:
    # Two values before, in turn 1 and 3: mean 2, variance over 30 steps 30/29. The same after,
    # moved up by 4: standard error sqrt(2 x (30/29) / 30) = 0.2626, so 4 is 15.23 of them.
    reward = np.tile([1.0, 3.0], 50)
    reward[60:] += 4.0
    found = measure(TOOL, make_run(signals={"reward_mean": reward}), step=61)
    assert (found["step"], found["reward_before"], found["reward_after"]) == (61, 2.0, 6.0)
    assert found["reward_z"] == pytest.approx(15.23, abs=0.01)
    # No part scores the answer: the reward stands for it. Nothing else is logged.
    assert found["outcome_z"] == found["reward_z"]
    assert found["kl_before"] is found["kl_after"] is found["kl_z"] is None


def test_without_a_step_thirds_are_compared(make_run: MakeRun, measure: Measure) -> None:
    entropy = np.repeat([1.0, 0.9, 0.5], 30)
    run = make_run(signals={"entropy": entropy})
    found = measure(TOOL, run)
    assert found["step"] is None
    assert (found["entropy_before"], found["entropy_after"]) == (1.0, 0.5)
    assert found["entropy_z"] == -999.0  # constant on both sides: as sure as it gets
    # What is wrong from the first step on has no before.
    assert measure(TOOL, run, step=1) == found


def test_the_part_that_scores_the_answer_is_the_outcome(
    make_run: MakeRun, measure: Measure
) -> None:
    values = {
        "reward_mean": np.full(60, 1.0),
        "reward_part/correctness_reward": np.repeat([0.8, 0.4], 30),
        "reward_part/format_reward": np.repeat([0.2, 0.6], 30),
    }
    found = measure(TOOL, make_run(signals=values), step=31)
    assert (found["outcome_before"], found["outcome_after"]) == (0.8, 0.4)
    assert found["reward_z"] == 0.0


@pytest.mark.parametrize(("step", "rises"), [(31, True), (61, False), (None, False)])
def test_a_plateau_is_not_contradicted_by_the_rise_before_it(
    make_run: MakeRun, measure: Measure, step: int | None, rises: bool
) -> None:
    # Up to step 60 it rises; from there on, and in the second half of the run, it does not.
    reward = np.concatenate([np.linspace(0.2, 0.8, 60), np.tile([0.79, 0.81], 30)])
    found = measure(TOOL, make_run(signals={"reward_mean": reward}), step=step)
    assert (found["outcome_rise_z"] >= 2) is rises
    assert found["outcome_z"] > 2  # the mean is higher after any of them
    assert found["outcome_late"] == pytest.approx(0.8)


def test_noise_is_no_change(make_run: MakeRun, measure: Measure) -> None:
    rng = np.random.default_rng(3)
    z = [
        measure(TOOL, make_run(signals={"reward_mean": rng.normal(0.6, 0.05, 120)}), step=70)[
            "reward_z"
        ]
        for _ in range(40)
    ]
    assert sum(abs(x) > 2 for x in z) <= 6
    assert all(abs(x) < 4 for x in z)


def test_a_step_outside_the_records_is_compared_with_nothing(
    make_run: MakeRun, measure: Measure
) -> None:
    run = make_run(signals={"reward_mean": np.repeat([1.0, 0.0], 60)})
    found = measure(TOOL, run, step=5000)
    assert (found["step"], found["outside_by"], found["last_step"]) == (5000, 4880, 120)
    assert found["reward_before"] is found["reward_after"] is found["reward_z"] is None
    assert measure(TOOL, run, step=120)["outside_by"] == 0


def test_the_distance_to_the_change(make_run: MakeRun, measure: Measure) -> None:
    run = make_run(signals={"reward_mean": np.repeat([1.0, 0.0], 60)})
    assert measure(TOOL, run, step=30, change=66)["before_change"] == 36
    assert measure(TOOL, run, step=30)["before_change"] is None


@pytest.mark.parametrize(("near", "resume"), [(None, 81), (35, 41), (78, 81)])
def test_the_nearest_resume_divides(
    make_run: MakeRun, measure: Measure, near: int | None, resume: int
) -> None:
    events = [("resume", step, "resumed") for step in (41, 81)]
    reward = np.repeat([1.0, 0.5, 0.25], 40)
    run = make_run(signals={"reward_mean": reward}, events=events)
    found = measure(TOOL, run, step=near, span=10, at_resume=True)
    assert found["step"] == resume
    assert (found["before_first_step"], found["before_last_step"]) == (resume - 10, resume - 1)
    assert (found["after_first_step"], found["after_last_step"]) == (resume, resume + 9)
    assert found["reward_after"] == found["reward_before"] / 2
    bare = make_run(signals={"reward_mean": reward})
    assert measure(TOOL, bare, step=near, at_resume=True)["step"] is None


def test_one_step_is_too_few(make_run: MakeRun, missing: Callable[..., str]) -> None:
    assert "fewer than two" in missing(TOOL, make_run(signals={"reward_mean": [1.0]}))
