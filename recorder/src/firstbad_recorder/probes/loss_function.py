"""What a loss function is, found by feeding it hand-made input and never by its name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from firstbad_recorder.probes.engine_weight import engine_weight
from firstbad_recorder.probes.kl_term import GRADIENTS, kl_term
from firstbad_recorder.probes.loss_input import Bench, LossFunction, Row, near
from firstbad_recorder.probes.loss_numerics import loss_numerics
from firstbad_recorder.probes.ratio_response import gate, near_bounds, ratio_response
from firstbad_recorder.probes.weighting import WEIGHTS, policy_gradient, weighting

KNOWN = ("clip", "mask", "ratio", "capped_weight", "constant", "sigmoid")
"""Forms whose gradient is known at any ratio; of the others it is known at 1."""
EPSILON = 0.2
"""Offset from 1 of a clip that is neither stated nor found."""


@dataclass(frozen=True)
class Stated:
    """The objective as it is meant; what is None is taken as it was found."""

    form: str | None = None
    """As `ratio_response` names it; `mask` where tokens outside the clip are meant to be left out
    whatever the sign of the advantage."""
    epsilon_low: float | None = None
    epsilon_high: float | None = None
    """Offsets from 1 of the clip."""
    dual_clip: float | None = None
    """Ratio above which a negative advantage is cut."""
    cap: float | None = None
    """Largest weight of a token, in losses that do not differentiate the ratio."""
    beta: float | None = None
    kl: str | None = None
    """`k1`, `k2` or `k3`: the estimator whose gradient is meant."""
    reduction: str | None = None
    """A name of `weighting.WEIGHTS`."""
    constant: float | None = None
    """What that is divided by besides."""


def examine(loss_function: LossFunction, dtype: Any = None, device: Any = "cpu") -> dict[str, Any]:
    """All that probing tells about a loss function.

    Args:
        loss_function: Called a few hundred times on a few rows; it must not keep state.
        dtype: Of the log-probs, as training has it; float32 unless given.
        device: Where the tensors are made.

    Returns:
        `ratio` (`ratio_response`), `reduction` (`weighting`), `kl` (`kl_term`), `engine`
        (`engine_weight`), `numerics` (`loss_numerics`, and `exp_before_clamp`: there is a hard
        limit on the ratio, and beyond it the value is finite and the gradient is not, since exp
        overflows before the limit is applied), `mixes_advantages` (whether a row's gradient moves
        with the advantage of another row: the rest then means little), `loss_types` (TRL's names
        of the losses that look so).
    """
    bench = Bench(loss_function, dtype, device)
    ratio = ratio_response(bench)
    reduction = weighting(bench, policy_gradient)
    cap = ratio.get("cap")
    if isinstance(cap, float) and cap < 1 and isinstance(reduction.get("factor"), float):
        reduction["factor"] /= cap  # a cap below 1 scales every token that is at ratio 1
        if "constant" in reduction:
            reduction["constant"] *= cap
    found: dict[str, Any] = {
        "ratio": ratio,
        "reduction": reduction,
        "kl": kl_term(bench, reduction),
        "engine": engine_weight(bench) if ratio["direction"] in ("up", "down") else {"used": False},
        "numerics": loss_numerics(bench),
        "mixes_advantages": _mixes_advantages(bench),
    }
    limited = any(
        b["advantage"] < 0 and b["side"] == "high" and b["ratio"] is not None
        for b in ratio.get("bounds", ())
    )
    hidden = found["numerics"].pop("hidden") and ratio["direction"] == "up"
    found["numerics"]["exp_before_clamp"] = limited and hidden
    found["loss_types"] = loss_types(found)
    return found


def _mixes_advantages(bench: Bench) -> bool:
    alone, beside = (bench([Row(2, 1.0), Row(2, a)]).gradient[0][0] for a in (0.5, -2.0))
    return math.isfinite(alone) and not near(alone, beside, 1e-3)


def loss_types(found: Mapping[str, Any]) -> list[str]:
    """TRL's loss types that cannot be told from what was found.

    `dapo` and `cispo` divide by a number from outside: a sum over tokens. `gspo` is any of them
    with `importance_sampling_level="sequence"`.
    """
    ratio, name = found["ratio"], found["reduction"].get("name")
    divided = "constant" in found["reduction"]
    rows = name in ("row_mean_of_token_mean", "trained_row_mean_of_token_mean")
    tokens = name in ("token_sum", "token_mean")
    by_form = {
        "capped_weight": ["cispo"] if tokens else [],
        "sigmoid": ["sapo"] if rows else [],
        "gamma": ["vespo"] if tokens else [],
        "constant": [],
    }
    form = ratio.get("form")
    if form in by_form:
        return by_form[form]
    if form != "clip" or wrongly_cut(ratio):
        return []
    if rows:
        return ["grpo"]
    if name == "token_mean":
        return ["bnpo", "dapo"]
    if name == "token_sum":
        return ["dapo"]
    if name == "row_mean_of_token_sum":
        return ["dr_grpo"] if divided else ["luspo"]
    return []


def wrongly_cut(ratio: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Sides at which a gradient is cut that must flow: low at A > 0, or high at A < 0 beside it.

    A high one at A < 0 alone is a dual clip.
    """
    at = near_bounds(ratio.get("bounds", ()))
    low, high = at.get((1.0, "low")), at.get((-1.0, "high"))
    if ratio.get("form") != "clip" or low is None:
        return []
    wrong = [{"advantage": 1.0, "side": "low", "ratio": low}]
    if high is not None:
        wrong.append({"advantage": -1.0, "side": "high", "ratio": high})
    return wrong


