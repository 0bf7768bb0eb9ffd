"""Errors of the scoring calls: rows whose verifier failed and that got a score all the same."""

from __future__ import annotations

from collections import Counter

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Scalar, Table
from firstbad.tools.numbers import percent
from firstbad.tools.outcome import outcome_part
from firstbad.tools.registry import Measured, tool
from firstbad.tools.row_table import RowTable
from firstbad.tools.run import BoolArray, FloatArray, Run
from firstbad.tools.stats import raised_stretch

SURE_GAIN = 10.0
"""Log-likelihood a stretch of failed calls must gain, in nats, to be read as one."""
QUOTED = 120


class ScoringErrors(Dated):
    """Rows with an error of the outcome part's scoring call on record, in their stretch."""

    n_rows: int
    n_errors: int
    share: float
    """Of rows inside the stretch where errors are more frequent: an error, and a score."""
    share_before: float | None
    """Outside the stretch; None without one."""
    stretch_gain: float
    """Log-likelihood gained by the stretch, nats; 0 when there is none."""
    scored_share: float
    """Of rows with an error: share that has a score."""
    one_score: float
    """Of rows with an error and a score: share that has the most common score of them; 1 where a
    failed call is given a fixed score, less where it was tried again."""
    error_score: float | None
    """That score."""
    one_score_others: float
    """The same share, of rows without an error."""


@tool
def count_scoring_errors(run: Run) -> Measured[ScoringErrors]:
    """Scoring calls of the outcome part that failed, and the scores that their rows got.

    A failed call that was tried again leaves an error and a true score: then the scores of such
    rows vary as those of others do.

    Cannot tell: failures that were never recorded (see `rejudge`).
    """
    batches = [b for b in run.rollouts.batches() if b.rewards]
    name = outcome_part(run, batches) if batches else ""
    if not any(name in b.errors for b in batches):
        raise NoData("the rollouts record no errors of scoring calls")
    rows = RowTable.of(run, batches)
    texts = [text for b in batches for text in b.errors.get(name, [None] * len(b))]
    failed = np.array([text is not None and text != "" for text in texts], bool)
    values = rows.part(name)
    scored = np.isfinite(values)
    paid = failed & scored
    hits = rows.count(paid)
    stretch = raised_stretch(hits, rows.size)
    if stretch is not None and stretch.gain < SURE_GAIN:
        stretch = None
    place = np.arange(len(rows.steps))
    inside = np.ones(len(place), bool)
    if stretch is not None:
        inside = (place >= stretch.first) & (place < stretch.stop)
    steps = rows.steps.tolist()
    first = None if not paid.any() else stretch.first if stretch else int(np.argmax(hits > 0))
    usual, one = _most_common(values, paid)
    metrics = ScoringErrors(
        n_rows=len(failed),
        n_errors=int(failed.sum()),
        share=_r(hits[inside].sum() / rows.size[inside].sum()),
        share_before=None if inside.all() else _r(hits[~inside].sum() / rows.size[~inside].sum()),
        stretch_gain=_r(stretch.gain) if stretch else 0.0,
        scored_share=_r(paid.sum() / max(1, failed.sum())),
        one_score=one,
        error_score=usual,
        one_score_others=_most_common(values, scored & ~failed)[1],
        last_good_step=steps[first - 1] if first else None,
        first_bad_step=None if first is None else steps[first],
        last_bad_step=steps[stretch.stop] - 1 if stretch and stretch.stop < len(steps) else None,
        from_start=first == 0,
    )
    kinds = Counter(text for text in texts if text)
    shown: list[tuple[Scalar, ...]] = [
        (" ".join(text.split())[:QUOTED], times)
        for text, times in sorted(kinds.items(), key=lambda each: (-each[1], each[0]))[:10]
    ]
    table = Table(
        title=f"errors of the scoring calls of `{name}`",
        columns=("error", "rows"),
        rows=tuple(shown),
        cut_rows=max(0, len(kinds) - len(shown)),
    )
    text = f"no scoring call of `{name}` failed"
    if failed.any():
        text = (
            f"{metrics.n_errors} scoring calls of `{name}` failed; {percent(metrics.scored_share)} "
            f"of their rows have a score, {percent(one)} of these the same one"
        )
    return Measured(
        metrics,
        text,
        tables=(table,) if shown else (),
        window=(steps[0], steps[-1]),
        signal=f"failed scoring calls of `{name}`",
    )


def _most_common(values: FloatArray, use: BoolArray) -> tuple[float | None, float]:
    """The most common value of some rows, and its share."""
    if not use.any():
        return None, 0.0
    found, times = np.unique(values[use], return_counts=True)
    return _r(float(found[int(np.argmax(times))])), _r(float(times.max() / use.sum()))


def _r(value: float) -> float:
    return round(float(value), 6)
