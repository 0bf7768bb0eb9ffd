"""Completion tokens per row: from the source, or from the text scaled to the logged mean length."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np

from firstbad.tools.completeness import rows_complete
from firstbad.tools.loss_units import Units
from firstbad.tools.row_table import RowTable
from firstbad.tools.run import BoolArray, FloatArray, Run, Signal
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

    def __init__(self, run: Run, table: RowTable) -> None:
        """Calibrate on the steps of the table."""
        self.agreement: float | None = None
        """Correlation of estimated and logged step means, all rows or the ended ones: the lower."""
        self._unit: Unit = words_of
        self._line = (1.0, 0.0)
        self._table = table
        self._n_cut = np.zeros(len(table.steps))
        """(S,) rows that were cut."""
        self._cap = np.full(len(table.steps), np.nan)
        """(S,) their length in tokens, NaN where there are none or it is not known."""
        logged = run.signals.get("completion_length_mean")
        if rows_complete(run) is False:  # a sample follows the mean of all rows only on average
            mean, x = table.logged(logged), table.mean(table.words)
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
        self._n_cut, self._cap = n_cut.copy(), np.where(n_cut > 0, cap, np.nan)
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
            values = unit(table)
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
            values = table.mean(unit(table))
            x = units.mean(values)
            r = pearson(x, mean) if len(units) >= FEWEST else None
            if r is not None and r > best:
                best = r
                slope, intercept = np.polyfit(x, mean, 1)
                self._unit, self._line = unit, (float(slope), float(intercept))
                self.agreement = round(r, 6)
        if best < 0:
            words = table.mean(table.words)
            scale = float(logged.values.mean() / words.mean()) if words.any() else 1.0
            self._unit, self._line = words_of, (scale, 0.0)

    @cached_property
    def rows(self) -> FloatArray:
        """(N,) tokens of each row, at least 1 where they are estimated."""
        table = self._table
        slope, intercept = self._line
        counts: FloatArray = np.maximum(slope * self._unit(table) + intercept, 1.0)
        cap = self._cap[table.step]
        counts = np.where(np.isfinite(cap) & (self.cut | (counts > cap)), cap, counts)
        return np.where(np.isnan(table.n_tokens), counts, table.n_tokens)

    @cached_property
    def cut(self) -> BoolArray:
        """(N,) rows that were cut: by finish reason, else the longest, as many as the log says."""
        table = self._table
        length = np.where(np.isnan(table.n_tokens), self._unit(table), table.n_tokens)
        return table.by_reason(table.longest(length, self._n_cut), all_told=True)


def _cut_rows(run: Run, table: RowTable) -> tuple[FloatArray, FloatArray]:
    """(S,) rows that were cut, and (S,) their length in tokens, NaN where it is not known."""
    share = np.nan_to_num(table.logged(run.signals.get("truncation_rate")))
    longest = table.logged(run.signals.get("completion_length_max"))
    stated = run.config.number("max_completion_length") or np.nan
    return np.round(share * table.size), np.where(np.isfinite(longest), longest, stated)


def words_of(table: RowTable) -> FloatArray:
    """(N,) words of each completion."""
    return table.words


def characters_of(table: RowTable) -> FloatArray:
    """(N,) characters of each completion."""
    return table.characters


Unit = Callable[[RowTable], FloatArray]
