"""Reward parts, each alone: constants, ranges, outliers."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstbad.tools.evidence import Evidence
from firstbad.tools.run import RolloutBatch, Run

TOOL = "measure_reward_parts"
ONSET = 31

MakeRun = Callable[..., Run]
MakeBatch = Callable[..., RolloutBatch]
Measure = Callable[..., dict[str, Any]]
Fault = Callable[[SimpleNamespace], None]


def from_step(onset: int, fault: Fault, last: int = 10**9) -> Fault:
    return lambda d: fault(d) if onset <= d.step <= last else None


def test_hand_computed_levels(make_run: MakeRun, batch: MakeBatch, measure: Measure) -> None:
    # Twelve steps of one group. `correct` has mean 1/4 in the first four, 3/4 in the last four:
    # +1/2. `style` has mean 0.5 and then 1.0, weighted by 0.2: 0.1 and 0.2, +0.1.
    # Spread in the last third: correct 1 1 1 0 has s^2 = 0.25; style 1 1 1 1 has none.
    def rows(step: int) -> RolloutBatch:
        correct = [1, 0, 0, 0] if step <= 4 else [1, 1, 1, 0]
        style = [0, 0, 1, 1] if step <= 4 else [1, 1, 1, 1]
        return batch(step, rewards={"correct": correct, "style": style})

    config = {"reward_weights": [1.0, 0.2]}
    run = make_run(rollouts=[rows(s) for s in range(1, 13)], config=config)
    found = measure(TOOL, run)
    assert (found["n_parts"], found["n_steps"]) == (2, 12)
    assert (found["outcome_level_first"], found["outcome_level_last"]) == (0.25, 0.75)
    assert found["outcome_gain"] == 0.5
    assert found["form_level_first"] == pytest.approx(0.1)
    assert found["form_level_last"] == pytest.approx(0.2)
    assert found["form_gain"] == pytest.approx(0.1)
    assert found["total_gain"] == pytest.approx(0.6)
    assert found["outcome_share_of_spread"] == 1
    assert not found["constant_part"], "a form part at its top is learned"
    assert (found["scale_factor"], found["outlier_rows"], found["nonfinite_rows"]) == (1, 0, 0)
    assert found["first_bad_step"] is None


def dead(d: SimpleNamespace) -> None:
    d.rewards["correct"][:] = 0


def test_an_outcome_that_turns_constant(simulate: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, simulate(1, edit=from_step(ONSET, dead)))
    assert found["constant_part"]
    assert found["constant_is_outcome"]
    assert found["constant_value"] == 0
    assert found["constant_first_step"] == found["first_bad_step"] == ONSET
    assert found["last_good_step"] == ONSET - 1


def test_an_outcome_that_is_constant_for_a_stretch(simulate: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, simulate(1, edit=from_step(21, dead, last=26)))
    assert found["constant_first_step"] == 21
    short = measure(TOOL, simulate(1, edit=from_step(21, dead, last=24)))
    assert not short["constant_part"], "four steps are too few"


def test_a_task_that_was_learned_is_no_constant(simulate: MakeRun, measure: Measure) -> None:
    def learn(d: SimpleNamespace) -> None:
        wrong = d.rng.random(32) > min(1.0, 0.5 + d.step / 40)
        d.rewards["correct"] = 1.0 - wrong

    found = measure(TOOL, simulate(1, edit=learn))
    assert found["outcome_level_last"] == 1
    assert not found["constant_part"]
    assert found["first_bad_step"] is None


@pytest.mark.parametrize("factor", [2.0, 10.0, 0.1])
def test_a_part_whose_range_changes(simulate: MakeRun, measure: Measure, factor: float) -> None:
    def scale(d: SimpleNamespace) -> None:
        d.rewards["format"] = d.rewards["format"] * factor

    found = measure(TOOL, simulate(1, edit=from_step(ONSET, scale)))
    assert found["scale_factor"] == pytest.approx(max(factor, 1 / factor), rel=0.01)
    assert found["scale_step"] == found["first_bad_step"] == ONSET
    assert not found["constant_part"]


def test_a_part_that_only_becomes_rarer_keeps_its_range(
    simulate: MakeRun, measure: Measure
) -> None:
    def rare(d: SimpleNamespace) -> None:
        d.rewards["correct"] *= d.rng.random(32) < 0.5

    found = measure(TOOL, simulate(1, edit=from_step(ONSET, rare)))
    assert found["scale_step"] is None
    assert found["scale_factor"] == 1


def test_a_part_that_grows_with_what_rows_hold_keeps_its_range(
    simulate: MakeRun, measure: Measure
) -> None:
    def grow(d: SimpleNamespace) -> None:
        said = np.interp(d.step, [25, 50], [1, 20]) + d.rng.integers(0, 3, 32)
        d.rewards["format"] = 0.5 * said

    found = measure(TOOL, simulate(1, edit=grow))
    assert found["scale_step"] is None
    assert found["first_bad_step"] is None


def outlier(rows: list[int], value: float, *steps: int) -> Fault:
    def fault(d: SimpleNamespace) -> None:
        if d.step in steps:
            d.rewards["format"][rows] = value

    return fault


@pytest.mark.parametrize("value", [500.0, -500.0])
def test_single_rows_with_extreme_values(simulate: MakeRun, measure: Measure, value: float) -> None:
    found = measure(TOOL, simulate(1, size=16, edit=outlier([3], value, ONSET, 45)))
    # Weighted 0.2 x 500 = 100, over the usual total of 1 + 0.2.
    assert found["outlier_factor"] == pytest.approx(100 / 1.2)
    assert found["outlier_rows"] == 2
    assert found["outlier_step"] == found["first_bad_step"] == ONSET
    assert found["scale_step"] is None


def test_rows_are_counted_and_not_steps(simulate: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, simulate(1, size=16, edit=outlier([3, 9], 500.0, ONSET)))
    assert found["outlier_rows"] == 2


@pytest.mark.parametrize("step", [1, 3, 11])
def test_an_outlier_early_in_the_run(simulate: MakeRun, measure: Measure, step: int) -> None:
    found = measure(TOOL, simulate(1, size=16, edit=outlier([3], 500.0, step)))
    assert found["outlier_rows"] == 1
    assert found["outlier_step"] == found["first_bad_step"] == step
    assert found["from_start"] == (step == 1)


def test_a_penalty_that_is_learned_away_is_no_outlier(simulate: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, simulate(1, size=16, edit=outlier([3, 9], -500.0, *range(1, 8))))
    assert found["outlier_rows"] == 0


def test_how_a_part_was_built_is_no_outlier(simulate: MakeRun, measure: Measure) -> None:
    """A rare bonus of 100 that the reward gives from the start on is the reward as meant."""
    found = measure(TOOL, simulate(1, size=16, edit=outlier([3], 500.0, *range(2, 60, 4))))
    assert found["outlier_rows"] == 0
    assert found["first_bad_step"] is None


def test_outliers_in_most_later_steps_do_not_become_usual(
    simulate: MakeRun, measure: Measure
) -> None:
    found = measure(TOOL, simulate(1, size=16, edit=outlier([3], 500.0, *range(21, 61))))
    assert found["outlier_rows"] == 40
    assert found["outlier_factor"] == pytest.approx(100 / 1.2)
    assert found["outlier_step"] == found["first_bad_step"] == 21


def test_the_first_right_answers_are_no_outliers(simulate: MakeRun, measure: Measure) -> None:
    """A hard task: form pays little from the start on, right answers are found late and rarely."""

    def edit(d: SimpleNamespace) -> None:
        d.rewards["format"] *= 0.25
        d.rewards["correct"][:] = 0
        if d.step in (25, 31, 40, 52):
            d.rewards["correct"][5] = 1

    assert measure(TOOL, simulate(1, size=16, edit=edit))["outlier_rows"] == 0


def test_a_reward_that_grows_by_learning_has_no_outliers(
    simulate: MakeRun, measure: Measure
) -> None:
    """A heavy-tailed score, such as of a game, that grows a hundredfold over the run."""

    def edit(d: SimpleNamespace) -> None:
        d.rewards["correct"] = np.exp(d.rng.normal(size=64) + np.log(100) * d.step / 60)

    assert measure(TOOL, simulate(1, size=16, edit=edit))["outlier_rows"] == 0


def test_a_value_nine_times_as_large_is_no_outlier(simulate: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, simulate(1, size=16, edit=outlier([3], 9.0, ONSET)))
    assert found["outlier_rows"] == 0
    assert found["first_bad_step"] is None


def test_the_earliest_of_several_leads(simulate: MakeRun, measure: Measure) -> None:
    def edit(d: SimpleNamespace) -> None:
        outlier([3], 500.0, 20)(d)
        from_step(ONSET, dead)(d)

    found = measure(TOOL, simulate(1, size=16, edit=edit))
    assert (found["outlier_step"], found["constant_first_step"]) == (20, ONSET)
    assert (found["last_good_step"], found["first_bad_step"]) == (19, 20)


def test_values_that_are_not_finite_are_counted(simulate: MakeRun, measure: Measure) -> None:
    def edit(d: SimpleNamespace) -> None:
        if d.step > 20:
            d.rewards["format"][:2] = np.nan

    found = measure(TOOL, simulate(1, edit=edit))
    assert found["nonfinite_rows"] == 2 * 40
    assert found["first_bad_step"] is None


def test_a_part_that_was_never_scored(simulate: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, simulate(1, edit=lambda d: d.rewards["format"].fill(np.nan)))
    assert found["nonfinite_rows"] == 60 * 32
    assert not found["constant_part"]


def test_levels_of_form_need_the_weights(
    simulate: MakeRun, make_run: MakeRun, measure: Measure
) -> None:
    rows = list(simulate(1, steps=12).rollouts.batches())
    found = measure(TOOL, make_run(rollouts=rows))
    assert found["form_level_first"] is found["form_gain"] is None
    assert found["outcome_share_of_spread"] is None
    assert found["outcome_gain"] is not None


def test_without_data(make_run: MakeRun, simulate: MakeRun, missing: Callable[..., str]) -> None:
    assert "reward parts" in missing(TOOL, make_run())
    assert "fewer than 10 steps" in missing(TOOL, simulate(1, steps=9))


@settings(max_examples=4, derandomize=True)
@given(order=st.permutations(range(32)), factor=st.floats(0.01, 100), by=st.integers(0, 1000))
def test_order_of_rows_step_numbers_and_unit_of_rewards(
    simulate: MakeRun,
    measure: Measure,
    changed: SimpleNamespace,
    order: list[int],
    factor: float,
    by: int,
) -> None:
    def triple(d: SimpleNamespace) -> None:
        d.rewards["format"] *= 3

    run = simulate(2, steps=20, edit=from_step(11, triple))
    before = measure(TOOL, run)
    assert before["scale_step"] == 11

    def change(batch: RolloutBatch) -> RolloutBatch:
        moved: RolloutBatch = changed.reorder(batch, order)
        for values in moved.rewards.values():
            values *= factor
        return moved

    after = measure(TOOL, changed.shift_steps(changed.rebatch(run, change), by))
    for name, value in changed.dates_moved(before, by).items():
        if name.startswith(("outcome_level", "form_level")) or name.endswith("_gain"):
            value *= factor
        if value is None or isinstance(value, bool):
            assert after[name] is value
        else:
            assert after[name] == pytest.approx(value, rel=1e-3, abs=2e-6)


def test_a_part_that_turns_its_sign(simulate: MakeRun, measure: Measure) -> None:
    def turned(d: SimpleNamespace) -> None:
        if d.step >= ONSET:
            d.rewards["format"] = -d.rewards["format"]

    found = measure(TOOL, simulate(1, edit=turned))
    assert (found["part_turned"], found["turned_step"]) == (True, ONSET)
    assert found["first_bad_step"] == ONSET
    assert not measure(TOOL, simulate(1))["part_turned"]


def test_a_part_that_wanders_over_0_turns_nothing(simulate: MakeRun, measure: Measure) -> None:
    """As one that pays for the length less a target does while answers grow."""

    def wanders(d: SimpleNamespace) -> None:
        d.rewards["format"] = d.rewards["format"] + 0.5 - d.step / 60

    assert not measure(TOOL, simulate(1, edit=wanders))["part_turned"]


def test_the_part_that_changed_is_named(
    simulate: MakeRun, evidence: Callable[..., Evidence]
) -> None:
    def scale(d: SimpleNamespace) -> None:
        d.rewards["format"] = d.rewards["format"] * 10

    wide = evidence(TOOL, simulate(1, edit=from_step(ONSET, scale)))
    far = evidence(TOOL, simulate(1, size=16, edit=outlier([3], 500.0, ONSET)))
    assert (wide.quote, far.quote) == ("It is `format`.", "It is `format`.")
    assert evidence(TOOL, simulate(1)).quote == ""
