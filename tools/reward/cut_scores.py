"""What answers that were cut, malformed or wrong are scored: can the reward tell them apart?"""

from __future__ import annotations

import numpy as np

from firstbad.tools.answers import EXTRACTORS, LONGEST
from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Table
from firstbad.tools.numbers import percent
from firstbad.tools.outcome import outcome_part
from firstbad.tools.registry import Measured, tool
from firstbad.tools.row_table import RowTable
from firstbad.tools.run import BoolArray, FloatArray, RolloutBatch, Run
from firstbad.tools.stats import level_shift
from firstbad.tools.token_counts import TokenCounts

SAME = 0.02
"""Difference of mean scores, over the range of all, up to which two kinds are scored alike."""
FEWEST = 30
MARKED = ("last <answer> tag", "last \\boxed{}", "after ####")
"""Forms of an answer that a text has or lacks."""


class CutScores(Dated):
    """Rows by how they ended: finished or cut; of the finished ones right or wrong."""

    n_rows: int
    by_finish_reason: bool
    """The source writes why each row ended; else the longest rows are taken, as many as the logged
    share of cut ones says."""
    cut_first: float
    """Share of cut rows in the first third."""
    cut_last: float
    score_cut: float | None
    """Mean score of the outcome of cut rows; None with fewer than 30."""
    score_wrong: float | None
    """... of finished rows that are not right."""
    score_right: float | None
    score_malformed: float | None
    """... of finished rows without an answer in the form that at least half of the rows have."""
    malformed_share: float
    """Of the finished rows: those."""
    malformed_as_wrong: bool
    """Malformed rows get the score of wrong ones that are well-formed, within 2 % of the range, and
    nearly all of them do; False with fewer than 30 of either."""
    cut_as_wrong: bool
    """Cut rows get the score of wrong ones, within 2 % of the range, and nearly all of them do."""
    cut_scored_alike: float | None
    """Share of cut rows with the most common score of wrong ones."""
    solved_best: float
    """Share of right rows among all rows, in the sixth of the run in which it is largest."""
    solved_last: float
    """... in the last sixth."""
    solved_finished_best: float | None
    """... among the finished rows of these sixths."""
    solved_finished_last: float | None
    lost_to_cuts: float
    """Of the fall of the solve rate from its best sixth to the last: the share that is gone among
    finished rows; 0 where it does not fall."""
    solve_fall: float
    """Solve rate of the best sixth less that of the last."""
    masked_by_config: bool
    """Cut answers are left out of the loss (`mask_truncated_completions`)."""


