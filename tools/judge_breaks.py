"""Did the user's own judge break on the way? It is asked about a few rows a second time.

A judge that breaks gives one score for all rows, or none. The earliest rows do not show it, and a
reward that a judge calls wrong from some row on looks like a fault of the reward.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from firstbad.tools.judge_scores import JudgeScores
from firstbad.tools.run import Run
from firstbad.tools.stats import least_rate

FEWEST = 10
"""Rows of a kind with a second score, below which they tell nothing."""
OTHER = 0.1
"""Share of rows whose second score may be another one: a judge that samples has some."""


def longest_equal(values: Sequence[float]) -> tuple[int, int]:
    """Start and stop of the first of the longest stretches of equal values; (0, 0) without any."""
    if not values:
        return 0, 0
    starts = np.concatenate([[0], np.flatnonzero(np.diff(values)) + 1])
    sizes = np.diff(np.append(starts, len(values)))
    first = int(np.argmax(sizes))
    return int(starts[first]), int(starts[first] + sizes[first])


def scored_otherwise(judge: JudgeScores) -> dict[tuple[int, int], bool]:
    """Rows asked about twice: whether the scores are more than half of the judge's range apart."""
    half = float(np.ptp(list(judge.scores.values()))) / 2 if judge.scores else 0.0
    return {key: abs(value - judge.scores[key]) > half for key, value in judge.again.items()}


def broke(judge: JudgeScores) -> bool:
    """Whether it contradicts itself: it was broken for a part of the rows, or is by now.

    Rows inside the longest stretch with one score and the others are counted apart: in the first
    it was broken, or it is broken since and the others have another score now.
    """
    start, stop = longest_equal(list(judge.scores.values()))
    stretch = set(list(judge.scores)[start:stop])
    other = scored_otherwise(judge)
    for inside in (True, False):
        kind = [differs for key, differs in other.items() if (key in stretch) == inside]
        if len(kind) >= FEWEST and least_rate(np.array(kind, bool)) > OTHER:
            return True
    return False


def silent_share(run: Run) -> float:
    """Steps with rollouts after the last one with a score, as a share of all; 0 without any."""
    if run.judge is None or not run.judge.scores or not len(run.rollouts.steps):
        return 0.0
    last = max(run.judge.scores)[0]
    return float(np.mean(run.rollouts.steps > last))
