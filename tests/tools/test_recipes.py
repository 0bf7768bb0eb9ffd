"""Small published failures rebuilt with their numbers, each with a twin that must stay quiet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from firstbad.tools.rewards import group_advantage
from firstbad.tools.run import RolloutBatch, Run

MakeRun = Callable[..., Run]
MakeBatch = Callable[..., RolloutBatch]
Measure = Callable[..., dict[str, Any]]
ONSET = 31
EASY, HARD = [1.0, 1, 1, 1], [0.0, 0, 0, 1]


@pytest.mark.parametrize("contiguous", [False, True])
def test_interleaved_groups_that_are_reshaped_as_if_they_stood_together(
    make_run: MakeRun, batch: MakeBatch, measure: Measure, contiguous: bool
) -> None:
    """Two prompts, four samples: right is 0 0 0 0 and -0.25 -0.25 -0.25 0.75."""
    if contiguous:
        rewards, prompts = [*EASY, *HARD], list("aaaabbbb")
    else:
        rewards = [r for pair in zip(EASY, HARD, strict=True) for r in pair]
        prompts = list("abababab")
    by_place = group_advantage(np.array(rewards), np.repeat([0, 1], 4), scale="none")
    if not contiguous:
        assert by_place.tolist() == [0.5, -0.5, 0.5, -0.5, 0.25, -0.75, 0.25, 0.25]
    group = [0 if p == "a" else 1 for p in prompts]
    rows = [
        batch(
            s,
            rewards={"correct": rewards},
            group=group,
            prompts=[f"add {p} and {s}" for p in prompts],
            advantage=by_place,
        )
        for s in range(1, 21)
    ]
    config = {"scale_rewards": "none", "num_generations": 4}
    run = make_run(rollouts=rows, config=config)
    found = measure("recompute_advantages", run)
    assert found["share_rows_differ"] == (0 if contiguous else 1)
    assert found["first_bad_step"] == (None if contiguous else 1)
    assert measure("check_rows", run)["steps_interleaved"] == (0 if contiguous else 20)


def all_rows(run: Run, changed: Any, change: Callable[[RolloutBatch], RolloutBatch]) -> Run:
    made: Run = changed.rebatch(run, lambda b: change(b) if b.step >= ONSET else b)
    return made


@pytest.mark.parametrize("broken", [True, False])
def test_an_empty_answer_is_part_of_every_right_one(
    simulate: MakeRun, changed: Any, measure: Measure, broken: bool
) -> None:
    """Late answers are all empty; `said in gold` is true of them, `said == gold` is not."""

    def emptied(b: RolloutBatch) -> RolloutBatch:
        score = np.full(len(b), 1.0 if broken else 0.0)
        said = [f"so <answer></answer> {' ' * i}" for i in range(len(b))]
        return replace(b, completions=said, rewards={**b.rewards, "correct": score})

    found = measure("rejudge", all_rows(simulate(0), changed, emptied))
    assert (found["accepted_wrong_share"] > 0.9) == broken
    assert found["first_bad_step"] == (ONSET if broken else None)


@pytest.mark.parametrize("broken", [True, False])
def test_a_pattern_for_one_line_meets_an_answer_of_two(
    simulate: MakeRun, changed: Any, measure: Measure, broken: bool
) -> None:
    """`<answer>(.*)</answer>` without dot-all; the twin reads the same texts with it."""

    def two_lines(b: RolloutBatch) -> RolloutBatch:
        right = b.rewards["correct"] > 0
        assert b.gold is not None
        said = [
            f"<think> so </think> <answer>\n{gold if ok else '7'}\n</answer>"
            for gold, ok in zip(b.gold, right, strict=True)
        ]
        score = np.zeros(len(b)) if broken else b.rewards["correct"]
        return replace(b, completions=said, rewards={**b.rewards, "correct": score})

    found = measure("rejudge", all_rows(simulate(0), changed, two_lines))
    assert (found["rejected_right_share"] > 0.9) == broken
    assert found["first_bad_step"] == (ONSET if broken else None)


@pytest.mark.parametrize(("logged", "differs"), [(3.6, True), (4.4, True), (4.0, False)])
def test_an_uneven_gather(
    make_run: MakeRun, batch: MakeBatch, measure: Measure, logged: float, differs: bool
) -> None:
    """0 to 8 on two ranks of five: one place is filled twice, and the mean of means is off."""
    if differs:
        filled = 0.0 if logged < 4 else 8.0
        ranks = [0.0, 1, 2, 3, 4], [5, 6, 7, 8, filled]
        assert np.mean([np.mean(rank) for rank in ranks]) == pytest.approx(logged)
    rows = [batch(s, rewards={"score": list(range(9))}) for s in range(1, 21)]
    signals = {"reward_mean": [logged] * 20, "reward_part/score": [logged] * 20}
    found = measure("recompute_means", make_run(rollouts=rows, signals=signals))
    assert (found["share_differs"] > 0.9) == differs


def test_a_length_penalty_alone_gives_full_advantages() -> None:
    """All wrong, lengths 40 to 320: -0.3 length/400 spreads by 0.073, A from 1.43 to -1.43."""
    lengths = np.arange(40.0, 321, 40)
    rewards, group = -0.3 * lengths / 400, np.zeros(8, int)
    assert rewards.std(ddof=1) == pytest.approx(0.073, abs=1e-3)
    found = group_advantage(rewards, group, scale="group")
    expected = [1.43, 1.02, 0.61, 0.20, -0.20, -0.61, -1.02, -1.43]
    assert found == pytest.approx(expected, abs=6e-3)
    outcome = group_advantage(np.zeros(8), group, scale="group")
    assert outcome.tolist() == [0] * 8
