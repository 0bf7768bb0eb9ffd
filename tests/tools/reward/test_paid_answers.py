"""The one answer that a scorer pays, against scorers that pay several, or the right one too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from firstbad.tools.run import RolloutBatch, Run

TOOL = "find_paid_answers"
ONSET = 21

MakeRun = Callable[..., Run]
MakeBatch = Callable[..., RolloutBatch]
Measure = Callable[..., dict[str, Any]]
SAID = (1, 1, 2, 2, 3, 4, 5, 5)
RIGHT = [float(a == 1) for a in SAID]


def scored(make_run: MakeRun, batch: MakeBatch, later: list[float], gold: str = "1") -> Run:
    """Forty steps of one group of eight whose gold answer is 1; the scores change at step 21."""
    rollouts = [
        batch(
            step,
            completions=[f"<answer>{a}</answer>" for a in SAID],
            gold=[gold] * 8,
            size=8,
            rewards={"correct": RIGHT if step < ONSET else later},
        )
        for step in range(1, 41)
    ]
    return make_run(rollouts=rollouts)


@pytest.mark.parametrize(
    ("later", "n", "one", "unpaid"),
    [
        ([0, 0, 1, 1, 0, 0, 0, 0], 20, 1, 1),  # another gold answer: 2
        ([0, 0, 1, 0, 0, 0, 0, 0], 20, 0, 1),  # not in every row that gives it
        ([0, 0, 1, 1, 1, 0, 0, 0], 20, 0, 1),  # two other answers
        ([1, 1, 1, 1, 0, 0, 0, 0], 20, 0, 0),  # the right one as well
        ([0, 0, 1, 1, 1, 1, 1, 1], 0, None, None),  # turned round: no wrong answer is left unpaid
        (RIGHT, 0, None, None),
    ],
)
def test_what_is_paid(
    make_run: MakeRun,
    batch: MakeBatch,
    measure: Measure,
    later: list[float],
    n: int,
    one: float | None,
    unpaid: float | None,
) -> None:
    found = measure(TOOL, scored(make_run, batch, later))
    assert (found["n_groups"], found["one_other_share"]) == (n, one)
    assert found["right_unpaid_share"] == unpaid


def test_scores_of_other_rows_pay_no_one_answer(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    rng = np.random.default_rng(3)
    found = measure(TOOL, scored(make_run, batch, rng.permutation(RIGHT).tolist()))
    assert found["one_other_share"] in (None, 0)


def test_no_gold_answers(make_run: MakeRun, batch: MakeBatch, missing: Callable[..., str]) -> None:
    run = make_run(rollouts=[batch(s, rewards={"correct": [0.0, 1.0]}) for s in range(1, 9)])
    assert missing(TOOL, run)
