"""Which rows generation cut, and whether they count in their groups."""

from __future__ import annotations

import numpy as np

from firstbad.tools.row_table import RowTable
from firstbad.tools.run import CUT, BoolArray, RolloutBatch

ABORTED = ("abort", "aborted", "cancelled", "canceled")
"""Finish reasons of a completion that the engine was made to give up; it may be gone on with."""


def is_cut(reason: str | None) -> bool:
    """Whether this finish reason says so; None says nothing."""
    return reason is not None and reason.lower() in CUT


def cut_rows(batch: RolloutBatch) -> BoolArray:
    """(R,) rows whose finish reason says so."""
    reasons = batch.finish or [None] * len(batch)
    return np.array([is_cut(reason) for reason in reasons], bool)


def aborted_rows(batch: RolloutBatch) -> BoolArray:
    """(R,) rows that generation gave up before their end, by their finish reason."""
    reasons = batch.finish or [None] * len(batch)
    return np.array([r is not None and r.lower() in ABORTED for r in reasons], bool)


def left_out(table: RowTable) -> BoolArray:
    """(N,) the cut rows, where none of them in the whole run carries an advantage.

    They count in no group then: a mean that held them would give them one.
    """
    cut = table.values(cut_rows)
    silent = bool(cut.any()) and bool((table.advantage[cut] == 0).all())
    return cut if silent else np.zeros_like(cut)
