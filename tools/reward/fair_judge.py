"""Which judge is fair: the user's own, or plain comparison with gold answers?"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.judge_breaks import broke, silent_share
from firstbad.tools.judges import CALIBRATED, JudgedRows, calibrate, judge_rows, judged_batches
from firstbad.tools.run import Run

ONE_WAY = 0.95
"""Share of the disagreements that go one way above which its direction tells something."""

SILENT = 1 / 3
"""Share of the steps, at the end, without a score from which on a judge fell silent."""


@dataclass(frozen=True)
class Fair:
    """A run with the judge that is fair to it."""

    run: Run
    """Without the user's judge where that was set aside."""
    set_aside: bool = False
    """It errs both ways, tells no rows apart, does not agree with itself, or fell silent."""
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
    """The user's judge, unless it broke, or tells nothing that gold answers do not tell better.

    One that does not agree with itself when asked again broke on the way, and is not used at all.
    One that fell silent early says nothing of the later rows, which gold answers may judge.
    A judge that agrees with the earliest rows is fair; of another one only disagreement that goes
    one way tells something. One that errs both ways (answers in another order, a random or a noisy
    score, less for better) says nothing where plain comparison agrees with the earliest rows.
    """
    if run.judge is None:
        return Fair(run)
    plain = copy(run)  # shares all that was read, and what was asked for
    plain.judge = None
    if broke(run.judge):
        return Fair(plain, True)
    if silent_share(run) >= SILENT and (_agreement(plain, part) or 0.0) >= CALIBRATED:
        return Fair(plain, True)
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


def agreement_by_gold(run: Run, steps: set[int], part: str = "") -> float | None:
    """Agreement of the score with comparison with gold answers over the rows of some steps.

    None where there are no such rows, or it does not agree with the earliest ones either.
    """
    plain = copy(run)
    plain.judge = None
    try:
        batches = judged_batches(plain)
        judge = calibrate(plain, batches, part)
    except NoData:
        return None
    judged = judge_rows(plain, [b for b in batches if b.step in steps], judge)
    if judge.agreement < CALIBRATED or not len(judged.steps):
        return None
    return round(float(np.mean(judged.right == judged.scored)), 6)


def _agreement(run: Run, part: str) -> float | None:
    """Of plain comparison with the score on the earliest rows; None where it judges none."""
    try:
        return round(calibrate(run, judged_batches(run), part).agreement, 6)
    except NoData:
        return None
