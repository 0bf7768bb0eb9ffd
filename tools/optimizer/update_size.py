"""How large the updates are, parameter group by parameter group, where a recorder kept them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Table
from firstbad.tools.flight import FlightStep
from firstbad.tools.numbers import number
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import Run

FEWEST = 3
"""Captured steps before a step that it is compared with."""
JUMP = 5.0
"""Factor of the update over its usual size that dates a jump."""


class UpdateSize(Dated):
    """Size of the update over the size of the weights, over all parameter groups."""

    n_steps: int
    """Captured steps with norms of update and weights."""
    relative_median: float
    """Norm of the update over the norm of the weights, median of the steps."""
    relative_largest: float
    jump_factor: float | None
    """Update over learning rate, at the step where it is largest over the median of all captured
    steps before it; None for fewer than four steps."""
    grad_factor: float | None
    """The gradient norm of that step over its own median before."""
    jump_beyond_grad: float | None
    """Update factor over gradient factor: near 1 where the update goes with the gradient."""
    leapt: bool
    """More than fivefold, and more than half of that beyond the gradient."""


class CapturedUpdate(NamedTuple):
    """Norms over all parameter groups of one captured step."""

    step: int
    update: float
    weight: float
    rate: float | None
    grad: float | None


def captured_updates(run: Run) -> list[CapturedUpdate]:
    """Updates of all captured steps that have the norms of all their groups."""
    return [found for kept in run.flight if (found := _step(run, kept)) is not None]


@tool
def measure_update_size(run: Run) -> Measured[UpdateSize]:
    """Norm of each captured update, over the weights and over the learning rate.

    An update that leaps at an unchanged rate, while the gradient stays, comes from the optimizer's
    state. From its first step on Adam's update per rate falls and then stays.

    Cannot tell: anything between captured steps; groups that the recorder was not told of.
    """
    steps = captured_updates(run)
    if not steps:
        raise NoData("no captured steps with norms of update and weights (recorder)")
    relative = np.array([s.update / s.weight for s in steps])
    # A step whose rate is 0 or not known has no update per rate, where others have one.
    rated = [s for s in steps if s.rate] or steps
    at, jump = _jump(np.array([s.update / (s.rate or 1.0) for s in rated]))
    grads = [s.grad for s in rated[:at] if s.grad] if at is not None else []
    grad = rated[at].grad if at is not None else None
    grad_factor = grad / float(np.median(grads)) if grad and len(grads) >= FEWEST else None
    beyond = jump / grad_factor if jump is not None and grad_factor else None
    leapt = jump is not None and jump > JUMP and (beyond or jump) > JUMP / 2
    metrics = UpdateSize(
        n_steps=len(steps),
        relative_median=_short(float(np.median(relative))),
        relative_largest=_short(float(relative.max())),
        jump_factor=None if jump is None else round(jump, 4),
        grad_factor=None if grad_factor is None else round(grad_factor, 4),
        jump_beyond_grad=None if beyond is None else round(beyond, 4),
        leapt=leapt,
        last_good_step=rated[at - 1].step if leapt and at is not None else rated[-1].step,
        first_bad_step=rated[at].step if leapt and at is not None else None,
        sampled=bool(leapt and at is not None and rated[at].step - rated[at - 1].step > 1),
    )
    text = (
        f"{len(steps)} captured updates of {number(metrics.relative_median, digits=2)} of the "
        f"weights (median), {number(metrics.relative_largest, digits=2)} at most"
    )
    if jump is not None and at is not None:
        text += (
            f"; at step {rated[at].step} the update per rate is {number(jump, digits=2)} times its "
            "median before"
        )
    return Measured(
        metrics,
        text,
        tables=(
            Table(
                title="captured updates",
                columns=("step", "update over weights", "update over rate", "gradient norm"),
                rows=tuple(
                    (
                        s.step,
                        _short(float(r)),
                        _short(s.update / s.rate) if s.rate else None,
                        s.grad,
                    )
                    for s, r in list(zip(steps, relative, strict=True))[-60:]
                ),
                cut_rows=max(0, len(steps) - 60),
            ),
        ),
        window=(steps[0].step, steps[-1].step),
        signal="size of the captured updates",
    )


def _step(run: Run, kept: FlightStep) -> CapturedUpdate | None:
    """Norms over all groups of a step; None where one is missing."""
    groups = [(g.update_norm, g.weight_norm) for g in kept.parameters]
    pairs = [(u, w) for u, w in groups if u is not None and w is not None]
    weight = float(np.sqrt(sum(w * w for _, w in pairs)))
    if not pairs or len(pairs) != len(groups) or not weight:
        return None
    update = float(np.sqrt(sum(u * u for u, _ in pairs)))
    rate = run.signals.get("learning_rate")
    norm = run.signals.get("grad_norm_preclip")
    grads = [n.before_clip for n in kept.norms if n.before_clip is not None]
    grad = float(np.mean(grads)) if grads else norm.at(kept.step) if norm is not None else None
    return CapturedUpdate(kept.step, update, weight, rate.at(kept.step) if rate else None, grad)


def _jump(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> tuple[int | None, float | None]:
    """Place of the value that is largest over the median of those before it, and that factor."""
    best: tuple[int | None, float | None] = (None, None)
    for i in range(FEWEST, len(values)):
        before = float(np.median(values[:i]))
        factor = float(values[i]) / before if before > 0 else 0.0
        if best[1] is None or factor > best[1]:
            best = (i, factor)
    return best


def _short(value: float) -> float:
    return float(f"{value:.6g}")
