"""What the parts beside the outcome pay a right answer, against a wrong one of the same prompt."""

from __future__ import annotations

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated
from firstbad.tools.outcome import outcome_part
from firstbad.tools.registry import Measured, tool
from firstbad.tools.rewards import group_stats, reward_weights
from firstbad.tools.row_table import RowTable
from firstbad.tools.run import BoolArray, FloatArray, RolloutBatch, Run
from firstbad.tools.stats import level_shift, mean_z

SURE = 4
"""Standard errors below 0 from which on right answers are paid less."""


class FormPay(Dated):
    """Weighted pay of all other parts: right rows less wrong rows of the same group, per step."""

    n_steps: int
    """Steps with a group that holds both."""
    right_over_wrong: float
    """Mean over these steps."""
    right_over_wrong_first: float
    """In the first third of them."""
    right_over_wrong_last: float


@tool
def measure_form_pay(run: Run) -> Measured[FormPay]:
    """Whether form is paid against the outcome: where right answers earn less than wrong ones.

    Compared inside groups, so that the difficulty of prompts cancels. Right: the outcome part is at
    its group's largest value, where the group's values differ.

    Cannot tell: form that is paid beside the outcome and only crowds it out, since that costs a
    right answer nothing.
    """
    batches = [b for b in run.rollouts.batches() if len(b.rewards) > 1]
    outcome = outcome_part(run, batches) if batches else ""
    steps, gaps = _gaps(run, batches, outcome)
    if len(steps) < 10:
        raise NoData("fewer than ten steps with right and wrong answers of one prompt and weights")
    first, _, last = np.array_split(gaps, 3)
    since = None
    shift = level_shift(gaps)
    if mean_z(first) < -SURE:
        since = 0
    elif shift is not None and mean_z(gaps[shift.index :]) < -SURE and shift.after < shift.before:
        since = shift.index
    metrics = FormPay(
        n_steps=len(steps),
        right_over_wrong=round(float(gaps.mean()), 6),
        right_over_wrong_first=round(float(first.mean()), 6),
        right_over_wrong_last=round(float(last.mean()), 6),
        quiet_step=steps[since - 1] if since else None,
        first_bad_step=None if since is None else steps[since],
        from_start=since == 0,
        gradual=True,
    )
    return Measured(
        metrics,
        f"beside the outcome right answers earn {metrics.right_over_wrong_first:+.3f} -> "
        f"{metrics.right_over_wrong_last:+.3f} against wrong ones of their prompt",
        window=(steps[0], steps[-1]),
        signal="pay for form, right against wrong answers",
    )


def _gaps(run: Run, batches: list[RolloutBatch], outcome: str) -> tuple[list[int], FloatArray]:
    """Steps with a group that holds both, and (S,) the mean over these groups of each."""
    batches = [b for b in batches if outcome in b.rewards]
    table = RowTable.of(run, batches) if batches else None
    weights = reward_weights(run, len(table.parts)) if table else None
    if table is None or weights is None:
        return [], np.empty(0)
    others = ((w, name) for name, w in zip(table.parts, weights, strict=True) if name != outcome)
    form = np.sum([w * table.part(name) for w, name in others], axis=0)
    score = table.part(outcome)
    known = np.isfinite(score) & np.isfinite(form)
    score, form, step = score[known], form[known], table.step[known]
    stats = group_stats(score, table.group[known])
    mixed = stats.high > stats.low
    right = score >= stats.high[stats.index]

    def paid(rows: BoolArray) -> FloatArray:
        n, index = len(stats.size), stats.index[rows]
        total = np.bincount(index, weights=form[rows], minlength=n)
        mean: FloatArray = total / np.maximum(1, np.bincount(index, minlength=n))
        return mean

    step_of = np.empty(len(stats.size), np.int64)
    step_of[stats.index] = step
    n = np.bincount(step_of[mixed], minlength=len(batches))
    gap = np.bincount(step_of[mixed], (paid(right) - paid(~right))[mixed], len(batches))
    there = n > 0
    return table.steps[there].tolist(), gap[there] / n[there]
