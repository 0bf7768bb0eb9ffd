"""What the user's own judge said of single rows: scores that came from outside, with their file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from firstbad.tools.evidence import Source


@dataclass(frozen=True)
class JudgeScores:
    """Scores by row, and what went wrong on the way."""

    scores: Mapping[tuple[int, int], float]
    """(step, place of the row in its step) -> a finite score, in the judge's unit."""
    errors: Mapping[tuple[int, int], str]
    """Rows that the judge reported an error for; its text is untrusted."""
    counts: Mapping[str, int]
    """`asked` rows, and of its answers those `not_finite`, `unknown`, `twice`, `unreadable`;
    `batches` and of them `timeouts`, `crashes` and `too_long` ones."""
    source: Source
    again: Mapping[tuple[int, int], float] = field(default_factory=dict)
    """Second scores, of the few rows that it was asked about once more in the end."""

    def of(self, step: int, rows: int) -> npt.NDArray[np.float64]:
        """(R,) scores of the rows of a step, NaN where there is none."""
        found = [self.scores.get((step, row), np.nan) for row in range(rows)]
        return np.array(found, np.float64)
