"""Labels of logged rows against those of the rollouts, told by mean rewards."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from firstbad.tools.records.step_labels import on_rollout_labels
from firstbad.tools.run import RolloutBatch, Run

STEPS = 20


def logged(
    make_run: Callable[..., Run], batch: Callable[..., RolloutBatch], late: int, *, noise: float = 0
) -> Run:
    """Mean rewards of twenty steps, in rows that are labelled some steps late."""
    rng = np.random.default_rng(6)
    scores = rng.random((STEPS, 4))
    mean = scores.mean(axis=1) + noise * rng.normal(size=STEPS)
    return make_run(
        signals={"reward_mean": mean, "loss": np.arange(STEPS, dtype=float)},
        first_step=1 + late,
        rollouts=[batch(s + 1, rewards={"r": scores[s]}) for s in range(STEPS)],
    )


@pytest.mark.parametrize("late", [1, -1])
def test_labels_one_off_are_moved(
    make_run: Callable[..., Run], batch: Callable[..., RolloutBatch], late: int
) -> None:
    run = logged(make_run, batch, late)
    moved = on_rollout_labels(run)
    for name in ("reward_mean", "loss"):
        signal = moved.signals.get(name)
        assert signal is not None
        assert signal.steps.tolist() == list(range(1, STEPS + 1))
    before = run.signals.get("loss")
    assert before is not None
    assert before.steps[0] == 1 + late, "the run itself is left as it is"


@pytest.mark.parametrize(("late", "noise"), [(0, 0.0), (2, 0.0), (1, 0.1)])
def test_labels_stay_where_rewards_do_not_tell(
    make_run: Callable[..., Run],
    batch: Callable[..., RolloutBatch],
    late: int,
    noise: float,
) -> None:
    run = logged(make_run, batch, late, noise=noise)
    assert on_rollout_labels(run) is run
