"""Reward arithmetic that several tools share: totals, group statistics, advantages."""

from __future__ import annotations

import numpy as np

from firstbad.tools.run import FloatArray, IntArray, RolloutBatch, Run

TRL_EPS = 1e-4


def reward_weights(run: Run, n_parts: int) -> FloatArray | None:
    """Weights of the reward parts in column order; ones where the config names none.

    None when the config has another number of weights than there are parts.
    """
    stated = run.config.values.get("reward_weights")
    if stated is None:
        return np.ones(n_parts)
    if isinstance(stated, (list, tuple)) and len(stated) == n_parts:
        return np.array([float(w) for w in stated])
    return None


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
    parts = np.stack(list(batch.rewards.values()), axis=1)
    total: FloatArray = np.nansum(parts * weights, axis=1)
    total[np.isnan(parts).all(axis=1)] = np.nan
    return total


def group_spread(values: FloatArray, group: IntArray) -> FloatArray:
    """Unbiased standard deviation per group, in order of group number; 0 for groups of one."""
    return np.array([_sd(values[group == g]) for g in np.unique(group)])


def _sd(values: FloatArray) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def group_advantage(
    total: FloatArray, group: IntArray, *, scale: str, eps: float = TRL_EPS
) -> FloatArray:
    """GRPO advantage per row: (r - group mean) / (s + eps).

    `scale`: `group` (s is the group's unbiased spread), `batch` (the batch's), `none` (no
    division). Source: TRL 1.16, `GRPOTrainer`.
    """
    advantage = np.empty(len(total))
    for g in np.unique(group):
        rows = group == g
        centred = total[rows] - total[rows].mean()
        advantage[rows] = centred / (_sd(total[rows]) + eps) if scale == "group" else centred
    if scale == "batch":
        advantage = advantage / (_sd(total) + eps)
    return advantage


def scale_setting(run: Run) -> str:
    """How the run says it scales advantages: `group` unless the config states another way."""
    stated = run.config.values.get("scale_rewards", "group")
    if isinstance(stated, bool):
        return "group" if stated else "none"
    return str(stated)
