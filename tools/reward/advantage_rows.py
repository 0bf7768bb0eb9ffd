"""Scored rows of whole groups, and whether rows that the loss leaves out count in their group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from firstbad.tools.beside import rows_beside
from firstbad.tools.cut import is_cut
from firstbad.tools.reward.estimators import (
    ESTIMATORS,
    EXPLAINS,
    NEEDS_ALL_ROWS,
    OPENING_STEPS,
    TOLERANCE,
    near,
)
from firstbad.tools.rewards import group_stats
from firstbad.tools.row_table import RowTable
from firstbad.tools.run import BoolArray, FloatArray, IntArray, RolloutBatch, Run

FEWEST = 8
"""Rows below which nothing tells whether others of their group count."""


class AdvantageRows:
    """Scored rows of whole groups, of all steps with at least two: S steps, N rows."""

    def __init__(
        self, step: IntArray, group: IntArray, total: FloatArray, used: FloatArray
    ) -> None:
        """`step` (N,) is sorted; the others are (N,)."""
        self.total, self.used, self.group = total, used, group
        self.steps, self.at, size = np.unique(step, return_inverse=True, return_counts=True)
        """(S,) steps, and (N,) place of each row's step in them."""
        self._stop: list[int] = np.cumsum(size).tolist()

    def part(self, k: int) -> slice:
        """Rows of the step at place k."""
        return slice(self._stop[k - 1] if k else 0, self._stop[k])

    def of_steps(self) -> Iterator[tuple[FloatArray, IntArray, FloatArray]]:
        """Rewards, groups and advantages of each step."""
        for k in range(len(self.steps)):
            part = self.part(k)
            group = self.group[part]
            yield self.total[part], group - group.min(), self.used[part]

    def expected(self, estimator: str) -> FloatArray:
        """(N,) advantages by an estimator."""
        if not len(self.total):
            return self.total
        if estimator not in NEEDS_ALL_ROWS:  # nothing of a step but its groups counts
            return ESTIMATORS[estimator](self.total, self.group, self.used)
        return np.concatenate([ESTIMATORS[estimator](*step) for step in self.of_steps()])

    def only(self, rows: BoolArray) -> AdvantageRows:
        """The marked rows."""
        return AdvantageRows(
            self.steps[self.at[rows]], self.group[rows], self.total[rows], self.used[rows]
        )

    def expected_of(self, rows: BoolArray, estimator: str) -> FloatArray:
        """(N,) advantages over the marked rows alone, NaN for the others."""
        found = np.full(len(self.total), np.nan)
        found[rows] = self.only(rows).expected(estimator)
        return found


def read_rows(run: Run, batches: Sequence[RolloutBatch]) -> AdvantageRows:
    """The rows; groups of which only part is written are not among them."""
    table = RowTable.of(run, batches)
    keep = _scored(run, table)
    return AdvantageRows(
        table.steps[table.step[keep]],
        table.group[keep],
        table.total[keep],
        table.advantage[keep],
    )


def read_kept(run: Run, batches: Sequence[RolloutBatch]) -> BoolArray:
    """(N,) those of `read_rows` that the loss takes: see `left_out`."""
    table = RowTable.of(run, batches)
    kept: BoolArray = ~table.values(lambda batch: left_out(run, batch))[_scored(run, table)]
    return kept


def _scored(run: Run, table: RowTable) -> BoolArray:
    wanted = run.config.number("num_generations") or 1
    keep = np.bincount(table.group)[table.group] >= wanted
    keep &= np.isfinite(table.total) & np.isfinite(table.advantage)
    found: BoolArray = keep & (table.count(keep) >= 2)[table.step]
    return found


def left_out(run: Run, batch: RolloutBatch) -> BoolArray:
    """(R,) rows that a loss may leave out: cut ones, and those that a capture shows untrained."""
    if batch.finish is not None and any(batch.finish):
        return np.array([is_cut(reason) for reason in batch.finish])
    if batch.step in run.captures.steps:
        capture = run.captures.at(batch.step)
        loss = capture.mask("loss_mask")
        if loss is not None and "token_id" in capture.arrays and rows_beside(run, capture) is batch:
            return np.asarray(~loss.any(axis=1))
    return np.zeros(len(batch), bool)


def stand_apart(rows: AdvantageRows, kept: BoolArray, allowed: Sequence[str]) -> bool:
    """Whether the rows left out do not count in their group, in the first steps that can tell.

    `kept` (N,) marks the others. Told by kept rows beside ones that are left out: statistics over
    the kept ones explain them, and those over all rows do not.
    """
    out = np.bincount(rows.group, weights=~kept)[rows.group] > 0
    size = np.bincount(rows.group, weights=kept)[rows.group]
    beside = kept & out & (size >= 2)
    for name in allowed:
        apart, together = rows.expected_of(kept, name), rows.expected(name)
        telling = beside & (np.abs(apart - together) > TOLERANCE * (1 + np.abs(together)))
        first = np.unique(rows.at[telling])[:OPENING_STEPS]
        telling &= np.isin(rows.at, first)
        if telling.sum() < FEWEST:
            continue
        if near(rows.used, apart)[telling].mean() > EXPLAINS:
            return True
    return False


def groups_of_two(rows: AdvantageRows) -> BoolArray:
    """(N,) rows that are not alone in their group."""
    stats = group_stats(rows.total, rows.group)
    found: BoolArray = stats.size[stats.index] >= 2
    return found
