"""Known advantage estimators: how each turns the rewards of a step into advantages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.rewards import group_advantage, group_stats, scale_setting
from firstbad.tools.run import BoolArray, FloatArray, IntArray, Run

Estimator = Callable[[FloatArray, IntArray, FloatArray], FloatArray]
"""Rewards (R,), groups (R,) and advantages used (R,) -> advantages expected (R,)."""
TOLERANCE = 0.02
"""Recomputed advantages agree to float32 and eps; a twentieth of that is already a fault."""
EXPLAINS = 0.95
"""Share of the rows that an estimator must give to count as the run's own."""
OPENING_STEPS = 10
"""First steps with contrast, from which a run's own estimator is read."""


def _group_std(total: FloatArray, group: IntArray, used: FloatArray) -> FloatArray:
    return group_advantage(total, group, scale="group")


def _group_std_small_eps(total: FloatArray, group: IntArray, used: FloatArray) -> FloatArray:
    return group_advantage(total, group, scale="group", eps=1e-6)


def _population_std(total: FloatArray, group: IntArray, used: FloatArray) -> FloatArray:
    stats = group_stats(total, group)
    spread = stats.spread * np.sqrt((stats.size - 1) / stats.size)
    found: FloatArray = (total - stats.mean[stats.index]) / (spread[stats.index] + 1e-8)
    return found


def _centred(total: FloatArray, group: IntArray, used: FloatArray) -> FloatArray:
    return group_advantage(total, group, scale="none")


def _leave_one_out(total: FloatArray, group: IntArray, used: FloatArray) -> FloatArray:
    stats = group_stats(total, group)
    size = stats.size[stats.index]
    # r less the mean of the others is (r - mean) G / (G - 1)
    found: FloatArray = (total - stats.mean[stats.index]) * size / np.maximum(size - 1, 1)
    return found


def _leave_one_out_std(total: FloatArray, group: IntArray, used: FloatArray) -> FloatArray:
    stats = group_stats(total, group)
    size, index = stats.size[stats.index], stats.index
    others = (stats.mean[index] * size - total) / np.maximum(size - 1, 1)
    squares = np.bincount(index, weights=(total - stats.mean[index]) ** 2)[index]
    # The sum of squares around a group's mean, less one row and around the mean of the others.
    rest = squares - (total - stats.mean[index]) ** 2 * size / np.maximum(size - 1, 1)
    spread = np.sqrt(np.maximum(rest, 0.0) / np.maximum(size - 2, 1))
    # Others that are equal have no spread to divide by: NeMo-RL then leaves the difference.
    divide = ~others_equal(total, group)
    found: FloatArray = (total - others) / np.where(divide, spread + 1e-6, 1.0)
    return found


def others_equal(total: FloatArray, group: IntArray) -> BoolArray:
    """(R,) rows whose group holds the same reward in all other rows, at least two."""
    stats = group_stats(total, group)
    index = stats.index
    low, high = stats.low[index], stats.high[index]
    lowest = np.bincount(index, weights=total == low)[index]
    highest = np.bincount(index, weights=total == high)[index]
    alone = np.where(total == high, highest, lowest) == 1
    outside = np.bincount(index, weights=(total != low) & (total != high))[index] == 0
    other = np.where(total == high, lowest, highest) == stats.size[index] - 1
    equal: BoolArray = (low == high) | (alone & outside & other)
    return equal & (stats.size[index] > 2)


def _trl_batch_std(total: FloatArray, group: IntArray, used: FloatArray) -> FloatArray:
    return group_advantage(total, group, scale="batch")


def _one_scale(total: FloatArray, group: IntArray, used: FloatArray) -> FloatArray:
    centred = group_advantage(total, group, scale="none")
    squares = float(centred @ centred)
    return centred * max(0.0, float(used @ centred) / squares) if squares > 0 else centred


def _whitened(total: FloatArray, group: IntArray, used: FloatArray) -> FloatArray:
    centred = total - total.mean()
    squares = float(centred @ centred)
    slope = max(0.0, float(used @ centred) / squares) if squares > 0 else 0.0
    found: FloatArray = centred * slope + used.mean()
    return found


