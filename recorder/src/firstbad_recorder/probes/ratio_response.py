"""How the gradient of a loss follows the ratio: which sides are cut, and at which ratios."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from firstbad_recorder.probes.edge import edge
from firstbad_recorder.probes.loss_input import Bench, Row, near

GRID = (0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 4.0)
FAR = (6.0, 8.0, 10.0, 15.0, 19.0, 21.0, 30.0, 50.0, 75.0)
"""Distances of the log-ratio from 0 that are tried, in nats; exp of more overflows in float32."""
LEAST = 1e-3
"""Gradient over ratio below which it counts as cut."""
NOISE = 0.02
"""Share of another term's gradient below which a difference from it is rounding."""
CLIP = 5.0
"""nats within which a cut is a clip; further out it is a fuse, or where a number underflows."""
HARD = 1e-3
"""Nats before a cut within which the gradient still stands."""
N_TOKENS = 2

Curve = dict[float, float]
"""Gradient over that at ratio 1, by log-ratio."""


def ratio_response(bench: Bench) -> dict[str, Any]:
    """What moves with the ratio, for either sign of the advantage.

    Returns:
        `direction` (`up`: a positive advantage raises the log-prob; `down`; `none`: no gradient;
        `not_finite`),
        `negative_weight` (weight at advantage -1 over that at 1), `form`, `level` (`token`,
        `sequence_mean`, `sequence_sum`, `sequence` for another), `old_used` (whether the value
        changes with logp_old), `bounds` (a list of `{"advantage", "side", "ratio"}`, ratio None
        where nothing is cut), and by the form `cap`, `floor`, `temperature`, `k`, `lambda`;
        `log_ratio_clamp` (its limits in nats, where cuts on both sides look like one).

        The form is `clip` (the ratio, with hard cuts), `ratio` (nothing is cut), `capped_weight`
        (a weight that is not differentiated, min(ratio, cap)), `constant` (the ratio has no
        influence), `sigmoid`, `gamma` (ratio^k exp(-lambda ratio)), or `other`.
    """
    one = _slope(bench, [1.0, -1.0], [0.0, 0.0])
    up, down = -one[0], -one[1]
    if not math.isfinite(up) or not math.isfinite(down):
        return {"direction": "not_finite", "form": None}
    if not up and not down:
        return {"direction": "none", "form": None}
    found: dict[str, Any] = {
        "direction": "up" if up > 0 or (not up and down > 0) else "down",
        "negative_weight": down / up if up else None,
        "old_used": _old_used(bench),
        "level": _level(bench),
    }
    curves = {sign: _curve(bench, sign) for sign in (1.0, -1.0)}
    bounds: list[dict[str, Any]] = [
        {"advantage": sign, "side": side, "ratio": _bound(bench, sign, way)}
        for sign in (1.0, -1.0)
        for side, way in (("low", -1.0), ("high", 1.0))
    ]
    found |= _form(curves, bounds)
    found["bounds"] = bounds if found["form"] in ("clip", "ratio") else []
    found["log_ratio_clamp"] = _clamp(found["bounds"])
    return found


def near_bounds(bounds: Sequence[Mapping[str, Any]]) -> dict[tuple[float, str], float]:
    """Ratios of cuts that are near enough to be a clip, by sign of the advantage and side."""
    return {
        (b["advantage"], b["side"]): b["ratio"]
        for b in bounds
        if b["ratio"] is not None and abs(math.log(b["ratio"])) < CLIP
    }


def _clamp(bounds: list[dict[str, Any]]) -> list[float] | None:
    """Limits on both sides that do not ask for the sign and are symmetric in the log-ratio."""
    at = {(b["advantage"], b["side"]): b["ratio"] for b in bounds}
    low, high = at.get((1.0, "low")), at.get((-1.0, "high"))
    if not low or not high or not near(-math.log(low), math.log(high), 0.01):
        return None
    return [math.log(low), math.log(high)]


