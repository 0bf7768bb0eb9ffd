"""Gradient norms against the clip value, and a whole factor that appears at one step."""

from __future__ import annotations

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated
from firstbad.tools.numbers import number, percent
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import FloatArray, Run, Signal
from firstbad.tools.stats import Shift, level_shift


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
    change_size: float | None
    """The same for a change with as few as five steps a side, too few to name a factor; 1 without
    one, None where the contrast is not known."""
    change_z: float | None
    """... its log in standard errors."""
    contrast_known: bool
    """The size of the advantages, which the norm goes with, is known in nine of ten steps."""
    per_contrast_late_over_early: float | None
    """Mean over the size of the advantages, of the last third over that of the first third; None
    where the contrast is not known."""
    per_contrast_z: float | None
    """... their difference in standard errors."""
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
    contrast = contrast_of(run, signal)
    unknown = np.isnan(contrast)
    contrast = np.where(unknown, _logged_contrast(run, signal), contrast)
    known = float(np.isfinite(contrast).mean()) >= 0.9
    contrast = np.nan_to_num(contrast, nan=1.0)
    used = (values > 0) & (contrast > 0.1)
    level = np.log(values[used] / contrast[used])
    shift = _jump(level, margin=10)
    few = min(10, max(5, len(level) // 4))
    change = _jump(level, margin=few, beats=0.8) if known else None
    factor = float(np.exp(shift.after - shift.before)) if shift else None
    at = shift.index if shift else None
    steps = signal.steps[used]
    early, _, late = np.array_split(values, 3)
    ratio, z = _late_change(values[used] / contrast[used]) if known else (None, None)
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
        change_size=_size(change) if known else None,
        change_z=_error_sizes(change, len(level)) if known else None,
        contrast_known=known,
        per_contrast_late_over_early=ratio,
        per_contrast_z=z,
        neighbours_still=None if at is None else _still(run, int(steps[at])),
        kl_late=_late(kl),
        entropy_late_over_early=_late_over_early(entropy),
        last_good_step=None if shift is None else int(steps[shift.earliest - 1]),
        first_bad_step=None if shift is None else int(steps[shift.latest]),
        sampled=shift is not None and shift.earliest < shift.latest,
    )
    median, largest = (number(float(x), digits=3) for x in (np.median(values), values.max()))
    text = f"gradient norm median {median}, largest {largest}"
    if clip is not None:
        text += f"; above the clip value {clip:g} in {percent(metrics.share_above_clip or 0)}"
    if factor is not None:
        text += f"; level changes by {factor:.2f} at step {steps[at]}"
    elif change is not None:
        text += (
            f"; over the size of the advantages it changes {metrics.change_size:.2f}-fold at step "
            f"{steps[change.index]} ({metrics.change_z:.1f} standard errors)"
        )
    return Measured(metrics, text, signal="level of the gradient norm")


def contrast_of(run: Run, signal: Signal) -> FloatArray:
    """Root mean square of the advantages at each step of a signal; NaN where not written."""
    found = np.full(len(signal.steps), np.nan)
    known = set(run.rollouts.steps.tolist())
    for i, step in enumerate(signal.steps.tolist()):
        advantage = run.rollouts.batch(step).advantage if step in known else None
        if advantage is not None and np.isfinite(advantage).all() and len(advantage):
            found[i] = float(np.sqrt(np.mean(advantage**2)))
    return found


def _logged_contrast(run: Run, signal: Signal) -> FloatArray:
    """Contrast by the logged share of groups without any: advantages of the others have unit size.

    NaN where it is not logged, or always 0: float32 spread of equal rewards can hide all of them.
    """
    logged = run.signals.get("frac_zero_variance_groups")
    if logged is None or not logged.values.any():
        return np.full(len(signal.steps), np.nan)
    shares = [logged.at(step) for step in signal.steps.tolist()]
    share = np.array([np.nan if value is None else value for value in shares])
    return np.sqrt(np.clip(1.0 - share, 0.0, 1.0))


def _late_change(values: FloatArray) -> tuple[float | None, float | None]:
    """Mean of the last third over that of the first, and the difference in standard errors."""
    early, _, late = np.array_split(values, 3)
    if len(late) < 10 or early.mean() <= 0:
        return None, None
    error = np.sqrt(early.var(ddof=1) / len(early) + late.var(ddof=1) / len(late))
    difference = float(late.mean() - early.mean())
    ratio = round(float(late.mean() / early.mean()), 4)
    return ratio, round(difference / max(float(error), 1e-12), 3)


def _size(change: Shift | None) -> float:
    return 1.0 if change is None else round(float(np.exp(abs(change.after - change.before))), 4)


def _error_sizes(change: Shift | None, n: int) -> float:
    """The change of a level of n values in standard errors."""
    if change is None:
        return 0.0
    return round(change.sds * float(np.sqrt(change.index * (n - change.index) / n)), 3)


def _jump(level: FloatArray, *, margin: int, beats: float = 1.0) -> Shift | None:
    """The single change of a log level, where it is large and two levels fit better than a line.

    They must leave less than `beats` of the squared error that a line leaves.
    """
    shift = level_shift(level, margin=margin)
    if shift is None or shift.sds < 1.5 or abs(shift.after - shift.before) < 0.45:
        return None
    place = np.arange(len(level))
    line = np.polynomial.Polynomial.fit(place, level, 1)(place)
    steps = np.where(place < shift.index, shift.before, shift.after)
    return shift if ((level - steps) ** 2).sum() < beats * ((level - line) ** 2).sum() else None


def _named(factor: float | None) -> float | None:
    if factor is None:
        return None
    larger = max(factor, 1 / factor)
    whole = round(larger)
    if whole < 2 or abs(larger - whole) > 0.1 * whole:
        return None
    return float(whole) if factor > 1 else round(1.0 / whole, 6)


def _still(run: Run, step: int) -> bool:
    rate = run.signals.get("learning_rate")
    moved = rate.between(step - 20, step) if rate is not None else np.empty(0)
    if len(moved) and moved.max() > 1.5 * moved.min():
        return False
    kl = run.signals.get("kl_ref")
    if kl is not None:
        near, far = kl.between(step - 10, step - 1), kl.between(step, step + 19)
        # The mean: a policy that breaks loose leaps and comes back before its level rises.
        if len(near) and len(far) and far.mean() > max(0.05, 3 * float(np.median(near))):
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
