"""Finiteness: the first NaN or Inf, in the order of computation."""

from __future__ import annotations

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Table
from firstbad.tools.numbers import number
from firstbad.tools.numerics.trail import EXP_LIMIT
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import TOOL, BoolArray, Capture, Run
from firstbad.tools.tokens import completion_end, sources

# Where a quantity stands in the order of computation: the first to break is nearest the cause.
ORDER = {
    "logp_new": 1,
    "logp_old": 1,
    "logp_ref": 1,
    "entropy": 1,
    "ratio_max": 2,
    "ratio_min": 2,
    "ratio_mean": 2,
    "advantage": 2,
    "kl_ref": 3,
    "kl_old": 3,
    "loss": 4,
    "grad_norm_preclip": 5,
    "reward_mean": 0,
}


class Numbers(Dated):
    """Non-finite values."""

    n_captures: int
    n_unreadable: int
    """Captures that could not be read, and that no tool could look at."""
    n_values: int
    n_signals: int
    nonfinite_captured: int
    """Non-finite values among captured trained tokens and advantages; where no loss mask was
    captured, among completion tokens."""
    nonfinite_masked: int
    """Non-finite log-probs of tokens outside the loss, in the capture of the first bad step; 0
    where a capture of a sound step has them too."""
    forward_finite: bool | None
    """In that capture the log-probs of the pass that is differentiated are finite."""
    log_ratio_over_limit: float | None
    """Largest log-ratio in that capture (new against old or reference, masked tokens too) over the
    largest argument for which exp is finite."""
    nonfinite_logged_steps: int
    """Steps at which a recognised signal was logged as NaN or Inf, without `scaler_skips`."""
    scaler_skips: int
    """Steps at which only the gradient norm is not finite while fp16 is trained with a loss scaler,
    where they are fewer than a tenth: such a step is skipped and the scale lowered."""
    first_nonfinite_order: int | None
    """Place in the order of computation of what broke first: 0 reward, 1 log-prob, 2 ratio,
    3 KL, 4 loss, 5 gradient."""
    finite_beside: int
    """Quantities earlier in that order that are logged as finite at the first bad step."""
    trail_finite_there: bool | None
    """Every tensor of the recorded trail is finite at the first bad step, loss and gradient among
    them; None where none was recorded there."""
    low_precision_config: bool | None
    """The config trains in float16 or bfloat16."""


@tool
def check_numbers(run: Run) -> Measured[Numbers]:
    """Non-finite values in captures and metrics.

    The first non-finite quantity in the order of computation is one or two
    operations after the cause.

    Cannot tell: values between captures; a loss whose NaN the framework filters (TRL does by
    default), so gradient norm and KL are read as well.
    """
    found: list[tuple[int, int, str, int]] = []  # step, order, name, count
    in_captures = 0
    captures = 0
    values = 0
    for capture in run.captures:
        captures += 1
        for name, bad, n in _captured(run, capture):
            values += n
            if bad:
                found.append((capture.step, ORDER.get(name, 3), name, bad))
                in_captures += bad
    logged: set[int] = set()
    for name, signal in run.signals.known.items():
        if name not in ORDER or (name == "reward_mean" and not _rewards_nonfinite(run)):
            continue  # a part that was never scored is NaN for good reasons
        logged.update(signal.nonfinite_steps)
        found += [(s, ORDER[name], name, 1) for s in signal.nonfinite_steps]
    if not captures and not run.signals.known:
        raise NoData("no captures and no metrics")
    finite = [s for s in run.signals.known.values() if len(s.values)]
    if run.signals.known and not finite and not logged:
        raise NoData("the metrics hold no finite value at all")
    skips = _scaler_skips(run, found)
    found = [f for f in found if f[0] not in skips]
    logged -= skips
    found.sort()
    first = found[0] if found else None
    steps = run.signals.steps.tolist() or [c.step for c in run.captures]
    good = [s for s in steps if first is None or s < first[0]]
    beside = _finite_beside(run, first)
    masked, forward, over = _at_first(run, None if first is None else first[0])
    low = run.config.flag("fp16") or run.config.flag("bf16")
    metrics = Numbers(
        n_captures=captures,
        n_unreadable=len(run.captures.unreadable),
        n_values=values,
        n_signals=len(run.signals.known),
        nonfinite_captured=in_captures,
        nonfinite_masked=masked,
        forward_finite=forward,
        log_ratio_over_limit=over,
        nonfinite_logged_steps=len(logged),
        scaler_skips=len(skips),
        first_nonfinite_order=first[1] if first else None,
        finite_beside=len(beside),
        trail_finite_there=None if first is None else _trail_finite(run, first[0]),
        low_precision_config=low,
        last_good_step=int(good[-1]) if good and first else None,
        first_bad_step=first[0] if first else None,
        from_start=first is not None and not good,
    )
    table = Table(
        title="non-finite values in the order of steps and computation",
        columns=("step", "quantity", "count"),
        rows=tuple((s, n, c) for s, _, n, c in found[:20]),
        cut_rows=max(0, len(found) - 20),
    )
    text = f"{values} captured values and {len(run.signals.known)} signals: "
    text += f"first non-finite is `{first[2]}` at step {first[0]}" if first else "all finite"
    if beside:
        told = ", ".join(f"`{name}` {number(value, digits=3)}" for name, value in beside)
        text += f", where {told} are finite"
    if skips:
        text += f"; the gradient norm alone is not finite at {len(skips)} steps, with a loss scaler"
    if run.captures.unreadable:
        steps_lost = ", ".join(map(str, sorted(run.captures.unreadable)[:6]))
        text += f"; {len(run.captures.unreadable)} captures cannot be read (step {steps_lost})"
    return Measured(
        metrics,
        text,
        tables=(table,) if found else (),
        signal=f"finiteness of {first[2]}" if first else "",
    )


