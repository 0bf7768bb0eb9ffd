"""A reward part against an independent judge, from the judge's best stretch on."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from firstbad.tools.run import RolloutBatch, Run

TOOL = "compare_judges"

MakeRun = Callable[..., Run]
MakeBatch = Callable[..., RolloutBatch]
Measure = Callable[..., dict[str, Any]]


def test_hand_made_course(
    make_run: MakeRun, batch: MakeBatch, judged: MakeRun, measure: Measure
) -> None:
    # 12 steps of 20 rows are 12 stretches. The judge finds 4, then 16, then 4 of 20 right; the part
    # is 0.1 up to step 8 and 0.9 from step 9 on.
    right = [4] * 4 + [16] * 4 + [4] * 4
    rows = [
        batch(s, rewards={"model": [0.1 if s <= 8 else 0.9] * 20}, size=4) for s in range(1, 13)
    ]
    run = judged(
        make_run(rollouts=rows),
        lambda b: [1.0] * right[b.step - 1] + [0.0] * (20 - right[b.step - 1]),
    )
    found = measure(TOOL, run)
    assert (found["n_rows"], found["n_stretches"]) == (240, 12)
    assert (found["judge_first"], found["judge_best"], found["judge_last"]) == (0.2, 0.8, 0.2)
    assert found["judge_fall_share"] == 0.75
    # Each stretch's variance is np(1 - p)/(n - 1) of its 20 rows; two of them are averaged.
    spread = [np.sqrt(20 / 19 * p * (1 - p) / 20) / np.sqrt(2) for p in (0.8, 0.2)]
    assert found["judge_fall_z"] == pytest.approx(0.6 / np.hypot(*spread), rel=1e-3)
    assert (found["part_at_best"], found["part_last"]) == (0.1, 0.9)
    assert found["by_command"]
    assert not found["part_graded"]
    # The best two stretches are those of steps 5 and 6.
    assert (found["last_good_step"], found["first_bad_step"]) == (6, 7)


def test_two_judges_that_rise_together(simulate: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, simulate(1, solve=(0.5, 0.5)))
    assert not found["by_command"]
    assert abs(found["judge_fall_z"]) < 4
    assert found["first_bad_step"] is None


def test_form_first_and_correctness_later(
    make_run: MakeRun, batch: MakeBatch, judged: MakeRun, measure: Measure
) -> None:
    """The part reaches its plateau early, the judge rises to the end: the normal early shape."""
    rows = [
        batch(s, rewards={"correct": [1.0] * s + [0.0] * (40 - s), "form": [min(1.0, s / 8)] * 40})
        for s in range(1, 37)
    ]
    found = measure(TOOL, judged(make_run(rollouts=rows), lambda b: b.rewards["correct"]))
    assert found["judge_fall_z"] <= 0
    assert found["first_bad_step"] is None


def test_both_fall_together(simulate: MakeRun, measure: Measure) -> None:
    def lost(d: SimpleNamespace) -> None:
        if d.step > 30:
            d.rewards["correct"][:] = 0
            d.completions = ["<answer>-1</answer>"] * len(d.completions)

    found = measure(TOOL, simulate(1, edit=lost))
    assert found["judge_fall_z"] > 5
    assert found["part_rise_z"] < 5
    assert found["first_bad_step"] is None


def test_too_few_rows(make_run: MakeRun, batch: MakeBatch, missing: Callable[..., str]) -> None:
    rows = [batch(s, rewards={"correct": [1.0]}, gold=["1"]) for s in range(1, 9)]
    assert "8 judged rows in 8 steps" in missing(TOOL, make_run(rollouts=rows))