def _slope(bench: Bench, signs: Sequence[float], away: Sequence[float]) -> list[float]:
    """Gradient of the first token of each row that its advantage makes, over the advantage."""
    rows = [Row(N_TOKENS, s, x) for s, x in zip(signs, away)]
    still = [Row(N_TOKENS, 0.0, x) for x in away]
    gradient = bench([*rows, *still]).gradient
    paid, unpaid = gradient[: len(rows)], gradient[len(rows) :]
    return [(p[0] - u[0]) / s for p, u, s in zip(paid, unpaid, signs)]


def _relative(bench: Bench, sign: float, away: Sequence[float]) -> list[float]:
    """Slope at these log-ratios over that at 0, in a batch of the same shape."""
    signs = [sign] * len(away)
    here, at_one = _slope(bench, signs, away), _slope(bench, signs, [0.0] * len(away))
    return [h / o if o else math.nan for h, o in zip(here, at_one)]


def _curve(bench: Bench, sign: float) -> Curve:
    away = [*(-x for x in reversed(GRID)), 0.0, *GRID]
    return dict(zip(away, _relative(bench, sign, away)))


def _bound(bench: Bench, sign: float, way: float) -> float | None:
    """Ratio from which on the gradient is cut hard on this side, to 1e-5; None where it is not."""
    found = edge(lambda distance: not _is_cut(bench, sign, way * distance), (*GRID, *FAR))
    if found is None:
        return None
    inside, outside = found
    before = way * max(outside - HARD, 0.0)
    stands = abs(_relative(bench, sign, [before])[0]) / math.exp(before) > 0.05
    return math.exp(way * (inside + outside) / 2) if stands else None


def _is_cut(bench: Bench, sign: float, away: float) -> bool:
    rows = [Row(N_TOKENS, a, x) for x in (away, 0.0) for a in (sign, 0.0)]
    paid, unpaid, paid_at_one, unpaid_at_one = (row[0] for row in bench(rows).gradient)
    stands = abs(paid_at_one - unpaid_at_one) * math.exp(away)
    if stands < NOISE * abs(unpaid):  # rounding of another term is larger
        return False
    return abs(paid - unpaid) < LEAST * stands


def _level(bench: Bench) -> str:
    """Whether one token's ratio moves the gradient of the others in its row."""
    n, away = 4, -8.0  # below 1 nothing is cut where the advantage is positive
    moved = bench([Row(n, 1.0, [away, 0.0, 0.0, 0.0])]).gradient[0][1]
    still = bench([Row(n, 0.0, [away, 0.0, 0.0, 0.0])]).gradient[0][1]
    at_one = _slope_of_row(bench, n)
    other = (moved - still) / at_one if at_one else math.nan
    if near(other, 1.0):
        return "token"
    if near(other, math.exp(away / n)):
        return "sequence_mean"
    return "sequence_sum" if near(other, math.exp(away)) else "sequence"


def _slope_of_row(bench: Bench, n: int) -> float:
    return bench([Row(n, 1.0)]).gradient[0][1] - bench([Row(n, 0.0)]).gradient[0][1]


def _old_used(bench: Bench) -> bool:
    """Whether the value changes when logp_old alone does."""
    values = [bench([Row(2, 1.0, x, level=-1.0)]).value for x in (0.0, 0.1)]
    return not near(values[0], values[1], 1e-4)  # logp_new is -1 in both


def _form(curves: dict[float, Curve], bounds: list[dict[str, Any]]) -> dict[str, Any]:
    every = list(curves.values())
    forms: list[Callable[[list[Curve]], dict[str, Any] | None]] = [
        _constant,
        lambda c: _clip(c, bounds),
        _capped,
        _sigmoid,
        _gamma,
    ]
    for form in forms:
        found = form(every)
        if found is not None:
            return found
    return {"form": "other"}


def _constant(curves: list[Curve]) -> dict[str, Any] | None:
    same = all(near(m, 1.0) for curve in curves for m in curve.values())
    return {"form": "constant"} if same else None


