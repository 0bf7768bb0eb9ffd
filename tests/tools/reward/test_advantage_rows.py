"""Rows that the loss leaves out: do they count in the mean and spread of their group?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from firstbad.tools.run import Capture, RolloutBatch, Rollouts, Run

TOOL = "recompute_advantages"
SIZE, GROUPS, STEPS = 4, 6, 20

Array = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
MakeRun = Callable[..., Run]
MakeBatch = Callable[..., RolloutBatch]
MakeCapture = Callable[..., Capture]
Measure = Callable[..., dict[str, Any]]


def over(rows: Bools, reward: Array) -> Array:
    """(GROUPS, SIZE) advantages over these rows of a group; 0 for the others."""
    out = np.zeros_like(reward)
    for g, own in enumerate(rows):
        part = reward[g, own]
        out[g, own] = (part - part.mean()) / (part.std(ddof=1) + 1e-4)
    return out


@pytest.fixture
def run_of(make_run: MakeRun, batch: MakeBatch, capture: MakeCapture) -> Callable[..., Run]:
    """A run in which one answer of each group is cut and scores 0."""

    def make(counts: Callable[[int], bool], *, finish: bool = True, **config: Any) -> Run:
        rng = np.random.default_rng(5)
        batches, captures = [], []
        for step in range(1, STEPS + 1):
            reward = rng.permuted(np.tile([0.0, 0.5, 1.0, 0.0], (GROUPS, 1)), axis=1)
            reward[:, 0] = 0.0
            reward[:, 1:3] = [1.0, 0.5]
            kept = np.tile([False, True, True, True], (GROUPS, 1))
            used = over(kept | counts(step), reward).ravel()
            rows = {"finish": np.where(kept.ravel(), "stop", "length").tolist()} if finish else {}
            batches.append(
                batch(step, rewards={"correct": reward.ravel()}, size=SIZE, advantage=used, **rows)
            )
            ids = np.full((GROUPS * SIZE, 2), 5)
            captures.append(
                capture(
                    step,
                    token_id=ids,
                    loss_mask=np.repeat(kept.ravel()[:, None], 2, 1),
                    advantage=used,
                )
            )
        return make_run(config=config, rollouts=batches, captures=() if finish else captures)

    return make


NAMED = {"scale_rewards": "group"}


@pytest.mark.parametrize("config", [NAMED, {}])
@pytest.mark.parametrize("finish", [True, False])
def test_left_out_of_both_all_along(
    run_of: Callable[..., Run], measure: Measure, config: dict[str, Any], finish: bool
) -> None:
    found = measure(TOOL, run_of(lambda step: False, finish=finish, **config))
    assert found["left_out_apart"]
    assert found["estimator_known"]
    assert (found["share_rows_differ"], found["first_bad_step"]) == (0, None)
    assert found["n_rows"] == STEPS * GROUPS * (SIZE - 1), "rows that are left out are not judged"
    # Rewards 1, 0.5 and r, of three answers: none is farther out than 2/sqrt(3) = 1.1547.
    assert found["bound"] == pytest.approx(1.1547, abs=1e-4)
    assert found["group_sum_largest"] < 1e-4


def test_counted_all_along(run_of: Callable[..., Run], measure: Measure) -> None:
    found = measure(TOOL, run_of(lambda step: True, **NAMED))
    assert not found["left_out_apart"]
    assert (found["share_rows_differ"], found["first_bad_step"]) == (0, None)
    assert found["n_rows"] == STEPS * GROUPS * SIZE


@pytest.mark.parametrize(
    ("counts", "apart"), [(lambda s: s > 12, True), (lambda s: s <= 12, False)]
)
def test_a_change_inside_the_run(
    run_of: Callable[..., Run], measure: Measure, counts: Callable[[int], bool], apart: bool
) -> None:
    found = measure(TOOL, run_of(counts, **NAMED))
    assert found["left_out_apart"] is apart
    assert (found["last_good_step"], found["first_bad_step"]) == (12, 13)
    assert found["counted_fits"] > 0.99
    assert found["share_rows_differ_after"] > 0.5


def test_an_advantage_of_zero_alone_leaves_nobody_out(
    run_of: Callable[..., Run], measure: Measure
) -> None:
    run = run_of(lambda step: False, **NAMED)
    told = {b.step: replace(b, finish=["stop"] * len(b)) for b in run.rollouts.batches()}
    silent = Rollouts(list(told), lambda steps: map(told.__getitem__, steps))
    found = measure(TOOL, replace(run, rollouts=silent))  # nothing tells why
    assert not found["left_out_apart"]
    assert found["share_rows_differ"] > 0.5
