"""What a mask on cut answers takes out: how right and how long they are, and what is left."""

from __future__ import annotations

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Metrics, Table
from firstbad.tools.numbers import number, percent
from firstbad.tools.outcome import outcome_part
from firstbad.tools.registry import Measured, tool
from firstbad.tools.row_table import RowTable
from firstbad.tools.run import BoolArray, FloatArray, Run
from firstbad.tools.token_counts import TokenCounts

SPREAD = 1e-4
"""Spread of rewards below which a group has none."""


class CutAnswers(Metrics):
    """Cut against finished answers, and groups with and without the cut ones."""

    n_rows: int
    n_cut: int
    share_cut: float
    right_cut: float | None
    """Mean score of the part that scores the answer; None where none of them has one."""
    right_finished: float | None
    tokens_cut: float | None
    """Mean length; estimated from the text where no counts are written."""
    tokens_finished: float | None
    rows_left: float
    """Finished rows of a step, on average: the batch that trains where cut ones are masked."""
    group_left: float
    """Finished rows of a group."""
    flat_all: float
    """Share of the groups without a spread of rewards, over all of their rows."""
    flat_left: float
    """... over their finished rows alone."""


@tool
def compare_cut_answers(run: Run) -> Measured[CutAnswers]:
    """Score and length of cut and of finished answers, and the groups that are left without them.

    A mask on cut answers takes out the longest ones: where right ones are among them, short ones
    look favoured. Left out before the statistics of a group it also makes groups smaller, and more
    of them flat. Rows are cut by finish reason, else the longest ones, as many as the log says.

    Cannot tell: whether a cut answer would have been right.
    """
    batches = [b for b in run.rollouts.batches() if len(b)]
    if not batches:
        raise NoData("no rollouts whose answers may be cut")
    table = RowTable.of(run, batches)
    counts = TokenCounts(run, table)
    part = outcome_part(run, batches)
    cut, score, size = counts.cut, table.part(part), counts.rows
    kept = np.bincount(table.group[~cut], minlength=len(table.group_step))
    metrics = CutAnswers(
        n_rows=len(cut),
        n_cut=int(cut.sum()),
        share_cut=round(float(cut.mean()), 6),
        right_cut=_mean(score[cut]),
        right_finished=_mean(score[~cut]),
        tokens_cut=_mean(size[cut]),
        tokens_finished=_mean(size[~cut]),
        rows_left=round(float((~cut).sum()) / len(batches), 4),
        group_left=round(float(np.mean(kept)), 4),
        flat_all=_flat_share(table, np.ones_like(cut)),
        flat_left=_flat_share(table, ~cut),
    )
    both = Table(
        title="cut and finished answers",
        columns=("answers", "rows", f"`{part}`", "tokens"),
        rows=(
            ("cut", metrics.n_cut, metrics.right_cut, metrics.tokens_cut),
            (
                "finished",
                metrics.n_rows - metrics.n_cut,
                metrics.right_finished,
                metrics.tokens_finished,
            ),
        ),
    )
    return Measured(
        metrics,
        f"{percent(metrics.share_cut)} of {len(cut)} answers are cut; without them a group has "
        f"{number(metrics.group_left, digits=3)} rows, and {percent(metrics.flat_all)} -> "
        f"{percent(metrics.flat_left)} of the groups have no spread",
        tables=(both,) if metrics.n_cut else (),
    )


def _flat_share(table: RowTable, rows: BoolArray) -> float:
    """Share of the groups with known rewards that have no spread of them over these rows."""
    known = np.isfinite(table.total)
    low, high = (np.full(len(table.group_step), end) for end in (np.inf, -np.inf))
    use = known & rows
    np.minimum.at(low, table.group[use], table.total[use])
    np.maximum.at(high, table.group[use], table.total[use])
    told = np.unique(table.group[known])
    return round(float(np.mean(high[told] - low[told] < SPREAD)), 6) if len(told) else 0.0


def _mean(values: FloatArray) -> float | None:
    known = values[np.isfinite(values)]
    return round(float(known.mean()), 4) if len(known) else None
