"""The stretch of neighbouring samples whose pooled mean is farthest from 0."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from firstbad.tools.run import FloatArray
from firstbad.tools.stats import PLACE

ALONE = 1500
"""Fewest values of one sample that is read alone."""
TOGETHER = 600
"""Fewest values of two samples or more."""


@dataclass(frozen=True)
class OddStretch:
    """Samples `first` to `stop` - 1, with the pooled mean of their values."""

    first: int
    stop: int
    size: int
    mean: float
    earliest: int
    """First sample that it may as well begin with, within 95 %."""
    latest: int
    """Last such sample: it is inside whatever the beginning."""
    p: float
    """Chance of a stretch this far off, anywhere in as many samples whose mean is 0."""


def odd_stretch(samples: Sequence[FloatArray]) -> OddStretch | None:
    """The stretch whose pooled mean stands out most; None where no stretch is large enough.

    Values may have rare large ones, which a small stretch may lack: the error of the mean is taken
    from the spread inside or over all samples, whichever is wider. The chance is normal, times the
    number of stretches that were tried (Bonferroni).
    """
    edge = np.concatenate([[0], np.cumsum([len(s) for s in samples])])
    sums = np.concatenate([[0.0], np.cumsum([s.sum() for s in samples])])
    n = len(samples)
    tried = 0
    gains, stops = np.zeros(n), np.zeros(n, int)
    for i in range(n if n > 1 else 0):
        size = edge[i + 1 :] - edge[i]
        enough = size >= np.where(np.arange(n - i) == 0, ALONE, TOGETHER)
        tried += int(enough.sum())
        gain = np.where(enough, (sums[i + 1 :] - sums[i]) ** 2 / np.maximum(size, 1), 0.0)
        gains[i], stops[i] = gain.max(), i + 1 + int(np.argmax(gain))
    if not gains.any():
        return None
    first = int(np.argmax(gains))
    stop = int(stops[first])
    values = np.concatenate(samples[first:stop])
    mean = float(values.mean())
    spread = max(float(np.std(values)), float(np.std(np.concatenate(samples))))
    z = abs(mean) * math.sqrt(len(values)) / spread if spread else math.inf
    # Once there is a stretch, it may begin with fewer values than show one.
    tails = (sums[stop] - sums[:stop]) ** 2 / np.maximum(edge[stop] - edge[:stop], 1)
    near = np.flatnonzero(tails >= tails.max() - PLACE * spread**2)
    p = min(1.0, tried * math.erfc(z / math.sqrt(2)))
    return OddStretch(
        first, stop, len(values), mean, int(near[0]), int(near[-1]), float(f"{p:.3g}")
    )
