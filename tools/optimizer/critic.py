"""Does the value function of PPO predict the returns?"""

from __future__ import annotations

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Table
from firstbad.tools.numbers import number, percent
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import FloatArray, Run, Signal
from firstbad.tools.stats import gain_of_thirds

FEWEST = 9
OF_A_CRITIC = ("value_explained_variance", "value_loss", "value_mean")
"""Signals that only a value function brings; returns are logged without one as well."""


class Critic(Dated):
    """Figures of the value function; None where not logged."""

    has_critic: bool
    """A value function is logged; GRPO and its kin have none."""
    n_steps: int
    explained_early: float | None
    """Explained variance of the returns, median of the first third; at most 1, and below 0 where
    a constant would predict better."""
    explained_late: float | None
    """... and of the last third."""
    below_zero_late: float | None
    """Share of the steps of the last third in which it is below 0."""
    bias_late: float | None
    """Mean value less mean return, in spreads of the reward; median of the last third."""
    spread_late: float | None
    """Spread of the reward: its standard deviation, else half the range of the returns; median of
    the last third. Near 0 nothing is left to explain."""
    value_loss_late_over_early: float | None
    """Median of the last third over that of the first."""
    reward_gain_z: float | None
    """Reward of the last third less that of the first, in standard errors."""


@tool
def check_critic(run: Run) -> Measured[Critic]:
    """Explained variance, bias and loss of the value function, early and late.

    Dated by the first step from which the explained variance stays below 0 in nine of ten steps.
    An untrained value function begins near or below 0, which says nothing yet.

    Cannot tell: why it fails (its rate, its data, rewards that cannot be predicted); anything where
    the framework logs no explained variance, mean values or returns.
    """
    logged = {name: s for name in OF_A_CRITIC if (s := run.signals.get(name)) is not None}
    if not logged:
        if not len(run.signals.steps):
            raise NoData("no metrics are logged")
        return Measured(
            _without(len(run.signals.steps)),
            "no value function is logged: not applicable, as in GRPO",
        )
    explained = logged.get("value_explained_variance")
    steps = max(len(s.values) for s in logged.values())
    if steps < FEWEST:
        raise NoData(f"the value function is logged in fewer than {FEWEST} steps")
    spread = _spread(run)
    reward = run.signals.get("reward_mean")
    first = None if explained is None else _below_for_good(explained.values)
    metrics = Critic(
        has_critic=True,
        n_steps=steps,
        explained_early=_third(explained, 0),
        explained_late=_third(explained, 2),
        below_zero_late=None
        if explained is None
        else round(float((np.array_split(explained.values, 3)[2] < 0).mean()), 6),
        bias_late=_bias(run, spread),
        spread_late=spread,
        value_loss_late_over_early=_ratio(logged.get("value_loss")),
        reward_gain_z=None
        if reward is None or len(reward.values) < FEWEST
        else round(gain_of_thirds(reward.values)[1], 3),
        last_good_step=None if explained is None or not first else int(explained.steps[first - 1]),
        first_bad_step=None if explained is None or first is None else int(explained.steps[first]),
        from_start=first == 0,
    )
    parts = []
    if metrics.explained_late is not None:
        parts.append(
            f"explained variance of the returns {number(metrics.explained_early or 0.0, digits=2)} "
            f"-> {number(metrics.explained_late, digits=2)} (first and last third), below 0 in "
            f"{percent(metrics.below_zero_late or 0.0)} of the last steps"
        )
    if metrics.bias_late is not None:
        parts.append(f"values are off the returns by {number(metrics.bias_late, digits=2)} spreads")
    if metrics.value_loss_late_over_early is not None:
        parts.append(
            f"value loss goes to {number(metrics.value_loss_late_over_early, digits=2)} of what "
            "it was"
        )
    return Measured(
        metrics,
        "; ".join(parts) or f"a value function is logged over {steps} steps",
        tables=_tables(list(logged.values())),
        signal="explained variance of the value function" if explained is not None else "values",
    )


def _without(n_steps: int) -> Critic:
    return Critic(
        has_critic=False,
        n_steps=n_steps,
        explained_early=None,
        explained_late=None,
        below_zero_late=None,
        bias_late=None,
        spread_late=None,
        value_loss_late_over_early=None,
        reward_gain_z=None,
    )


def _third(signal: Signal | None, which: int) -> float | None:
    if signal is None or len(signal.values) < FEWEST:
        return None
    return round(float(np.median(np.array_split(signal.values, 3)[which])), 6)


def _ratio(signal: Signal | None) -> float | None:
    early, late = _third(signal, 0), _third(signal, 2)
    return None if early is None or late is None or early <= 0 else round(late / early, 4)


def _spread(run: Run) -> float | None:
    """Spread of the reward in the last third."""
    if (std := _third(run.signals.get("reward_std"), 2)) is not None:
        return std
    high, low = (_third(run.signals.get(f"return_{end}"), 2) for end in ("max", "min"))
    return None if high is None or low is None else round((high - low) / 2, 6)


def _bias(run: Run, spread: float | None) -> float | None:
    values, returns = run.signals.get("value_mean"), run.signals.get("return_mean")
    if values is None or returns is None or not spread:
        return None
    both = [(v, r) for s, v in zip(values.steps.tolist(), values.values, strict=True)
            if (r := returns.at(s)) is not None]  # fmt: skip
    if len(both) < FEWEST:
        return None
    gap = np.array([v - r for v, r in both], np.float64)
    return round(float(np.median(np.array_split(gap, 3)[2])) / spread, 4)


def _below_for_good(values: FloatArray) -> int | None:
    """Index from which nine of ten values are below 0, to the end; at least a third of them."""
    below = values < 0
    after = np.cumsum(below[::-1])[::-1] / np.arange(len(below), 0, -1)
    found = np.flatnonzero(below & (after >= 0.9))
    return int(found[0]) if len(found) and found[0] <= len(below) - len(below) // 3 else None


def _tables(signals: list[Signal]) -> tuple[Table, ...]:
    steps = sorted({int(step) for s in signals for step in s.steps})
    shown = [steps[int(i)] for i in np.linspace(0, len(steps) - 1, min(len(steps), 40))]
    return (
        Table(
            title="per step: value function",
            columns=("step", *(s.name for s in signals)),
            rows=tuple((step, *(s.at(step) for s in signals)) for step in shown),
            cut_rows=len(steps) - len(shown),
        ),
    )
