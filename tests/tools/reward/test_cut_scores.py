"""Scores of cut answers against those of wrong ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from firstbad.tools.run import RolloutBatch, Run

TOOL = "compare_cut_scores"

MakeRun = Callable[..., Run]
MakeBatch = Callable[..., RolloutBatch]
Measure = Callable[..., dict[str, Any]]
Missing = Callable[..., str]


def rows(batch: MakeBatch, cut_score: float, steps: int = 60) -> list[Any]:
    """Six of ten right, three wrong, one cut; from step 31 on two right, two wrong, six cut."""

    def of(step: int) -> RolloutBatch:
        n_right, n_wrong, n_cut = (6, 3, 1) if step <= 30 else (2, 2, 6)
        return batch(
            step,
            rewards={"correct": [1.0] * n_right + [0.0] * n_wrong + [cut_score] * n_cut},
            completions=["<answer>1</answer>"] * (10 - n_cut) + ["so then"] * n_cut,
            finish=["stop"] * (10 - n_cut) + ["length"] * n_cut,
        )

    return [of(s) for s in range(1, steps + 1)]


def test_cut_answers_scored_as_wrong_ones(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    found = measure(TOOL, make_run(rollouts=rows(batch, 0.0)))
    assert (found["n_rows"], found["by_finish_reason"], found["cut_as_wrong"]) == (600, True, True)
    assert (found["cut_first"], found["cut_last"]) == (0.1, 0.6)
    assert (found["score_cut"], found["score_wrong"], found["score_right"]) == (0, 0, 1)
    assert (found["solved_best"], found["solved_last"]) == (0.6, 0.2)
    assert found["solve_fall"] == pytest.approx(0.4)
    # Of those that end 6 of 9 are right, then 2 of 4: 1/6 of the fall of 0.4 is theirs.
    assert found["solved_finished_best"] == pytest.approx(6 / 9, abs=1e-6)
    assert found["solved_finished_last"] == 0.5
    assert found["lost_to_cuts"] == pytest.approx(1 - (6 / 9 - 0.5) / 0.4, abs=1e-5)
    assert found["first_bad_step"] == 31
    assert not found["masked_by_config"]


def test_cut_answers_scored_apart(make_run: MakeRun, batch: MakeBatch, measure: Measure) -> None:
    found = measure(TOOL, make_run(rollouts=rows(batch, -0.5)))
    assert not found["cut_as_wrong"]
    assert found["score_cut"] == -0.5


def test_a_policy_that_gets_worse_without_cuts(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    def of(step: int) -> RolloutBatch:
        right = 6 if step <= 30 else 2
        scores = [1.0] * right + [0.0] * (10 - right)
        return batch(step, rewards={"correct": scores}, finish=["stop"] * 9 + ["length"])

    found = measure(TOOL, make_run(rollouts=[of(s) for s in range(1, 61)]))
    assert found["solve_fall"] == pytest.approx(0.4)
    assert found["lost_to_cuts"] == 0
    assert found["first_bad_step"] is None


def test_the_setting_that_masks_them(make_run: MakeRun, batch: MakeBatch, measure: Measure) -> None:
    config = {"mask_truncated_completions": True}
    assert measure(TOOL, make_run(rollouts=rows(batch, 0.0), config=config))["masked_by_config"]


def test_without_finish_reasons(make_run: MakeRun, batch: MakeBatch, missing: Missing) -> None:
    bare = [batch(s, rewards={"correct": [1, 0]}) for s in range(1, 9)]
    assert "finish reasons" in missing(TOOL, make_run(rollouts=bare))
    assert "fewer than six" in missing(TOOL, make_run(rollouts=bare[:3]))


@pytest.mark.parametrize(("score", "alike"), [(0.0, True), (-0.5, False)])
def test_malformed_answers_scored_as_wrong_ones_or_apart(
    make_run: MakeRun, batch: MakeBatch, measure: Measure, score: float, alike: bool
) -> None:
    # Of ten rows four are right, two wrong, two malformed, two cut.
    def of(step: int) -> RolloutBatch:
        return batch(
            step,
            rewards={"correct": [1.0] * 4 + [0.0] * 2 + [score] * 2 + [0.0] * 2},
            completions=["<answer>1</answer>"] * 6 + ["it is 1"] * 2 + ["so then"] * 2,
            finish=["stop"] * 8 + ["length"] * 2,
        )

    found = measure(TOOL, make_run(rollouts=[of(s) for s in range(1, 61)]))
    assert (found["score_malformed"], found["malformed_share"]) == (score, 0.25)
    assert found["malformed_as_wrong"] is alike
    few = measure(TOOL, make_run(rollouts=[of(s) for s in range(1, 11)]))
    assert (few["score_malformed"], few["malformed_as_wrong"]) == (None, False)
