"""Is the engine's log-prob a clean function of the trainer's: another temperature, a cut tail?"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Table
from firstbad.tools.numbers import number, percent
from firstbad.tools.probability.sides import Sides, pooled, read_sides
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import BoolArray, FloatArray, Run

FEWEST = 60
"""Tokens of a capture from which it is fitted by itself."""
SLOPE = 0.05
"""Slope from which a capture counts as of another temperature, with a fit of `CLEAN`."""
CLEAN = 0.8
CUT = 0.01
"""Lost mass from which a capture is of a cut tail, where `ONE_SIDED` of the difference is gain."""
ONE_SIDED = 0.95


class Processing(Dated):
    """y = engine - trainer, nats, fitted as a function of the trainer's log-prob of the token.

    Raising probabilities to the power b and normalising gives y = (b - 1) logp - K with K the same
    for every token of a place, and b the trainer's temperature over the engine's. Renormalising
    over kept tokens gives y = -log(kept mass), whichever of them was drawn. Figures are of the
    captures from `first_bad_step` on, or of all where nothing is dated.
    """

    n_tokens: int
    slope: float
    """b - 1: 0 where both sides have one temperature."""
    slope_size: float
    slope_fit: float
    """Share of the variance of y, beyond what the place explains, that the slope explains."""
    temperature_ratio: float | None
    """Engine's over the trainer's."""
    raw_ratio: float | None
    """1 over the declared temperature: `temperature_ratio` where the engine reports log-probs from
    before the division. None where it is 1 or not declared."""
    raw_distance: float | None
    """abs(log) of `temperature_ratio` over `raw_ratio`."""
    undivided_distance: float | None
    """... over the declared temperature: near 0 where it is the trainer that does not divide."""
    kept_mass: float
    """Mean of exp(trainer - engine): what is kept of the probability, if a tail is cut."""
    lost_mass: float
    """1 - `kept_mass`."""
    kept_least: float
    """First percentile of exp(trainer - engine): for top-p at least p."""
    one_sided: float
    """Of the sum of abs(y): what the engine gives more. 1 for a cut tail, a half for noise."""
    repeat_gap: float | None
    """Mean y of tokens that stood in the row before less that of new ones, beyond the slope: below
    0 where the engine's side has a penalty on repetition, above where the trainer's has."""
    repeat_gap_size: float | None
    repeat_fit: float | None
    """Share of the variance beyond slope and place that it explains."""
    steady: bool | None
    """Slope and kept mass of the captures that are off agree within a quarter, from the first
    half of them to the second; None for fewer than two."""


_Pooled = tuple[Sides, BoolArray, FloatArray]


@dataclass(frozen=True)
class _Fit:
    slope: float
    fit: float
    repeat_gap: float | None
    repeat_fit: float | None


@tool
def fit_processing(run: Run) -> Measured[Processing]:
    """Engine minus trainer log-probs as a function: temperature, kept mass, penalty on repetition.

    A setting gives a clean function that is the same at every capture; other weights and other
    kernels give a spread. Entropy and varentropy, where captured, tell places apart. Source:
    cumulants of the tempered distribution; ratio = kept mass under top-p and top-k.

    Cannot tell by itself which side is right: the surprise of the sampled tokens does.
    """
    parts = [
        (sides, use, -delta) for sides, use, delta in pooled(list(read_sides(run, *_PAIR)), *_PAIR)
    ]
    if not parts:
        raise NoData("no captures of fresh rollouts that hold log-probs of trainer and engine")
    singles = [(p, _Slope([p])) for p in parts if p[1].sum() >= FEWEST]
    rows = [
        (p[0].step, _r(f.slope), _r(f.fit), _r(1 - np.exp(-f.y).mean()), _up(f.y))
        for p, f in singles
    ]
    off = [_is_off(*row[1:]) for row in rows]
    first = next((i for i in range(len(off)) if all(off[i:])), None)
    whole = parts[0][0].step, parts[-1][0].step
    if first is not None:
        parts = [p for p in parts if p[0].step >= rows[first][0]]
    fit = _fit(parts)
    y = np.concatenate([d[use] for _, use, d in parts])
    kept = float(np.exp(-np.clip(y, -50, 50)).mean())
    ratio = 1 / (1 + fit.slope) if fit.slope > -0.99 else None
    declared = run.config.number("temperature")
    raw = 1 / declared if declared and declared != 1 else None
    metrics = Processing(
        n_tokens=len(y),
        slope=_r(fit.slope),
        slope_size=_r(abs(fit.slope)),
        slope_fit=_r(fit.fit),
        temperature_ratio=None if ratio is None else _r(ratio),
        raw_ratio=None if raw is None else _r(raw),
        raw_distance=None if raw is None or ratio is None else _r(abs(math.log(ratio / raw))),
        undivided_distance=(
            None if raw is None or ratio is None else _r(abs(math.log(ratio * raw)))
        ),
        kept_mass=_r(kept),
        lost_mass=_r(1 - kept),
        kept_least=_r(np.quantile(np.exp(-np.clip(y, -50, 50)), 0.01)),
        one_sided=_up(y),
        repeat_gap=None if fit.repeat_gap is None else _r(fit.repeat_gap),
        repeat_gap_size=None if fit.repeat_gap is None else _r(abs(fit.repeat_gap)),
        repeat_fit=None if fit.repeat_fit is None else _r(fit.repeat_fit),
        steady=_steady([r for r, o in zip(rows, off, strict=True) if o]),
        first_bad_step=None if first is None else int(rows[first][0]),
        last_good_step=None if not first else int(rows[first - 1][0]),
        from_start=first == 0,
        sampled=True,
    )
    table = Table(
        title="engine less trainer, by step",
        columns=("step", "slope", "explained", "lost mass", "one-sided"),
        rows=tuple(rows[:60]),
        cut_rows=max(0, len(rows) - 60),
    )
    return Measured(
        metrics,
        _told(metrics),
        tables=(table,),
        window=whole,
        signal="engine less trainer log-probs as a function of the trainer's",
    )


_PAIR = ("trainer", "engine")


class _Slope:
    """Least squares of y on the token's log-prob, with what tells places apart beside it."""

    def __init__(self, parts: list[_Pooled]) -> None:
        self.y = np.concatenate([d[use] for _, use, d in parts])
        own = [s.trainer for s, _, _ in parts]
        logp = np.concatenate([a[p[1]] for a, p in zip(own, parts, strict=True) if a is not None])
        place = [np.ones(len(self.y))]
        for name in ("entropy", "varentropy"):
            arrays = [getattr(s, name) for s, _, _ in parts]
            if all(a is not None for a in arrays):
                values = np.concatenate([a[p[1]] for a, p in zip(arrays, parts, strict=True)])
                if np.isfinite(values).all():
                    place += [values, values**2] if name == "entropy" else [values]
        self.columns = np.stack([*place, logp])
        rest, x = _without([self.y, logp], self.columns[:-1])
        norm = _dot(x, x)
        self.slope = _dot(x, rest) / norm if norm > 1e-9 else 0.0
        total = _dot(rest, rest)
        self.fit = self.slope**2 * norm / total if total > 1e-12 else 0.0


