"""A constant that was added to probabilities before the logarithm."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated
from firstbad.tools.numbers import number, percent
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import Capture, FloatArray, Run
from firstbad.tools.tokens import completion_end

FEWEST = 100
"""Tokens of a capture from which a constant is fitted."""
ABOVE = 1e-6
"""Log-prob above 0 that rounding in 32 bits does not give."""


class AddedEps(Dated):
    """The constant that explains log-probs best, over the captures that show one."""

    n_captures: int
    n_tokens: int
    n_with: int
    """Captures with log-probs that a constant explains, or that lie above 0."""
    eps: float | None
    """Median of the constant over those captures."""
    explained: float | None
    """Share of the squared difference to the engine's log-probs that the constant explains, median
    over these captures; None where no engine log-probs were captured."""
    difference: float | None
    """Mean difference to the engine's log-probs in these captures, nats."""
    above_zero_share: float
    """Of the captured log-probs: above 0, which no logarithm of a probability is."""


@dataclass(frozen=True)
class _Fit:
    step: int
    tokens: int
    above: int
    eps: float | None
    explained: float | None
    difference: float | None

    @property
    def shows(self) -> bool:
        by_fit = self.explained is not None and self.explained > 0.9
        return (by_fit and (self.eps or 0.0) > 0) or self.above > 0.01 * self.tokens


@tool
def fit_added_eps(run: Run) -> Measured[AddedEps]:
    """Whether captured log-probs are log(p + eps), and with which eps.

    Then exp(logp) less the engine's probability of the same token is eps at every token, so the
    difference of log-probs grows as probabilities fall; and tokens that are sure have log(1 + eps),
    above 0. The constant is the median over the tokens with p below 0.1; it is held against all.

    Cannot tell: an eps far below the probabilities that were sampled; a clamp, which leaves a point
    mass (see `find_floor`).
    """
    fits = [fit for capture in run.captures if (fit := _fit(run, capture)) is not None]
    if not fits:
        raise NoData(f"no captures with {FEWEST} log-probs of sampled tokens")
    bad = [fit for fit in fits if fit.shows]
    good = [fit.step for fit in fits if bad and fit.step < bad[0].step]
    tokens = sum(fit.tokens for fit in fits)
    eps, explained, difference = (
        [v for fit in bad if (v := getattr(fit, name)) is not None]
        for name in ("eps", "explained", "difference")
    )
    metrics = AddedEps(
        n_captures=len(fits),
        n_tokens=tokens,
        n_with=len(bad),
        eps=_median(eps),
        explained=_median(explained),
        difference=_median(difference),
        above_zero_share=round(sum(fit.above for fit in fits) / tokens, 6),
        last_good_step=good[-1] if good else None,
        first_bad_step=bad[0].step if bad else None,
        from_start=bool(bad) and not good,
        sampled=True,
    )
    text = f"{tokens} log-probs of {len(fits)} captures: no constant added to the probabilities"
    if bad:
        text = f"{len(bad)} of {len(fits)} captures: log(p + {number(metrics.eps, digits=3)})"
        if metrics.explained is not None:
            text += f" explains {percent(metrics.explained)} of the difference to the engine"
        if metrics.above_zero_share:
            text += f", {percent(metrics.above_zero_share)} of the log-probs lie above 0"
    return Measured(
        metrics,
        text,
        window=(fits[0].step, fits[-1].step),
        signal="constant inside the logarithm",
    )


def _median(values: list[float]) -> float | None:
    return float(f"{np.median(values):.6g}") if values else None


def _fit(run: Run, capture: Capture) -> _Fit | None:
    new = capture.numbers("logp_new")
    if new is None or "token_id" not in capture.arrays:
        return None
    real = completion_end(run, capture).real
    if real.shape != new.shape:
        return None
    engine = capture.numbers("logp_engine")
    use = real & np.isfinite(new)
    if engine is not None and engine.shape == new.shape:
        use &= np.isfinite(engine)
    else:
        engine = None
    values = new[use]
    if len(values) < FEWEST:
        return None
    above = int((values > ABOVE).sum())
    if engine is None:
        top = float(np.expm1(values.max())) if above else None
        return _Fit(capture.step, len(values), above, top, None, None)
    other = engine[use]
    eps = _constant(values, other)
    difference = values - other
    left = values - np.log(np.exp(other) + max(eps, 0.0))
    total = float((difference**2).sum())
    explained = 1 - float((left**2).sum()) / total if total > 0 else 0.0
    mean = float(np.abs(difference).mean())
    return _Fit(capture.step, len(values), above, eps, explained, mean)


def _constant(new: FloatArray, engine: FloatArray) -> float:
    rare = engine < np.log(0.1)
    chosen = rare if rare.sum() >= 10 else np.ones_like(rare)
    return float(np.median((np.exp(new) - np.exp(engine))[chosen]))
