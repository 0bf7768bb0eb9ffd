"""Logged means and spreads against the rollouts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstbad.tools.evidence import Evidence
from firstbad.tools.run import Config, RolloutBatch, Run, Signal, Signals

TOOL = "recompute_means"
ONSET = 31

MakeRun = Callable[..., Run]
MakeBatch = Callable[..., RolloutBatch]
Measure = Callable[..., dict[str, Any]]
Values = dict[str, npt.NDArray[np.float64]]
Steps = npt.NDArray[np.float64]


def test_hand_computed_means(make_run: MakeRun, batch: MakeBatch, measure: Measure) -> None:
    # correct: 3/4; style: 0.25; total with weights 1 and 2: 0.75 + 2 x 0.25 = 1.25. The log has
    # 1.5 for the total: off by 0.25, one pair of three.
    rows = batch(rewards={"correct": [1, 1, 1, 0], "style": [0, 0, 0, 1]}, size=2)
    signals = {
        "reward_part/correct": [0.75],
        "reward_part/style": [0.25],
        "reward_mean": [1.5],
        "reward_part/gone": [9.0],
    }
    config = {"reward_weights": [1.0, 2.0]}
    found = measure(TOOL, make_run(rollouts=[rows], signals=signals, config=config))
    assert (found["n_compared"], found["n_signals"]) == (3, 3)
    assert found["share_differs"] == pytest.approx(1 / 3, abs=1e-6)
    assert found["worst_signal_share"] == 1
    assert found["largest_difference"] == 0.25
    assert found["from_start"]
    assert found["zero_std_differs"] is found["reward_std_is_global"] is None


@pytest.mark.parametrize("name", ["reward_mean", "reward_part/correct", "reward_part/format"])
def test_a_figure_that_is_no_mean_is_dated_and_named(
    simulate: MakeRun, evidence: Callable[..., Evidence], name: str
) -> None:
    def log(values: Values, steps: Steps) -> None:
        values[name][steps >= ONSET] += 0.1

    found = evidence(TOOL, simulate(1, log=log))
    assert found.metrics is not None
    assert (found.metrics["last_good_step"], found.metrics["first_bad_step"]) == (30, 31)
    assert found.metrics["share_differs"] == pytest.approx(1 / 6, abs=1e-6)
    assert found.metrics["worst_signal_share"] == 0.5
    assert found.metrics["largest_difference"] == pytest.approx(0.1)
    assert found.signal == f"logged {name}"
    assert found.tables[0].rows[0][:2] == (ONSET, name)
    assert (len(found.tables[0].rows), found.tables[0].cut_rows) == (20, 10)


def test_rounding_of_the_log_is_no_difference(simulate: MakeRun, measure: Measure) -> None:
    def log(values: Values, steps: Steps) -> None:
        for name in ("reward_mean", "reward_part/correct", "reward_part/format"):
            values[name] = np.round(values[name], 3)

    found = measure(TOOL, simulate(1, log=log))
    assert found["share_differs"] == 0
    assert found["first_bad_step"] is None


@pytest.mark.parametrize("digits", [1, 2])
def test_a_log_of_few_digits_is_compared_to_half_of_its_last_one(
    simulate: MakeRun, measure: Measure, digits: int
) -> None:
    def log(values: Values, steps: Steps) -> None:
        values["reward_mean"] = np.round(values["reward_mean"], digits)

    assert measure(TOOL, simulate(1, log=log))["share_differs"] == 0


@pytest.mark.parametrize("late", [1, -1])
def test_rollouts_stored_under_the_next_step_are_told_from_wrong_means(
    simulate: MakeRun, measure: Measure, late: int
) -> None:
    def log(values: Values, steps: Steps) -> None:
        values["reward_mean"] = np.roll(values["reward_mean"], late)

    found = measure(TOOL, simulate(1, log=log))
    assert found["worst_signal_share"] > 0.9
    assert found["share_differs_shifted"] == 0

    def wrong(values: Values, steps: Steps) -> None:
        values["reward_mean"] *= 1.5

    assert measure(TOOL, simulate(1, log=wrong))["share_differs_shifted"] > 0.9


def test_means_over_the_rows_that_train_are_told_from_wrong_means(
    simulate: MakeRun, measure: Measure
) -> None:
    """Groups without contrast are in the dump and not in the log."""
    run = simulate(1, groups=6, solve=(0.0, 1.2))
    kept = []
    for b in run.rollouts.batches():
        assert b.advantage is not None
        kept.append(b.rewards["correct"][np.abs(b.advantage) > 1e-6].mean())

    def log(values: Values, steps: Steps) -> None:
        values["reward_part/correct"][:] = kept

    found = measure(TOOL, simulate(1, groups=6, solve=(0.0, 1.2), log=log))
    assert found["worst_signal_share"] > 0.5
    assert found["share_differs_trained"] == 0

    def wrong(values: Values, steps: Steps) -> None:
        values["reward_part/correct"] *= 1.5

    assert measure(TOOL, simulate(1, log=wrong))["share_differs_trained"] > 0.9


def test_a_part_that_scored_no_row_that_trains(simulate: MakeRun, measure: Measure) -> None:
    """As where each task has a reward of its own."""

    def edit(d: SimpleNamespace) -> None:
        d.rewards["format"][d.group > 0] = np.nan
        for part in d.rewards.values():
            part[d.group == 0] = 1.0

    assert measure(TOOL, simulate(1, edit=edit))["share_differs"] == 0


def test_rows_that_no_part_scored_are_left_out_of_the_mean(
    simulate: MakeRun, measure: Measure
) -> None:
    def edit(d: SimpleNamespace) -> None:
        d.rewards["format"][::4] = np.nan

    found = measure(TOOL, simulate(1, edit=edit))
    assert found["share_differs"] == 0


def test_a_share_of_zero_spread_that_float32_hides(simulate: MakeRun, measure: Measure) -> None:
    """Equal rewards with rounding of 1e-7 are equal; a framework that tests 1e-8 logs 0."""

    def edit(d: SimpleNamespace) -> None:
        for part in d.rewards.values():
            part[d.group == 0] = 1 + 1e-7 * d.rng.normal(size=8)

    def log(values: Values, steps: Steps) -> None:
        values["frac_zero_variance_groups"][:] = 0

    found = measure(TOOL, simulate(1, edit=edit, log=log))
    assert found["zero_std_differs"]
    assert found["zero_std_logged_mean"] == 0
    assert found["zero_std_recomputed_mean"] == pytest.approx(0.25, abs=0.03)
    honest = measure(TOOL, simulate(1, edit=edit))
    assert not honest["zero_std_differs"]


@pytest.mark.parametrize("whole", [False, True])
def test_which_spread_is_logged(simulate: MakeRun, measure: Measure, whole: bool) -> None:
    run = simulate(1, solve=(0.0, 1.0))
    if whole:
        spread = run.signals.known["reward_std"].values
        for batch in run.rollouts.batches():
            total = batch.rewards["correct"] + 0.2 * batch.rewards["format"]
            spread[batch.step - 1] = np.std(total, ddof=1)
    assert measure(TOOL, run)["reward_std_is_global"] is whole


@pytest.mark.parametrize(("generated", "complete"), [(32, True), (64, False), (None, None)])
def test_means_over_rows_that_are_not_all_there(
    simulate: MakeRun,
    measure: Measure,
    changed: SimpleNamespace,
    generated: int | None,
    complete: bool | None,
) -> None:
    run = simulate(1, steps=6, config={"generation_batch_size": generated})
    run = changed.relog(run, **{"reward_part/correct": np.linspace(0.1, 0.6, 6)})
    assert measure(TOOL, run)["rows_complete"] is complete


def test_a_total_of_rows_with_gaps_is_not_compared(simulate: MakeRun, measure: Measure) -> None:
    """How a framework fills a gap in a total differs, so only the parts are compared."""

    def edit(d: SimpleNamespace) -> None:
        d.rewards["format"][::4] = np.nan

    def log(values: Values, steps: Steps) -> None:
        values["reward_mean"] += 0.1

    found = measure(TOOL, simulate(1, edit=edit, log=log))
    assert (found["n_signals"], found["share_differs"]) == (2, 0)


def test_without_data(make_run: MakeRun, simulate: MakeRun, missing: Callable[..., str]) -> None:
    assert "no rollouts" in missing(TOOL, make_run())
    run = simulate(1, steps=5, config={"logging_steps": 5})
    assert "averaged over 5 steps" in missing(TOOL, run)
    run = simulate(1, steps=5)
    bare = make_run(rollouts=list(run.rollouts.batches()), signals={"loss": [1.0]})
    assert "no step with a recomputable figure" in missing(TOOL, bare)


@settings(max_examples=4, derandomize=True)
@given(order=st.permutations(range(32)), by=st.integers(0, 1000))
def test_the_order_of_rows_and_the_step_numbers_do_not_matter(
    simulate: MakeRun, measure: Measure, changed: SimpleNamespace, order: list[int], by: int
) -> None:
    def log(values: Values, steps: Steps) -> None:
        values["reward_mean"][steps >= 9] *= 1.1

    run = simulate(2, steps=16, log=log)
    before = measure(TOOL, run)
    moved = changed.rebatch(run, lambda b: changed.reorder(b, order))
    after = measure(TOOL, changed.shift_steps(moved, by))
    assert after == changed.dates_moved(before, by)
    assert before["first_bad_step"] == 9


def every_fifth(run: Run, change: Callable[[Values], None] = lambda values: None, **of: Any) -> Run:
    """The run with a row of means each five steps instead of one each step."""
    means: Values = {}
    for name, signal in run.signals.known.items():
        means[name] = signal.values.reshape(-1, 5).mean(axis=1)
    change(means)
    steps = np.arange(5, 5 * len(next(iter(means.values()))) + 1, 5)
    known = {n: Signal(n, steps, v, n) for n, v in means.items()}
    config = Config({**run.config.values, "logging_steps": 5})
    return replace(run, signals=Signals(known), config=config, **of)


def test_rows_of_several_steps_are_held_against_the_mean_of_these(
    simulate: MakeRun, measure: Measure
) -> None:
    run = simulate(1)
    found = measure(TOOL, every_fifth(run))
    assert (found["share_differs"], found["n_signals"]) == (0, 3)
    assert found["n_compared"] == 3 * len(run.rollouts.steps) // 5

    def too_high(values: Values) -> None:
        values["reward_part/correct"] *= 1.3

    wrong = measure(TOOL, every_fifth(run, too_high))
    assert wrong["worst_signal_share"] == 1
    assert wrong["first_bad_step"] == 5
    assert wrong["another_agrees"]


def test_outside_trl_a_row_may_hold_the_last_step_alone(
    simulate: MakeRun, measure: Measure
) -> None:
    run = simulate(1)

    def last(values: Values) -> None:
        for name in values:
            values[name] = run.signals.known[name].values[4::5]

    assert measure(TOOL, every_fifth(run, last, framework="own"))["share_differs"] == 0
    assert measure(TOOL, every_fifth(run, last))["worst_signal_share"] > 0.9


def test_no_other_mean_vouches_for_rows_whose_weights_are_guessed(
    simulate: MakeRun, measure: Measure
) -> None:
    def log(values: Values, steps: Steps) -> None:
        values["reward_mean"] *= 1.3

    run = simulate(1, log=log)
    stated = {**run.config.values, "reward_weights": [1.0, 0.2]}
    guessed = {name: v for name, v in stated.items() if name != "reward_weights"}
    totals = [b.total is None for b in run.rollouts.batches()]
    assert all(totals)
    assert not measure(TOOL, replace(run, config=Config(guessed)))["another_agrees"]
    assert measure(TOOL, replace(run, config=Config(stated)))["another_agrees"]


@pytest.mark.parametrize(
    ("name", "factor", "scaled", "share"),
    [
        ("reward_part/format", 0.5, 1, 0),  # its weight
        ("reward_part/correct", 100, 1, 0),  # percent
        ("reward_part/correct", 1.3, 0, 1),
        ("reward_mean", 100, 1, 0),
    ],
)
def test_a_factor_of_the_logger(
    make_run: MakeRun,
    batch: MakeBatch,
    measure: Measure,
    name: str,
    factor: float,
    scaled: int,
    share: float,
) -> None:
    rows = [
        batch(s, rewards={"correct": [1, s % 2, 1, 0], "format": [1, 0, s % 3 / 3, 1]})
        for s in range(1, 9)
    ]
    correct = np.array([(2 + s % 2) / 4 for s in range(1, 9)])
    form = np.array([(2 + s % 3 / 3) / 4 for s in range(1, 9)])
    signals = {
        "reward_part/correct": correct,
        "reward_part/format": form,
        "reward_mean": correct + 0.5 * form,
    }
    signals[name] = signals[name] * factor
    run = make_run(rollouts=rows, signals=signals, config={"reward_weights": [1.0, 0.5]})
    found = measure(TOOL, run)
    assert (found["n_scaled"], found["worst_signal_share"]) == (scaled, share)
    assert not found["another_total"]


@pytest.mark.parametrize(
    ("change", "another"),
    [(lambda v, steps: v - 0.1 * (steps % 3), True), (lambda v, steps: v * 1.3, False)],
)
def test_a_total_that_holds_more_than_the_rows(
    simulate: MakeRun, measure: Measure, change: Callable[[Steps, Steps], Steps], another: bool
) -> None:
    def log(values: Values, steps: Steps) -> None:
        values["reward_mean"][:] = change(values["reward_mean"], steps)

    run = simulate(1, log=log)
    settings = {k: v for k, v in run.config.values.items() if k != "generation_batch_size"}
    found = measure(TOOL, replace(run, config=Config(settings)))
    assert found["worst_signal_share"] > 0.5
    assert (found["rows_complete"], found["another_total"]) == (None, another)
