"""Surprise on both sides of a step that other signals name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from firstbad.tools.run import Capture, Run, Vocabulary

TOOL = "compare_surprise"

MakeRun = Callable[..., Run]
MakeCapture = Callable[..., Capture]
Measure = Callable[..., dict[str, Any]]


def build(
    make_run: MakeRun, sample: MakeCapture, words: Vocabulary, seed: int = 0, **after: Any
) -> Run:
    made = [
        sample(s, seed=100 * seed + s, rows=32, **(after if s >= 50 else {}))
        for s in range(10, 90, 10)
    ]
    return make_run(captures=made, vocabulary=words)


def test_hand_computed_sides(make_run: MakeRun, capture: MakeCapture, measure: Measure) -> None:
    # Entropy ln 2; surprise alternates 0.1 and -0.1 before, and is 0.2 less from step 3 on: means
    # 0 and -0.2, spread 0.1 on 1,000 tokens a side: standard errors 63.2 and 44.7.
    even = np.tile([0.1, -0.1], (10, 25))

    def made(step: int, shift: float) -> Capture:
        flat = np.full((10, 50), np.log(2))
        return capture(step, token_id=5 + 0 * flat, logp_new=-(flat + even + shift), entropy=flat)

    run = make_run(captures=[made(s, 0.0 if s < 3 else -0.2) for s in (1, 2, 3, 4)])
    found = measure(TOOL, run, change=3)
    assert (found["n_before"], found["n_after"]) == (1000, 1000)
    assert (found["before"], found["after"]) == pytest.approx((0, -0.2), abs=1e-6)
    assert (found["after_z"], found["difference_z"]) == pytest.approx((63.2, 44.7), abs=0.1)
    assert (found["quiet_step"], found["first_bad_step"], found["sampled"]) == (2, 3, True)


@pytest.mark.parametrize("seed", range(5))
def test_a_sampler_that_gets_a_little_sharper(
    make_run: MakeRun, sample: MakeCapture, words: Vocabulary, measure: Measure, seed: int
) -> None:
    run = build(make_run, sample, words, seed, temperature=0.85)
    assert 0.05 < measure("test_surprise", run)["largest"] < 0.2
    found = measure(TOOL, run, change=45)
    assert found["after"] < -0.05
    assert found["after_z"] > 5
    assert found["difference_z"] > 3
    assert found["before_z"] < 3
    assert (found["quiet_step"], found["first_bad_step"]) == (40, 50)


@pytest.mark.parametrize("seed", range(10))
def test_a_policy_that_moves_at_once_and_samples_itself(
    make_run: MakeRun, sample: MakeCapture, words: Vocabulary, measure: Measure, seed: int
) -> None:
    found = measure(TOOL, build(make_run, sample, words, seed, moved=1.5), change=45)
    assert found["after_size"] < 0.05
    assert found["after_z"] < 4


def test_without_a_step_halves_are_compared_and_nothing_is_dated(
    make_run: MakeRun, sample: MakeCapture, words: Vocabulary, measure: Measure
) -> None:
    run = build(make_run, sample, words, temperature=0.85)
    whole, found = measure(TOOL, run, change=50), measure(TOOL, run)
    assert found["after"] == whole["after"] < -0.05
    assert (whole["first_bad_step"], found["first_bad_step"]) == (50, None)


def test_it_takes_tokens_on_both_sides(
    make_run: MakeRun, sample: MakeCapture, words: Vocabulary, missing: Callable[..., str]
) -> None:
    said = missing(TOOL, build(make_run, sample, words), change=5)
    assert said.startswith("0 captured tokens")