def _clip(curves: list[Curve], bounds: list[dict[str, Any]]) -> dict[str, Any] | None:
    for curve in curves:
        for away, m in curve.items():
            ratio = math.exp(away)
            if not near(m, ratio) and abs(m) > LEAST * ratio:
                return None
    return {"form": "clip" if near_bounds(bounds) else "ratio"}


def _capped(curves: list[Curve]) -> dict[str, Any] | None:
    """min(ratio, cap), with a floor perhaps, the same for both signs."""
    limits = []
    for curve in curves:
        lowest, highest = curve[-GRID[-1]], curve[GRID[-1]]
        if not near(highest, curve[GRID[-2]]):
            return None
        proportional = near(lowest / curve[-GRID[-2]], math.exp(GRID[-2] - GRID[-1]))
        unit = lowest * math.exp(GRID[-1]) if proportional else 1.0
        cap, floor = highest / unit, 0.0 if proportional else lowest / unit
        for away, m in curve.items():
            if not near(m, unit * min(max(math.exp(away), floor), cap)):
                return None
        limits.append((cap, floor))
    (cap, floor), other = limits
    if not near(cap, other[0]) or not near(floor, other[1]):
        return None
    return {"form": "capped_weight", "cap": cap, "floor": floor or None}


def _sigmoid(curves: list[Curve]) -> dict[str, Any] | None:
    """Gradient of sigmoid(t (ratio - 1)) 4/t, as SAPO has it."""
    temperatures = []
    for curve in curves:
        t = _solve(lambda t: gate(0.7, t) - curve[0.7], 1e-3, 50.0)  # noqa: B023 - used at once
        if t is None or not all(
            near(m, gate(away, t), 0.03) for away, m in curve.items() if abs(away) <= 1.5
        ):
            return None
        temperatures.append(t)
    return {"form": "sigmoid", "temperature": temperatures[0], "temperature_down": temperatures[1]}


def gate(away: float, t: float) -> float:
    """Derivative of sigmoid(t (ratio - 1)) 4/t by the log-ratio."""
    ratio = math.exp(away)
    x = max(-700.0, min(700.0, t * (ratio - 1)))
    s = 1 / (1 + math.exp(-x))
    return 4 * ratio * s * (1 - s)


def _gamma(curves: list[Curve]) -> dict[str, Any] | None:
    """ratio^k exp(lambda (1 - ratio)) of the whole row's ratio, as VESPO has it."""
    for n in (N_TOKENS, 1):
        fits = [_gamma_of(curve, n) for curve in curves]
        if all(fit is not None for fit in fits):
            (k, rate), (k_down, rate_down) = (fit or (0.0, 0.0) for fit in fits)
            return {
                "form": "gamma", "k": k, "lambda": rate, "k_down": k_down,
                "lambda_down": rate_down,
            }  # fmt: skip
    return None


def _gamma_of(curve: Curve, n: int) -> tuple[float, float] | None:
    a, b = 0.2 * n, -0.2 * n
    ya, yb = curve[0.2], curve[-0.2]
    if ya <= 0 or yb <= 0:
        return None
    # log m = k u + lambda (1 - e^u) at two points.
    ca, cb = 1 - math.exp(a), 1 - math.exp(b)
    determinant = a * cb - b * ca
    k = (math.log(ya) * cb - math.log(yb) * ca) / determinant
    rate = (a * math.log(yb) - b * math.log(ya)) / determinant
    fits = all(
        near(m, math.exp(k * n * away + rate * (1 - math.exp(n * away))), 0.03)
        for away, m in curve.items()
        if abs(away) <= 0.5
    )
    return (k, rate) if fits and rate > 0.01 else None


def _solve(f: Callable[[float], float], low: float, high: float) -> float | None:
    """Root between two places where a function has other signs."""
    at_low = f(low)
    if not math.isfinite(at_low) or at_low * f(high) > 0:
        return None
    for _ in range(60):
        middle = (low + high) / 2
        if f(middle) * at_low > 0:
            low = middle
        else:
            high = middle
    return (low + high) / 2
