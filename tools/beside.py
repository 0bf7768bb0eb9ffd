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
    batch = rows_of_capture(run, capture.step)
    if batch is None:
        return None
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


def rows_of_capture(run: Run, step: int) -> RolloutBatch | None:
    """The rows that were trained at a captured step, as far as they are told from others.

    A recorder keeps them in the order of its arrays. Else they are all rollouts of the step.
    """
    for rollouts in (run.captured_rows, run.rollouts):
        if step in rollouts.steps:
            return rollouts.batch(step)
    return None
