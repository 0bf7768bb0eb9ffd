"""Are the optimizer steps too bold? Signals that run away together, and a jump at a resume."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.numbers import number, percent
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import Run, Signal
from firstbad.tools.segments import OF_THE_UPDATES, HeldToSettings, stated_from
from firstbad.tools.updates import updates_per_batch

NEAR = 10


class StepSize(HeldToSettings):
    """Growth of KL, norm and entropy, and what a resume did to them."""

    n_steps: int
    rate: float | None
    """Median learning rate."""
    kl_peak: float | None
    """Largest rolling median (5 steps) of the KL to the reference, nats per token."""
    norm_growth: float | None
    """Largest rolling median of the gradient norm over its median in the first ten steps."""
    entropy_change: float | None
    """Largest abs(log) of the rolling median entropy over its first ten steps."""
    reward_lost: float | None
    """Share of the best reward level (above its lowest possible start) that is gone at the end."""
    runaway: bool
    """KL above 0.5 nats together with norm or entropy far from where they began, reward lost."""
    unheld: bool
    """The settings ask for no KL (`beta` 0) and none is logged; norm and entropy far from where
    they began, reward lost."""
    updates_per_batch: float | None
    clip_late: float | None
    reuse_alarm: bool
    """More than two updates per batch, a fifth of the best reward lost, and an alarm with it: clip
    fraction above 0.2 in the last third, or KL above 0.5 nats."""
    resume_step: int | None
    resume_kl_factor: float | None
    """How many times faster KL moves in the ten steps after the resume than in the twenty before:
    the lower of two figures, its mean change from step to step, which noise makes large where KL is
    high, and the way it goes from its level at the resume, which noise does not."""
    resume_norm_factor: float | None
    resume_jump: bool


@tool
def check_step_size(run: Run) -> Measured[StepSize]:
    """KL, gradient norm, entropy and reward running away together; and a jump right after a resume.

    Levels of KL and entropy alone are no fault; together with a lost reward they are. Updates per
    batch explain only what began in the launch that states them.

    Cannot tell: why the steps are too bold (rate, reuse, state); one-variable experiments can.
    """
    kl, norm = run.signals.get("kl_ref"), run.signals.get("grad_norm_preclip")
    updates = updates_per_batch(run)
    entropy, reward = run.signals.get("entropy"), run.signals.get("reward_mean")
    batches = _by_batch(reward, updates)
    if norm is None or len(norm.values) < NEAR:
        raise NoData("fewer than ten logged gradient norms")
    kl_smooth, norm_smooth = _smooth(kl), _smooth(norm)
    kl_peak = float(kl_smooth.max()) if kl_smooth is not None else None
    base = max(1e-12, float(np.median(norm.values[:NEAR])))
    growth = float(norm_smooth.max()) / base if norm_smooth is not None else None
    change = _entropy_change(entropy)
    last = NEAR if batches is reward else max(3, NEAR // int(updates or 1))
    lost, lost_at = _lost(batches, last)
    clip = run.signals.get("clip_frac_total")
    late = (
        float(np.array_split(clip.values, 3)[2].mean()) if clip and len(clip.values) > 2 else None
    )
    resume = _resume(run)
    alarm = (late is not None and late > 0.2) or (kl_peak is not None and kl_peak > 0.5)
    began = _first(kl, lost_at)
    stated = stated_from(run, *OF_THE_UPDATES)
    own = stated is None or (began is not None and began >= stated)
    much = updates is not None and updates > 2
    reuse = own and much and alarm and lost is not None and lost > 0.2
    runaway = not reuse and (
        kl_peak is not None
        and kl_peak > 0.5
        and lost is not None
        and lost > 0.5
        and ((growth or 0) > 3 or (change or 0) > 0.4)
    )
    unheld = (
        not reuse
        and kl is None
        and run.config.number("beta") == 0
        and stated_from(run, "beta") is None
        and lost is not None
        and lost > 0.5
        and (growth or 0) > 3
        and (change or 0) > 0.4
    )
    jump = bool(resume and (resume[1] or 0) > 4 and (resume[2] or 0) > 0.02)
    first = began if runaway or reuse or unheld else (resume[0] if jump and resume else None)
    rate = run.signals.get("learning_rate")
    steps = norm.steps
    metrics = StepSize(
        n_steps=len(norm.values),
        rate=None if rate is None else float(np.median(rate.values)),
        kl_peak=_r(kl_peak),
        norm_growth=_r(growth),
        entropy_change=_r(change),
        reward_lost=_r(lost),
        runaway=bool(runaway),
        unheld=bool(unheld),
        updates_per_batch=updates,
        clip_late=_r(late),
        reuse_alarm=bool(reuse),
        resume_step=resume[0] if resume else None,
        resume_kl_factor=_r(resume[1]) if resume else None,
        resume_norm_factor=_r(resume[3]) if resume else None,
        resume_jump=jump,
        settings_from_step=stated,
        first_bad_step=first,
        last_good_step=None if first is None or first <= int(steps[0]) else first - 1,
        from_start=first is not None and first <= int(steps[0]) + NEAR and not jump,
    )
    parts = [
        f"gradient norm reaches {number(growth, digits=2)} times its first level" if growth else ""
    ]
    if kl_peak is not None:
        parts.append(
            f"KL reaches {number(kl_peak, digits=3)} nats per token (median of five steps)"
        )
    if lost is not None and (runaway or reuse or unheld):
        parts.append(f"{percent(lost)} of the best reward level is lost at the end")
    return Measured(
        metrics,
        ", ".join(p for p in parts if p),
        window=(int(steps[0]), int(steps[-1])),
        signal="KL, norm and entropy together",
    )


def _by_batch(reward: Signal | None, updates: float | None) -> Signal | None:
    """The reward once a batch: the updates that train it again log it again."""
    if reward is None or updates is None or updates < 2 or not len(reward.values):
        return reward
    new = np.concatenate([[True], np.diff(reward.values) != 0])
    since = np.arange(len(new)) - np.maximum.accumulate(np.where(new, np.arange(len(new)), 0))
    kept = since % int(updates) == 0
    if kept.sum() < NEAR:
        return reward
    return replace(reward, steps=reward.steps[kept], values=reward.values[kept])


def _smooth(signal: Signal | None) -> np.ndarray[tuple[int], np.dtype[np.float64]] | None:
    if signal is None or len(signal.values) < 5:
        return None
    return np.asarray(
        np.median(np.lib.stride_tricks.sliding_window_view(signal.values, 5), axis=1), np.float64
    )


def _entropy_change(entropy: Signal | None) -> float | None:
    smooth = _smooth(entropy)
    if smooth is None:
        return None
    base = max(1e-9, float(np.median(smooth[:NEAR])))
    return float(np.abs(np.log(np.maximum(smooth, 1e-9) / base)).max())


def _lost(reward: Signal | None, last: int) -> tuple[float | None, int | None]:
    """Share of the best level lost in the `last` values, and the step at which half was gone."""
    smooth = _smooth(reward)
    if reward is None or smooth is None:
        return None, None
    best, end = float(smooth.max()), float(np.median(smooth[-last:]))
    low = min(0.0, float(reward.values.min()))
    lost = (best - end) / max(1e-9, best - low)
    peak = int(np.argmax(smooth))
    below = np.flatnonzero(smooth[peak:] < best - (best - end) / 2)
    if not len(below):
        return lost, None
    # The median of five is low once the third of them is.
    return lost, int(reward.steps[min(len(reward.steps) - 1, peak + int(below[0]) + 2)])


def _first(kl: Signal | None, lost_at: int | None) -> int | None:
    """First step whose KL leaves 0.1 nats for good, else where reward was lost."""
    smooth = _smooth(kl)
    if kl is not None and smooth is not None and (smooth > 0.1).any():
        # The median of five is high once the third of them is.
        return int(kl.steps[int(np.argmax(smooth > 0.1)) + 2])
    return lost_at


def _resume(run: Run) -> tuple[int, float | None, float | None, float | None] | None:
    """Step of the last resume; KL speed after over before; KL after; norm after over before."""
    steps = [e.step for e in run.events if e.kind == "resume" and e.step is not None]
    kl, norm = run.signals.get("kl_ref"), run.signals.get("grad_norm_preclip")
    if not steps or kl is None or norm is None:
        return None
    at = max(steps)
    before, after = kl.between(at - 20, at - 1), kl.between(at, at + NEAR)
    n0, n1 = norm.between(at - 20, at - 1), norm.between(at, at + NEAR)
    if len(before) < 10 or len(after) < 5 or not len(n0) or not len(n1):
        return None
    speed0 = max(1e-6, float(np.abs(np.diff(before)).mean()))
    speed1 = float(np.abs(np.diff(after)).mean())
    start, level = float(np.median(before[:3])), float(np.median(before[-3:]))
    way0 = max(1e-6, abs(level - start) / len(before))
    medians = np.median(np.lib.stride_tricks.sliding_window_view(after, 3), axis=1)
    way1 = float(np.abs(medians - level).max()) / len(after)
    faster = min(speed1 / speed0, way1 / way0)
    return at, faster, float(np.median(after)), float(np.median(n1) / np.median(n0))


def _r(value: float | None) -> float | None:
    return None if value is None else round(float(value), 6)
