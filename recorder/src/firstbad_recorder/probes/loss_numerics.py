"""Where a loss leaves the finite numbers, and how small a difference it still sees."""

from __future__ import annotations

import math
from typing import Any

from firstbad_recorder.probes.loss_input import Bench, Row, finite

LOG_RATIOS = (1.0, 2.0, 5.0, 10.0, 11.0, 12.0, 15.0, 20.0, 30.0, 50.0, 80.0, 85.0, 90.0, 100.0, 1e3)
TINY = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
LEVEL = -10.0
"""Log-prob at which small differences are tried: 0.0625 nats apart in bfloat16."""


def loss_numerics(bench: Bench) -> dict[str, Any]:
    """What large, small and infinite log-probs do to value and gradient.

    Returns:
        `finite_up_to` (largest log-ratio of those tried up to which all is finite, in nats),
        `beyond` (what comes after it, a list of `{"advantage", "log_ratio", "value", "gradient"}`,
        each `finite` or `not finite`), `hidden` (whether with an advantage below 0, where only a
        limit on the ratio bounds the loss, the value is finite and the gradient is not),
        `masked_infinity` (`finite` or `not finite`: -Inf at places that are not trained),
        `empty_batch` (the same or `raises`: no trained token at all), `no_advantage` (all
        advantages 0),
        `smallest_difference` (smallest log-ratio at a log-prob of -10 that gradient or value follow
        within 20 %; None where neither depends on it).
    """
    beyond: list[dict[str, Any]] = []
    up_to = LOG_RATIOS[-1]
    for away in (x for size in LOG_RATIOS for x in (size, -size)):
        for advantage in (1.0, -1.0):
            answer = bench([Row(2, advantage, away), Row(2, advantage)])
            if finite(answer):
                continue
            up_to = min(up_to, max((x for x in LOG_RATIOS if x < abs(away)), default=0.0))
            value = math.isfinite(answer.value)
            gradient = all(math.isfinite(g) for row in answer.gradient for g in row)
            beyond.append({
                "advantage": advantage,
                "log_ratio": away,
                "value": _word(value),
                "gradient": _word(gradient),
            })  # fmt: skip
    rows = [Row(2, 1.0), Row(4, -1.0)]
    return {
        "finite_up_to": up_to,
        "beyond": beyond,
        "hidden": any(
            b["advantage"] < 0 and b["value"] == "finite" and b["gradient"] != "finite"
            for b in beyond
        ),
        "masked_infinity": _word(finite(bench(rows, masked=-math.inf))),
        "empty_batch": _of_odd(bench, [Row(0), Row(0)]),
        "no_advantage": _of_odd(bench, [Row(2, 0.0), Row(2, 0.0)]),
        "smallest_difference": _smallest(bench),
    }


def _of_odd(bench: Bench, rows: list[Row]) -> str:
    try:
        return _word(finite(bench(rows, 4)))
    except Exception:  # the rest of what is asked does not hang on a batch that never comes
        return "raises"


def _word(is_finite: bool) -> str:
    return "finite" if is_finite else "not finite"


def _smallest(bench: Bench) -> float | None:
    """By the gradient where it follows the ratio, else by the value."""
    found = [bench([Row(1, -1.0, x, level=LEVEL)]) for x in (0.0, *TINY)]
    gradients = [reaction.gradient[0][0] for reaction in found]
    uncut = [i for i, g in enumerate(gradients) if g and i]
    for figures in (gradients, [reaction.value for reaction in found]):
        changes = {TINY[i - 1]: figures[i] - figures[0] for i in uncut}
        # Noise of another term is no answer; 16 bits show at least a part of the largest one.
        least = 0.1 * max(changes, default=0.0) * abs(gradients[0])
        if max(map(abs, changes.values()), default=0.0) > least:
            return _resolved(changes)
    return None


def _resolved(changes: dict[float, float]) -> float:
    """Smallest difference down to which the change is in proportion to it."""
    largest = max(changes)
    smallest, slope = math.inf, changes[largest] / largest
    for away in sorted(changes, reverse=True):
        if not abs(changes[away] - slope * away) <= 0.2 * abs(slope) * away:
            break
        smallest = away
    return smallest
