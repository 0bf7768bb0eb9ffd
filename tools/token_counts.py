"""Completion tokens per row: from the source, or from the text scaled to the logged mean length."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from firstbad.tools.completeness import rows_complete
from firstbad.tools.row_table import RowTable
from firstbad.tools.run import FloatArray, RolloutBatch, Run
from firstbad.tools.stats import pearson


class TokenCounts:
    """Estimates completion tokens per row.

    Where the source writes no counts, words or characters of the text are scaled by a straight
    line to the logged mean length; the unit that follows the logged mean better is used. Where only
    a sample of the rows is written, words are scaled by one factor.
    """

    def __init__(self, run: Run, batches: list[RolloutBatch]) -> None:
        """Calibrate on the steps given."""
        self.agreement: float | None = None
        """Correlation of the estimated step means with the logged ones."""
        self._unit: Unit = _words
        self._line = (1.0, 0.0)
        logged = run.signals.get("completion_length_mean")
        if logged is None or len(batches) < 3:
            return
        table = RowTable.of(run, batches)
        seen = table.logged(logged)

        def means(unit: Unit) -> tuple[FloatArray, FloatArray]:
            """Estimated and logged means of the steps with both."""
            x = table.mean(np.concatenate([unit(batch) for batch in batches]))
            both = np.isfinite(x) & np.isfinite(seen)
            return x[both], seen[both]

        if rows_complete(run) is False:  # a sample follows the mean of all rows only on average
            x, y = means(self._unit)
            self._line = (float(y.mean() / x.mean()) if len(x) and x.mean() else 1.0, 0.0)
            return
        best = -1.0
        for unit in (_words, _characters):
            x, y = means(unit)
            r = pearson(x, y) if len(x) >= 3 else None
            if r is not None and r > best:
                best = r
                slope, intercept = np.polyfit(x, y, 1)
                self._unit, self._line = unit, (float(slope), float(intercept))
                self.agreement = round(r, 6)

    def rows(self, batch: RolloutBatch) -> FloatArray:
        """(R,) tokens per row, at least 1."""
        if batch.n_tokens is not None:
            return batch.n_tokens.astype(np.float64)
        slope, intercept = self._line
        counts: FloatArray = np.maximum(slope * self._unit(batch) + intercept, 1.0)
        return counts


def _words(batch: RolloutBatch) -> FloatArray:
    return batch.words


def _characters(batch: RolloutBatch) -> FloatArray:
    return batch.characters


Unit = Callable[[RolloutBatch], FloatArray]
