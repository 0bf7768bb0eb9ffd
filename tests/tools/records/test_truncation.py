"""Cut completions."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstbad.tools.run import RolloutBatch, Run

CUT = "check_truncation"
ONSET = 31

MakeRun = Callable[..., Run]
MakeBatch = Callable[..., RolloutBatch]
Measure = Callable[..., dict[str, Any]]


def test_hand_computed_thirds(make_run: MakeRun, measure: Measure) -> None:
    # Thirds of nine: 0 0.1 0.2 -> 0.1, ..., 0.3 0.3 0.6 -> 0.4; lengths 40 50 60 -> 50 of 64.
    rate = [0, 0.1, 0.2, 0.1, 0.1, 0.1, 0.3, 0.3, 0.6]
    signals = {"truncation_rate": rate, "completion_length_mean": [10.0] * 6 + [40, 50, 60]}
    config = {"max_completion_length": 64, "mask_truncated_completions": True}
    found = measure(CUT, make_run(signals=signals, config=config))
    assert found["truncated_first"] == pytest.approx(0.1)
    assert found["truncated_last"] == pytest.approx(0.4)
    assert found["truncated_largest"] == 0.6
    assert found["length_over_cap"] == pytest.approx(50 / 64)
    assert (found["n_steps"], found["cap"], found["masked_by_config"]) == (9, 64, True)


def step_up(low: float, high: float, seed: int = 0) -> list[float]:
    rng = np.random.default_rng(seed)
    rate = np.where(np.arange(1, 61) < ONSET, low, high) + rng.uniform(0, 0.05, 60)
    return list(np.clip(rate, 0, 1))


def test_the_step_at_which_answers_begin_to_be_cut(make_run: MakeRun, measure: Measure) -> None:
    found = measure(CUT, make_run(signals={"truncation_rate": step_up(0.02, 0.8)}))
    assert (found["last_good_step"], found["first_bad_step"]) == (ONSET - 1, ONSET)
    assert not found["from_start"]
    assert found["cap"] is found["length_over_cap"] is found["masked_by_config"] is None


@pytest.mark.parametrize(("longest", "fell"), [(40.0, True), (13.0, False)])
def test_a_cap_that_came_down(
    make_run: MakeRun, measure: Measure, longest: float, fell: bool
) -> None:
    # From step 31 on no answer is longer than 13 tokens; before it the longest one was, or was not.
    signals = {
        "truncation_rate": step_up(0.0, 0.7),
        "completion_length_max": [longest] * (ONSET - 1) + [13.0] * (61 - ONSET),
    }
    found = measure(CUT, make_run(signals=signals))
    assert found["cap_fell"] is fell
    assert (found["longest_before"], found["longest_after"]) == (longest, 13)
    assert found["truncated_before"] == pytest.approx(0.02, abs=0.03)
    assert found["truncated_after"] == pytest.approx(0.72, abs=0.03)


@pytest.mark.parametrize(("mean", "reaches"), [(40.0, True), (14.0, False)])
def test_what_counts_as_cut_though_nothing_reaches_the_cap(
    make_run: MakeRun, measure: Measure, mean: float, reaches: bool
) -> None:
    # Another end token than the one that the trainer looks for: every row counts as cut.
    signals = {"truncation_rate": [1.0] * 30, "completion_length_mean": [mean] * 30}
    found = measure(CUT, make_run(signals=signals, config={"max_completion_length": 40}))
    assert found["reaches_cap"] is reaches


def test_cut_from_the_start(make_run: MakeRun, measure: Measure) -> None:
    found = measure(CUT, make_run(signals={"truncation_rate": [0.9] * 30}))
    assert found["from_start"]
    assert (found["last_good_step"], found["first_bad_step"]) == (None, 1)


@pytest.mark.parametrize(
    "rate",
    [
        [0.02] * 60,
        [0.02] * 30 + [0.9] + [0.02] * 29,
        list(np.linspace(0.4, 0.0, 60)),
        step_up(0.02, 0.1),
    ],
    ids=["quiet", "one spike", "falling", "a little more"],
)
def test_what_is_no_onset(make_run: MakeRun, measure: Measure, rate: list[float]) -> None:
    found = measure(CUT, make_run(signals={"truncation_rate": rate}))
    assert found["first_bad_step"] is None
    assert not found["from_start"]


def test_cut_without_data(make_run: MakeRun, missing: Callable[..., str]) -> None:
    assert "truncated" in missing(CUT, make_run())
    assert "truncated" in missing(CUT, make_run(signals={"truncation_rate": [0.1] * 4}))


@settings(max_examples=15, derandomize=True)
@given(by=st.integers(0, 5000), seed=st.integers(0, 100), cap=st.integers(16, 4096))
def test_the_date_moves_with_the_steps(
    make_run: MakeRun, measure: Measure, changed: SimpleNamespace, by: int, seed: int, cap: int
) -> None:
    run = make_run(
        signals={"truncation_rate": step_up(0.02, 0.8, seed)},
        config={"max_completion_length": cap},
    )
    before = measure(CUT, run)
    assert measure(CUT, changed.shift_steps(run, by)) == changed.dates_moved(before, by)
    assert before["first_bad_step"] == ONSET
