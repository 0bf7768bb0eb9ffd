"""Rows of many steps side by side, so that a figure of every step takes one array operation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from firstbad.tools.rewards import groups_apart, total_reward
from firstbad.tools.run import BoolArray, FloatArray, IntArray, RolloutBatch, Run


class RowTable:
    """Numbers of rollout rows without their texts: S steps, N rows, K groups."""

    def __init__(self, run: Run, batches: Sequence[RolloutBatch]) -> None:
        """`batches` in step order; at least one."""
        self._run = run
        self._batches = batches
        self.steps: IntArray = np.array([b.step for b in batches], np.int64)
        """(S,)."""
        self.size: IntArray = np.array([len(b) for b in batches], np.int64)
        """(S,) rows of each step."""
        self.step: IntArray = np.repeat(np.arange(len(batches)), self.size)
        """(N,) place of each row's step in `steps`."""

    @cached_property
    def group(self) -> IntArray:
        """(N,) number of each row's group; no two steps share one."""
        return groups_apart([b.group for b in self._batches])[0]

    @cached_property
    def group_step(self) -> IntArray:
        """(K,) place of each group's step in `steps`."""
        found = np.empty(int(self.group.max()) + 1, np.int64)
        found[self.group] = self.step
        return found

    @property
    def parts(self) -> list[str]:
        """Names of all reward parts, in order of first appearance."""
        return list({name: None for b in self._batches for name in b.rewards})

    def part(self, name: str) -> FloatArray:
        """(N,) a reward part, NaN where it was not scored."""
        return np.concatenate([b.rewards.get(name, np.full(len(b), np.nan)) for b in self._batches])

    @cached_property
    def total(self) -> FloatArray:
        """(N,) total reward, NaN where it is not known."""
        totals = ((b, total_reward(self._run, b)) for b in self._batches)
        return np.concatenate([np.full(len(b), np.nan) if t is None else t for b, t in totals])

    @cached_property
    def advantage(self) -> FloatArray:
        """(N,) advantage, NaN where none is written."""
        return np.concatenate(
            [np.full(len(b), np.nan) if b.advantage is None else b.advantage for b in self._batches]
        )

    def count(self, rows: BoolArray) -> IntArray:
        """(S,) marked rows of each step."""
        return np.bincount(self.step[rows], minlength=len(self.steps))

    def mean(self, values: FloatArray, rows: BoolArray | None = None) -> FloatArray:
        """(S,) mean over each step's rows, or over those marked; NaN where there is none."""
        use = np.isfinite(values) if rows is None else rows
        sums = np.bincount(self.step[use], weights=values[use], minlength=len(self.steps))
        n = self.count(use)
        found: FloatArray = np.divide(sums, n, out=np.full(len(n), np.nan), where=n > 0)
        return found

    def spread(self, values: FloatArray) -> FloatArray:
        """(S,) standard deviation over each step's finite rows (not unbiased)."""
        mean = self.mean(values)
        spread: FloatArray = np.sqrt(self.mean((values - mean[self.step]) ** 2))
        return spread
