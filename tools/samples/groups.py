"""Groups without contrast: all right, all wrong, another constant, against the prediction."""

from __future__ import annotations

import math

import numpy as np

from firstbad.tools.completeness import whole_rows
from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Table
from firstbad.tools.numbers import percent
from firstbad.tools.outcome import outcome_part
from firstbad.tools.registry import Measured, tool
from firstbad.tools.rewards import group_stats, total_reward
from firstbad.tools.row_table import RowTable
from firstbad.tools.run import FloatArray, Run
from firstbad.tools.stats import level_shift

START = 20
"""Groups from which a share is read."""
LATE, LATE_SHARE = 20, 0.1
"""Step, and share of the last step, above which the first one is not the start of training."""
ENOUGH = 8
"""Groups that a third of the run has at least."""
EQUAL = 1e-4
"""Rewards of a group count as equal below this spread: float32 noise is about 1e-7."""


class ZeroVariance(Dated):
    """Shares of groups without contrast in the outcome part, over thirds of the run."""

    n_groups: int
    group_size: int
    share_all_right: float
    share_all_wrong: float
    share_other_constant: float
    all_right_first: float
    """Share in the first third of the run."""
    all_right_start: float
    """Share in its first steps, as few as hold 20 groups: what the policy began with."""
    begins_late: bool
    """The first steps with rollouts are not those that training began with."""
    all_right_last: float
    all_wrong_first: float
    all_wrong_last: float
    no_contrast_last: float
    """All right, all wrong and other constant together, in the last third."""
    predicted_last: float | None
    """Share expected from a Beta fit of the solve rates of the same groups, last third."""
    above_prediction: float | None
    """Measured less predicted, in standard errors of the binomial."""
    total_constant_last: float
    """Groups whose total reward (all parts) is constant, last third."""
    solve_rate_first: float | None
    solve_rate_last: float | None


@tool
def count_zero_variance(run: Run, *, part: str = "") -> Measured[ZeroVariance]:
    """Groups with equal outcome rewards, split into all right and all wrong, with the prediction.

    Outcome: the part named, else the one that looks like correctness (two values, most weight),
    else the total. Equal: spread below 1e-4. Expected share: E[p^G + (1-p)^G] under a Beta-Binomial
    fitted to the same groups, so it is a description of their spread of difficulty, not an
    independent prediction. Groups of which only part is written are left out.

    Cannot tell: whether the judging is right (see `rejudge`), so all wrong may be a dead verifier.
    """
    batches = [b for each in run.rollouts.batches() if len(b := whole_rows(run, each))]
    if not batches:
        raise NoData(
            "the rollouts hold no whole group of the configured number of completions"
            if run.rollouts
            else "no rollouts with per-sample rewards"
        )
    name = part or outcome_part(run, batches)
    batches = [
        b for b in batches if (name in b.rewards if name else total_reward(run, b) is not None)
    ]
    if not batches:
        raise NoData(f"no rollouts with the outcome part `{name}`")
    rows = RowTable.of(run, batches)
    values = rows.part(name) if name else rows.total
    top, bottom = _extremes(values)
    table = _per_step(rows, values, top, bottom)
    first, last = _ends(table)
    groups = table[:, 1].sum()
    size = int(np.median(table[:, 6]))
    no_contrast = last[:, 2:5].sum() / last[:, 1].sum()
    late = _solved(rows, values, top, since=last[0, 0])
    predicted = predicted_share(late, size) if len(late) and size > 1 else None
    error = math.sqrt(max(1e-9, (predicted or 0) * (1 - (predicted or 0))) / last[:, 1].sum())
    good, bad = _onset(table)
    binary = top is not None
    metrics = ZeroVariance(
        n_groups=int(groups),
        group_size=size,
        share_all_right=_round(table[:, 2].sum() / groups),
        share_all_wrong=_round(table[:, 3].sum() / groups),
        share_other_constant=_round(table[:, 4].sum() / groups),
        all_right_first=_share(first, 2),
        all_right_start=_share(table[: _start(table)], 2),
        begins_late=bool(table[0, 0] > max(LATE, LATE_SHARE * table[-1, 0])),
        all_right_last=_share(last, 2),
        all_wrong_first=_share(first, 3),
        all_wrong_last=_share(last, 3),
        no_contrast_last=_round(no_contrast),
        predicted_last=None if predicted is None else _round(predicted),
        above_prediction=None if predicted is None else _round((no_contrast - predicted) / error),
        total_constant_last=_round(last[:, 7].sum() / last[:, 1].sum()),
        solve_rate_first=_round(float(first[:, 5].mean())) if binary else None,
        solve_rate_last=_round(float(last[:, 5].mean())) if binary else None,
        last_good_step=good,
        first_bad_step=bad,
        from_start=bad is not None and good is None,
        sampled=_between(table, good, bad),
    )
    shown = np.unique(np.linspace(0, len(table) - 1, min(len(table), 120)).astype(int))
    per_step = Table(
        title=f"per step: groups by outcome of {name}",
        columns=("step", "groups", "all right", "all wrong", "other constant", "solve rate"),
        rows=tuple((*(int(v) for v in table[i, :5]), round(float(table[i, 5]), 4)) for i in shown),
        cut_rows=len(table) - len(shown),
    )
    every = ""
    if binary and table[:, 3].sum() == groups:
        every = f"; not one answer in any of the {int(groups):,} groups is right"
    elif binary and table[:, 2].sum() == groups:
        every = f"; every answer in all of the {int(groups):,} groups is right"
    predicted_text = (
        ""
        if predicted is None
        else f"; {percent(predicted)} of them would lack contrast by their difficulty alone"
    )
    return Measured(
        metrics,
        f"`{name}`, groups of {size}: all right {percent(metrics.all_right_first)} -> "
        f"{percent(metrics.all_right_last)}, all wrong {percent(metrics.all_wrong_first)} -> "
        f"{percent(metrics.all_wrong_last)} (first and last third){every}{predicted_text}",
        tables=(per_step,),
        window=(int(table[0, 0]), int(table[-1, 0])),
        signal="groups without contrast",
    )


