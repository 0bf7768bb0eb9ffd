"""Rows that a reward function gave no score."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from firstbad.tools.run import RolloutBatch, Run

TOOL = "count_unscored"
ONSET = 31

MakeRun = Callable[..., Run]
MakeBatch = Callable[..., RolloutBatch]
Measure = Callable[..., dict[str, Any]]
nan = float("nan")


def no_verdict(share: float, onset: int, stop: int = 99) -> Callable[[SimpleNamespace], None]:
    """A verifier that gives no verdict on a share of the rows, from a step on."""

    def edit(d: SimpleNamespace) -> None:
        if onset <= d.step < stop:
            d.rewards["correct"][d.rng.random(len(d.group)) < share] = np.nan

    return edit


def test_hand_counted_rows(make_run: MakeRun, batch: MakeBatch, measure: Measure) -> None:
    # Of two groups of four, one row of the first has no score; the second is another task's.
    rows = [
        batch(s, rewards={"correct": [1, 0, nan, 0, nan, nan, nan, nan]}, size=4)
        for s in range(1, 7)
    ]
    found = measure(TOOL, make_run(rollouts=rows, config={"num_generations": 4}))
    assert (found["n_rows"], found["share"], found["share_largest"]) == (48, 0.125, 0.125)
    assert (found["first_bad_step"], found["from_start"], found["weight"]) == (1, True, 1.0)


@pytest.mark.parametrize("seed", range(3))
def test_a_verifier_that_begins_to_fail(simulate: MakeRun, measure: Measure, seed: int) -> None:
    found = measure(TOOL, simulate(seed, edit=no_verdict(0.3, ONSET, 46)))
    assert found["share"] == pytest.approx(0.3, abs=0.06)
    assert found["share_before"] == 0
    assert found["first_bad_step"] == ONSET
    assert found["last_good_step"] == ONSET - 1
    assert found["last_bad_step"] == 45
    goes_on = measure(TOOL, simulate(seed, edit=no_verdict(0.3, ONSET)))
    assert (goes_on["first_bad_step"], goes_on["last_bad_step"]) == (ONSET, None)


def test_a_rare_failure_is_not_dated(simulate: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, simulate(1, edit=no_verdict(0.005, 1)))
    assert 0 < found["share"] < 0.02
    assert found["first_bad_step"] is None


def test_a_part_of_another_task_is_none(simulate: MakeRun, measure: Measure) -> None:
    # Rows of every other prompt belong to a task that this part does not judge.
    def edit(d: SimpleNamespace) -> None:
        d.rewards["correct"][d.group % 2 == 1] = np.nan

    found = measure(TOOL, simulate(2, edit=edit))
    assert found["share"] == found["share_largest"] == 0
    assert found["first_bad_step"] is None


def test_a_part_beside_the_outcome_may_have_nothing_to_say(
    simulate: MakeRun, measure: Measure
) -> None:
    # A reward for tool calls scores the rows with a call alone.
    def edit(d: SimpleNamespace) -> None:
        d.rewards["format"][d.rng.random(len(d.group)) < 0.5] = np.nan

    found = measure(TOOL, simulate(3, edit=edit))
    assert found["share"] == 0
    assert found["first_bad_step"] is None


def test_without_scores(make_run: MakeRun, missing: Callable[..., str]) -> None:
    assert "reward" in missing(TOOL, make_run())


@pytest.mark.parametrize(("advantage", "share"), [(0.0, 0.0), (-0.5, 0.25)])
def test_a_cut_row_needs_a_score_where_it_carries_an_advantage(
    make_run: MakeRun, batch: MakeBatch, measure: Measure, advantage: float, share: float
) -> None:
    rows = batch(
        rewards={"correct": [1, 0, 0, nan]},
        advantage=[1, -0.5, -0.5, advantage],
        finish=["stop", "stop", "stop", "length"],
    )
    run = make_run(rollouts=[rows], config={"num_generations": 4})
    assert measure(TOOL, run)["share"] == share


@pytest.mark.parametrize(
    ("advantage", "finish", "share", "paid"),
    [
        (-0.5, "stop", 0.25, 0),
        (0.0, "stop", 0.0, 0),  # a filler
        (-0.5, "abort", 0.0, 1),
        (0.0, "abort", 0.0, 0),
    ],
)
def test_a_row_that_is_aborted_or_not_trained_needs_no_score(
    make_run: MakeRun,
    batch: MakeBatch,
    measure: Measure,
    advantage: float,
    finish: str,
    share: float,
    paid: int,
) -> None:
    rows = batch(
        rewards={"correct": [1, 0, 0, nan]},
        advantage=[1, -0.5, -0.5, advantage],
        finish=["stop", "stop", "stop", finish],
    )
    found = measure(TOOL, make_run(rollouts=[rows], config={"num_generations": 4}))
    assert (found["share"], found["aborted_paid"]) == (share, paid)


def test_a_list_that_is_too_short_is_told_from_gaps_elsewhere(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    # Eight rows a step. The last two lack a score: once by the list, once with an error on record.
    def found(*lost: tuple[int, ...], **fields: Any) -> dict[str, Any]:
        rows = [
            batch(
                s,
                rewards={"correct": [nan if i in gaps else float(i % 2) for i in range(8)]},
                size=4,
                **fields,
            )
            for s, gaps in enumerate(lost, 1)
        ]
        return measure(TOOL, make_run(rollouts=rows, config={"num_generations": 4}))

    short = found(*[(6, 7)] * 6)
    assert (short["short_by"], short["short_steps"], short["short_share"]) == (2, 6, 1)
    assert (short["share"], short["first_bad_step"]) == (0.25, 1)
    inside = found(*[(5, 6)] * 6)
    assert (inside["short_by"], inside["short_steps"], inside["short_share"]) == (2, 0, 0)
    changing = found((6, 7), (7,), (5, 6, 7), (6, 7), (7,), (6, 7))
    assert (changing["short_by"], changing["short_steps"], changing["short_share"]) == (2, 3, 0.5)
    raised = found(*[(6, 7)] * 6, errors={"correct": [None] * 7 + ["timeout"]})
    assert (raised["short_steps"], raised["short_share"]) == (0, 0)
    whole = found(*[()] * 6)
    assert (whole["short_by"], whole["short_steps"], whole["short_share"]) == (None, 0, None)
