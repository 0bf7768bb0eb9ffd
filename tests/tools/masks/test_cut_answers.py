"""Cut and finished answers, and what is left of the groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from firstbad.tools.run import RolloutBatch, Run

TOOL = "compare_cut_answers"
MakeRun = Callable[..., Run]
MakeBatch = Callable[..., RolloutBatch]
Measure = Callable[..., dict[str, Any]]


def test_by_hand(make_run: MakeRun, batch: MakeBatch, measure: Measure) -> None:
    # Two groups of three. Of the first, the only wrong row is cut: what is left is flat.
    rows = batch(
        1,
        rewards={"correct": [1, 1, 0, 1, 0, 0.5]},
        size=3,
        n_tokens=[4, 6, 20, 5, 9, 20],
        finish=["stop", "stop", "length", "stop", "stop", "length"],
    )
    assert measure(TOOL, make_run(rollouts=[rows])) == {
        "n_rows": 6,
        "n_cut": 2,
        "share_cut": pytest.approx(1 / 3, abs=1e-6),
        "right_cut": 0.25,
        "right_finished": 0.75,
        "tokens_cut": 20.0,
        "tokens_finished": 6.0,
        "rows_left": 4.0,
        "group_left": 2.0,
        "flat_all": 0.0,
        "flat_left": 0.5,
    }


def test_nothing_cut(make_run: MakeRun, batch: MakeBatch, measure: Measure) -> None:
    rows = batch(1, rewards={"correct": [1, 0]}, n_tokens=[4, 6], finish=["stop", "stop"])
    found = measure(TOOL, make_run(rollouts=[rows]))
    assert (found["n_cut"], found["right_cut"], found["tokens_cut"]) == (0, None, None)
    assert (found["group_left"], found["flat_left"]) == (2.0, 0.0)


def test_rows_that_nobody_scored(make_run: MakeRun, batch: MakeBatch, measure: Measure) -> None:
    nan = float("nan")
    rows = batch(1, rewards={"correct": [1, nan]}, n_tokens=[4, 20], finish=["stop", "length"])
    found = measure(TOOL, make_run(rollouts=[rows]))
    assert (found["right_cut"], found["right_finished"]) == (None, 1.0)
    assert (found["flat_all"], found["flat_left"]) == (1.0, 1.0)


def test_no_rollouts(make_run: MakeRun, missing: Callable[..., str]) -> None:
    assert missing(TOOL, make_run()) == "no rollouts whose answers may be cut"
