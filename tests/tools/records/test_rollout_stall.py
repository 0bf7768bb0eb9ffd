"""Steps that train on the same rollouts for longer than a batch may serve."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from firstbad.tools.run import RolloutBatch, Run

TOOL = "find_rollout_stall"
MakeRun = Callable[..., Run]
Batch = Callable[..., RolloutBatch]
Measure = Callable[..., dict[str, Any]]
ONCE = {"steps_per_generation": 2, "gradient_accumulation_steps": 2, "num_iterations": 1}
TWICE = {**ONCE, "num_iterations": 2}


def served(
    make_run: MakeRun,
    batch: Batch,
    lengths: Sequence[int],
    config: Mapping[str, object],
    seconds: Sequence[float] | None = None,
) -> Run:
    """Rollout batches that serve so many steps each."""
    rollouts, step = [], 1
    for n in lengths:
        first = batch(step, rewards={"r": [0, 1] * 8})
        for _ in range(n):
            rollouts.append(
                replace(first, step=step, repeats_step=None if step == first.step else first.step)
            )
            step += 1
    signals = {} if seconds is None else {"step_time": np.array(seconds)}
    return make_run(rollouts=rollouts, config=config, signals=signals)


@pytest.mark.parametrize(
    ("lengths", "config", "longest", "too_long", "first"),
    [
        ([1] * 10, ONCE, 1, 0, None),
        ([2] * 10, TWICE, 2, 0, None),
        ([1, 1, 1, 6, 1, 1], ONCE, 6, 5, 5),
        ([2, 2, 7, 2], TWICE, 7, 5, 7),
        ([1, 1, 2, 1, 1], ONCE, 2, 1, 4),  # the logger wrote one buffer again
        ([4] * 6, {}, 4, 0, None),  # as usual in this run
        ([1, 1, 1, 1, 5], {}, 5, 4, 6),
    ],
)
def test_how_long_a_batch_serves(
    make_run: MakeRun,
    batch: Batch,
    measure: Measure,
    lengths: list[int],
    config: Mapping[str, object],
    longest: int,
    too_long: int,
    first: int | None,
) -> None:
    found = measure(TOOL, served(make_run, batch, lengths, config))
    assert (found["steps_longest"], found["too_long"]) == (longest, too_long)
    assert found["n_batches"] == len(lengths)
    assert found["first_bad_step"] == first
    assert found["last_good_step"] == (None if first is None else first - 1)


def test_what_steps_take_and_whether_it_went_on(
    make_run: MakeRun, batch: Batch, measure: Measure
) -> None:
    # Batches of steps 1, 2, 3, 4 to 8, 9: what is too long are 5 to 8, four times as slow.
    seconds = [2.0] * 4 + [8.0] * 4 + [2.0]
    found = measure(TOOL, served(make_run, batch, [1, 1, 1, 5, 1], ONCE, seconds))
    assert (found["time_before"], found["time_in"], found["time_moved"]) == (2.0, 8.0, 2.0)
    assert (found["went_on"], found["last_bad_step"]) == (True, 8)
    ended = measure(TOOL, served(make_run, batch, [1, 1, 1, 5], ONCE))
    assert (ended["went_on"], ended["last_bad_step"], ended["time_in"]) == (False, None, None)


def test_too_few_steps(make_run: MakeRun, batch: Batch, missing: Callable[..., str]) -> None:
    assert "5 steps" in missing(TOOL, served(make_run, batch, [1, 1, 1], ONCE))


def few_texts(
    make_run: MakeRun, batch: Batch, *, names: Callable[[int], str] | None, same: int = 6
) -> Run:
    """One prompt with one answer left, the same in `same` steps of ten after others in four."""
    rollouts = []
    for step in range(1, 11):
        made = batch(
            step,
            completions=["4"] * 8 if step > 4 else ["3"] * step + ["4"] * (8 - step),
            prompts=["2 + 2"] * 8,
            rewards={"r": [1] * 8},
            sample=None if names is None else [f"{names(step)}{i}" for i in range(8)],
        )
        rollouts.append(replace(made, repeats_step=5 if step > 5 and step <= 4 + same else None))
    return make_run(rollouts=rollouts, config=ONCE)


@pytest.mark.parametrize(
    ("names", "longest"),
    [
        (None, 1),  # texts that may well be drawn again prove nothing
        (lambda step: "", 1),  # names that are only places in the batch
        (lambda step: f"{min(step, 5)}-", 6),
    ],
)
def test_few_texts_come_again_by_chance(
    make_run: MakeRun,
    batch: Batch,
    measure: Measure,
    names: Callable[[int], str] | None,
    longest: int,
) -> None:
    found = measure(TOOL, few_texts(make_run, batch, names=names))
    assert found["steps_longest"] == longest
    assert not found["named_anew"]


def test_the_same_random_state_in_each_step(
    make_run: MakeRun, batch: Batch, measure: Measure
) -> None:
    first = batch(1, rewards={"r": [0, 1] * 8})
    rollouts = [
        replace(first, step=s, sample=[f"{s}-{i}" for i in range(16)], repeats_step=1 % s or None)
        for s in range(1, 9)
    ]
    found = measure(TOOL, make_run(rollouts=rollouts, config=ONCE))
    assert (found["steps_longest"], found["named_anew"]) == (8, True)