def objective(
    loss_function: LossFunction,
    stated: Stated | None = None,
    found: Mapping[str, Any] | None = None,
    dtype: Any = None,
    device: Any = "cpu",
) -> dict[str, object]:
    """The probe `objective` of FORMAT.md: gradients on hand-made input against the expected ones.

    Without a statement the expected ones are those of the form that was found, so that sign and
    sides are tested and no setting. `measured` is in units of the stated reduction, or of the
    weight at ratio 1 where none is stated.
    """
    found = found or examine(loss_function, dtype, device)
    meant = stated or Stated()
    bench = Bench(loss_function, dtype, device)
    ratio = found["ratio"]
    form = meant.form or ratio.get("form") or "clip"
    low, high, dual = _limits(meant, ratio)
    unit = _unit(bench, meant, ratio)
    cases = []
    points = _points(low, high, dual)
    for name, advantage, at in points if form in KNOWN else [p for p in points if p[2] == 1.0]:
        rows = [Row(2, a, math.log(at)) for a in (advantage, 0.0)]
        paid, unpaid = (bench([row]).gradient[0][0] for row in rows)
        expected = -advantage * _expected(form, advantage, at, (low, high, dual), meant, ratio)
        cases.append(_case(name, advantage, at, expected, (paid - unpaid) / unit))
    estimator = meant.kl or found["kl"].get("gradient")
    beta = meant.beta if meant.beta is not None else found["kl"].get("coefficient")
    if estimator in GRADIENTS and beta:
        for name, above in (("kl_above", -1.0), ("kl_below", 1.0)):
            pull = bench([Row(2, 0.0, ref_above=above)]).gradient[0][0] / unit
            cases.append(_case(name, 0.0, 1.0, beta * GRADIENTS[estimator](above), pull))
    twice = [bench([Row(2, 1.0), Row(2, -1.0)]).gradient[0][0] for _ in range(2)]
    repeated = abs(twice[0] - twice[1]) / abs(unit)
    return {"cases": cases, "spread": max(repeated, bench.eps)}


def _case(
    name: str, advantage: float, ratio: float, expected: float, measured: float
) -> dict[str, object]:
    return {
        "name": name,
        "advantage": advantage,
        "ratio": ratio,
        "expected": expected,
        "measured": measured,
    }


def _limits(meant: Stated, ratio: Mapping[str, Any]) -> tuple[float, float, float | None]:
    """Ratios at which the stated clip cuts; as found where it is not stated."""
    at = near_bounds(ratio.get("bounds", ()))
    low = at.get((-1.0, "low")) if meant.epsilon_low is None else 1 - meant.epsilon_low
    high = at.get((1.0, "high")) if meant.epsilon_high is None else 1 + meant.epsilon_high
    dual = meant.dual_clip
    if dual is None and not wrongly_cut(ratio):
        dual = at.get((-1.0, "high"))
    return low or 1 - EPSILON, high or 1 + EPSILON, dual


def _unit(bench: Bench, meant: Stated, ratio: Mapping[str, Any]) -> float:
    """Size of the gradient of one of two tokens of a single row, at ratio 1 and advantage 1."""
    if meant.reduction is not None:
        return WEIGHTS[meant.reduction]([2], 2)[0] / (meant.constant or 1.0)
    paid, unpaid = (bench([Row(2, a)]).gradient[0][0] for a in (1.0, 0.0))
    cap = meant.cap or ratio.get("cap") or 1.0
    size = abs(paid - unpaid) / min(1.0, cap)
    return size if size and math.isfinite(size) else 1.0


def _points(low: float, high: float, dual: float | None) -> list[tuple[str, float, float]]:
    """Name, advantage and ratio of each case."""
    outside = high * 1.2 if dual is None else min(high * 1.2, (high + dual) / 2)
    points = [
        ("up_inside", 1.0, 1.0),
        ("up_cut", 1.0, high * 1.2),
        ("up_flows", 1.0, low * 0.7),
        ("down_inside", -1.0, 1.0),
        ("down_cut", -1.0, low * 0.7),
        ("down_flows", -1.0, outside),
    ]
    return points if dual is None else [*points, ("down_dual_cut", -1.0, dual * 1.3)]


def _expected(
    form: str,
    advantage: float,
    at: float,
    limits: tuple[float, float, float | None],
    meant: Stated,
    ratio: Mapping[str, Any],
) -> float:
    """Derivative of the objective over the advantage, by the log-prob."""
    low, high, dual = limits
    if form == "constant" or at == 1.0:
        return min(1.0, meant.cap or ratio.get("cap") or 1.0)
    if form == "ratio":
        return at
    if form == "capped_weight":
        return min(max(at, ratio.get("floor") or 0.0), meant.cap or ratio.get("cap") or at)
    if form == "sigmoid":
        which = "temperature" if advantage > 0 else "temperature_down"
        return gate(math.log(at), ratio.get(which) or 1.0)
    if form == "mask":
        return at if low <= at <= high else 0.0
    if advantage > 0:
        return 0.0 if at > high else at
    return 0.0 if at < low or (dual is not None and at > dual) else at
