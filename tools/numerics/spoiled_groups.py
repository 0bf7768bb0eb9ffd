"""Groups whose advantages are not finite: is it their scores, or the division by their spread?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from firstbad.tools.run import Run


@dataclass(frozen=True)
class SpoiledGroups:
    """Groups of one step with advantages that are not finite."""

    n: int = 0
    n_flat: int = 0
    """Of those: all scores are finite and equal."""
    n_scored_badly: int = 0
    """Of those: a score is not finite."""


def spoiled_groups(run: Run, step: int) -> SpoiledGroups:
    """From the rollouts of a step; nothing where advantages or scores are not written for it."""
    if step not in run.rollouts.steps:
        return SpoiledGroups()
    batch = run.rollouts.batch(step)
    if batch.advantage is None or batch.total is None or not np.isfinite(batch.advantage).any():
        return SpoiledGroups()
    spoiled = np.unique(batch.group[~np.isfinite(batch.advantage)])
    scores = [batch.total[batch.group == group] for group in spoiled]
    finite = [bool(np.isfinite(own).all()) for own in scores]
    flat = [good and len(set(own.tolist())) == 1 for good, own in zip(finite, scores, strict=True)]
    return SpoiledGroups(len(spoiled), sum(flat), finite.count(False))
