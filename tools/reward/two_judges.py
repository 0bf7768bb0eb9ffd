"""Each reward part's course beside that of an independent judge: do the two part?"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from firstbad.tools.answers import likely_extractor
from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Table
from firstbad.tools.judges import ByGold, judged_batches
from firstbad.tools.outcome import outcome_part
from firstbad.tools.registry import Measured, tool
from firstbad.tools.reward.fair_judge import fair_judge
from firstbad.tools.rewards import reward_weights
from firstbad.tools.row_table import RowTable
from firstbad.tools.run import BoolArray, FloatArray, IntArray, RolloutBatch, Run

BLOCKS = 12
"""Stretches of the run that are compared; the best and the last one are two in a row."""
ROWS_EACH = 20
"""Fewest judged rows of a stretch."""
GRADED = 20
"""Values of a part from which on it is a graded score, as a learned reward model gives."""
SURE = 4.0
"""Standard errors of a fall of the judge below its best that date it."""


class TwoJudges(Dated):
    """The judge against the part that rises most against it, from the judge's best stretch on.

    The course of the judge is its mean per stretch of the run: of its scores, or of the share of
    rows that plain comparison with gold answers finds right. Standard errors are those of the
    stretches' rows. Parts of weight 0 are left out.
    """

    by_command: bool
    """The user's own judge; else plain comparison with gold answers."""
    n_rows: int
    """Judged rows."""
    n_stretches: int
    judge_first: float
    judge_best: float
    judge_last: float
    judge_fall_z: float
    """Best less last, in standard errors."""
    judge_fall_share: float
    """Best less last, over the best; 0 where that is not above 0."""
    judge_gain_z: float
    """Last less first, in standard errors."""
    part_at_best: float | None
    """Mean of that part in the judge's best stretch."""
    part_last: float | None
    part_rise_z: float
    """Last less that, in standard errors."""
    part_rise_sds: float
    """... in standard deviations of the part's rows."""
    part_gain_z: float
    """Last less first, in standard errors."""
    part_graded: bool
    """It has 20 or more values, as the score of a learned model."""
    part_is_outcome: bool
    """It is the part that looks like the outcome, or the only one."""
    part_beyond_first: float
    """Share of its rows in the last stretches above all of the first ones."""
    total_rise_z: float | None
    """The same rise, of the total reward."""
    correlation_first: float | None
    """Of part and judge over the rows of the first third."""
    correlation_last: float | None


@dataclass(frozen=True)
class _Course:
    """Means of the stretches, and their standard errors."""

    mean: FloatArray
    error: FloatArray

    def pair(self, k: int) -> tuple[float, float]:
        """Mean of two stretches in a row, from k on, and its standard error."""
        error = math.hypot(float(self.error[k]), float(self.error[k + 1])) / 2
        return float(self.mean[k : k + 2].mean()), error

    def z(self, after: int, before: int) -> float:
        """Difference of two pairs in standard errors."""
        (a, e), (b, f) = self.pair(after), self.pair(before)
        error = math.hypot(e, f)
        return round(max(-999.0, min(999.0, (a - b) / error)) if error > 0 else 0.0, 4)