def _fit(parts: list[_Pooled]) -> _Fit:
    """The slope, and beyond it what a penalty on repetition explains."""
    slope = _Slope(parts)
    again = np.concatenate([_stood_before(s)[use] for s, use, _ in parts]).astype(float)
    gap, share = None, None
    if 20 <= again.sum() <= len(again) - 20:
        left, marks = _without([slope.y, again], slope.columns)
        size = _dot(marks, marks)
        if size > 1e-6:
            gap = _dot(marks, left) / size
            share = gap**2 * size / max(_dot(left, left), 1e-12)
    return _Fit(slope.slope, slope.fit, gap, share)


def _dot(a: FloatArray, b: FloatArray) -> float:
    """On one thread: for one product of vectors, to wake others takes longer."""
    return float(np.einsum("i,i->", a, b))


def _without(targets: list[FloatArray], columns: FloatArray) -> FloatArray:
    """What the columns, (K, N), leave unexplained of each target, (N,)."""
    scale = np.abs(columns).max(axis=1, keepdims=True)
    scaled = columns / np.where(scale > 0, scale, 1.0)
    values = np.stack(targets)
    # The square of so few columns is small; columns that say the same (one place) drop out.
    found = np.linalg.pinv(scaled @ scaled.T, rcond=1e-12, hermitian=True) @ (scaled @ values.T)
    return np.asarray(values - found.T @ scaled)


def _stood_before(sides: Sides) -> BoolArray:
    """(R, T) tokens whose id stands earlier among the sampled ones of the row."""
    ids = np.where(sides.real, sides.ids, np.iinfo(np.int64).min)
    order = np.argsort(ids, axis=1, kind="stable")
    ordered = np.take_along_axis(ids, order, axis=1)
    again = np.zeros(ids.shape, bool)
    again[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    out = np.zeros(ids.shape, bool)
    np.put_along_axis(out, order, again, axis=1)
    return np.asarray(out & sides.real)


def _is_off(slope: float, fit: float, lost: float, up: float) -> bool:
    return (abs(slope) > SLOPE and fit > CLEAN) or (lost > CUT and up > ONE_SIDED)


def _up(y: FloatArray) -> float:
    total = float(np.abs(y).sum())
    return _r(np.maximum(y, 0.0).sum() / total) if total > 0 else 0.5


def _steady(rows: list[tuple[int, float, float, float, float]]) -> bool | None:
    """Whether slope and kept mass hold still where they are off."""
    if len(rows) < 2:
        return None
    half = len(rows) // 2
    pairs = [
        (np.mean([r[i] for r in rows[:half]]), np.mean([r[i] for r in rows[half:]])) for i in (1, 3)
    ]
    at = 0 if abs(pairs[0][0]) > SLOPE else 1
    early, late = pairs[at]
    return bool(abs(late - early) <= 0.25 * max(abs(early), abs(late)))


def _told(m: Processing) -> str:
    ratio = "none" if m.temperature_ratio is None else number(m.temperature_ratio, digits=3)
    text = (
        f"engine less trainer log-probs on {number(m.n_tokens)} tokens: temperature ratio {ratio} "
        f"explains {percent(m.slope_fit)} of the spread; {percent(m.one_sided)} of the difference "
        "is what the engine gives more"
    )
    if m.one_sided > ONE_SIDED:
        text += f", as if {percent(m.kept_mass)} of the probability were kept"
    return text


def _r(value: float | np.floating) -> float:
    return round(float(value), 6)
