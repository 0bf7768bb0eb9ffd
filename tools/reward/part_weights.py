"""Weights of the reward parts, fitted from their sum: do they change during the run?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Table
from firstbad.tools.registry import Measured, tool
from firstbad.tools.row_table import RowTable
from firstbad.tools.run import BoolArray, FloatArray, IntArray, Run
from firstbad.tools.segments import resumes
from firstbad.tools.updates import mixes_batches

OPENING = 10
"""Steps from which the weights are fitted first, and fewest to fit them again."""
TOLERANCE = 2e-3
"""Difference of a mean total from the weighted means, over 1 and its size: logs are float32."""

VARIES = 1e-3
"""Range of a part's mean in the first steps from which on its weight can be told."""


class PartWeights(Dated):
    """Weights before and after a step from which on the total is another sum of the same parts."""

    n_steps: int
    fits: bool
    """The total of the first steps is a weighted sum of the parts."""
    changed: bool
    """From a step on it is one with other weights, to the end of what is recorded."""
    at_resume: bool
    """... and it is the first step after a resume: a person may have set them."""
    largest_factor: float
    """Largest factor by which the weight of a part changes; 1 without a change, 999 where a weight
    was, or becomes, about 0 or turns its sign."""


@dataclass(frozen=True)
class _Fit:
    weights: FloatArray
    """(P,)."""
    exact: bool


@tool
def fit_part_weights(run: Run) -> Measured[PartWeights]:
    """Weights of the reward parts, from the mean total and the mean parts of each step.

    Fitted by least squares on the first ten steps; from the first step on that they do not explain,
    fitted again on all that follow. The total is that of the rows, where they have one, else the
    logged mean.

    Cannot tell: a weight of a part that is constant; weights that change every step.
    """
    batches = [b for b in run.rollouts.batches() if b.rewards]
    if len(batches) < 2 * OPENING:
        raise NoData(f"rollouts with reward parts of fewer than {2 * OPENING} steps")
    rows = RowTable.of(run, batches)
    own = all(b.total is not None for b in batches)
    if not own and mixes_batches(run):
        raise NoData("logged totals are means over several batches")
    total = rows.mean(rows.total) if own else rows.logged(run.signals.get("reward_mean"))
    parts = np.column_stack([rows.mean(rows.part(name)) for name in rows.parts])
    known = np.isfinite(total) & np.isfinite(parts).all(axis=1)
    steps, total, parts = rows.steps[known], total[known], parts[known]
    if len(steps) < 2 * OPENING:
        raise NoData("fewer than twenty steps with a total and all parts")
    first = _fit(parts[:OPENING], total[:OPENING])
    off = ~_near(parts, total, first.weights)
    at = int(np.argmax(off)) if off.any() else None
    later = None
    if first.exact and at is not None and len(steps) - at >= OPENING and off[at:].mean() > 0.8:
        later = _fit(parts[at:], total[at:])
    # A part that did not vary at first had no weight by which to tell: it may be the later one.
    if later is not None and (
        not later.exact or _near(parts[:OPENING], total[:OPENING], later.weights).all()
    ):
        later = None
    varied = np.ptp(parts[:OPENING], axis=0) > VARIES
    good = None
    if later is not None:  # the last step in which the later weights would have shown
        told = np.flatnonzero(~_near(parts[:at], total[:at], later.weights))
        good = int(steps[told[-1]]) if len(told) else None
    first_bad = int(steps[at]) if later is not None and at is not None else None
    resumed = False
    if good is not None and first_bad is not None:
        resumed = any(good - 1 <= step <= first_bad for step in resumes(run))
    return _measured(rows.parts, steps, first, later, (good, first_bad), varied, resumed)


def _measured(
    names: list[str],
    steps: IntArray,
    first: _Fit,
    later: _Fit | None,
    onset: tuple[int | None, int | None],
    varied: BoolArray,
    at_resume: bool,
) -> Measured[PartWeights]:
    factors = [1.0] * len(names)
    if later is not None:
        each = map(_factor, first.weights, later.weights)
        factors = [f if known else 1.0 for f, known in zip(each, varied, strict=True)]
    metrics = PartWeights(
        n_steps=len(steps),
        fits=first.exact,
        changed=later is not None,
        at_resume=at_resume,
        largest_factor=round(max(factors), 6),
        last_good_step=onset[0],
        first_bad_step=onset[1],
    )
    after = first if later is None else later
    table = Table(
        title="weights of the reward parts",
        columns=("part", "before", "after"),
        rows=tuple(
            (name, round(float(a), 4), round(float(b), 4))
            for name, a, b in zip(names, first.weights, after.weights, strict=True)
        ),
    )
    text = "the total is no weighted sum of the parts in the first steps"
    if first.exact:
        text = "the total is a weighted sum of the parts in the first steps, and no other one later"
    if later is not None:
        worst = int(np.argmax(factors))
        text = (
            f"from step {metrics.first_bad_step} on the total is another sum of the same parts: "
            f"`{names[worst]}` weighs {later.weights[worst]:.3g} instead of "
            f"{first.weights[worst]:.3g}"
        )
    return Measured(
        metrics,
        text,
        tables=(table,) if first.exact else (),
        window=(int(steps[0]), int(steps[-1])),
        signal="weights of the reward parts",
        quote=f"{text[:1].upper()}{text[1:]}." if later is not None else "",
    )


def _fit(parts: FloatArray, total: FloatArray) -> _Fit:
    """Least squares of least size, so that a part that does not vary gets no weight by chance."""
    weights = np.asarray(np.linalg.lstsq(parts, total, rcond=1e-6)[0], np.float64)
    return _Fit(weights, bool(_near(parts, total, weights).all()))


def _near(parts: FloatArray, total: FloatArray, weights: FloatArray) -> BoolArray:
    found: BoolArray = np.abs(parts @ weights - total) <= TOLERANCE * (1 + np.abs(total))
    return found


def _factor(a: float, b: float) -> float:
    small = 1e-2
    if abs(a) < small and abs(b) < small:
        return 1.0
    if min(abs(a), abs(b)) < small or a * b < 0:
        return 999.0
    return max(a / b, b / a)