ESTIMATORS: dict[str, Estimator] = {
    "group mean, unbiased group spread": _group_std,
    "group mean, unbiased group spread, eps 1e-6": _group_std_small_eps,
    "group mean, population spread of the group": _population_std,
    "group mean, no division": _centred,
    "mean of the others in the group": _leave_one_out,
    "mean and spread of the others in the group": _leave_one_out_std,
    "group mean, spread of the batch as TRL divides": _trl_batch_std,
    # The scale of a batch is fitted: tokens may weigh in it, and eps, which no row shows.
    "group mean, one scale for the step": _one_scale,
    "mean and scale of the whole step": _whitened,
}
OVER_GROUP_SPREAD = tuple(ESTIMATORS)[:3]
"""Those that divide by the spread of the row's own group."""
NEEDS_ALL_ROWS = tuple(ESTIMATORS)[6:]

_GROUP, _NONE, _OTHERS, _TRL_BATCH, _SCALE = (
    OVER_GROUP_SPREAD,
    tuple(ESTIMATORS)[3:4],
    tuple(ESTIMATORS)[4:6],
    tuple(ESTIMATORS)[6:7],
    tuple(ESTIMATORS)[7:8],
)
SETTINGS = ("advantage_estimator", "adv_estimator", "algorithm.adv_estimator")
"""Settings that name an estimator other than by TRL's `scale_rewards`."""
_NAMED = {
    "grpo": _GROUP,
    "group_norm": _GROUP,
    "dr_grpo": _NONE,
    "rloo": _OTHERS,
    "reinforce_plus_plus_baseline": _SCALE,
    "reinforce_baseline": _SCALE,
}


def kl_in_reward(run: Run) -> bool:
    """Whether the settings subtract KL from the reward, as TRL's RLOO trainer always does."""
    stated = any(run.config.flag(k) for k in ("use_kl_in_reward", "algorithm.use_kl_in_reward"))
    return stated or "normalize_advantages" in run.config.values


def named_estimators(run: Run) -> tuple[str, ...]:
    """The estimators that the run's settings allow; empty where no setting names one.

    Raises:
        NoData: the setting names another one than those known here, or puts KL into the reward.
    """
    if kl_in_reward(run):
        raise NoData("KL is part of the reward that advantages come from, and no row records it")
    key = next((k for k in SETTINGS if run.config.values.get(k) is not None), None)
    if key is not None:
        name = str(run.config.values[key]).lower()
        if name == "grpo" and any(
            run.config.flag(k) is False
            for k in ("norm_adv_by_std_in_grpo", "algorithm.norm_adv_by_std_in_grpo")
        ):
            return _NONE
        if name not in _NAMED:
            said = f"`{key}`: {run.config.values[key]}"
            raise NoData(f"advantages of {said} cannot be recomputed from rewards alone")
        return _NAMED[name]
    scale = scale_setting(run) if "scale_rewards" in run.config.values else None
    # TRL's asynchronous trainer divides by the population spread.
    return {"group": _GROUP, "batch": _TRL_BATCH, "none": _NONE}.get(scale or "", ())


def own_estimator(
    steps: Iterable[tuple[FloatArray, IntArray, FloatArray]], allowed: Sequence[str]
) -> str | None:
    """The first of the allowed estimators that explains the opening steps, or None.

    `steps`: rewards, groups and advantages used, of each step in order.
    """
    with_contrast = (s for s in steps if np.abs(s[2]).max() > TOLERANCE)
    opening = list(islice(with_contrast, OPENING_STEPS))
    if not opening:
        return None
    for name in allowed:
        told = np.concatenate([_told(s[2], ESTIMATORS[name](*s)) for s in opening])
        if float(told.mean()) > EXPLAINS:
            return name
    return None


def near(used: FloatArray, expected: FloatArray) -> BoolArray:
    """(R,) rows whose advantage is the expected one."""
    found: BoolArray = np.abs(used - expected) <= TOLERANCE * (1 + np.abs(expected))
    return found


def _told(used: FloatArray, expected: FloatArray) -> BoolArray:
    """Whether rows are near, of those that are not 0 both ways: these fit every estimator."""
    return near(used, expected)[(np.abs(used) > TOLERANCE) | (np.abs(expected) > TOLERANCE)]
