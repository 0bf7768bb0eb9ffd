"""Growth of right and wrong answers, and pay for length."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstbad.tools.run import RolloutBatch, Run

PAY = "measure_length_pay"

MakeRun = Callable[..., Run]
MakeBatch = Callable[..., RolloutBatch]
Measure = Callable[..., dict[str, Any]]


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
