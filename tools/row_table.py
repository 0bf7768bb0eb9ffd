"""Rows of many steps side by side, so that a figure of every step takes one array operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TypeVar, cast

import numpy as np
import numpy.typing as npt

from firstbad.tools.rewards import groups_apart, reward_weights, total_reward, weighted_sum
from firstbad.tools.run import BoolArray, FloatArray, IntArray, RolloutBatch, Run, Signal

D = TypeVar("D", bound=np.generic)


class RowTable:
    """Numbers of rollout rows without their texts: S steps, N rows, K groups."""

    def __init__(self, run: Run, batches: Sequence[RolloutBatch]) -> None:
        """`batches` in step order; at least one."""
        self._run = run
        self.batches = batches
        self.steps: IntArray = np.array([b.step for b in batches], np.int64)
        """(S,)."""
        self.size: IntArray = np.array([len(b) for b in batches], np.int64)
        """(S,) rows of each step."""
        self.step: IntArray = np.repeat(np.arange(len(batches)), self.size)
        """(N,) place of each row's step in `steps`."""
        self._parts: dict[str, FloatArray] = {}

    @classmethod
    def of(cls, run: Run, batches: Sequence[RolloutBatch]) -> RowTable:
        """The table of these batches; one is made once while the run keeps the batches."""
        key = (id(run.config), *map(id, batches))
        if key in run.rollouts.tables:
            return cast(RowTable, run.rollouts.tables[key])
        table = cls(run, batches)
        if run.rollouts.keeps(batches):  # so that an id stands for the same thing later on
            run.rollouts.tables[key] = table
        return table

    @cached_property
    def group(self) -> IntArray:
        """(N,) number of each row's group; no two steps share one."""
        return groups_apart([b.group for b in self.batches])[0]

    @cached_property
    def group_step(self) -> IntArray:
        """(K,) place of each group's step in `steps`."""
        found = np.empty(int(self.group.max()) + 1, np.int64)
        found[self.group] = self.step
        return found

    @property
    def parts(self) -> list[str]:
        """Names of all reward parts, in order of first appearance."""
        return list({name: None for b in self.batches for name in b.rewards})

    def part(self, name: str) -> FloatArray:
        """(N,) a reward part, NaN where it was not scored."""
        if name not in self._parts:
            found = ((b.rewards.get(name), len(b)) for b in self.batches)
            values = [np.full(n, np.nan) if part is None else part for part, n in found]
            self._parts[name] = np.concatenate(values)
        return self._parts[name]

    @cached_property
    def total(self) -> FloatArray:
        """(N,) total reward, NaN where it is not known."""
        alike = len({(b.total is None, *b.rewards) for b in self.batches}) == 1
        if alike and self.batches[0].total is None:  # one sum over all rows
            weights = reward_weights(self._run, len(self.parts))
            if weights is None or not self.parts:
                return np.full(len(self.step), np.nan)
            return weighted_sum(weights, [self.part(name) for name in self.parts])
        totals = ((b, total_reward(self._run, b)) for b in self.batches)
        return np.concatenate([np.full(len(b), np.nan) if t is None else t for b, t in totals])

    @property
    def total_is_summed(self) -> bool:
        """Whether some step's total is not written and has to be summed from the parts."""
        return any(b.total is None for b in self.batches)

    @cached_property
    def advantage(self) -> FloatArray:
        """(N,) advantage, NaN where none is written."""
        return np.concatenate(
            [np.full(len(b), np.nan) if b.advantage is None else b.advantage for b in self.batches]
        )

    def values(self, of: Callable[[RolloutBatch], npt.NDArray[D]]) -> npt.NDArray[D]:
        """(N,) what a function gives for the rows of each batch."""
        return np.concatenate([of(batch) for batch in self.batches])

    @cached_property
    def prompt_words(self) -> FloatArray:
        """(N,) words of each row's prompt."""
        words = [len(prompt.split()) for b in self.batches for prompt in b.prompts]
        return np.array(words, np.float64)

    @cached_property
    def words(self) -> FloatArray:
        """(N,) words of each row's completion."""
        return self.values(lambda batch: batch.words)

    @cached_property
    def characters(self) -> FloatArray:
        """(N,) characters of each row's completion."""
        return self.values(lambda batch: batch.characters)

    @cached_property
    def n_tokens(self) -> FloatArray:
        """(N,) completion tokens where the source writes them, else NaN."""
        return np.concatenate(
            [np.full(len(b), np.nan) if b.n_tokens is None else b.n_tokens for b in self.batches]
        )

    @cached_property
    def n_sampled(self) -> FloatArray:
        """(N,) completion tokens that the policy sampled, where the source tells; else NaN."""
        return np.concatenate(
            [np.full(len(b), np.nan) if b.n_sampled is None else b.n_sampled for b in self.batches]
        )

    @cached_property
    def cut(self) -> BoolArray:
        """(N,) rows that ended at the cap by their finish reason; none where none is written."""
        return self.by_reason(np.zeros(len(self.step), bool), all_told=False)

    def by_reason(self, cut: BoolArray, *, all_told: bool) -> BoolArray:
        """(N,) rows that were cut: by finish reason in steps that write them, elsewhere as given.

        `all_told`: only steps that write one for every row count as such.
        """
        found = cut.copy()
        for batch, stop in zip(self.batches, np.cumsum(self.size).tolist(), strict=True):
            if batch.cut is not None and (not all_told or all(batch.finish or ())):
                found[stop - len(batch) : stop] = batch.cut
        return found

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

    def highest(self, values: FloatArray) -> FloatArray:
        """(S,) largest finite value of each step; NaN where there is none."""
        starts = np.cumsum(self.size) - self.size
        found: FloatArray = np.fmax.reduceat(np.where(np.isfinite(values), values, np.nan), starts)
        return found

    def longest(self, values: FloatArray, counts: FloatArray) -> BoolArray:
        """(N,) the rows of each step with the largest values, as many as `counts` (S,) says."""
        found = np.zeros(len(self.step), bool)
        some = np.flatnonzero(counts[self.step] > 0)
        order = some[np.lexsort((values[some], self.step[some]))]
        size = self.size[counts > 0]
        place = np.arange(len(order)) - np.repeat(np.cumsum(size) - size, size)
        found[order] = place >= (self.size - counts)[self.step[order]]
        return found

    def logged(self, signal: Signal | None) -> FloatArray:
        """(S,) a signal's value at each step, NaN where there is none."""
        return np.full(len(self.steps), np.nan) if signal is None else signal.on(self.steps)

    def spread(self, values: FloatArray) -> FloatArray:
        """(S,) standard deviation over each step's finite rows (not unbiased)."""
        mean = self.mean(values)
        spread: FloatArray = np.sqrt(self.mean((values - mean[self.step]) ** 2))
        return spread
