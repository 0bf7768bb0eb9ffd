"""Reward arithmetic that several tools share: totals, group statistics, advantages."""

from __future__ import annotations

from dataclasses import dataclass

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
    parts = np.stack(list(batch.rewards.values()), axis=1)
    total: FloatArray = np.nansum(parts * weights, axis=1)
    total[np.isnan(parts).all(axis=1)] = np.nan
    return total


@dataclass(frozen=True)
class GroupStats:
    """Statistics per group, in order of first appearance of its number; N groups."""

    index: IntArray
    """(R,) place of each row's group in the arrays below."""
    size: IntArray
    mean: FloatArray
    spread: FloatArray
    """Unbiased standard deviation; 0 for groups of one."""
    low: FloatArray
    high: FloatArray


def group_stats(values: FloatArray, group: IntArray) -> GroupStats:
    """Size, mean, unbiased spread and range of each group. `values` and `group` are (R,)."""
    blocks = _blocks(group)
    if blocks is not None:  # the common case, many times faster
        table = values.reshape(-1, blocks)
        many = np.full(len(table), blocks, np.int64)
        spread = table.std(axis=1, ddof=1) if blocks > 1 else np.zeros(len(table))
        index = np.repeat(np.arange(len(table)), blocks)
        return GroupStats(
            index, many, table.mean(axis=1), spread, table.min(axis=1), table.max(axis=1)
        )
    numbers, index, size = np.unique(group, return_inverse=True, return_counts=True)
    mean = np.bincount(index, weights=values) / size
    squares = np.bincount(index, weights=(values - mean[index]) ** 2)
    low, high = np.full(len(numbers), np.inf), np.full(len(numbers), -np.inf)
    np.minimum.at(low, index, values)
    np.maximum.at(high, index, values)
    spread = np.sqrt(squares / np.maximum(size - 1, 1))
    return GroupStats(index, size, mean, spread, low, high)


def _blocks(group: IntArray) -> int | None:
    """Rows per group where groups follow each other in equal blocks 0, 1, 2, ...; else None."""
    if not len(group) or group[0] != 0:
        return None
    count = int(group[-1]) + 1
    size, rest = divmod(len(group), count) if count > 0 else (0, 1)
    if rest or not np.array_equal(group, np.repeat(np.arange(count), size)):
        return None
    return size


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


def expected_rows(run: Run) -> int | None:
    """Completions of one generation batch by the config, or None where it does not say."""
    stated = run.config.number("generation_batch_size")
    return int(stated) if stated else None
