"""Recorded seeds: equal ones that give equal texts, and those of a stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from firstbad.tools.run import RolloutBatch, Run

TOOL = "check_seeds"
MakeRun = Callable[..., Run]
Batch = Callable[..., RolloutBatch]
Measure = Callable[..., dict[str, Any]]


def drawn(
    batch: Batch, step: int, seeds: list[str | None], texts: list[str], **fields: Any
) -> RolloutBatch:
    """Groups of four."""
    return batch(
        step, rewards={"r": np.zeros(len(texts))}, completions=texts, size=4, seed=seeds, **fields
    )


def said(step: int, *words: object) -> list[str]:
    return [f"answer of step {step} is {word}" for word in words]


def test_equal_seeds_give_equal_texts(make_run: MakeRun, batch: Batch, measure: Measure) -> None:
    rollouts = [
        drawn(
            batch,
            step,
            ["1", "2", "1", "2"] if step > 6 else ["1", "2", "3", "4"],
            said(step, "a", "b", "a", "b") if step > 6 else said(step, "a", "b", "c", "d"),
            rank=np.array([0, 0, 1, 1]),
        )
        for step in range(1, 13)
    ]
    found = measure(TOOL, make_run(rollouts=rollouts))
    # From the first bad step on: two pairs of one seed in each of six steps, four of others.
    assert (found["equal_pairs"], found["equal_same_share"]) == (12, 1.0)
    assert (found["other_pairs"], found["other_same_share"]) == (6 * 4, 0.0)
    assert (found["last_good_step"], found["first_bad_step"]) == (6, 7)
    assert (found["n_rows"], found["ranks_sharing"]) == (48, 2)
    assert found["equal_rows_share"] == 1.0


def test_few_rows_that_share_a_seed(make_run: MakeRun, batch: Batch, measure: Measure) -> None:
    """Two greedy rows of each eight: what shares a seed is the same, and most rows share none."""
    seeds: list[str | None] = ["0", "0", *"123456"]
    rollouts = [
        batch(
            s,
            rewards={"r": np.zeros(8)},
            completions=said(s, *"aabcdefg"),
            size=8,
            seed=[f"{s}.{x}" if x != "0" else x for x in seeds if x],
        )
        for s in range(1, 30)
    ]
    found = measure(TOOL, make_run(rollouts=rollouts))
    assert (found["equal_pairs"], found["equal_same_share"]) == (29, 1.0)
    assert found["equal_rows_share"] == 0.25


def test_one_seed_of_a_stream(make_run: MakeRun, batch: Batch, measure: Measure) -> None:
    rollouts = [drawn(batch, s, ["7"] * 4, said(s, "a", "b", "c", "a")) for s in range(1, 13)]
    found = measure(TOOL, make_run(rollouts=rollouts))
    assert (found["equal_pairs"], found["other_pairs"], found["other_same_share"]) == (72, 0, None)
    assert found["equal_same_share"] == pytest.approx(1 / 6, abs=1e-6)
    assert found["first_bad_step"] is None


def test_rows_without_a_seed_and_short_ones_are_left_out(
    make_run: MakeRun, batch: Batch, measure: Measure
) -> None:
    rollouts = [
        drawn(batch, s, ["1", None, "1", "1"], ["a b c", "a b c", "a b c", "a"]) for s in (1, 2)
    ]
    found = measure(TOOL, make_run(rollouts=rollouts))
    assert (found["n_rows"], found["equal_pairs"], found["other_pairs"]) == (6, 2, 0)


def test_no_seeds(make_run: MakeRun, batch: Batch, missing: Callable[..., str]) -> None:
    run = make_run(rollouts=[batch(1, rewards={"r": np.zeros(4)}, completions=["a"] * 4, size=4)])
    assert "seed" in missing(TOOL, run)
