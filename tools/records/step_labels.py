"""Step labels of the log that are one off against those of the rollouts."""

from __future__ import annotations

from copy import copy
from dataclasses import replace

import numpy as np

from firstbad.tools.row_table import RowTable
from firstbad.tools.run import Run, Signals
from firstbad.tools.updates import mixes_batches

TOLERANCE = 2e-3
"""Logged means are float32, some sources print four digits."""
APART, FITS = 0.2, 0.05
"""Share of steps whose mean rewards differ: above the first labels do not fit, up to the second
they do."""
FEWEST = 12
"""Steps that tell."""


def on_rollout_labels(run: Run) -> Run:
    """The run, its logged rows labelled with the steps of their rollouts.

    Loggers count before or after a step, so that a row may carry the label of the step before or
    behind. Mean rewards tell: where they are those of the rollouts one step off, and are not as the
    labels stand, the labels are moved. The same run where nothing says so.
    """
    late = _late(run)
    if not late:
        return run
    known, unknown = (
        {
            name: replace(
                signal,
                steps=signal.steps - late,
                nonfinite_steps=tuple(step - late for step in signal.nonfinite_steps),
            )
            for name, signal in kind.items()
        }
        for kind in (run.signals.known, run.signals.unknown)
    )
    moved = copy(run)  # shares all that was read, and what was asked for
    moved.signals = Signals(known, unknown)
    return moved


def _late(run: Run) -> int:
    """Steps by which the labels of logged rows are late: 1, -1, or 0."""
    logged = run.signals.get("reward_mean")
    if logged is None or not run.rollouts or mixes_batches(run):
        return 0
    batches = [batch for batch in run.rollouts.batches() if batch.rewards]
    if not batches:
        return 0
    rows = RowTable.of(run, batches)
    mean = rows.mean(rows.total)

    def apart(late: int) -> float:
        said = logged.on(rows.steps + late)
        both = np.isfinite(said) & np.isfinite(mean)
        if both.sum() < FEWEST:
            return 1.0
        off = np.abs(said - mean)[both] > TOLERANCE * (1 + np.abs(mean[both]))
        return float(off.mean())

    if apart(0) <= APART:
        return 0
    fits = [late for late in (1, -1) if apart(late) <= FITS]
    return fits[0] if len(fits) == 1 else 0
