"""The checks of a preflight: each measures with a probe and holds it against a bound."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from firstbad_recorder.probes.accumulation import SAME, named_factor
from firstbad_recorder.probes.accumulation import accumulation as probe_accumulation
from firstbad_recorder.probes.consistency import consistency
from firstbad_recorder.probes.fit import fit as probe_fit
from firstbad_recorder.probes.kl_term import estimator
from firstbad_recorder.probes.loss_function import wrongly_cut
from firstbad_recorder.probes.masks import masks

CHECKS = ("loss_numerics", "mask_construction", "accumulation", "trainer_repeatability")
"""What a certificate can hold. What else is checked stands in the report alone."""
LOG_RATIO = 20.0
"""nats up to which value and gradient must be finite: the usual place of a fuse."""
DIFFERENCE = 1e-3
"""nats that must still be seen at a log-prob of -10."""
REPEATED = {"float64": 1e-9, "float32": 1e-5}
LAYOUT = {"float64": 1e-6, "float32": 1e-3}
"""nats by which log-probs may differ on average, by dtype: the pass again, and row by row."""
REPEATED_16, LAYOUT_16 = 0.01, 0.1
"""The same in 16 bits, where another order of sums alone moves a log-prob by hundredths."""
FALL, FITTED, OFF = 0.02, 0.05, 0.01
"""Share of the likelihood that a fit must take off; nats below which nothing is left to fit; share
by which a gradient may miss the expected one."""

MASK_FIXES = {
    "n_trained_prompt": (
        "prompt tokens are trained",
        "set the mask to 0 up to the first sampled token",
    ),
    "n_trained_tool": (
        "tool tokens are trained",
        "set the mask to 0 where a tool or the environment wrote the token",
    ),
    "n_trained_padding": (
        "padding tokens are trained",
        "multiply the mask with the attention mask",
    ),
    "n_unseen_trained": (
        "trained tokens are hidden from attention",
        "let attention see every trained token",
    ),
    "n_last_untrained": (
        "rows that stopped do not train their last token",
        "count the end token as sampled",
    ),
    "n_sampled_untrained": (
        "sampled tokens are not trained",
        "set the mask to 1 on every sampled token of a row that is trained",
    ),
}
"""What a count of the mask probe says, and its fix."""

FACTOR_FIXES = {
    "mean of the micro-batches' means": "divide every micro-batch by the tokens of the whole "
    "batch, not by its own",
    "number of micro-batches": "divide the loss by the number of micro-batches once",
    "1 / number of micro-batches": "the loss is divided by the number of micro-batches twice",
    "number of accumulation steps": "do not multiply the loss by the number of accumulation steps",
    "1 / number of accumulation steps": "the loss is divided by the number of accumulation steps "
    "twice",
    "world size": "average the gradients of ranks instead of summing them, or divide the loss",
    "1 / world size": "the loss is divided by the number of ranks twice",
}
"""What a factor looks like, and its fix."""
SCALE_OFF = 0.02
"""Share by which a gradient may be larger or smaller than that of the stated loss."""


@dataclass
class Check:
    """One line of the report."""

    name: str
    outcome: str
    """`pass`, `fail` or `not_run`"""
    text: str
    measured: dict[str, Any] = field(default_factory=dict)
    bound: dict[str, Any] = field(default_factory=dict)
    fix: str = ""
    error: str = ""
    """What it raised, where it could not be run."""


def _judged(
    name: str,
    measured: dict[str, Any],
    bound: dict[str, Any],
    faults: Sequence[tuple[str, str]],
    sound: str,
) -> Check:
    """`faults` are pairs of what is wrong and its fix."""
    text = "; ".join(fault for fault, _ in faults) or sound
    fix = "; ".join(dict.fromkeys(fix for _, fix in faults))
    return Check(name, "fail" if faults else "pass", text, measured, bound, fix)


def loss_numerics(found: Mapping[str, Any], masked_finite: bool | None) -> Check:
    """What large, small and infinite log-probs do; `masked_finite` tells of the real batch."""
    measured = {k: v for k, v in found["numerics"].items() if k != "beyond"}
    measured["masked_log_probs_finite"] = masked_finite
    bound = {
        "finite_up_to": LOG_RATIO,
        "smallest_difference": DIFFERENCE,
        "exp_before_clamp": False,
    }
    faults = []
    if measured["finite_up_to"] < LOG_RATIO:
        faults.append((
            f"not finite beyond a log-ratio of {measured['finite_up_to']:g} (must hold to "
            f"{LOG_RATIO:g})",
            "take exp in float32, and clamp the log-ratio to +-20 before it",
        ))  # fmt: skip
    if measured["exp_before_clamp"]:
        faults.append((
            f"beyond a log-ratio of {measured['finite_up_to']:g} the loss is finite and its "
            "gradient is not: exp overflows before the limit on the ratio is applied",
            "clamp the log-ratio before exp, not the ratio after it",
        ))  # fmt: skip
    if measured["no_advantage"] == "not finite" and measured["finite_up_to"]:
        faults.append((
            "a batch in which all advantages are 0 gives a loss or gradient that is not finite",
            "divide by no sum of advantages, or by one with a floor",
        ))  # fmt: skip
    smallest = measured["smallest_difference"]
    if smallest is not None and smallest > DIFFERENCE and measured["finite_up_to"]:
        seen = "none up to 0.1" if math.isinf(smallest) else f"{smallest:g}"
        faults.append((
            f"smallest log-ratio that is seen at a log-prob of -10: {seen} nats (must see "
            f"{DIFFERENCE:g})",
            "compute log-probs in float32, and upcast before the subtraction",
        ))  # fmt: skip
    if measured["masked_infinity"] != "finite" and masked_finite is False:
        faults.append((
            "the batch holds log-probs that are not finite at masked places, and they spoil the "
            "loss",
            "select masked places away (masked_fill, where) before any arithmetic",
        ))  # fmt: skip
    sound = f"finite up to a log-ratio of {measured['finite_up_to']:g}"
    if smallest is not None:
        sound += f", differences of {smallest:g} nats are seen"
    return _judged("loss_numerics", measured, bound, faults, sound)


def loss_definition(
    found: Mapping[str, Any], probe: Mapping[str, Any], form: str | None = None
) -> Check:
    """Sign, clip sides, mask, and gradients against the expected ones of the stated form."""
    ratio, reduction = found["ratio"], found["reduction"]
    off = [c for c in probe["cases"] if _is_off(c, probe["spread"])]
    measured = {
        "direction": ratio["direction"],
        "form": ratio.get("form"),
        "reduction": reduction.get("name"),
        "kl": found["kl"]["gradient"],
        "loss_types": found["loss_types"],
        "masked_share": reduction.get("masked_share"),
        "wrong_cases": off,
    }
    faults = []
    if ratio["direction"] != "up":
        said = {
            "none": "a positive advantage does not move the log-prob",
            "down": "a positive advantage lowers the log-prob",
            "not_finite": "the gradient at ratio 1 is not finite",
        }
        faults.append((
            said[ratio["direction"]],
            "check the sign of the loss, and that nothing on the way is detached",
        ))  # fmt: skip
    for cut in wrongly_cut(ratio) if form != "mask" else ():
        above = "positive" if cut["advantage"] > 0 else "negative"
        faults.append((
            f"with a {above} advantage the gradient is cut at ratio {cut['ratio']:.4g}, where it "
            "must flow",
            "take the minimum of the clipped and the unclipped term (where both sides are meant to "
            'be cut, state form="mask")',
        ))  # fmt: skip
    if (reduction.get("masked_share") or 0.0) > OFF:
        faults.append((
            f"masked places have a weight of {reduction['masked_share']:.3g} of a trained token",
            "multiply with the loss mask before the sum",
        ))  # fmt: skip
    if found["mixes_advantages"]:
        faults.append((
            "a row's gradient moves with the advantage of another row",
            "normalise advantages by group before the loss, not in it",
        ))  # fmt: skip
    factor = _factor(probe["cases"]) if off else None
    if factor is not None and not faults:
        faults.append((
            f"every gradient is {factor:.4g} times that of the stated loss",
            "take the factor off the loss, or state what it is divided by",
        ))  # fmt: skip
    elif off and not faults:
        first = off[0]
        faults.append((
            f"{len(off)} of {len(probe['cases'])} gradients are not the expected ones: "
            f"{first['name']} (ratio {first['ratio']:.4g}) is {first['measured']:.4g} and must be "
            f"{first['expected']:.4g}",
            "compare the loss with the stated objective at this ratio",
        ))  # fmt: skip
    sound = f"{ratio.get('form')}, {reduction.get('name')}, KL {estimator(found['kl'])}"
    bound = {"direction": "up", "masked_share": 0.0, "wrong_cases": []}
    return _judged("loss_definition", measured, bound, faults, sound)


def _factor(cases: Sequence[Mapping[str, Any]]) -> float | None:
    """What all gradients are multiplied with; None where that differs, or is nothing."""
    first = next((c for c in cases if c["expected"]), None)
    if first is None:
        return None
    factor = first["measured"] / first["expected"]
    scaled = [{**c, "measured": c["measured"] / factor} for c in cases] if factor else []
    return factor if scaled and not any(_is_off(c, 0.0) for c in scaled) else None


def _is_off(case: Mapping[str, Any], spread: float) -> bool:
    size = max(abs(case["expected"]), abs(case["advantage"] * case["ratio"]), 1e-12)
    error = abs(case["measured"] - case["expected"])
    return not error <= max(OFF, 10 * spread) * size


def mask_construction(arrays: Mapping[str, Any]) -> Check:
    """`arrays`: arguments of `probes.masks.masks`, and `note`: how the mask was got."""
    measured = masks(**{k: v for k, v in arrays.items() if k != "note"})
    bound = {**dict.fromkeys(MASK_FIXES, 0), "shift": 0}
    offenders = measured["offenders"]
    first = f", first at row {offenders[0][0]}, place {offenders[0][1]}" if offenders else ""
    faults = [
        (f"{measured[key]} {text}{first if key != 'n_last_untrained' else ''}", fix)
        for key, (text, fix) in MASK_FIXES.items()
        if measured[key]
    ]
    if measured["shift"]:
        side = "left" if measured["shift"] > 0 else "right"
        faults = [(
            f"the mask lies {abs(measured['shift'])} to the {side} of the sampled tokens",
            "the mask belongs to the token whose log-prob it weighs: shift it with the labels",
        )]  # fmt: skip
    if not measured["n_trained"]:
        faults = [("no token is trained", "check where the mask is set to 0")]
    note = f"; {arrays['note']}" if arrays.get("note") else ""
    sound = f"{measured['n_trained']} trained tokens, all of them sampled by the policy{note}"
    return _judged("mask_construction", measured, bound, faults, sound)


def accumulation(how: Mapping[str, Any]) -> Check:
    """`how`: arguments of `probes.accumulation.accumulation`, and two things said of the batch.

    `without`: what was left out. `scale`: the `factor` of the gradient over that of the stated
    `loss`, and accumulation `steps` that are set.
    """
    measured = probe_accumulation(**{k: v for k, v in how.items() if k not in ("without", "scale")})
    looks = named_factor(measured)
    bound = {"norm_ratio": 1.0, "cosine": 1.0, "difference": max(SAME, 10 * measured["spread"])}
    text = (
        f"{measured['n_microbatches']} micro-batches against one batch: norm ratio "
        f"{measured['norm_ratio']:.4g} (must be 1), cosine {measured['cosine']:.5f} (must be 1)"
    )
    if bound["difference"] > SAME:
        text += f"; the whole batch repeated differs by {measured['spread']:.2g} itself"
    if how.get("without"):
        text += f"; measured without {how['without']}"
    faults = []
    if looks is not None:
        named = FACTOR_FIXES.get(
            looks, "compare which rows and which denominator each backward pass has"
        )
        faults.append((f"{text}; looks like: {looks}", named))
    if (scale := how.get("scale")) is not None:
        measured, bound = {**measured, "scale": scale["factor"]}, {**bound, "scale": 1.0}
        said = f"{scale['factor']:.4g} times the gradient of the stated {scale['loss']} (must be 1)"
        if looks is None:  # else the factor is named already
            faults += _scale_faults(scale, f"{text}; {said}")
        text = f"{text}; {said}"
    return _judged("accumulation", measured, bound, faults, text)


def _scale_faults(scale: Mapping[str, Any], said: str) -> list[tuple[str, str]]:
    """A constant factor on the loss, by what it is likely to be."""
    factor, steps = scale["factor"], scale["steps"]
    if abs(factor - 1) <= SCALE_OFF:
        return []
    names = {"number of accumulation steps": steps, "1 / number of accumulation steps": 1 / steps}
    for name, value in names.items():
        if value != 1 and abs(factor / value - 1) <= SCALE_OFF:
            return [(f"{said}; looks like: {name}", FACTOR_FIXES[name])]
    return [(said, "take the factor off the loss, or state the loss that is meant")]


def trainer_repeatability(how: Mapping[str, Any]) -> Check:
    """`how`: arguments of `probes.consistency.consistency`."""
    found = consistency(**how)
    kind = str(next(how["model"].parameters()).dtype).rpartition(".")[2]
    bound = {
        "recheck_mean": REPEATED.get(kind, REPEATED_16),
        "layout_mean": LAYOUT.get(kind, LAYOUT_16),
        "dtype": kind,
    }
    measured = {
        f"{name}_{figure}": found[name].get(figure)
        for name in ("recheck", "layout", "old", "engine")
        if name in found
        for figure in ("mean", "p99", "max", "n_nonfinite")
    }
    faults = []
    again, alone = (measured[f"{name}_mean"] for name in ("recheck", "layout"))
    if again is None or measured["recheck_n_nonfinite"]:
        faults.append(("log-probs are not finite", "find the operation with probes.trail.replay"))
    elif again > bound["recheck_mean"]:
        faults.append((
            f"the same pass again differs by {again:.3g} nats on average (bound "
            f"{bound['recheck_mean']:g} in {kind})",
            "switch dropout off in both passes (or use model.eval()), and fix random routing",
        ))  # fmt: skip
    elif alone is not None and alone > bound["layout_mean"]:
        faults.append((
            f"row by row without padding, log-probs differ by {alone:.3g} nats on average (bound "
            f"{bound['layout_mean']:g} in {kind})",
            "pass the attention mask, and positions that do not count padding",
        ))  # fmt: skip
    sound = f"the pass again differs by {again or 0.0:.3g} nats, row by row by {alone or 0.0:.3g}"
    return _judged("trainer_repeatability", measured, bound, faults, sound)


def fit(how: Mapping[str, Any]) -> Check:
    """`how`: arguments of `probes.fit.fit`."""
    measured = probe_fit(**how)
    first, last = measured["nll_first"], measured["nll_last"]
    text = f"likelihood {first:.4g} -> {last:.4g} nats per token in {measured['n_updates']} updates"
    fitted = first <= FITTED or last <= (1 - FALL) * first
    fix = "find where the graph is cut: no tensor gets a gradient"
    if measured["n_trained"]:
        fix = "check labels, shift and mask of the forward pass, and which parameters are trained"
    faults = [] if fitted else [(f"{text}: it must fall by {FALL:.0%}", fix)]
    return _judged("fit", measured, {"fall": FALL}, faults, text)
