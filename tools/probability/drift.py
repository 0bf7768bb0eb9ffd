"""What grows from nothing: told from a change that stays, and dated with a bracket."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from firstbad.tools.run import FloatArray

BLUR = 0.01
"""Differences below this, in nats, tell nothing."""
WITHIN = 3.84
"""Chi-square that a fit may be worse than the best one: 95 % of a normal error."""
FEWEST = 6


@dataclass(frozen=True)
class Series:
    """(N,) means in nats at N rising steps, with their standard errors."""

    steps: FloatArray
    value: FloatArray
    error: FloatArray

    @property
    def weight(self) -> FloatArray:
        """Inverse errors. Where rare tokens are missing they read too small: they never fall."""
        weight: FloatArray = 1 / np.hypot(np.maximum.accumulate(self.error), BLUR)
        return weight


@dataclass(frozen=True)
class Drift:
    """Steps at which a drift may have begun."""

    best: float
    earliest: float
    latest: float
    growth: float
    """Fitted value at the end over that halfway from the onset to the end."""


def fit_drift(series: Series, since: float) -> tuple[Drift, float] | None:
    """The best a d + b d^2 (a and b of one sign) in the steps d since an onset, and its misfit.

    `since`: the earliest onset that there may be. Earliest and latest onset fit as well as the best
    one within 95 %. None for fewer than six samples.
    """
    if len(series.steps) < FEWEST:
        return None
    steps, weight = series.steps, series.weight
    y = series.value * weight
    onsets = np.linspace(since, steps[-3], 200)
    fits = [_fit(np.maximum(0.0, steps - t), y, weight) for t in onsets]
    misfit = np.array([m for m, _, _ in fits])
    best = int(np.argmin(misfit))
    least, a, b = fits[best]
    # Where no onset fits within the errors, the errors are too small by that much.
    scale = max(1.0, least / (len(steps) - 3))
    near = onsets[misfit <= least + WITHIN * scale]
    d = float(steps[-1] - onsets[best])
    halfway = a * d / 2 + b * d**2 / 4
    growth = (a * d + b * d**2) / halfway if halfway else 1.0
    return Drift(float(onsets[best]), float(near.min()), float(near.max()), growth), least


def misfit_of_setting(series: Series) -> float:
    """Misfit of 0 up to some sample and one value from there on."""
    weight = series.weight
    y = series.value * weight
    return min(
        float((y**2).sum() - (y[i:] @ weight[i:]) ** 2 / (weight[i:] @ weight[i:]))
        for i in range(len(y) - 1)
    )


def _fit(d: FloatArray, y: FloatArray, weight: FloatArray) -> tuple[float, float, float]:
    """Least weighted squares of a d + b d^2 against y, with a and b of one sign: misfit, a, b."""
    terms = np.stack([d, d**2], axis=1) * weight[:, None]
    found = [(float(y @ y), 0.0, 0.0)]
    for columns in ([0, 1], [0], [1]):
        part = terms[:, columns]
        factors = np.linalg.lstsq(part, y, rcond=None)[0]
        if (factors >= 0).all() or (factors <= 0).all():
            a, b = (dict(zip(columns, factors.tolist(), strict=True)).get(i, 0.0) for i in (0, 1))
            found.append((float(((y - part @ factors) ** 2).sum()), a, b))
    return min(found)
