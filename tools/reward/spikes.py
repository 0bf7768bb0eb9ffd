"""Leaps of the logged reward: a step far beyond all that came before, and back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated
from firstbad.tools.numbers import number
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import Run, Signal

SIGNALS = ("reward_mean", "reward_std")
"""Both must leap where both are logged: a curriculum moves the mean, a first success the spread."""
FACTOR = 10.0
"""Times the largest value of all steps before."""
SHORTEST = 10
"""Fewest steps before a leap; and no fewer than a fifth of the run."""
BACK_WITHIN = 8
"""Logged steps in which it must come back: a level that stays was learned, or is a new scale."""


@dataclass(frozen=True)
class Spike:
    """The first leap, and how many follow."""

    last_good: int
    first_bad: int
    level: float
    """Largest absolute value before it."""
    largest: float
    """Largest absolute value from it on."""
    n_steps: int
    """Steps beyond ten times the level."""


class Spikes(Dated):
    """Steps at which the logged reward is many times all that it was before."""

    n_steps: int
    n_spikes: int
    level: float | None
    """Largest absolute value before the first spike, in the reward's unit."""
    largest: float | None
    """Largest absolute value from there on."""


@tool
def find_reward_spikes(run: Run) -> Measured[Spikes]:
    """Steps at which the logged reward leaps to over ten times its largest value before, and back.

    Mean and spread over the batch must both leap where both are logged, and the mean must come
    back within the next 8 logged steps.

    Cannot tell: a rare reward that is meant to be as large and was not gained in the first fifth
    of the run; an outlier that moves the mean of its step by less.
    """
    signals = reward_signals(run)
    if not signals:
        raise NoData("no logged mean or spread of the reward")
    steps, spike = signals[0].steps, find_spike(signals)
    metrics = Spikes(
        n_steps=len(steps),
        n_spikes=spike.n_steps if spike else 0,
        level=round(spike.level, 6) if spike else None,
        largest=round(spike.largest, 6) if spike else None,
        last_good_step=spike.last_good if spike else None,
        first_bad_step=spike.first_bad if spike else None,
    )
    text = f"`{signals[0].source_key}`: no step of {len(steps)} leaps over {FACTOR:g}-fold and back"
    if spike:
        text = (
            f"`{signals[0].source_key}` leaps in {spike.n_steps} of {len(steps)} steps, first at "
            f"step {spike.first_bad}: up to {number(spike.largest, digits=3)}, at most "
            f"{number(spike.level, digits=3)} before"
        )
    window = (int(steps[0]), int(steps[-1])) if len(steps) else None
    return Measured(metrics, text, window=window, signal=signals[0].source_key)


def reward_signals(run: Run) -> list[Signal]:
    """The logged mean and spread of the reward, as far as they are logged."""
    return [s for name in SIGNALS if (s := run.signals.get(name)) is not None]


def find_spike(signals: list[Signal]) -> Spike | None:
    """The first step at which all signals leap, of which the first one comes back."""
    if not signals:
        return None
    steps = signals[0].steps
    for other in signals[1:]:
        steps = np.intersect1d(steps, other.steps)
    sizes = [np.abs(s.values[np.isin(s.steps, steps)]) for s in signals]
    before = [np.concatenate([[0.0], np.maximum.accumulate(v)[:-1]]) for v in sizes]
    leaps = [(top > 0) & (v > FACTOR * top) for v, top in zip(sizes, before, strict=True)]
    for i in np.flatnonzero(np.all(leaps, axis=0)):
        levels = [float(top[i]) for top in before]
        back = sizes[0][i + 1 : i + 1 + BACK_WITHIN] <= 2 * levels[0]
        if i < max(SHORTEST, len(steps) // 5) or not back.any():
            continue
        beyond = [FACTOR * level < v[i:] for v, level in zip(sizes, levels, strict=True)]
        return Spike(
            last_good=int(steps[i - 1]),
            first_bad=int(steps[i]),
            level=levels[0],
            largest=float(sizes[0][i:].max()),
            n_steps=int(np.all(beyond, axis=0).sum()),
        )
    return None
