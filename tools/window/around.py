"""Signals before and after a step: what a complaint can be held against."""

from __future__ import annotations

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Metrics, Scalar, Table
from firstbad.tools.numbers import number
from firstbad.tools.outcome import looks_like_outcome
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import FloatArray, Run, Signal

SPAN = 30
"""Steps on each side: long enough to average the noise of single steps out."""
FEWEST = 3
"""Values that a side needs for a standard error."""
LARGEST = 999.0
"""Standard errors are cut here: a signal that is constant on both sides has none."""

SIGNALS = {
    "reward": "reward_mean",
    "eval": "eval/reward_mean",
    "kl": "kl_ref",
    "entropy": "entropy",
    "length": "completion_length_mean",
    "loss": "loss",
    "norm": "grad_norm_preclip",
    "clip": "clip_frac_total",
    "time": "step_time",
}


class Around(Metrics):
    """Means of signals before and after a step, without a step of the first and last third.

    `*_z` is after less before in standard errors of the difference; None where the signal is not
    logged, or not on both sides.
    """

    step: int | None
    """The step that divides them; None where the thirds of the run are compared."""
    before_first_step: int
    before_last_step: int
    after_first_step: int
    after_last_step: int
    outside_by: int
    """Steps by which it lies outside what is recorded; 0 inside, and without a step."""
    before_change: int | None
    """Steps from it to the first change; negative after it, None without one of the two."""
    first_step: int
    last_step: int
    reward_before: float | None
    reward_after: float | None
    reward_z: float | None
    eval_before: float | None
    eval_after: float | None
    eval_z: float | None
    outcome_before: float | None
    outcome_after: float | None
    outcome_z: float | None
    outcome_early: float | None
    """Mean of the outcome in the first third of the steps from `step` on; without it, of the second
    half of the run."""
    outcome_late: float | None
    """... and in the last third of them."""
    outcome_rise_z: float | None
    """Late less early, in standard errors: whether it goes on rising."""
    kl_before: float | None
    kl_after: float | None
    kl_z: float | None
    entropy_before: float | None
    entropy_after: float | None
    entropy_z: float | None
    length_before: float | None
    length_after: float | None
    length_z: float | None
    loss_before: float | None
    loss_after: float | None
    loss_z: float | None
    norm_before: float | None
    norm_after: float | None
    norm_z: float | None
    clip_before: float | None
    clip_after: float | None
    clip_z: float | None
    time_before: float | None
    time_after: float | None
    time_z: float | None


@tool
def compare_around(
    run: Run,
    step: int | None = None,
    change: int | None = None,
    span: int = SPAN,
    at_resume: bool = False,
) -> Measured[Around]:
    """Mean of each signal in the `span` steps before a step and in as many from it on.

    Without a step, or at the very first ones, the first third is compared with the last.
    `at_resume` divides at the resume that lies nearest to `step`; without a step, at the last one.
    `outcome` is the reward part that scores the answer, or the reward where none is known.

    Cannot tell: a cause. Signals drift in healthy runs too, and steps are not quite independent,
    so that the standard errors are a little too small.

    `change` is the first step of a change that was found, for the distance to it.
    """
    steps = run.signals.steps
    if len(steps) < 2:
        raise NoData("fewer than two logged steps")
    first, last = int(steps[0]), int(steps[-1])
    if at_resume:
        step = _resume(run, step)
    outside = 0 if step is None else max(first - step, step - last, 0)
    logged = {name: run.signals.get(key) for name, key in SIGNALS.items()}
    logged["outcome"] = outcome_signal(run) or logged["reward"]
    before, after = _spans(first, last, step, max(span, FEWEST))
    measured: dict[str, float | None] = {}
    rows: list[tuple[Scalar, ...]] = []
    for name, signal in logged.items():
        found: tuple[float | None, ...] = (None, None, None)
        if signal is not None and not outside:
            found = _compare(signal, before, after)
            rows.append((signal.source_key, *found))
        measured |= dict(zip((f"{name}_before", f"{name}_after", f"{name}_z"), found, strict=True))
    later: tuple[float | None, ...] = (None, None, None)
    if logged["outcome"] is not None and not outside:
        start = after[0] if after[0] == step else (first + last + 1) // 2
        later = _compare(logged["outcome"], *_thirds(start, last))
    ends = ("outcome_early", "outcome_late", "outcome_rise_z")
    measured |= dict(zip(ends, later, strict=True))
    metrics = Around(
        step=step if outside or after[0] == step else None,
        before_first_step=before[0],
        before_last_step=before[1],
        after_first_step=after[0],
        after_last_step=after[1],
        outside_by=outside,
        before_change=None if step is None or change is None else change - step,
        first_step=first,
        last_step=last,
        **measured,
    )
    sides = f"steps {before[0]} to {before[1]} against {after[0]} to {after[1]}"
    if outside:
        text = f"step {step} lies outside the recorded steps {first} to {last}"
    else:
        moved = [f"`{r[0]}` {number(r[1])} -> {number(r[2])}" for r in rows[:4]]
        text = f"{sides}: {', '.join(moved)}"
    table = Table(
        title=f"means of {sides}",
        columns=("signal", "before", "after", "standard errors"),
        rows=tuple(rows),
    )
    return Measured(metrics, text, tables=(table,) if rows else (), window=(first, last))


def _resume(run: Run, near: int | None) -> int | None:
    """Step of the resume nearest to a step, or of the last one; None without a dated resume."""
    steps = sorted(e.step for e in run.events if e.kind == "resume" and e.step is not None)
    if near is None or not steps:
        return steps[-1] if steps else None
    return min(steps, key=lambda step: abs(step - near))


def outcome_signal(run: Run) -> Signal | None:
    """The only logged reward part whose name says that it scores the answer."""
    parts = run.signals.under("reward_part")
    named = [signal for name, signal in parts.items() if looks_like_outcome(name)]
    return named[0] if len(named) == 1 else None


def _spans(
    first: int, last: int, step: int | None, span: int
) -> tuple[tuple[int, int], tuple[int, int]]:
    """First and last step of both sides; a step that has no before is no dividing line."""
    if step is None or step <= first + FEWEST:
        return _thirds(first, last)
    return (max(first, step - span), step - 1), (step, min(last, step + span - 1))


def _thirds(first: int, last: int) -> tuple[tuple[int, int], tuple[int, int]]:
    third = max(1, (last - first + 1) // 3)
    return (first, first + third - 1), (last - third + 1, last)


def _compare(
    signal: Signal, before: tuple[int, int], after: tuple[int, int]
) -> tuple[float | None, float | None, float | None]:
    """Means of both sides, and their difference in standard errors from 3 values a side on."""

    def side(span: tuple[int, int]) -> FloatArray:
        values: FloatArray = signal.values[(signal.steps >= span[0]) & (signal.steps <= span[1])]
        return values[np.isfinite(values)]

    a, b = side(before), side(after)
    means = [round(float(x.mean()), 6) if len(x) else None for x in (a, b)]
    if min(len(a), len(b)) < FEWEST:
        return means[0], means[1], None
    difference = float(b.mean() - a.mean())
    error = float(np.sqrt(a.var(ddof=1) / len(a) + b.var(ddof=1) / len(b)))
    z = 0.0 if difference == 0 else difference / max(error, abs(difference) / LARGEST)
    return means[0], means[1], round(z, 3)
