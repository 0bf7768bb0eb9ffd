"""Ratios and clip fractions against what the number of updates per batch allows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstbad.tools.run import Run

TOOL = "check_ratios"
ONSET = 31
ONE_UPDATE = {"gradient_accumulation_steps": 2, "num_iterations": 1, "use_vllm": False}

MakeRun = Callable[..., Run]
Measure = Callable[..., dict[str, Any]]


def test_hand_counted_steps(make_run: MakeRun, measure: Measure) -> None:
    # Ratio max off 1 at steps 4, 5 and 6 by 0.1, 0.25 and 0.1 of nine: a third. Clip fractions in
    # the last third 0, 0.3 and 0.6: mean 0.3.
    signals = {
        "ratio_max": [1, 1, 1, 1.1, 1.25, 1.1, 1, 1, 1],
        "clip_frac_total": [0.0] * 6 + [0, 0.3, 0.6],
    }
    found = measure(TOOL, make_run(signals=signals, config=ONE_UPDATE))
    assert found["updates_per_batch"] == 1
    assert (found["ratio_logged"], found["engine_used"]) == (True, False)
    assert found["ratio_largest_deviation"] == 0.25
    assert found["clip_largest"] == 0.6
    assert found["clip_mean_late"] == pytest.approx(0.3)
    # Steps 4, 5, 6 by ratio, 8 and 9 by clip hits.
    assert found["steps_off_before_update"] == 5
    assert found["share_off_before_update"] == pytest.approx(5 / 9, abs=1e-6)
    assert (found["last_good_step"], found["first_bad_step"]) == (3, 4)
    assert found["ratio_deviation_late"] == 0


def off(onset: int, size: float) -> list[float]:
    return [1.0 if s < onset else 1.0 + size for s in range(1, 61)]


def test_ratios_off_one_before_any_update_are_dated(make_run: MakeRun, measure: Measure) -> None:
    run = make_run(signals={"ratio_mean": off(ONSET, 0.02)}, config=ONE_UPDATE)
    found = measure(TOOL, run)
    assert (found["last_good_step"], found["first_bad_step"]) == (ONSET - 1, ONSET)
    assert found["share_off_before_update"] == 0.5
    assert not found["from_start"]
    assert found["ratio_deviation_late"] == pytest.approx(0.02)


def test_off_from_the_start(make_run: MakeRun, measure: Measure) -> None:
    run = make_run(signals={"ratio_mean": off(1, 0.02)}, config=ONE_UPDATE)
    found = measure(TOOL, run)
    assert found["from_start"]
    assert found["share_off_before_update"] == 1


def test_ratio_one_and_no_clip_hit_are_normal(healthy: Run, measure: Measure) -> None:
    found = measure(TOOL, healthy)
    assert found["steps_off_before_update"] == found["share_off_before_update"] == 0
    assert found["ratio_largest_deviation"] == found["clip_largest"] == 0
    assert found["first_bad_step"] is None


def test_float32_rounding_and_a_single_stray_step_are_no_deviation(
    make_run: MakeRun, measure: Measure
) -> None:
    ratio = 1 + 5e-4 * np.random.default_rng(0).uniform(-1, 1, 60)
    ratio[20] = 1.3
    found = measure(TOOL, make_run(signals={"ratio_max": ratio}, config=ONE_UPDATE))
    assert found["steps_off_before_update"] == 0
    assert found["ratio_largest_deviation"] == pytest.approx(0.3)
    assert found["first_bad_step"] is None


@pytest.mark.parametrize(
    ("signals", "one"),
    [
        ({"ratio_max": np.ones(60)}, True),
        ({"ratio_max": np.ones(60), "ratio_min": np.full(60, 0.999)}, False),
        ({"clip_frac_total": np.zeros(60)}, None),  # small ratios hit no clip either
    ],
)
def test_every_ratio_one(
    make_run: MakeRun, measure: Measure, signals: dict[str, Any], one: bool | None
) -> None:
    assert measure(TOOL, make_run(signals=signals, config=ONE_UPDATE))["one_before_update"] is one


def test_a_stray_last_step_is_no_deviation(make_run: MakeRun, measure: Measure) -> None:
    run = make_run(signals={"ratio_max": off(60, 0.3)}, config=ONE_UPDATE)
    assert measure(TOOL, run)["first_bad_step"] is None


@pytest.mark.parametrize(
    "config",
    [
        {"gradient_accumulation_steps": 1, "updates_per_batch": 4},
        {"num_iterations": 1},
    ],
)
def test_several_updates_or_an_unknown_number_allow_ratios_off_one(
    make_run: MakeRun, measure: Measure, config: dict[str, object]
) -> None:
    found = measure(TOOL, make_run(signals={"ratio_max": off(1, 0.5)}, config=config))
    assert found["steps_off_before_update"] is found["share_off_before_update"] is None
    assert found["first_bad_step"] is None
    assert found["ratio_largest_deviation"] == 0.5


TWICE = {"gradient_accumulation_steps": 2, "num_iterations": 2}


@pytest.mark.parametrize(
    ("config", "first"),
    [
        (TWICE, range(1, 61, 2)),
        ({"gradient_accumulation_steps": 1, "steps_per_generation": 4}, range(1, 61, 4)),
        ({"gradient_accumulation_steps": 2, "steps_per_generation": 3}, range(1, 61, 3)),
    ],
)
def test_the_first_update_on_each_batch_has_ratio_one(
    make_run: MakeRun, measure: Measure, config: dict[str, object], first: range
) -> None:
    ratio = np.array([1.0 if s in first else 1.1 for s in range(1, 61)])
    sound = measure(TOOL, make_run(signals={"ratio_max": ratio}, config=config))
    assert sound["steps_before_update"] == len(first)
    assert sound["steps_off_before_update"] == 0
    assert sound["first_bad_step"] is sound["deviation_before_update"] is None
    found = measure(TOOL, make_run(signals={"ratio_max": ratio * 2}, config=config))
    assert found["share_off_before_update"] == 1
    assert found["deviation_before_update"] == 1
    assert (found["first_bad_step"], found["off_at_step_1"], found["from_start"]) == (1, True, True)


def test_old_log_probs_that_go_wrong_at_a_step_of_two_passes(
    make_run: MakeRun, measure: Measure
) -> None:
    clip = np.array([0.02 if s % 2 == 0 or s >= ONSET else 0.0 for s in range(1, 61)])
    found = measure(TOOL, make_run(signals={"clip_frac_total": clip}, config=TWICE))
    assert (found["last_good_step"], found["first_bad_step"]) == (ONSET - 2, ONSET)
    assert found["clip_before_update"] == 0.02
    assert found["off_at_step_1"] is False
    assert found["deviation_before_update"] is None


def test_a_resume_generates_anew_whatever_the_schedule_was(
    make_run: MakeRun, measure: Measure
) -> None:
    # Resumed after step 31, so that 32, 34, ... make the first update.
    ratio = np.array([1.0 if s % 2 == (s < 32) else 1.1 for s in range(1, 61)])
    resumed = make_run(
        signals={"ratio_max": ratio}, config=TWICE, events=[("resume", 32, "resumed")]
    )
    assert measure(TOOL, resumed)["steps_off_before_update"] == 0
    assert measure(TOOL, resumed)["steps_before_update"] == 16 + 15


def test_a_logged_mean_of_both_passes_is_not_tested(
    make_run: MakeRun, make_signal: Callable[..., Any], measure: Measure
) -> None:
    steps = np.array([1, *range(2, 61, 2)])
    ratio = make_signal("ratio_max", [1.0] + [1.1] * 30)
    every_second = replace(ratio, steps=steps)
    config = {**TWICE, "logging_steps": 2}
    found = measure(TOOL, make_run(signals={"ratio_max": every_second}, config=config))
    assert found["steps_before_update"] == 1
    assert found["steps_off_before_update"] == 0


def test_rollouts_that_repeat_are_no_first_update(
    make_run: MakeRun, batch: Callable[..., Any], measure: Measure
) -> None:
    # The settings on file say two passes; the rollouts show that the batch of 1 lasted for 4 steps.
    ratio = np.array([1.0 if s % 4 == 1 else 1.1 for s in range(1, 61)])
    rows = [
        replace(batch(s, rewards={"a": [1, 0]}), repeats_step=None if s % 4 == 1 else s - 1)
        for s in range(1, 61)
    ]
    run = make_run(signals={"ratio_max": ratio}, config=TWICE, rollouts=rows)
    assert measure(TOOL, run)["steps_off_before_update"] == 0


def test_engine_difference_and_its_growth(make_run: MakeRun, measure: Measure) -> None:
    # Thirds of nine: medians 0.01 and 0.06.
    difference = [0.01] * 3 + [0.03] * 3 + [0.05, 0.06, 0.5]
    config = {"use_vllm": True}
    found = measure(TOOL, make_run(signals={"logprob_diff_mean": difference}, config=config))
    assert (found["engine_difference_early"], found["engine_difference_late"]) == (0.01, 0.06)
    assert found["engine_difference_growth"] == 6
    assert (found["engine_used"], found["ratio_logged"]) == (True, False)
    assert found["ratio_largest_deviation"] is found["clip_largest"] is None


def test_without_data(make_run: MakeRun, missing: Callable[..., str]) -> None:
    assert "ratio" in missing(TOOL, make_run())
    assert "no config" in missing(TOOL, make_run(signals={"loss": [1.0] * 9}))


@settings(max_examples=15, derandomize=True)
@given(onset=st.integers(5, 55), by=st.integers(0, 1000), size=st.floats(0.002, 3))
def test_deviation_up_or_down_and_step_numbers_do_not_matter(
    make_run: MakeRun,
    measure: Measure,
    changed: SimpleNamespace,
    onset: int,
    by: int,
    size: float,
) -> None:
    up = make_run(signals={"ratio_mean": off(onset, size)}, config=ONE_UPDATE)
    down = make_run(signals={"ratio_mean": off(onset, -size)}, config=ONE_UPDATE)
    before = measure(TOOL, up)
    assert before["first_bad_step"] == onset
    assert measure(TOOL, down) == before
    moved = measure(TOOL, changed.shift_steps(up, by))
    begins_at_1 = {"off_at_step_1": before["off_at_step_1"]}
    assert moved | begins_at_1 == changed.dates_moved(before, by)


def test_each_way_to_compare_the_engine_is_told_apart(make_run: MakeRun, measure: Measure) -> None:
    signals = {
        "engine_kl": [0.001] * 6 + [0.002] * 3,
        "prob_diff_mean": [0.004] * 9,
        "logprob_diff_sequence": [0.003] * 9,
    }
    found = measure(TOOL, make_run(signals=signals))
    assert found["engine_kl_late"] == 0.002
    assert found["engine_probability_late"] == 0.004
    assert found["engine_sequence_late"] == 0.003
    assert found["engine_difference_late"] is None


def test_stated_updates_win(make_run: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, make_run(config={**ONE_UPDATE, "updates_per_batch": 4.0}))
    assert found["updates_per_batch"] == 4
