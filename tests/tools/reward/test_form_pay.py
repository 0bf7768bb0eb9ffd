"""Form that is paid against the outcome."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstbad.tools.run import RolloutBatch, Run

TOOL = "measure_form_pay"
ONSET = 31

MakeRun = Callable[..., Run]
MakeBatch = Callable[..., RolloutBatch]
Measure = Callable[..., dict[str, Any]]


def against(onset: int) -> Callable[[SimpleNamespace], None]:
    """From the onset on, form is paid in three of four wrong answers and in one of four right."""

    def edit(d: SimpleNamespace) -> None:
        if d.step >= onset:
            share = np.where(d.right, 0.25, 0.75)
            d.rewards["format"] = (d.rng.random(len(share)) < share).astype(float)

    return edit


def test_hand_computed_pay(make_run: MakeRun, batch: MakeBatch, measure: Measure) -> None:
    # First group: right rows have form 0 and 1, wrong ones 1 and 1: 0.5 - 1 = -0.5. Second group:
    # 1 - 0 = 1. Third: all right, not read. Mean 0.25, times the weight of 2.
    correct = [1, 1, 0, 0, 1, 0, 0, 0, 1, 1, 1, 1]
    form = [0, 1, 1, 1, 1, 0, 0, 0, 0, 1, 0, 1]
    rows = [batch(s, rewards={"correct": correct, "form": form}, size=4) for s in range(1, 13)]
    found = measure(TOOL, make_run(rollouts=rows, config={"reward_weights": [1.0, 2.0]}))
    assert found["n_steps"] == 12
    assert found["right_over_wrong"] == found["right_over_wrong_last"] == 0.5
    assert found["first_bad_step"] is None


@pytest.mark.parametrize("seed", range(3))
def test_pay_against_the_outcome_is_dated(simulate: MakeRun, measure: Measure, seed: int) -> None:
    found = measure(TOOL, simulate(seed, edit=against(ONSET)))
    # Half of the form's weight of 0.2, between one group of rows and another.
    assert found["right_over_wrong_last"] == pytest.approx(-0.1, abs=0.02)
    assert found["first_bad_step"] == pytest.approx(ONSET, abs=1)
    assert found["quiet_step"] == found["first_bad_step"] - 1
    assert found["last_good_step"] is None


def test_pay_against_the_outcome_from_the_start(simulate: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, simulate(1, edit=against(1)))
    assert (found["from_start"], found["first_bad_step"], found["quiet_step"]) == (True, 1, None)


@pytest.mark.parametrize("seed", range(6))
def test_form_beside_the_outcome(simulate: MakeRun, measure: Measure, seed: int) -> None:
    """Form is paid alike in right and wrong answers, or rises until all have it."""
    found = measure(TOOL, simulate(seed))
    assert found["right_over_wrong"] == pytest.approx(0, abs=0.02)
    assert found["first_bad_step"] is None

    def saturate(d: SimpleNamespace) -> None:
        share = min(1.0, 0.5 + d.step / 60)
        d.rewards["format"] = (d.rng.random(len(d.right)) < share).astype(float)

    assert measure(TOOL, simulate(seed, edit=saturate))["first_bad_step"] is None


def test_form_that_right_answers_have_more_often(simulate: MakeRun, measure: Measure) -> None:
    def edit(d: SimpleNamespace) -> None:
        d.rewards["format"] = np.maximum(d.rewards["format"], d.right)

    assert measure(TOOL, simulate(1, edit=edit))["first_bad_step"] is None


def test_without_data(
    make_run: MakeRun, simulate: MakeRun, batch: MakeBatch, missing: Callable[..., str]
) -> None:
    assert "ten steps" in missing(TOOL, make_run())
    alone = [batch(s, rewards={"correct": [1, 0, 1, 0]}) for s in range(1, 20)]
    assert "ten steps" in missing(TOOL, make_run(rollouts=alone))
    other = simulate(1).rollouts
    rows = list(other.batches())
    assert "weights" in missing(TOOL, make_run(rollouts=rows))


@settings(max_examples=6, derandomize=True)
@given(order=st.permutations(range(32)), by=st.integers(0, 1000), seed=st.integers(0, 20))
def test_order_of_rows_and_step_numbers_do_not_matter(
    simulate: MakeRun,
    measure: Measure,
    changed: SimpleNamespace,
    order: list[int],
    by: int,
    seed: int,
) -> None:
    run = simulate(seed, edit=against(ONSET))
    mixed = changed.rebatch(run, lambda b: changed.reorder(b, order))
    after = measure(TOOL, changed.shift_steps(mixed, by))
    assert after == pytest.approx(changed.dates_moved(measure(TOOL, run), by))
