"""Which rows generation cut, and whether they count in their groups."""

from __future__ import annotations

import numpy as np

from firstbad.tools.row_table import RowTable
from firstbad.tools.run import BoolArray, RolloutBatch

CUT = ("length", "max_tokens", "max_length", "truncated")


def is_cut(reason: str | None) -> bool:
    """Whether this finish reason says so; None says nothing."""
    return reason is not None and reason.lower() in CUT


def cut_rows(batch: RolloutBatch) -> BoolArray:
    """(R,) rows whose finish reason says so."""
    reasons = batch.finish or [None] * len(batch)
    return np.array([is_cut(reason) for reason in reasons], bool)


def left_out(table: RowTable) -> BoolArray:
    """(N,) the cut rows, where none of them in the whole run carries an advantage.

    They count in no group then: a mean that held them would give them one.
    """
    cut = table.values(cut_rows)
    silent = bool(cut.any()) and bool((table.advantage[cut] == 0).all())
    return cut if silent else np.zeros_like(cut)
