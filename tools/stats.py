"""Small statistics used by several tools. All in float64; pure functions."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from firstbad.tools.run import BoolArray, FloatArray, IntArray

MAD_TO_SD = 1.4826
PLACE = 7.35
"""Chi-square by which another place of a change may fit worse, within 95 % (Hansen 2000)."""


def robust_sd(values: FloatArray) -> float:
    """Standard deviation from the median absolute deviation; 0 for fewer than two values.

    Falls back to the plain standard deviation where more than half of the values are equal, so
    that a nearly constant series doesn't get a band of width 0.
    """
    if len(values) < 2:
        return 0.0
    mad = float(np.median(np.abs(values - np.median(values))))
    return MAD_TO_SD * mad if mad > 0 else float(np.std(values))


def row_medians(values: FloatArray) -> FloatArray:
    """(N,) median of each row of a finite (N, M) array; many times the speed of `numpy.median`."""
    half = values.shape[1] // 2
    if values.shape[1] % 2:
        middle: FloatArray = np.partition(values, half, axis=1)[:, half]
        return middle
    two = np.partition(values, (half - 1, half), axis=1)[:, half - 1 : half + 1]
    found: FloatArray = two.sum(axis=1) / 2
    return found


def pearson(x: FloatArray, y: FloatArray) -> float | None:
    """Correlation, or None when one of the two does not vary."""
    if len(x) < 3 or np.ptp(x) <= 1e-12 * (1 + np.abs(x).max()) or np.ptp(y) == 0:
        return None
    value = float(np.corrcoef(x, y)[0, 1])
    return value if math.isfinite(value) else None


@dataclass(frozen=True)
class Stretch:
    """A stretch of steps in which an event is more frequent than outside."""

    first: int
    """Index of its first step."""
    stop: int
    """Index after its last step."""
    rate_in: float
    rate_out: float
    gain: float
    """Log-likelihood gained over one common rate, in nats."""


def _binomial_ll(hits: FloatArray, totals: FloatArray) -> FloatArray:
    rate = np.divide(hits, totals, out=np.zeros_like(hits, float), where=totals > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        inside = np.where(hits > 0, hits * np.log(rate), 0.0)
        outside = np.where(totals > hits, (totals - hits) * np.log1p(-rate), 0.0)
    value: FloatArray = inside + outside
    return value


def raised_stretch(hits: IntArray, totals: IntArray, *, shortest: int = 2) -> Stretch | None:
    """The stretch of steps whose rate of hits is raised the most (binomial scan statistic).

    `hits` of `totals` per step. Two passes: the best suffix or inner stretch is searched by
    likelihood over all start points with the rest of the run, then its end is searched.
    Linear in the number of steps. None when nothing is raised.
    """
    n = len(hits)
    if n < shortest or hits.sum() == 0:
        return None
    h = np.concatenate([[0.0], np.cumsum(hits, dtype=float)])
    t = np.concatenate([[0.0], np.cumsum(totals, dtype=float)])
    null = float(_binomial_ll(h[-1:], t[-1:])[0])

    def gain(first: IntArray, stop: IntArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        hits_in, total_in = h[stop] - h[first], t[stop] - t[first]
        hits_out, total_out = h[-1] - hits_in, t[-1] - total_in
        rate_in = np.divide(hits_in, total_in, out=np.zeros(len(first)), where=total_in > 0)
        rate_out = np.divide(hits_out, total_out, out=np.zeros(len(first)), where=total_out > 0)
        value = _binomial_ll(hits_in, total_in) + _binomial_ll(hits_out, total_out) - null
        return np.where(rate_in > rate_out, value, -np.inf), rate_in, rate_out

    # Alternate between start and end until neither moves: exact for one stretch in practice.
    first, stop = 0, n
    for _ in range(6):
        starts = np.arange(0, stop - shortest + 1, dtype=np.int64)
        new_first = int(starts[np.argmax(gain(starts, np.full(len(starts), stop))[0])])
        stops = np.arange(new_first + shortest, n + 1, dtype=np.int64)
        new_stop = int(stops[np.argmax(gain(np.full(len(stops), new_first), stops)[0])])
        if (new_first, new_stop) == (first, stop):
            break
        first, stop = new_first, new_stop
    value, rate_in, rate_out = gain(np.array([first]), np.array([stop]))
    if not math.isfinite(value[0]) or value[0] <= 0:
        return None
    while first < stop - 1 and hits[first] == 0:
        first += 1
    return Stretch(first, stop, float(rate_in[0]), float(rate_out[0]), float(value[0]))


def least_rate(hits: BoolArray, *, sds: float = 2.576) -> float:
    """Lower end of the Wilson interval of a rate, from (R,) hits; 0 without any."""
    n = len(hits)
    if n == 0 or not hits.any():
        return 0.0
    rate, z2 = float(hits.mean()), sds**2
    half = sds * math.sqrt(rate * (1 - rate) / n + z2 / (4 * n * n))
    return max(0.0, (rate + z2 / (2 * n) - half) / (1 + z2 / n))


@dataclass(frozen=True)
class Shift:
    """A change of level at one place of a series."""

    index: int
    """First index after the change."""
    before: float
    after: float
    sds: float
    """Difference of the levels over the spread within the two sides."""
    earliest: int
    """First place that fits as well, within 95 %: a noisy series dates a change only so far."""
    latest: int


def level_shift(values: FloatArray, *, margin: int = 5) -> Shift | None:
    """The best single change of mean (least squares), at least `margin` values on each side."""
    n = len(values)
    if n < 2 * margin:
        return None
    sums = np.cumsum(values)
    cuts = np.arange(margin, n - margin + 1)
    left = sums[cuts - 1] / cuts
    right = (sums[-1] - sums[cuts - 1]) / (n - cuts)
    between = cuts * (n - cuts) / n * (left - right) ** 2
    best = int(np.argmax(between))
    cut = int(cuts[best])
    rest = np.concatenate([values[:cut] - left[best], values[cut:] - right[best]])
    spread = float(np.sqrt(np.mean(rest**2)))
    gap = float(right[best] - left[best])
    sds = abs(gap) / spread if spread > 0 else (math.inf if gap else 0.0)
    near = cuts[between >= between[best] - PLACE * spread**2]
    levels = float(left[best]), float(right[best])
    return Shift(cut, *levels, min(sds, 1e9), int(near[0]), int(near[-1]))


def gain_of_thirds(values: FloatArray) -> tuple[float, float]:
    """Mean of the last third less that of the first, plain and in standard errors.

    The noise is what is left around a straight line through each third, so that a rise inside a
    third doesn't count as noise; the correlation of neighbours in it widens the error as in an
    AR(1) process. At least 9 values; at most 1e6 standard errors.
    """
    thirds = np.array_split(values, 3)
    rest = []
    for third in thirds:
        x = np.arange(len(third)) - (len(third) - 1) / 2
        rest.append(third - third.mean() - x * (x @ third) / (x @ x))
    square = float(sum(r @ r for r in rest))
    gain = float(thirds[2].mean() - thirds[0].mean())
    if square <= 1e-24 * len(values) * float(np.abs(values).max()) ** 2:
        return gain, math.copysign(1e6, gain) if gain else 0.0
    neighbours = min(0.95, max(0.0, float(sum(r[1:] @ r[:-1] for r in rest)) / square))
    variance = square / (len(values) - 6) * (1 + neighbours) / (1 - neighbours)
    error = math.sqrt(variance * (1 / len(thirds[0]) + 1 / len(thirds[2])))
    return gain, max(-1e6, min(1e6, gain / error))


def first_of_run(flags: list[bool], *, length: int) -> int | None:
    """Index of the first flag that opens `length` set flags in a row, or None."""
    return next((i for i in range(len(flags) - length + 1) if all(flags[i : i + length])), None)


def mean_z(values: FloatArray) -> float:
    """Mean over its own standard error; 0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return float(np.mean(values)) / error if error > 0 else 0.0
