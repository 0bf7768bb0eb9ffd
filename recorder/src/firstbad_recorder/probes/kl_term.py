"""Which KL estimator a loss holds, by what the distance from the reference does to it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Callable

from firstbad_recorder.probes.loss_input import Bench, Row, near
from firstbad_recorder.probes.weighting import kl_gradient, weighting

DISTANCES = (-2.0, -1.0, -0.3, 0.3, 1.0, 2.0)
"""logp_ref - logp_new, in nats."""

Shape = Callable[[float], float]

VALUES: dict[str, Shape] = {
    "k1": lambda d: -d,
    "k2": lambda d: d * d / 2,
    "k3": lambda d: math.exp(d) - d - 1,
    "abs": abs,
}
GRADIENTS: dict[str, Shape] = {
    "k1": lambda d: 1.0,
    "k2": lambda d: -d,
    "k3": lambda d: 1 - math.exp(d),
    "abs": lambda d: -math.copysign(1.0, d),
}
"""Estimators by d = logp_ref - logp_new, and their derivative by logp_new."""


def kl_term(bench: Bench, policy: Mapping[str, Any]) -> dict[str, Any]:
    """The term that pulls towards the reference, as far as it is part of this function.

    A KL that is part of the reward or the advantage cannot be seen here.

    Args:
        bench: The loss function.
        policy: `weighting` of the policy term, whose factor is divided out where it is the same.

    Returns:
        `value` and `gradient` (`k1`, `k2`, `k3`, `abs`, `other`, or `none`: no influence),
        `coefficient` (against the policy term), `reduction` (as `weighting` has it), `by_ratio`
        (whether the term is multiplied with the ratio), `other_term` (gradient of a token of a row
        of two where neither advantage nor reference has influence: an entropy bonus, say).
    """
    # One row at a time: the value of several says nothing about one of them.
    at = [bench([Row(2, 0.0, ref_above=d)]) for d in (0.0, *DISTANCES)]
    values = [reaction.value - at[0].value for reaction in at[1:]]
    pulls = [reaction.gradient[0][0] for reaction in at[1:]]
    if not all(map(math.isfinite, [*values, *pulls])):
        return {"value": "other", "gradient": "other", "coefficient": None, "finite": False}
    if not any(values) and all(near(p, pulls[0], 1e-6) for p in pulls):
        return {"value": "none", "gradient": "none", "coefficient": None, "other_term": pulls[0]}
    gradient = _match(pulls, GRADIENTS)
    found: dict[str, Any] = {
        "value": _match(values, VALUES),
        "gradient": gradient,
        "coefficient": None,
        "by_ratio": _by_ratio(bench),
    }
    if gradient in GRADIENTS:
        found["reduction"] = own = weighting(bench, kl_gradient)
        factor, unit = own.get("factor"), abs(GRADIENTS[gradient](1.0))
        if isinstance(factor, float):
            policy_factor = policy.get("factor") if policy.get("name") == own["name"] else 1.0
            found["coefficient"] = factor / unit / (policy_factor or 1.0)
    return found


def estimator(found: Mapping[str, Any]) -> str:
    """What `kl_term` found, in words: the gradient may be that of another one than the value.

    k3 times the ratio has the gradient of k2, and a value without gradient pulls nothing.
    """
    value, gradient = found["value"], found["gradient"]
    return str(value) if value == gradient else f"{value} (its gradient: {gradient})"


def _match(measured: list[float], shapes: dict[str, Shape]) -> str:
    """Name of the shape that the figures have up to a factor."""
    size = max(map(abs, measured))
    if not size:
        return "none"
    for name, shape in shapes.items():
        expected = [shape(d) for d in DISTANCES]
        scale = sum(m * e for m, e in zip(measured, expected)) / sum(e * e for e in expected)
        if max(abs(m - scale * e) for m, e in zip(measured, expected)) <= 0.02 * size:
            return name
    return "other"


def _by_ratio(bench: Bench) -> bool:
    """Whether the value of the term doubles where the ratio does."""
    at = []
    for away in (0.0, math.log(2.0)):
        far, none = (bench([Row(2, 0.0, away, ref_above=d)]).value for d in (1.0, 0.0))
        at.append(far - none)
    return near(at[1], 2 * at[0], 0.05)
