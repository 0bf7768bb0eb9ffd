"""Summed log-probs of the trained tokens of whole captured steps, for losses made of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from firstbad.tools.probability.sides import read_sides
from firstbad.tools.run import FloatArray, RolloutBatch, Run

ROUNDING = 1e-5
"""Difference of advantages that storing them in 32 bits makes."""


def trained_log_probs(
    run: Run, batches: Sequence[RolloutBatch]
) -> dict[int, tuple[FloatArray, FloatArray]]:
    """By step: (R,) summed log-probs of each row's trained tokens, and (R,) how many these are.

    Only of steps whose capture was made before any update and holds all rows of the rollouts, in
    their order (the advantages beside both tell), with a loss mask and no trained prompt token.
    """
    by_step = {batch.step: batch for batch in batches}
    found: dict[int, tuple[FloatArray, FloatArray]] = {}
    for sides in read_sides(run, "trainer"):
        batch, capture = by_step.get(sides.step), run.captures.readable(sides.step)
        own = sides.trainer
        if batch is None or capture is None or own is None or len(own) != len(batch):
            continue
        mask, prompt = capture.mask("loss_mask"), capture.mask("prompt_loss_mask")
        advantage = capture.numbers("advantage")
        if mask is None or advantage is None or batch.advantage is None or _any(prompt):
            continue
        if advantage.ndim == 2:
            advantage = np.nanmax(np.where(mask, advantage, -np.inf), axis=1)
        trained = mask.any(axis=1)
        if not np.allclose(advantage[trained], batch.advantage[trained], atol=ROUNDING):
            continue
        if np.isfinite(own[mask]).all():
            summed = np.where(mask, own, 0.0).sum(axis=1)
            found[sides.step] = summed, mask.sum(axis=1).astype(np.float64)
    return found


def _any(mask: np.ndarray | None) -> bool:
    return mask is not None and bool(mask.any())
