"""Gradient norms against the clip value, and a whole factor that appears at one step."""

from __future__ import annotations

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated
from firstbad.tools.numbers import number, percent
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import FloatArray, Run, Signal
from firstbad.tools.stats import level_shift


class Norms(Dated):
    """Gradient norms, logged before clipping unless the framework says otherwise."""

    n_steps: int
    clip_value: float | None
    share_above_clip: float | None
    """Share of steps whose norm exceeds the clip value: normal, the logged norm is taken before
    clipping."""
    norm_over_clip_median: float | None
    late_over_early: float
    """Median of the last third over that of the first third."""
    early_over_late: float
    largest_over_median: float
    shift_factor: float | None
    """Level after over level before the best single change of the norm over the size of the
    advantages; None without one."""
    shift_size: float | None
    """The larger of that factor and its inverse."""
    factor_named: float | None
    """That factor where it is a whole number (or inverse) within 10 %."""
    zero_share: float
    """Of steps with a learning rate above 0: the norm is exactly 0."""
    kl_still_share: float | None
    """Of steps after the fifth with a learning rate above 0: KL to the reference is below 1e-9;
    None where beta is 0 or no KL is logged."""
    kl_first: float | None
    """KL to the reference at step 1, before any update; None where the log begins later."""
    neighbours_still: bool | None
    """Entropy, length, reward and its spread move by less than a fifth across the same step."""
    kl_late: float | None
    """Median KL to the reference over the last third, nats per token."""
    entropy_late_over_early: float | None


@tool
def check_norms(run: Run) -> Measured[Norms]:
    """Gradient norms: level, clip hits, and a jump by a whole factor while the rest stands still.

    Under Adam a uniform factor cancels in the update, so it shows in the norm and hardly anywhere
    else.

    Cannot tell: the size of the update itself, nor per-layer norms.
    """
    signal = run.signals.get("grad_norm_preclip")
    if signal is None or len(signal.values) < 10:
        raise NoData("fewer than ten logged gradient norms")
    values = signal.values
    clip = run.config.number("max_grad_norm") or None
    # The gradient goes with the size of the advantages: their fall is no factor of the pipeline.
    contrast = _contrast(run, signal)
    used = (values > 0) & (contrast > 0.1)
    positive = values[used] / contrast[used]
    shift = level_shift(np.log(positive), margin=10) if len(positive) >= 20 else None
    strong = shift is not None and shift.sds > 1.5 and abs(shift.after - shift.before) > 0.45
    factor = float(np.exp(shift.after - shift.before)) if shift and strong else None
    at = shift.index if shift and strong else None
    steps = signal.steps[used]
    early, _, late = np.array_split(values, 3)
    kl = run.signals.get("kl_ref")
    entropy = run.signals.get("entropy")
    metrics = Norms(
        n_steps=len(values),
        clip_value=clip,
        share_above_clip=None if clip is None else round(float((values > clip).mean()), 6),
        norm_over_clip_median=None if clip is None else round(float(np.median(values) / clip), 4),
        late_over_early=round(float(np.median(late) / max(1e-12, float(np.median(early)))), 4),
        early_over_late=round(float(np.median(early) / max(1e-12, float(np.median(late)))), 4),
        largest_over_median=round(float(values.max() / max(1e-12, float(np.median(values)))), 4),
        shift_factor=None if factor is None else round(factor, 4),
        shift_size=None if factor is None else round(max(factor, 1 / factor), 4),
        factor_named=_named(factor),
        zero_share=_zero_share(run, signal),
        kl_still_share=_kl_still(run, kl),
        kl_first=None if kl is None else kl.at(1),
        neighbours_still=None if at is None else _still(run, int(steps[at])),
        kl_late=_late(kl),
        entropy_late_over_early=_late_over_early(entropy),
        last_good_step=None if at is None else int(steps[at - 1]),
        first_bad_step=None if at is None else int(steps[at]),
    )
    median, largest = (number(float(x), digits=3) for x in (np.median(values), values.max()))
    text = f"gradient norm median {median}, largest {largest}"
    if clip is not None:
        text += f"; above the clip value {clip:g} in {percent(metrics.share_above_clip or 0)}"
    if factor is not None:
        text += f"; level changes by {factor:.2f} at step {metrics.first_bad_step}"
    return Measured(metrics, text, signal="level of the gradient norm")


def _contrast(run: Run, signal: Signal) -> FloatArray:
    """Root mean square of the advantages at each step of a signal; 1 where they are not written."""
    found = np.ones(len(signal.steps))
    known = set(run.rollouts.steps.tolist())
    for i, step in enumerate(signal.steps.tolist()):
        advantage = run.rollouts.batch(step).advantage if step in known else None
        if advantage is not None and np.isfinite(advantage).all() and len(advantage):
            found[i] = float(np.sqrt(np.mean(advantage**2)))
    return found


def _moving(run: Run, signal: Signal) -> list[bool]:
    """Whether the learning rate is above 0 (or unknown) at each step of a signal."""
    rate = run.signals.get("learning_rate")
    return [rate is None or (rate.at(int(s)) or 0.0) > 0 for s in signal.steps]


def _zero_share(run: Run, norm: Signal) -> float:
    use = np.array(_moving(run, norm))
    return round(float((norm.values[use] == 0).mean()), 6) if use.any() else 0.0


def _kl_still(run: Run, kl: Signal | None) -> float | None:
    if kl is None or not run.config.number("beta"):
        return None
    use = np.array(_moving(run, kl)) & (np.arange(len(kl.values)) >= 5)
    return round(float((np.abs(kl.values[use]) < 1e-9).mean()), 6) if use.any() else None


def _named(factor: float | None) -> float | None:
    if factor is None:
        return None
    larger = max(factor, 1 / factor)
    whole = round(larger)
    if whole < 2 or abs(larger - whole) > 0.1 * whole:
        return None
    return float(whole) if factor > 1 else round(1.0 / whole, 6)


def _still(run: Run, step: int) -> bool:
    kl = run.signals.get("kl_ref")
    if kl is not None:
        near, far = kl.between(step - 10, step - 1), kl.between(step, step + 19)
        if len(near) and len(far) and np.median(far) > max(0.05, 3 * float(np.median(near))):
            return False
    names = ("entropy", "completion_length_mean", "reward_mean", "reward_std")
    for signal in (run.signals.get(n) for n in names):
        if signal is None:
            continue
        before, after = signal.between(step - 10, step - 1), signal.between(step, step + 9)
        if len(before) < 5 or len(after) < 5:
            continue
        gap = abs(float(np.median(after)) - float(np.median(before)))
        if gap > 0.2 * abs(float(np.median(before))):
            return False
    return True


def _late(signal: Signal | None) -> float | None:
    if signal is None or len(signal.values) < 3:
        return None
    return round(float(np.median(np.array_split(signal.values, 3)[2])), 6)


def _late_over_early(signal: Signal | None) -> float | None:
    if signal is None or len(signal.values) < 9:
        return None
    early, _, late = np.array_split(signal.values, 3)
    base = float(np.median(early))
    return round(float(np.median(late)) / base, 4) if base > 0 else None
