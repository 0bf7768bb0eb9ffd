"""Completion tokens per row: from the source, or from the text scaled to the logged mean length."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from firstbad.tools.completeness import rows_complete
from firstbad.tools.cut import is_cut
from firstbad.tools.loss_units import Units
from firstbad.tools.row_table import RowTable
from firstbad.tools.run import BoolArray, FloatArray, RolloutBatch, Run, Signal
from firstbad.tools.stats import pearson
from firstbad.tools.updates import mixes_batches

FEWEST = 3
"""Steps that a line is fitted to."""
MOST_CUT = 0.75
"""Share of cut rows up to which a step takes part, where there are such steps."""


class TokenCounts:
    """Estimates completion tokens per row.

    Where the source writes no counts, words or characters of the text are scaled by a straight
    line to the logged mean length; the unit that follows the logged mean better is used. A row that
    was cut has as many tokens as the cap, and no end token: the longest ones of a step are taken
    for those, as many as the logged share says. A logged mean over several steps is compared with
    that of their rows. Where only a sample of the rows is written, words
    are scaled by one factor.
    """

    def __init__(self, run: Run, batches: list[RolloutBatch]) -> None:
        """Calibrate on the steps given."""
        self.agreement: float | None = None
        """Correlation of estimated and logged step means, all rows or the ended ones: the lower."""
        self._unit: Unit = words_of
        self._line = (1.0, 0.0)
        self._cut: dict[int, tuple[int, float]] = {}
        """Rows that were cut and their length in tokens, by step."""
        logged = run.signals.get("completion_length_mean")
        if not batches:
            return
        table = RowTable.of(run, batches)
        if rows_complete(run) is False:  # a sample follows the mean of all rows only on average
            mean, x = table.logged(logged), table.mean(table.values(words_of))
            both = np.isfinite(x) & np.isfinite(mean)
            if both.sum() >= FEWEST and x[both].any():
                self._line = (float(mean[both].mean() / x[both].mean()), 0.0)
            return
        if logged is not None and mixes_batches(run):
            self._calibrate_windows(table, Units(run, table.steps, logged.steps), logged)
            return
        n_cut, cap = _cut_rows(run, table)
        if logged is not None:  # rows as long as the cap must fit into the logged mean
            n_cut[n_cut / table.size * cap > table.logged(logged) + 0.5] = 0
        cut = zip(table.steps.tolist(), n_cut.tolist(), cap.tolist(), strict=True)
        self._cut = {step: (int(n), tokens) for step, n, tokens in cut if n}
        if logged is not None:
            n_cut[np.isnan(cap)] = 0
            self._calibrate(table, table.logged(logged), n_cut, np.nan_to_num(cap))

    def _calibrate(
        self, table: RowTable, mean: FloatArray, n_cut: FloatArray, cap: FloatArray
    ) -> None:
        """The unit and line that follow the logged `mean`; all arrays are (S,)."""
        share = n_cut / table.size
        some = n_cut < table.size
        ended = np.full(len(mean), np.nan)
        """Logged mean length of the rows that were not cut."""
        ended[some] = (mean - share * cap)[some] / (1 - share)[some]
        best = -1.0
        for unit in (words_of, characters_of):
            values = table.values(unit)
            x = table.mean(values, ~table.longest(values, n_cut))
            use = np.isfinite(x) & np.isfinite(ended)
            # Which row ended is a guess where few did: such a step must not decide.
            mostly_ended = use & (n_cut <= MOST_CUT * table.size)
            use = mostly_ended if mostly_ended.sum() >= FEWEST else use
            r = pearson(x[use], ended[use]) if use.sum() >= FEWEST else None
            if r is None or r <= best:
                continue
            best = r
            slope, intercept = np.polyfit(x[use], ended[use], 1)
            self._unit, self._line = unit, (float(slope), float(intercept))
            told = (1 - share) * (slope * x + intercept) + share * cap
            known = np.isfinite(told) & np.isfinite(mean)
            self.agreement = round(min(r, pearson(told[known], mean[known]) or 0.0), 6)

    def _calibrate_windows(self, table: RowTable, units: Units, logged: Signal) -> None:
        """The unit and line that follow a logged mean over several steps, as a mean over them.

        Where not all rollouts of a row are written, words are scaled by one factor.
        """
        mean = units.logged(logged)
        best = -1.0
        for unit in (words_of, characters_of):
            values = table.mean(table.values(unit))
            x = units.mean(values)
            r = pearson(x, mean) if len(units) >= FEWEST else None
            if r is not None and r > best:
                best = r
                slope, intercept = np.polyfit(x, mean, 1)
                self._unit, self._line = unit, (float(slope), float(intercept))
                self.agreement = round(r, 6)
        if best < 0:
            words = table.mean(table.values(words_of))
            scale = float(logged.values.mean() / words.mean()) if words.any() else 1.0
            self._unit, self._line = words_of, (scale, 0.0)

    def rows(self, batch: RolloutBatch) -> FloatArray:
        """(R,) tokens per row, at least 1."""
        if batch.n_tokens is not None:
            return batch.n_tokens.astype(np.float64)
        slope, intercept = self._line
        counts: FloatArray = np.maximum(slope * self._unit(batch) + intercept, 1.0)
        _, cap = self._cut.get(batch.step, (0, np.nan))
        if np.isfinite(cap):
            counts[self.cut(batch) | (counts > cap)] = cap
        return counts

    def cut(self, batch: RolloutBatch) -> BoolArray:
        """(R,) rows that were cut: by finish reason, else the longest, as many as the log says."""
        if batch.finish is not None and all(batch.finish):
            return np.array([is_cut(reason) for reason in batch.finish], bool)
        cut = np.zeros(len(batch), bool)
        n, _ = self._cut.get(batch.step, (0, np.nan))
        length = self._unit(batch) if batch.n_tokens is None else batch.n_tokens
        cut[np.argsort(length, kind="stable")[len(batch) - n :]] = True
        return cut


def _cut_rows(run: Run, table: RowTable) -> tuple[FloatArray, FloatArray]:
    """(S,) rows that were cut, and (S,) their length in tokens, NaN where it is not known."""
    share = np.nan_to_num(table.logged(run.signals.get("truncation_rate")))
    longest = table.logged(run.signals.get("completion_length_max"))
    stated = run.config.number("max_completion_length") or np.nan
    return np.round(share * table.size), np.where(np.isfinite(longest), longest, stated)


def words_of(batch: RolloutBatch) -> FloatArray:
    """(R,) words of each completion."""
    return batch.words


def characters_of(batch: RolloutBatch) -> FloatArray:
    """(R,) characters of each completion."""
    return batch.characters


Unit = Callable[[RolloutBatch], FloatArray]
