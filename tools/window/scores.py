"""Scores of evaluations, few as they are: first, best and last, beside the reward in training."""

from __future__ import annotations

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Metrics
from firstbad.tools.numbers import number
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import Run

SPAN = 10
"""Steps up to an evaluation over which the reward in training is averaged."""


class Scores(Metrics):
    """Mean reward of evaluations, in the unit of the reward."""

    n_evaluations: int
    first: float
    first_step: int
    best: float
    best_step: int
    last: float
    last_step: int
    rise: float
    """Last less first."""
    below_best: float
    """Best less last."""
    usual_move: float | None
    """Median size of the move from one evaluation to the next; None for one evaluation."""
    below_best_over_move: float | None
    """`below_best` over `usual_move`; None where that is 0 or not known."""
    training: float | None
    """Mean reward in training over the last 10 steps up to the last evaluation."""
    training_above: float | None
    """`training` less `last`."""


@tool
def compare_scores(run: Run) -> Measured[Scores]:
    """First, best and last mean reward of the evaluations, and the reward in training at the last.

    Cannot tell: what is noise, where each evaluation holds few samples.
    """
    signal = run.signals.get("eval/reward_mean")
    finite = None if signal is None else np.isfinite(signal.values)
    if signal is None or finite is None or not finite.any():
        raise NoData("no score of an evaluation is logged")
    steps, values = signal.steps[finite], signal.values[finite]
    best = int(np.argmax(values))
    moves = np.abs(np.diff(values))
    usual = float(np.median(moves)) if len(moves) else None
    below = float(values[best] - values[-1])
    reward = run.signals.get("reward_mean")
    training = None
    if reward is not None:
        near = (reward.steps > steps[-1] - SPAN) & (reward.steps <= steps[-1])
        near &= np.isfinite(reward.values)
        training = float(reward.values[near].mean()) if near.any() else None
    metrics = Scores(
        n_evaluations=len(steps),
        first=round(float(values[0]), 6),
        first_step=int(steps[0]),
        best=round(float(values[best]), 6),
        best_step=int(steps[best]),
        last=round(float(values[-1]), 6),
        last_step=int(steps[-1]),
        rise=round(float(values[-1] - values[0]), 6),
        below_best=round(below, 6),
        usual_move=None if usual is None else round(usual, 6),
        below_best_over_move=round(below / usual, 3) if usual else None,
        training=None if training is None else round(training, 6),
        training_above=None if training is None else round(training - float(values[-1]), 6),
    )
    text = (
        f"`{signal.source_key}`: {number(values[0], digits=3)} at step {steps[0]}, best "
        f"{number(values[best], digits=3)} at step {steps[best]}, last "
        f"{number(values[-1], digits=3)} at step {steps[-1]}"
    )
    window = (int(steps[0]), int(steps[-1]))
    return Measured(metrics, text, window=window, signal=signal.source_key)