def _trail_finite(run: Run, step: int) -> bool | None:
    """Whether a whole trail, from log-probs to loss and gradient, is finite at a step."""
    trail = run.flight.at(step).trail if step in run.flight.steps else ()
    if not {"logp", "loss", "grad"} <= {one.place for one in trail}:
        return None
    counts = [one.n_nonfinite for one in trail]
    return None if None in counts else not any(counts)


def _finite_beside(run: Run, first: tuple[int, int, str, int] | None) -> list[tuple[str, float]]:
    """Logged quantities that come before the first non-finite one, at its step."""
    if first is None:
        return []
    found = []
    for name, signal in run.signals.known.items():
        there = signal.values[signal.steps == first[0]]
        if 0 < ORDER.get(name, 0) < first[1] and len(there) and np.isfinite(there).all():
            found.append((name, float(there[0])))
    return found


HALF = ("fp16", "float16", "16", "16-mixed", "half")


def _scaler_skips(run: Run, found: list[tuple[int, int, str, int]]) -> set[int]:
    """Steps that an fp16 loss scaler skipped: only the gradient overflowed, and not for long."""
    config = run.config
    half = config.flag("fp16") or any(
        str(config.values.get(k)).lower() in HALF for k in ("mixed_precision", "precision", "dtype")
    )
    norm = run.signals.get("grad_norm_preclip")
    if not half or norm is None:
        return set()
    others = {step for step, _, name, _ in found if name != "grad_norm_preclip"}
    alone = set(norm.nonfinite_steps) - others
    return alone if len(alone) < 0.1 * (len(norm.steps) + len(norm.nonfinite_steps)) else set()


_CAPTURED = ("logp_new", "logp_old", "logp_ref", "entropy", "advantage")


def _captured(run: Run, capture: Capture) -> list[tuple[str, int, int]]:
    use = completion_end(run, capture).real if "token_id" in capture.arrays else None
    loss = capture.mask("loss_mask")
    if use is not None and loss is not None and loss.shape == use.shape:
        use = use & loss
    counts = []
    for name in _CAPTURED:
        array = capture.numbers(name)
        if array is None:
            continue
        if use is not None and array.shape == use.shape:
            array = array[use]
        counts.append((name, int((~np.isfinite(array)).sum()), int(array.size)))
    return counts


def _at_first(run: Run, step: int | None) -> tuple[int, bool | None, float | None]:
    """What the capture of the first bad step holds: see the fields of `Numbers`."""
    at = None if step is None else run.captures.readable(step)
    if step is None or at is None:
        return 0, None, None
    masked = _nonfinite_masked(run, at)
    earlier = (c for c in run.captures if c.step < step)
    if masked and any(_nonfinite_masked(run, c) for c in earlier):
        masked = 0
    new = at.numbers("logp_new")
    if new is None or "token_id" not in at.arrays:
        return masked, None, None
    tokens = _tokens(run, at)
    forward = bool(np.isfinite(new[tokens]).all()) if tokens.shape == new.shape else None
    limit = EXP_LIMIT.get(at.compute_dtypes.get("logp_new", ""), EXP_LIMIT["float32"])
    sizes = [
        float(np.abs(away[np.isfinite(away)]).max(initial=0.0)) / limit
        for name in ("logp_old", "logp_ref")
        if (other := at.numbers(name)) is not None and other.shape == new.shape
        for away in [(new - other)[tokens] if tokens.shape == new.shape else new - other]
    ]
    return masked, forward, round(max(sizes), 6) if sizes else None


def _tokens(run: Run, capture: Capture) -> BoolArray:
    """(R, T) places that hold a token: sampled, or of a tool."""
    source = sources(capture)
    real = completion_end(run, capture).real
    return real if source is None else real | (source == TOOL)


def _nonfinite_masked(run: Run, capture: Capture) -> int:
    loss = capture.mask("loss_mask")
    if "token_id" not in capture.arrays or loss is None:
        return 0
    outside = _tokens(run, capture)
    if outside.shape != loss.shape:
        return 0
    outside = outside & ~loss
    return sum(
        int((~np.isfinite(array[outside])).sum())
        for name in ("logp_new", "logp_old", "logp_ref")
        if (array := capture.numbers(name)) is not None and array.shape == outside.shape
    )


def _rewards_nonfinite(run: Run) -> bool:
    """Whether the rollouts hold an infinite reward or a row without any score; True without any."""
    if not run.rollouts:
        return True
    for batch in run.rollouts.batches():
        for values in batch.rewards.values():
            if np.isinf(values).any():
                return True
        if batch.rewards and np.isnan(np.stack(list(batch.rewards.values()))).all(axis=0).any():
            return True
    return False
