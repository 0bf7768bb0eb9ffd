"""Which judge is fair: the user's own, or plain comparison with gold answers?"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.judges import CALIBRATED, JudgedRows, calibrate, judge_rows, judged_batches
from firstbad.tools.run import Run

ONE_WAY = 0.95
"""Share of the disagreements that go one way above which its direction tells something."""


@dataclass(frozen=True)
class Fair:
    """A run with the judge that is fair to it."""

    run: Run
    """Without the user's judge where that was set aside."""
    set_aside: bool = False
    has_threshold: bool = True
    """Some threshold on the scores of the user's judge tells right from wrong."""
    command_agreement: float | None = None
    """Of the user's judge with the score over all rows, where it was set aside for it."""
    plain_agreement: float | None = None
    """Of comparison with gold answers on the earliest rows, where the user's judge is not fair and
    there are gold answers."""


def goes_one_way(judged: JudgedRows) -> bool:
    """Whether nearly all disagreement is right answers scored wrong, or nearly all the reverse."""
    rejected, accepted = judged.right & ~judged.scored, ~judged.right & judged.scored
    return max(int(rejected.sum()), int(accepted.sum())) > ONE_WAY * int(
        (rejected | accepted).sum()
    )


def fair_judge(run: Run, part: str = "") -> Fair:
    """The user's judge, unless it errs both ways and comparison with gold answers is fair.

    A judge that agrees with the earliest rows is fair; of another one only disagreement that goes
    one way tells something. One that errs both ways (answers in another order, a random or a noisy
    score, less for better) says nothing where plain comparison agrees with the earliest rows.
    """
    if run.judge is None:
        return Fair(run)
    plain = copy(run)  # shares all that was read, and what was asked for
    plain.judge = None
    try:
        batches = judged_batches(run)
        own = calibrate(run, batches, part)
        judged = judge_rows(run, batches, own)
    except NoData:
        known = _agreement(plain, part)
        return Fair(run if known is None else plain, known is not None, has_threshold=False)
    if own.agreement >= CALIBRATED:
        return Fair(run)
    known = _agreement(plain, part)
    if goes_one_way(judged) or known is None or known < CALIBRATED:
        return Fair(run, plain_agreement=known)
    agreement = round(float(np.mean(judged.right == judged.scored)), 6)
    return Fair(plain, True, command_agreement=agreement, plain_agreement=known)


def _agreement(run: Run, part: str) -> float | None:
    """Of plain comparison with the score on the earliest rows; None where it judges none."""
    try:
        return round(calibrate(run, judged_batches(run), part).agreement, 6)
    except NoData:
        return None
