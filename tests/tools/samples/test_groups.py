"""Groups without contrast, split by what they have in common, against a prediction."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstbad.tools.outcome import outcome_part
from firstbad.tools.registry import run_tool
from firstbad.tools.run import RolloutBatch, Run
from firstbad.tools.samples.groups import _ends, predicted_share

TOOL = "count_zero_variance"
ONSET = 31

MakeRun = Callable[..., Run]
MakeBatch = Callable[..., RolloutBatch]
Measure = Callable[..., dict[str, Any]]


def test_hand_counted_groups(make_run: MakeRun, batch: MakeBatch, measure: Measure) -> None:
    # Groups of two: right right, wrong wrong, right wrong, and half half.
    rewards = [1, 1, 0, 0, 1, 0, 0.5, 0.5]
    run = make_run(rollouts=[batch(s, rewards={"correct": rewards}, size=2) for s in (1, 2, 3)])
    found = measure(TOOL, run)
    assert (found["n_groups"], found["group_size"]) == (12, 2)
    assert found["share_all_right"] == found["all_right_first"] == found["all_right_last"] == 0.25
    assert found["share_all_wrong"] == found["all_wrong_last"] == 0.25
    assert found["share_other_constant"] == 0.25
    assert found["no_contrast_last"] == found["total_constant_last"] == 0.75
    # 3 of 8 rows have the top value.
    assert found["solve_rate_last"] == pytest.approx(0.375)


@pytest.mark.parametrize(("size", "share"), [(4, 0.125), (8, 0.0078), (16, 3.1e-5)])
def test_prediction_for_one_solve_rate(size: int, share: float) -> None:
    # p = 0.5 for every prompt: 2 x 0.5^G. Counts that vary no more than a binomial are one p.
    counts = np.array([size / 2] * 10 + [size / 2 - 1, size / 2 + 1] * 5)
    assert predicted_share(counts, size) == pytest.approx(share, rel=0.02)


@pytest.mark.parametrize("size", [4, 8, 16])
def test_prediction_for_solve_rates_spread_evenly(size: int) -> None:
    # p uniform on [0, 1] makes every count from 0 to G equally likely: 2/(G + 1).
    counts = np.tile(np.arange(size + 1.0), 400)
    assert predicted_share(counts, size) == pytest.approx(2 / (size + 1), rel=0.01)


def test_prediction_needs_groups_and_some_contrast() -> None:
    assert predicted_share(np.full(9, 2.0), 4) is None
    assert predicted_share(np.full(50, 4.0), 4) is None
    assert predicted_share(np.zeros(50), 4) is None
    assert predicted_share(np.full(50, 1.0), 1) is None


def test_the_prediction_holds_for_a_simulated_run(healthy: Run, measure: Measure) -> None:
    found = measure(TOOL, healthy)
    # p uniform on [0.2, 0.8], G = 8: the mean of p^8 + (1-p)^8 is 2 (0.8^9 - 0.2^9)/(9 x 0.6).
    expected = 2 * (0.8**9 - 0.2**9) / (9 * 0.6)
    assert expected == pytest.approx(0.0497, abs=1e-4)
    assert found["predicted_last"] == pytest.approx(expected, abs=0.04)
    assert abs(found["above_prediction"]) < 3
    assert found["solve_rate_last"] == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize(("score", "column"), [(1.0, "all_right"), (0.0, "all_wrong")])
def test_a_lasting_majority_without_contrast_is_dated(
    simulate: MakeRun, measure: Measure, score: float, column: str
) -> None:
    def edit(d: SimpleNamespace) -> None:
        if d.step >= ONSET:
            d.rewards["correct"][:] = score

    found = measure(TOOL, simulate(1, edit=edit))
    assert (found["last_good_step"], found["first_bad_step"]) == (ONSET - 1, ONSET)
    assert found[f"{column}_first"] < 0.1
    assert found[f"{column}_last"] == found["no_contrast_last"] == 1
    other = "all_wrong" if column == "all_right" else "all_right"
    assert found[f"{other}_last"] == 0
    # The format part still tells rows of a group apart, so the total is not constant.
    assert found["total_constant_last"] < 0.8


def test_all_wrong_from_the_start(simulate: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, simulate(1, edit=lambda d: d.rewards["correct"].fill(0)))
    assert found["from_start"]
    assert found["share_all_wrong"] == 1
    assert found["predicted_last"] is None


@pytest.mark.parametrize(
    ("value", "said"), [(0.0, "not one answer in any of the"), (1.0, "every answer in all of the")]
)
def test_that_no_group_or_every_group_is_right_is_said(
    simulate: MakeRun, value: float, said: str
) -> None:
    run = simulate(1, edit=lambda d: d.rewards["correct"].fill(value))
    assert said in run_tool(TOOL, run, {}, evidence_id="E1").summary
    other = run_tool(TOOL, simulate(1), {}, evidence_id="E1").summary
    assert "not one answer" not in other
    assert "every answer" not in other


def test_a_part_that_only_ever_gave_minus_one_is_all_wrong(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    run = make_run(rollouts=[batch(s, rewards={"correct": [-1] * 8}, size=4) for s in (1, 2, 3)])
    found = measure(TOOL, run)
    assert (found["share_all_right"], found["share_all_wrong"]) == (0, 1)


def test_float32_noise_in_equal_rewards_is_no_contrast(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    exact = np.array([1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 0, 0], float)
    noise = np.tile([1e-7, -1e-7, 0, 6e-8], 3)
    runs = [
        make_run(rollouts=[batch(s, rewards={"correct": r}, size=4) for s in (1, 2, 3)])
        for r in (exact, exact + noise)
    ]
    a, b = (measure(TOOL, run) for run in runs)
    for name in ("share_all_wrong", "share_other_constant", "total_constant_last"):
        assert a[name] == b[name]
    assert a["share_all_right"] == pytest.approx(1 / 3, abs=1e-6)
    assert b["share_all_right"] == pytest.approx(1 / 3, abs=1e-6)


def test_one_step_without_contrast_is_no_onset(simulate: MakeRun, measure: Measure) -> None:
    def edit(d: SimpleNamespace) -> None:
        if d.step == ONSET:
            d.rewards["correct"][:] = 0

    found = measure(TOOL, simulate(1, edit=edit))
    assert found["first_bad_step"] is None


def test_a_graded_part_has_no_right_and_wrong(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    rng = np.random.default_rng(0)
    rows = [batch(s, rewards={"score": rng.random(16)}, size=4) for s in range(1, 7)]
    found = measure(TOOL, make_run(rollouts=rows))
    assert found["no_contrast_last"] == 0
    assert found["solve_rate_last"] is found["predicted_last"] is None


def test_the_part_named_decides_and_else_what_looks_like_the_outcome(
    simulate: MakeRun, make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    run = simulate(1, steps=12, edit=lambda d: d.rewards["format"].fill(1))
    assert measure(TOOL, run)["share_all_right"] < 0.2
    assert measure(TOOL, run, part="format")["share_all_right"] == 1
    rows = [batch(rewards={"length": [0, 1], "is_correct": [1, 1], "style": [0, 1]})]
    assert outcome_part(make_run(), rows) == "is_correct"
    rows = [batch(rewards={"a": [0, 1], "b": [1, 1]})]
    assert outcome_part(make_run(), rows) == "a"
    assert outcome_part(make_run(config={"reward_weights": [0.1, 2]}), rows) == "b"


def test_without_data(make_run: MakeRun, batch: MakeBatch, missing: Callable[..., str]) -> None:
    assert "rewards" in missing(TOOL, make_run())
    rows = batch(rewards={"correct": [1, 0]})
    assert "`style`" in missing(TOOL, make_run(rollouts=[rows]), part="style")


@settings(max_examples=8, derandomize=True)
@given(order=st.permutations(range(4)), rows=st.permutations(range(8)), factor=st.floats(0.01, 100))
def test_order_of_groups_and_rows_and_the_scale_of_rewards_do_not_matter(
    simulate: MakeRun,
    measure: Measure,
    changed: SimpleNamespace,
    order: list[int],
    rows: list[int],
    factor: float,
) -> None:
    run = simulate(4, steps=15, solve=(0.0, 1.0))
    before = measure(TOOL, run)
    mixed = [8 * g + r for g in range(4) for r in rows]

    def change(batch: RolloutBatch) -> RolloutBatch:
        moved: RolloutBatch = changed.reorder_groups(changed.reorder(batch, mixed), order)
        for values in moved.rewards.values():
            values *= factor
        return moved

    after = measure(TOOL, changed.rebatch(run, change))
    assert after.pop("total_constant_last") == pytest.approx(before.pop("total_constant_last"))
    assert after == before


def test_where_the_rollouts_begin(make_run: MakeRun, batch: MakeBatch, measure: Measure) -> None:
    def run(first: int, learned_after: int) -> Run:
        right, some = [1] * 20, [1, 0] * 10
        rows = [
            batch(s, rewards={"correct": right if s - first >= learned_after else some}, size=2)
            for s in range(first, first + 30)
        ]
        return make_run(rollouts=rows)

    known = measure(TOOL, run(1, 0))
    assert (known["all_right_start"], known["begins_late"]) == (1, False)
    learned = measure(TOOL, run(1, 3))
    assert (learned["all_right_start"], learned["all_right_first"]) == (0, 0.7)
    assert measure(TOOL, run(400, 0))["begins_late"] is True


def test_thirds_are_of_the_time_and_not_of_the_steps_that_were_kept() -> None:
    steps = [1.0, 31, 32, 33, 37, 38, 39, 40]
    early, late = _ends(np.array([[s, 8, 0, 0, 0, 0, 8, 0] for s in steps]))
    assert early[:, 0].tolist() == [1]
    assert late[:, 0].tolist() == steps[1:]
    few = np.array([[s, 2, 0, 0, 0, 0, 8, 0] for s in steps])  # eight groups at least
    assert _ends(few)[0][:, 0].tolist() == steps[:4]
    one = np.array([[5.0, 2, 0, 0, 0, 0, 8, 0]])
    assert [len(part) for part in _ends(one)] == [1, 1]
