"""A limit that logged ratios are pressed against, other than the clip of the objective."""

from __future__ import annotations

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated
from firstbad.tools.numbers import number, percent
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import Run, Signal

MOVED = 1e-3
"""Distance from 1 of an extreme ratio that says anything."""
FEWEST = 10
"""Steps with such a ratio."""
EQUAL = 1e-4
"""Relative distance of two ratios that are one value."""


class RatioLimit(Dated):
    """The extreme ratios of the steps, and whether they end at one value."""

    n_steps: int
    """Steps whose largest, or least, ratio leaves 1."""
    limit: float | None
    """The most extreme ratio logged; None where fewer than ten steps leave 1."""
    share_at_limit: float
    """Of those steps: their extreme is that very value, to 1e-4 of it."""
    log_limit: float | None
    """Its natural logarithm."""
    is_clip: bool
    """It is 1 + epsilon_high or 1 - epsilon: ratios logged after the clip, which is no clamp."""


@tool
def find_ratio_limit(run: Run) -> Measured[RatioLimit]:
    """How many steps share the most extreme ratio that is logged.

    The extreme of a step is another at each step. A clamp of the log-ratio gives the same value to
    every step that reaches it, whatever the sign of the advantage: then it changes the objective.

    Cannot tell: a clamp that is applied after what is logged, or that ratios stay inside of.
    """
    found = [
        limit
        for name, sign in (("ratio_max", 1), ("ratio_min", -1))
        if (limit := _limit(run, run.signals.get(name), sign)) is not None
    ]
    if not found:
        if not any(run.signals.get(name) for name in ("ratio_max", "ratio_min")):
            raise NoData("no ratio_max or ratio_min is logged")
        free = RatioLimit(n_steps=0, limit=None, share_at_limit=0.0, log_limit=None, is_clip=False)
        return Measured(free, f"fewer than {FEWEST} steps with a ratio that leaves 1")
    metrics = max(found, key=lambda m: (not m.is_clip, m.share_at_limit))
    return Measured(
        metrics,
        f"{percent(metrics.share_at_limit)} of the extreme ratios of {metrics.n_steps} steps are "
        f"{number(metrics.limit or 1.0, digits=5)}",
        signal="extreme ratio of the step",
    )


def _limit(run: Run, signal: Signal | None, sign: int) -> RatioLimit | None:
    if signal is None:
        return None
    moved = sign * (signal.values - 1.0) > MOVED
    if moved.sum() < FEWEST:
        return None
    values, steps = signal.values[moved], signal.steps[moved]
    limit = float((sign * values).max() * sign)
    at = np.abs(values - limit) <= EQUAL * abs(limit)
    below = run.config.number("epsilon") or 0.2
    above = run.config.number("epsilon_high") or below
    first = int(np.argmax(at))
    return RatioLimit(
        n_steps=len(values),
        limit=round(limit, 6),
        share_at_limit=round(float(at.mean()), 6),
        log_limit=round(float(np.log(max(limit, 1e-30))), 6),
        is_clip=min(abs(limit - 1 - above), abs(limit - 1 + below), abs(limit - above)) <= MOVED,
        last_good_step=int(steps[first - 1]) if first else None,
        first_bad_step=int(steps[first]),
        from_start=first == 0,
    )