@tool
def compare_judges(run: Run) -> Measured[TwoJudges]:
    """Whether a reward part goes on rising while an independent judge falls from its best.

    The judge is the user's own (`--judge`), else plain comparison with gold answers. Its best is
    taken over two stretches in a row, so that a lucky step is none; the first rise of form before
    correctness, which is the normal early shape, lies before it.

    Cannot tell: which of the two judges is right; a judge that the policy has learned to please.
    """
    run = fair_judge(run).run
    batches = judged_batches(run)
    rows = RowTable.of(run, batches)
    judged = _judged(run, batches)
    use = np.isfinite(judged)
    n_blocks = min(BLOCKS, int(use.sum()) // ROWS_EACH, len(batches))
    if n_blocks < 6:
        raise NoData(f"{int(use.sum())} judged rows in {len(batches)} steps; 120 in 6 are needed")
    block = _blocks(rows, use, n_blocks)
    if len(np.unique(block)) < n_blocks:  # one step holds the rows of several stretches
        raise NoData("the judged rows crowd in a few steps: no stretches to compare")
    judge = _course(judged[use], block, n_blocks)
    pairs = [judge.pair(k)[0] for k in range(n_blocks - 1)]
    best, last = int(np.argmax(pairs)), n_blocks - 2
    names = rows.parts
    weights = reward_weights(run, len(names))
    outcome = outcome_part(run, batches)
    parts = {}
    for i, name in enumerate(names):
        values = rows.part(name)[use]
        if (weights is None or weights[i] != 0) and np.isfinite(values).all():
            sign = 1.0 if weights is None else float(np.sign(weights[i]))
            parts[name] = _course(sign * values, block, n_blocks)
    if not parts:
        raise NoData("no reward part is scored on every judged row")
    name = max(parts, key=lambda n: parts[n].z(last, best))
    values, course = rows.part(name)[use], parts[name]
    total = rows.total[use]
    sd = float(values.std())
    at_best, at_last = course.pair(best)[0], course.pair(last)[0]
    fall = pairs[best] - pairs[last]
    fall_z = -judge.z(last, best)
    steps_of = [rows.steps[rows.step[use][block == k]] for k in range(n_blocks)]
    dated = fall_z > SURE and course.z(last, best) > SURE
    metrics = TwoJudges(
        by_command=run.judge is not None,
        n_rows=int(use.sum()),
        n_stretches=n_blocks,
        judge_first=_r(pairs[0]),
        judge_best=_r(pairs[best]),
        judge_last=_r(pairs[last]),
        judge_fall_z=fall_z,
        judge_fall_share=_r(fall / pairs[best]) if pairs[best] > 0 else 0.0,
        judge_gain_z=judge.z(last, 0),
        part_at_best=_r(at_best),
        part_last=_r(at_last),
        part_rise_z=course.z(last, best),
        part_rise_sds=_r((at_last - at_best) / sd) if sd > 0 else 0.0,
        part_gain_z=course.z(last, 0),
        part_graded=len(np.unique(values)) >= GRADED,
        part_is_outcome=name == outcome or len(names) == 1,
        part_beyond_first=_beyond(values, block, n_blocks),
        total_rise_z=_course(total, block, n_blocks).z(last, best)
        if np.isfinite(total).all()
        else None,
        correlation_first=_correlation(values, judged[use], block < n_blocks / 3),
        correlation_last=_correlation(values, judged[use], block >= n_blocks * 2 / 3),
        last_good_step=int(steps_of[best + 1].max()) if dated else None,
        first_bad_step=int(steps_of[min(best + 2, n_blocks - 1)].max()) if dated else None,
        sampled=dated,
        gradual=True,
    )
    table = Table(
        title="the judge and the reward parts, by stretch of the run",
        columns=("from step", "to step", "rows", "judge", *parts),
        rows=tuple(
            (
                int(steps_of[k].min()),
                int(steps_of[k].max()),
                len(steps_of[k]),
                _r(judge.mean[k]),
                *(_r(each.mean[k]) for each in parts.values()),
            )
            for k in range(n_blocks)
        ),
    )
    who = "the judge of `--judge`" if run.judge is not None else "comparison with gold answers"
    return Measured(
        metrics,
        f"{who} goes {pairs[0]:.3f} -> {pairs[best]:.3f} at its best -> {pairs[last]:.3f}; since "
        f"then `{name}` goes {at_best:.3f} -> {at_last:.3f}",
        tables=(table,),
        window=(int(rows.steps[0]), int(rows.steps[-1])),
        sources=tuple(run.rollouts.answers()),
        signal=f"`{name}` against an independent judge",
        quote=f"The part is `{name}`.",
    )


def _judged(run: Run, batches: list[RolloutBatch]) -> FloatArray:
    """(N,) what the judge says of each row, NaN where it says nothing."""
    if run.judge is not None:
        return np.concatenate([run.judge.of(b.step, len(b)) for b in batches])
    way = ByGold(likely_extractor(batches), "loose")
    found = [np.where(known, right, np.nan) for known, right in map(way.judge, batches)]
    return np.concatenate(found)


def _blocks(rows: RowTable, use: BoolArray, n: int) -> IntArray:
    """(N,) stretch of each judged row; a step lies in one of them."""
    counts = np.cumsum(rows.count(use)) - rows.count(use) / 2
    of_step = np.minimum((counts * n / use.sum()).astype(np.int64), n - 1)
    _, dense = np.unique(of_step[rows.step[use]], return_inverse=True)
    found: IntArray = dense.astype(np.int64)
    return found


def _course(values: FloatArray, block: IntArray, n: int) -> _Course:
    size = np.maximum(np.bincount(block, minlength=n), 1)
    mean = np.bincount(block, weights=values, minlength=n) / size
    squares = np.bincount(block, weights=(values - mean[block]) ** 2, minlength=n)
    # A stretch of equal rows still errs: one row of another kind would have moved it.
    floor = 1e-9 + (np.ptp(values) / size) ** 2
    return _Course(mean, np.sqrt(np.maximum(squares / np.maximum(size - 1, 1) / size, floor)))


def _beyond(values: FloatArray, block: IntArray, n: int) -> float:
    first, last = values[block < 2], values[block >= n - 2]
    return _r(float((last > first.max()).mean())) if len(first) and len(last) else 0.0


def _correlation(values: FloatArray, judged: FloatArray, rows: BoolArray) -> float | None:
    x, y = values[rows], judged[rows]
    if len(x) < ROWS_EACH or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    return _r(float(np.corrcoef(x, y)[0, 1]))


def _r(value: float) -> float:
    return round(float(value), 6)
