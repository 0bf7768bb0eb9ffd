"""Cut completions, growth of right and wrong answers, and pay for length."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstbad.tools.run import RolloutBatch, Run

CUT, PAY = "check_truncation", "measure_length_pay"
ONSET = 31

MakeRun = Callable[..., Run]
MakeBatch = Callable[..., RolloutBatch]
Measure = Callable[..., dict[str, Any]]


# ---------------------------------------------------------------------------------------- cut


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


# ---------------------------------------------------------------------------------------- pay


def test_hand_computed_pay(make_run: MakeRun, batch: MakeBatch, measure: Measure) -> None:
    # Six steps of one group with lengths 10 20 30 (mean 20), in the last third 20 40 60 (mean 40).
    # `style` pays 0.1 for the first, 0.2 and 0.3 for the others: r = 1 inside the group, and over
    # 40 tokens it rises by 0.2, so 0.005 a token, weighted by 0.5: 0.0025.
    def rows(step: int) -> RolloutBatch:
        long = 1 if step < 5 else 2
        return batch(
            step,
            rewards={"correct": [0, 1, 0], "style": [0.1, 0.2, 0.3]},
            n_tokens=[10 * long, 20 * long, 30 * long],
        )

    run = make_run(rollouts=[rows(s) for s in range(1, 7)], config={"reward_weights": [1.0, 0.5]})
    found = measure(PAY, run)
    assert (found["n_rows"], found["growth"]) == (18, 2)
    assert found["paid_part_correlation"] == pytest.approx(1)
    assert found["paid_part_slope"] == pytest.approx(0.0025)
    assert found["growth_right"] is found["growth_wrong"] is None, "too few rows to tell"
    assert found["outcome_first"] == found["outcome_last"] == pytest.approx(1 / 3, abs=1e-6)
    # Total 0.05 1.1 0.15 (mean 0.43333) against 20 40 60: products 20 x 0.1 = 2, squares 0.67167
    # and 800, r = 2/sqrt(0.67167 x 800) = 0.08628.
    assert found["reward_length_correlation"] == pytest.approx(0.08628, abs=1e-5)


def longer(d: SimpleNamespace, factor: float, rows: np.ndarray[Any, Any]) -> None:
    d.n_tokens = np.where(rows, (d.n_tokens * factor).astype(int), d.n_tokens)


def test_a_part_that_pays_for_length(simulate: MakeRun, measure: Measure) -> None:
    def edit(d: SimpleNamespace) -> None:
        longer(d, 1 + d.step / 60, d.n_tokens > 0)
        d.rewards["format"] = d.n_tokens / 64 + 0.02 * d.rng.normal(size=32)

    found = measure(PAY, simulate(1, edit=edit))
    assert found["growth"] > 1.4
    assert found["paid_part_correlation"] > 0.9
    assert found["paid_part_slope"] == pytest.approx(0.2 / 64, rel=0.1)
    assert found["growth_right"] == pytest.approx(found["growth_wrong"], rel=0.1)


@pytest.mark.parametrize(
    ("right", "grows", "stays"), [(1, "right", "wrong"), (0, "wrong", "right")]
)
def test_who_grows(simulate: MakeRun, measure: Measure, right: int, grows: str, stays: str) -> None:
    def edit(d: SimpleNamespace) -> None:
        longer(d, 1 + d.step / 60, d.right == right)

    found = measure(PAY, simulate(1, edit=edit))
    assert found[f"growth_{grows}"] > 1.4
    assert found[f"growth_{stays}"] == pytest.approx(1, abs=0.1)


def test_harder_prompts_with_longer_answers_are_no_pay(simulate: MakeRun, measure: Measure) -> None:
    """Length differs between prompts only, so inside a group there is nothing to pay for."""

    def edit(d: SimpleNamespace) -> None:
        d.n_tokens = 20 + 10 * d.group + d.rng.integers(0, 5, 32)
        d.rewards["format"] = (d.group + d.rng.normal(size=32)) / 4

    found = measure(PAY, simulate(1, edit=edit))
    assert abs(found["paid_part_correlation"]) < 0.1
    assert abs(found["reward_length_correlation"]) < 0.1


def test_pay_without_data(make_run: MakeRun, batch: MakeBatch, missing: Callable[..., str]) -> None:
    assert "six steps" in missing(PAY, make_run())
    rows = [batch(s, rewards={"correct": [1, 0]}) for s in range(1, 6)]
    assert "six steps" in missing(PAY, make_run(rollouts=rows))


@settings(max_examples=6, derandomize=True)
@given(order=st.permutations(range(4)), factor=st.floats(0.1, 10), by=st.integers(0, 100))
def test_order_of_groups_and_scale_of_rewards_do_not_matter(
    simulate: MakeRun,
    measure: Measure,
    changed: SimpleNamespace,
    order: list[int],
    factor: float,
    by: int,
) -> None:
    run = simulate(3, steps=12)
    before = measure(PAY, run)

    def change(batch: RolloutBatch) -> RolloutBatch:
        moved: RolloutBatch = changed.reorder_groups(batch, order)
        for values in moved.rewards.values():
            values *= factor
        return moved

    after = measure(PAY, changed.shift_steps(changed.rebatch(run, change), by))
    slopes = before.pop("paid_part_slope"), after.pop("paid_part_slope")
    assert slopes[1] == pytest.approx(factor * slopes[0], rel=1e-3, abs=1e-5)
    assert after == pytest.approx(changed.dates_moved(before, by), abs=1e-6)
