"""What the parts beside the outcome pay a right answer, against a wrong one of the same prompt."""

from __future__ import annotations

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated
from firstbad.tools.groups import outcome_part
from firstbad.tools.registry import Measured, tool
from firstbad.tools.rewards import group_stats, reward_weights
from firstbad.tools.run import RolloutBatch, Run
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
    found = [(b.step, gap) for b in batches if (gap := _gap(run, b, outcome)) is not None]
    if len(found) < 10:
        raise NoData("fewer than ten steps with right and wrong answers of one prompt and weights")
    steps = [step for step, _ in found]
    gaps = np.array([gap for _, gap in found])
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


def _gap(run: Run, batch: RolloutBatch, outcome: str) -> float | None:
    weights = reward_weights(run, len(batch.rewards))
    score = batch.rewards.get(outcome)
    if weights is None or score is None:
        return None
    parts = zip(batch.rewards, weights, strict=True)
    form = np.sum([w * batch.rewards[name] for name, w in parts if name != outcome], axis=0)
    known = np.isfinite(score) & np.isfinite(form)
    if not known.any():
        return None
    score, form, group = score[known], form[known], batch.group[known]
    stats = group_stats(score, group)
    mixed = (stats.high > stats.low)[stats.index]
    right = mixed & (score >= stats.high[stats.index])
    wrong = mixed & ~right
    n = len(stats.size)

    def paid(rows: np.ndarray) -> np.ndarray:
        total = np.bincount(stats.index[rows], weights=form[rows], minlength=n)
        return total / np.maximum(1, np.bincount(stats.index[rows], minlength=n))

    gaps = (paid(right) - paid(wrong))[stats.high > stats.low]
    return float(gaps.mean()) if len(gaps) else None
