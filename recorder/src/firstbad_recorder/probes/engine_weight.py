"""How the engine's log-prob enters a loss as a weight, and where that is capped."""

from __future__ import annotations

import math

from firstbad_recorder.probes.edge import edge
from firstbad_recorder.probes.loss_input import Bench, Row, near

GRID = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
"""logp_old - logp_engine, in nats."""


def engine_weight(bench: Bench) -> dict[str, object]:
    """The weight exp(logp_old - logp_engine) as far as the loss has it.

    Returns:
        `used`; then `form` (`plain`, `truncated`: constant beyond `high`, `masked`: 0 beyond it,
        `other`), `high`, `low` (ratios), `level` (`token`, `sequence_sum`, `sequence_mean`).
    """
    weights = {e: _weight(bench, e) for e in (*(-x for x in GRID), *GRID)}
    if all(near(w, 1.0, 1e-3) for w in weights.values()):
        return {"used": False}
    n = 2
    steep = math.log(weights[0.02]) / 0.02 if weights[0.02] > 0 else 0.0
    power = float(n) if near(steep, n, 0.05) else 1.0
    found: dict[str, object] = {"used": True, "level": _level(bench, power)}
    high = _limit(bench, 1.0, power)
    low = _limit(bench, -1.0, power)
    plain = all(
        near(w, math.exp(power * e))
        for e, w in weights.items()
        if (high is None or e * power < math.log(high) - 1e-3)
        and (low is None or e * power > math.log(low) + 1e-3)
    )
    at_top, at_bottom = weights[GRID[-1]], weights[-GRID[-1]]
    form = "plain" if high is None and low is None else "truncated"
    if (high is not None and not at_top) or (low is not None and not at_bottom):
        form = "masked"
    if form == "truncated" and plain:  # the plateau is known better than where it begins
        high, low = high and at_top, low and at_bottom
    return {**found, "form": form if plain else "other", "high": high, "low": low}


def _weight(bench: Bench, below: float) -> float:
    """Policy gradient with the engine so far below, over that with an equal one."""
    rows = [Row(2, a, engine_below=e) for e in (below, 0.0) for a in (1.0, 0.0)]
    paid, unpaid, paid_at_equal, unpaid_at_equal = (row[0] for row in bench(rows).gradient)
    at_equal = paid_at_equal - unpaid_at_equal
    return (paid - unpaid) / at_equal if at_equal else math.nan


def _limit(bench: Bench, way: float, power: float) -> float | None:
    """Weight beyond which it no longer grows (or falls), to 1e-5 nats."""

    def follows(distance: float) -> bool:
        away = way * distance
        rounding = max(1e-4, bench.eps) * (2 + distance)
        return near(_weight(bench, away), math.exp(power * away), rounding)

    found = edge(follows, GRID)
    return None if found is None else math.exp(way * power * found[0])


def _level(bench: Bench, power: float) -> str:
    """Whether one token's weight moves the gradient of the others in its row."""

    def slope(e: float) -> float:
        rows = (Row(2, a, engine_below=[e, 0.0]) for a in (1.0, 0.0))
        paid, unpaid = (bench([row]).gradient[0][1] for row in rows)
        return paid - unpaid

    still = slope(0.0)
    other = slope(0.2) / still if still else math.nan
    if near(other, 1.0, 1e-3):
        return "token"
    return "sequence_sum" if power > 1 else "sequence_mean"