@tool
def compare_cut_scores(run: Run) -> Measured[CutScores]:
    """Scores of cut answers against those of wrong ones, and what cutting costs the solve rate.

    Where cut answers get the same score as wrong ones, the mean reward falls when answers reach the
    cap, though finished answers are as right as before.

    Cannot tell: whether a cut answer would have been right.
    """
    batches = [b for b in run.rollouts.batches() if b.rewards]
    if len(batches) < 6:
        raise NoData("rollouts with rewards of fewer than six steps")
    name = outcome_part(run, batches)
    rows = RowTable.of(run, batches)
    if name not in rows.parts:
        raise NoData("no reward part that could be the outcome")
    by_reason = all(b.cut is not None for b in batches)
    if not by_reason and run.signals.get("truncation_rate") is None:
        raise NoData("neither finish reasons nor a logged share of cut completions")
    cut = rows.by_reason(TokenCounts(run, rows).cut, all_told=False)
    cut_all, score = cut, rows.part(name)
    use = np.isfinite(score)
    if not use.any():
        raise NoData(f"no row has a score in `{name}`")
    cut, score, step = cut[use], score[use], rows.step[use]
    low, high = float(score.min()), float(score.max())
    right = (score >= high - 1e-6) & (high > low)
    wrong = ~cut & ~right
    third = np.searchsorted(np.array([1, 2]) * len(batches) / 3, step, side="right")
    usual = _usual(score[wrong])
    alike = float((score[cut] == usual).mean()) if usual is not None and cut.any() else None
    means = [_mean_of(score[kind]) for kind in (cut, wrong, ~cut & right)]
    same = _alike(score[cut], score[wrong], high - low)
    malformed = ~cut & _malformed(batches, cut_all)[use]
    sixth = np.minimum(step * 6 // len(batches), 5)
    rates = [float(right[sixth == k].mean()) if (sixth == k).any() else 0.0 for k in range(6)]
    best = int(np.argmax(rates))
    solved = [rates[best], rates[5]]
    finished = [_rate(right, (sixth == k) & ~cut) for k in (best, 5)]
    share = _by_step(cut, step, len(batches))
    shift = level_shift(share)
    rises = shift is not None and shift.after - shift.before > 0.1 and shift.sds > 2
    at = shift.latest if shift is not None and rises else None
    steps = rows.steps.tolist()
    metrics = CutScores(
        n_rows=len(score),
        by_finish_reason=by_reason,
        cut_first=_r(_rate(cut, third == 0) or 0.0),
        cut_last=_r(_rate(cut, third == 2) or 0.0),
        score_cut=means[0],
        score_wrong=means[1],
        score_right=means[2],
        score_malformed=_mean_of(score[malformed]),
        malformed_share=_rate(malformed, ~cut) or 0.0,
        malformed_as_wrong=_alike(score[malformed], score[wrong & ~malformed], high - low),
        cut_as_wrong=same,
        cut_scored_alike=None if alike is None else _r(alike),
        solved_best=_r(solved[0]),
        solved_last=_r(solved[1]),
        solved_finished_best=finished[0],
        solved_finished_last=finished[1],
        lost_to_cuts=_r(_lost(solved, finished)),
        solve_fall=_r(solved[0] - solved[1]),
        masked_by_config=run.config.flag("mask_truncated_completions") is True,
        last_good_step=steps[shift.earliest - 1] if at is not None and shift is not None else None,
        first_bad_step=None if at is None else steps[at],
        sampled=at is not None and shift is not None and shift.earliest < shift.latest,
    )
    table = Table(
        title=f"rows by how they ended, and their mean `{name}`",
        columns=("kind", "rows", "mean score"),
        rows=tuple(
            (kind, int(mask.sum()), _r(float(score[mask].mean())))
            for kind, mask in (
                ("cut", cut),
                ("malformed", malformed),
                ("wrong", wrong & ~malformed),
                ("right", ~cut & right),
            )
            if mask.any()
        ),
    )
    return Measured(
        metrics,
        f"{percent(metrics.cut_first)} -> {percent(metrics.cut_last)} of the answers are cut "
        f"(first and last third); from the best sixth of the run to the last "
        f"{percent(solved[0])} -> {percent(solved[1])} are right, of finished ones "
        f"{percent(finished[0] or 0)} -> {percent(finished[1] or 0)}",
        tables=(table,),
        window=(steps[0], steps[-1]),
        signal="share of cut answers, scored like wrong ones",
    )


def _malformed(batches: list[RolloutBatch], cut: BoolArray) -> BoolArray:
    """(N,) rows in which the marked form of answer that most finished rows have is not found."""
    texts = [text for b in batches for text in b.completions]
    for form in MARKED:
        found = np.array([EXTRACTORS[form](text[-LONGEST:]) is not None for text in texts], bool)
        if not cut.all() and found[~cut].mean() >= 0.5:
            return ~found
    return np.zeros(len(texts), bool)


def _alike(score: FloatArray, wrong: FloatArray, span: float) -> bool:
    """Whether rows are scored as wrong ones are: on average, and nearly each by itself."""
    means, usual = (_mean_of(score), _mean_of(wrong)), _usual(wrong)
    if means[0] is None or means[1] is None or usual is None:
        return False
    near = abs(means[0] - means[1]) <= SAME * max(span, 1e-9)
    return bool(near and (score == usual).mean() > 1 - SAME)


def _usual(score: FloatArray) -> float | None:
    if not len(score):
        return None
    values, times = np.unique(score, return_counts=True)
    return float(values[int(np.argmax(times))])


def _mean_of(score: FloatArray) -> float | None:
    return _r(float(score.mean())) if len(score) >= FEWEST else None


def _rate(flags: BoolArray, rows: BoolArray) -> float | None:
    return _r(float(flags[rows].mean())) if rows.sum() >= FEWEST else None


def _by_step(flags: BoolArray, step: np.typing.NDArray[np.int64], n: int) -> FloatArray:
    size = np.maximum(np.bincount(step, minlength=n), 1)
    found: FloatArray = np.bincount(step, weights=flags, minlength=n) / size
    return found


def _lost(solved: list[float], finished: list[float | None]) -> float:
    """Share of the fall that finished rows do not have."""
    fall = solved[0] - solved[1]
    if fall <= 0 or finished[0] is None or finished[1] is None:
        return 0.0
    return float(np.clip(1 - (finished[0] - finished[1]) / fall, 0.0, 1.0))


def _r(value: float) -> float:
    return round(float(value), 6)