def predicted_share(successes: FloatArray, size: int) -> float | None:
    """E[p^G + (1-p)^G] for p from a Beta-Binomial fitted by moments to successes of G."""
    mean = float(successes.mean()) / size
    if not 0.0 < mean < 1.0 or size < 2 or len(successes) < 10:
        return None
    variance = float(successes.var(ddof=1))
    binomial = size * mean * (1 - mean)
    rho = min(0.999, max(0.0, (variance / binomial - 1) / (size - 1)))
    if rho < 1e-6:
        return float(mean**size + (1 - mean) ** size)
    a, b = mean * (1 - rho) / rho, (1 - mean) * (1 - rho) / rho
    log_right = _log_beta(a + size, b) - _log_beta(a, b)
    log_wrong = _log_beta(a, b + size) - _log_beta(a, b)
    return math.exp(log_right) + math.exp(log_wrong)


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def _extremes(values: FloatArray) -> tuple[float | None, float | None]:
    """Top and bottom value where the outcome has two values; None where it has many."""
    seen = np.unique(values[np.isfinite(values)]).tolist()
    if not seen or len(seen) > 8:
        return None, None
    top, bottom = seen[-1], seen[0]
    if top > bottom:
        return top, bottom
    # One value so far: above 0 everything is right, else everything is wrong.
    return (top, 0.0) if top > 0 else (top + 1.0, top)


def _per_step(
    rows: RowTable, values: FloatArray, top: float | None, bottom: float | None
) -> FloatArray:
    """(S, 8): step, groups, right, wrong, other constant, solve rate, size, constant total."""
    scored = np.isfinite(values)
    stats = group_stats(values[scored], rows.group[scored])
    step_of = np.empty(len(stats.size), np.int64)
    step_of[stats.index] = rows.step[scored]
    constant = (stats.size >= 2) & (stats.high - stats.low <= EQUAL)
    right = constant & (stats.high >= (np.inf if top is None else top) - EQUAL)
    wrong = constant & ~right & (stats.low <= (-np.inf if bottom is None else bottom) + EQUAL)
    total = group_stats(rows.total, rows.group)
    n = len(rows.steps)
    groups = np.bincount(rows.group_step, minlength=n)
    solved = scored & (values >= (np.inf if top is None else top) - EQUAL)
    rate = rows.count(solved) / np.maximum(rows.count(scored), 1)
    return np.column_stack(
        [
            rows.steps,
            groups,
            *(
                np.bincount(step_of[m], minlength=n)
                for m in (right, wrong, constant & ~right & ~wrong)
            ),
            rate,
            np.round(rows.size / groups),
            np.bincount(rows.group_step[total.high - total.low < EQUAL], minlength=n),
        ]
    )


def _ends(table: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The rows of the first and of the last third of the steps, of eight groups at least.

    Thirds of the time, not of the rows: kept steps crowd around what they were kept for.
    """
    step, groups = table[:, 0], table[:, 1]
    third = (step[-1] - step[0]) / 3
    early = (step <= step[0] + third) | (np.cumsum(groups) - groups < ENOUGH)
    late = (step >= step[-1] - third) | (np.cumsum(groups[::-1])[::-1] - groups < ENOUGH)
    return table[early], table[late]


def _solved(rows: RowTable, values: FloatArray, top: float | None, since: float) -> FloatArray:
    """(K,) right answers of each group from a step on; empty where right is not known."""
    if top is None:
        return np.empty(0)
    right = (values >= top - EQUAL).astype(np.float64)
    solved = np.bincount(rows.group, weights=right).astype(np.float64)
    found: FloatArray = solved[rows.steps[rows.group_step] >= since]
    return found


def _onset(table: FloatArray) -> tuple[int | None, int | None]:
    """Bracket of the first step of a lasting majority without contrast; no start: all along."""
    share = table[:, 2:5].sum(axis=1) / table[:, 1]
    if len(share) < 10:
        return (None, int(table[0, 0])) if share.mean() > 0.5 else (None, None)
    if share[: max(5, len(share) // 6)].mean() > 0.5:
        return None, int(table[0, 0])
    shift = level_shift(share, margin=5)
    if shift is None or shift.after <= 0.5 or shift.after <= shift.before:
        return None, None
    return int(table[shift.earliest - 1, 0]), int(table[shift.latest, 0])


def _between(table: FloatArray, good: int | None, first: int | None) -> bool:
    """Whether measured steps lie between the two."""
    inside = (table[:, 0] > (good or 0)) & (table[:, 0] < (first or 0))
    return good is not None and bool(inside.any())


def _start(table: FloatArray) -> int:
    """How many of the first steps hold enough groups to tell a share."""
    return int(np.searchsorted(table[:, 1].cumsum(), START)) + 1


def _share(part: FloatArray, column: int) -> float:
    return _round(part[:, column].sum() / part[:, 1].sum()) if len(part) else 0.0


def _round(value: float) -> float:
    return round(float(value), 6)
