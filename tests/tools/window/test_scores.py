"""Scores of evaluations: first, best and last, beside training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from firstbad.tools.run import Run

TOOL = "compare_scores"

MakeRun = Callable[..., Run]
Measure = Callable[..., dict[str, Any]]


def test_hand_computed(make_run: MakeRun, measure: Measure) -> None:
    scores = np.full(60, np.nan)
    scores[[19, 39, 59]] = 1.0, 1.5, 1.25
    reward = np.repeat([0.5, 2.0], [50, 10])
    found = measure(TOOL, make_run(signals={"eval/reward_mean": scores, "reward_mean": reward}))
    assert (found["first"], found["best"], found["last"]) == (1.0, 1.5, 1.25)
    assert (found["first_step"], found["best_step"], found["last_step"]) == (20, 40, 60)
    # Moves of 0.5 and 0.25: the usual one is 0.375.
    assert (found["rise"], found["below_best"], found["usual_move"]) == (0.25, 0.25, 0.375)
    assert (found["training"], found["training_above"]) == (2.0, 0.75)
