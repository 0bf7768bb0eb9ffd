"""How many rows the user's own judge scored, and how it failed on the others."""

from __future__ import annotations

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Metrics, Table
from firstbad.tools.judge_breaks import broke, scored_otherwise, silent_share
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import Run

EXAMPLES = 8


class Judged(Metrics):
    """Rows handed to the judge, and what came back."""

    n_asked: int
    n_scored: int
    share_scored: float
    n_errors: int
    """Rows that it reported an error for."""
    n_missing: int
    """Rows that it said nothing usable about."""
    n_not_finite: int
    n_unknown: int
    """Answers with an id that no row has."""
    n_twice: int
    """Second answers for a row; the first one counts."""
    n_unreadable: int
    """Lines that are no JSON object with an id and a score or an error."""
    n_timeouts: int
    """Batches of rows in which it was stopped at its time limit."""
    n_crashes: int
    """Batches in which it ended with another exit code than 0."""
    n_too_long: int
    """Batches in which it was stopped because it wrote too much."""
    constant: bool
    """All its scores are the same, which tells no rows apart."""
    n_again: int
    """Rows that it scored a second time in the end."""
    n_again_other: int
    """Of these: the second score is more than half of their range away from the first."""
    broke: bool
    """More of them than chance or a judge that samples explains."""
    silent_share: float
    """Steps with rollouts after the last one that it scored a row of, as a share of all."""
    silent_after: int | None
    """That last step; None where nothing follows."""
    score_lowest: float | None
    score_highest: float | None
    score_first: float | None
    """Mean score of the first third of the rows."""
    score_last: float | None


@tool
def read_judge(run: Run) -> Measured[Judged]:
    """What the judge of `--judge` scored, from its stored answers; it is not asked again.

    Cannot tell: whether the judge is right.
    """
    if run.judge is None:
        raise NoData("no judge was given (`--judge`)")
    counts, judge = run.judge.counts, run.judge
    scores = np.array([judge.scores[key] for key in sorted(judge.scores)])
    asked, missing = counts["asked"], counts["asked"] - len(scores) - len(judge.errors)
    thirds = np.array_split(scores, 3)
    silent = silent_share(run)
    metrics = Judged(
        n_asked=asked,
        n_scored=len(scores),
        share_scored=round(len(scores) / max(1, asked), 6),
        n_errors=len(judge.errors),
        n_missing=missing,
        n_not_finite=counts["not_finite"],
        n_unknown=counts["unknown"],
        n_twice=counts["twice"],
        n_unreadable=counts["unreadable"],
        n_timeouts=counts["timeouts"],
        n_crashes=counts["crashes"],
        n_too_long=counts["too_long"],
        constant=len(scores) > 1 and bool(np.ptp(scores) == 0),
        n_again=len(judge.again),
        n_again_other=sum(scored_otherwise(judge).values()),
        broke=broke(judge),
        silent_share=round(silent, 6),
        silent_after=max(judge.scores)[0] if silent and judge.scores else None,
        score_lowest=float(scores.min()) if len(scores) else None,
        score_highest=float(scores.max()) if len(scores) else None,
        score_first=round(float(thirds[0].mean()), 6) if len(thirds[0]) else None,
        score_last=round(float(thirds[2].mean()), 6) if len(thirds[2]) else None,
    )
    shown = sorted(judge.errors)[:EXAMPLES]
    table = Table(
        title="rows that the judge reported an error for",
        columns=("step", "row", "error"),
        rows=tuple((step, row, judge.errors[step, row][:200]) for step, row in shown),
        cut_rows=len(judge.errors) - len(shown),
    )
    steps = [step for step, _ in (*judge.scores, *judge.errors)]
    return Measured(
        metrics,
        _summary(metrics),
        tables=(table,) if shown else (),
        window=(min(steps), max(steps)) if steps else None,
        origin="probe",
    )


def _summary(m: Judged) -> str:
    text = f"the judge of `--judge` scored {m.n_scored} of {m.n_asked} rows"
    wrong = {
        "with an error": m.n_errors,
        "without an answer": m.n_missing,
        "of these not finite": m.n_not_finite,
        "of unknown ids": m.n_unknown,
        "given twice": m.n_twice,
        "unreadable": m.n_unreadable,
        "stopped at the time limit": m.n_timeouts,
        "ended by a crash": m.n_crashes,
        "stopped for writing too much": m.n_too_long,
        f"of {m.n_again} scored otherwise when asked again": m.n_again_other,
    }
    told = [f"{n} {what}" for what, n in wrong.items() if n]
    return text + (f"; {', '.join(told)}" if told else "")
