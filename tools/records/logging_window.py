"""Which steps a logged row speaks for: one, or all since the row before it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from firstbad.tools.errors import NoData
from firstbad.tools.run import BoolArray, FloatArray, IntArray, Run
from firstbad.tools.updates import mixes_batches, updates_per_batch

Reading = Callable[[FloatArray], FloatArray]
"""Turns figures of each step, (S,), into what a row logged at that step would say; NaN where it
cannot be told."""


def readings(run: Run, steps: IntArray) -> list[Reading]:
    """Ways to read a logged row at `steps`, (S,), which have rollouts; the likeliest first.

    Where a row is of one step, the figure of that step. With `logging_steps` above 1, the plain
    mean of the steps since the last row, where rollouts of all of them are there; outside TRL,
    which always averages, a logger may as well write the last step's own figure.

    Raises:
        NoData: rows are averages over batches whose rollouts are not all there.
    """
    if not mixes_batches(run):
        return [_own]
    every = int(run.config.number("logging_steps") or 1)
    updates = updates_per_batch(run)
    whole = _ends(steps, run.signals.steps, every)
    if not whole.any() or every <= 1 or (updates is not None and updates < 1):
        raise NoData(f"metrics are averaged over {every} steps (`logging_steps`)")

    def mean(figures: FloatArray) -> FloatArray:
        found = np.full(len(steps), np.nan)
        found[every - 1 :] = sliding_window_view(figures, every).mean(axis=1)
        return np.where(whole, found, np.nan)

    def last(figures: FloatArray) -> FloatArray:
        return np.where(whole, figures, np.nan)

    return [mean] if run.framework == "trl" else [mean, last]


def _own(figures: FloatArray) -> FloatArray:
    return figures


def _ends(steps: IntArray, logged: IntArray, every: int) -> BoolArray:
    """(S,) steps that end a window of which every step has rollouts and only the last a row."""
    found = np.zeros(len(steps), bool)
    if len(steps) >= every:
        first = steps[: len(steps) - every + 1]
        found[every - 1 :] = steps[every - 1 :] - first == every - 1
        rows = np.searchsorted(logged, steps[every - 1 :], "right") - np.searchsorted(logged, first)
        found[every - 1 :] &= rows == 1
    found &= steps % every == 0
    return found
