"""Rollout rows that lie beside a capture: the same rows, in the same order."""

from __future__ import annotations

import numpy as np

from firstbad.tools.run import Capture, RolloutBatch, Run

ALIKE = 1e-3
"""Distance of two advantages that are one, relative to their size; dumps may hold 16 bits."""


def rows_beside(run: Run, capture: Capture) -> RolloutBatch | None:
    """The rollouts of the capture's step whose rows are those of the capture, or None.

    A record keeps both in one order. Of other sources the rows count as the same where there are
    as many and all their advantages agree.
    """
    if capture.step not in run.rollouts.steps:
        return None
    batch = run.rollouts.batch(capture.step)
    n_rows = len(np.asarray(capture.arrays["token_id"]))
    if len(batch) != n_rows:
        return None
    if capture.step in run.flight.steps:
        return batch
    own = capture.numbers("advantage")
    if own is None or own.ndim != 1 or batch.advantage is None or not np.ptp(own) > 0:
        return None
    same = np.isclose(own, batch.advantage, rtol=ALIKE, atol=ALIKE)
    return batch if bool(same.all()) else None
