"""Reward arithmetic that several tools share: totals, group statistics, advantages."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from firstbad.tools.run import FloatArray, IntArray, RolloutBatch, Run

TRL_EPS = 1e-4
VERL_EPS = 1e-6


def reward_weights(run: Run, n_parts: int) -> FloatArray | None:
    """Weights of the reward parts in column order; ones where a config names none.

    None when no config is there (and there are several parts), or when it has another number of
    weights than there are parts: never guessed.
    """
    stated = run.config.values.get("reward_weights")
    if isinstance(stated, (list, tuple)):
        numbers = [w for w in stated if isinstance(w, (int, float)) and not isinstance(w, bool)]
        return np.array(numbers, np.float64) if len(numbers) == len(stated) == n_parts else None
    return np.ones(n_parts) if run.config.of_trainer or n_parts == 1 else None


def total_reward(run: Run, batch: RolloutBatch) -> FloatArray | None:
    """Total reward per row, (R,): as recorded, else the weighted sum of the parts.

    An unscored part counts as 0 in a row that has another score (as TRL sums), and a row that no
    part scored is NaN.
    """
    if batch.total is not None:
        return batch.total
    weights = reward_weights(run, len(batch.rewards))
    if weights is None or not batch.rewards:
        return None
    key = ("total", *weights.tolist())
    if key not in batch.derived:
        batch.derived[key] = weighted_sum(weights, list(batch.rewards.values()))
    return batch.derived[key]


def weighted_sum(weights: FloatArray, parts: Sequence[FloatArray]) -> FloatArray:
    """(R,) the total of reward parts (R,) each, gaps as `total_reward` tells.

    Summed part by part, so that rows with equal parts have the very same total.
    """
    total, scored = np.zeros(len(parts[0])), np.zeros(len(parts[0]), bool)
    for weight, values in zip(weights.tolist(), parts, strict=True):
        known = ~np.isnan(values)
        scored |= known
        total += weight * np.where(known, values, 0.0)
    total[~scored] = np.nan
    return total


COUNTED = 2**22
"""Numbers below which one is counted each; more of them are sorted."""


def group_index(group: IntArray) -> tuple[IntArray, IntArray]:
    """(R,) place of each row's group among the groups in order of number, and (N,) their sizes."""
    if len(group) and group.min() >= 0 and group.max() < COUNTED:  # much faster than sorting
        size = np.bincount(group)
        there = size > 0
        if there.all():
            return group, size
        return (np.cumsum(there) - 1)[group], size[there]
    _, index, size = np.unique(group, return_inverse=True, return_counts=True)
    return index, size


def groups_apart(steps: Sequence[IntArray]) -> tuple[IntArray, IntArray]:
    """Groups of several steps as one numbering in which no two steps share a group.

    Number of each row's group, all steps after one another, and (S + 1,) the number at which each
    step begins; the last is the number of groups.
    """
    own = [group_index(group) for group in steps]
    start = np.cumsum([0, *(len(size) for _, size in own)])
    moved = [index + first for (index, _), first in zip(own, start, strict=False)]
    return np.concatenate(moved), start


class GroupStats:
    """Statistics per group, in order of its number, each computed when asked for.

    R rows, N groups. `index` (R,) is the place of each row's group in the other arrays, which are
    (N,); `size` counts rows.
    """

    def __init__(self, values: FloatArray, group: IntArray) -> None:
        """`values` and `group` are (R,)."""
        self._values = values
        self.index, self.size = group_index(group)

    @cached_property
    def mean(self) -> FloatArray:
        """(N,)."""
        return self._sum(self._values) / self.size

    @cached_property
    def spread(self) -> FloatArray:
        """(N,) unbiased standard deviation; 0 for groups of one."""
        squares = self._sum((self._values - self.mean[self.index]) ** 2)
        spread: FloatArray = np.sqrt(squares / np.maximum(self.size - 1, 1))
        return spread

    @cached_property
    def low(self) -> FloatArray:
        """(N,) least value."""
        return self._extreme(np.minimum, np.inf)

    @cached_property
    def high(self) -> FloatArray:
        """(N,) greatest value."""
        return self._extreme(np.maximum, -np.inf)

    def _sum(self, values: FloatArray) -> FloatArray:
        return np.bincount(self.index, weights=values).astype(np.float64, copy=False)

    def _extreme(self, ufunc: np.ufunc, start: float) -> FloatArray:
        found = np.full(len(self.size), start)
        with np.errstate(invalid="ignore"):  # NaN stays NaN
            ufunc.at(found, self.index, self._values)
        return found


def group_stats(values: FloatArray, group: IntArray) -> GroupStats:
    """Size, mean, unbiased spread and range of each group. `values` and `group` are (R,)."""
    return GroupStats(values, group)


def group_spread(values: FloatArray, group: IntArray) -> FloatArray:
    """Unbiased standard deviation per group, in order of group number; 0 for groups of one."""
    return group_stats(values, group).spread


def group_correlation(x: FloatArray, y: FloatArray, group: IntArray) -> FloatArray:
    """Correlation of x and y inside each group; NaN where one of them does not vary."""
    a, b = group_stats(x, group), group_stats(y, group)
    products = np.bincount(a.index, weights=(x - a.mean[a.index]) * (y - b.mean[b.index]))
    scale = a.spread * b.spread * np.maximum(a.size - 1, 1)
    found: FloatArray = np.divide(
        products, scale, out=np.full(len(scale), np.nan), where=scale > 1e-12
    )
    return found


def group_advantage(
    total: FloatArray, group: IntArray, *, scale: str, eps: float = TRL_EPS
) -> FloatArray:
    """GRPO advantage per row: (r - group mean) / (s + eps).

    `scale`: `group` (s is the group's unbiased spread), `batch` (the batch's), `none` (no
    division). Source: TRL 1.16, `GRPOTrainer`.
    """
    stats = group_stats(total, group)
    centred: FloatArray = total - stats.mean[stats.index]
    if scale == "group":
        return centred / (stats.spread[stats.index] + eps)
    if scale == "batch":
        return centred / (float(np.std(total, ddof=1)) + eps)
    return centred


def used_advantage(run: Run, batch: RolloutBatch) -> FloatArray | None:
    """(R,) advantages used in training: as recorded, else those that the config defines.

    Recomputed only for verl's GRPO, whose dumps hold the scores alone: (r - group mean) / (s +
    1e-6). None where KL is taken off the reward, which the scores do not show. Source: verl 0.9.1.
    """
    if batch.advantage is not None:
        return batch.advantage
    of_scores = run.config.flag("algorithm.use_kl_in_reward") is not True
    if run.config.text("algorithm.adv_estimator") != "grpo" or not of_scores:
        return None
    total, scale = total_reward(run, batch), scale_setting(run)
    if total is None or scale is None or not np.isfinite(total).all():
        return None
    return group_advantage(total, batch.group, scale=scale, eps=VERL_EPS)


def scale_setting(run: Run) -> str | None:
    """How the config says advantages are scaled: `group` unless it states another way.

    None when there is no config.
    """
    if not run.config.of_trainer:
        return None
    stated = run.config.values.get("scale_rewards", "group")
    if isinstance(stated, bool):
        return "group" if stated else "none"
    return str(stated)
