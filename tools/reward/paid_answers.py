"""Which answer does the score pay, where it is not the gold one?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from firstbad.tools.answers import extract, likely_extractor
from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Metrics, Scalar, Table
from firstbad.tools.judges import ByGold, calibrate, judged_batches
from firstbad.tools.numbers import percent
from firstbad.tools.registry import Measured, tool
from firstbad.tools.reward.fair_judge import fair_judge
from firstbad.tools.run import BoolArray, RolloutBatch, Run

SHOWN = 20


class PaidAnswers(Metrics):
    """Groups in which a wrong answer is paid and another wrong answer is not.

    Only these tell a scorer with another gold answer from one that is turned round.
    """

    n_groups: int
    one_other_share: float | None
    """Of these: one answer alone is paid, in every row that gives it, and it is not the gold one.
    None without any."""
    right_unpaid_share: float | None
    """Of those that hold a right answer as well: none of the right ones is paid."""


@tool
def find_paid_answers(run: Run, *, part: str = "") -> Measured[PaidAnswers]:
    """The answers that are paid in each group, against the gold one.

    Answers are extracted and judged as `rejudge` does. A scorer whose gold answer is another one
    pays just that, in all rows that give it; one that is turned round pays every wrong answer, and
    scores that belong to other rows pay an answer here and not there.

    Cannot tell: which of the two gold answers is right; anything where the samples of a prompt give
    only two answers, as with yes or no.
    """
    run = fair_judge(run, part).run
    batches = [b for b in judged_batches(run) if b.gold is not None]
    if not batches:
        raise NoData("no rollouts whose gold answers are known")
    judge = calibrate(run, batches, part)
    by_gold = judge.way if isinstance(judge.way, ByGold) else None
    extractor = by_gold.extractor if by_gold else likely_extractor(batches)
    groups = [
        found
        for batch in batches
        if judge.part in batch.rewards
        for found in _groups(
            batch, extractor, *judge.way.judge(batch), judge.scored(batch.rewards[judge.part])
        )
    ]
    one = [paid is not None for _, _, paid, _ in groups]
    unpaid = [right for _, _, _, right in groups if right is not None]
    metrics = PaidAnswers(
        n_groups=len(groups),
        one_other_share=round(float(np.mean(one)), 6) if one else None,
        right_unpaid_share=round(float(np.mean(unpaid)), 6) if unpaid else None,
    )
    text = "no group in which one wrong answer is paid and another is not"
    if groups:
        text = (
            f"{len(groups)} groups pay one wrong answer and not another: "
            f"{percent(metrics.one_other_share)} one answer alone, in every row that gives it"
        )
    shown: list[tuple[Scalar, ...]] = [
        (step, gold, paid) for step, gold, paid, _ in groups if paid is not None
    ]
    table = Table(
        title="the one answer that is paid",
        columns=("step", "gold", "paid"),
        rows=tuple(shown[:SHOWN]),
        cut_rows=max(0, len(shown) - SHOWN),
    )
    return Measured(
        metrics,
        text,
        tables=(table,) if shown else (),
        sources=tuple(run.rollouts.answers()),
    )


def _groups(
    batch: RolloutBatch, extractor: str, known: BoolArray, right: BoolArray, scored: BoolArray
) -> Iterator[tuple[int, str | None, str | None, bool | None]]:
    """Step, gold answer, the one other answer that is paid, and whether right ones are all unpaid.

    Of the groups in which a wrong answer is paid and another one is not.
    """
    gold = batch.gold or [None] * len(batch)
    for group in np.unique(batch.group).tolist():
        rows: list[int] = np.flatnonzero((batch.group == group) & known).tolist()
        said = {i: extract(extractor, batch.completions[i]) for i in rows}
        paid = {said[i] for i in rows if scored[i] and not right[i]}
        unpaid = {said[i] for i in rows if not scored[i] and not right[i]}
        if not paid or not unpaid - paid - {None}:
            continue
        rights = [bool(scored[i]) for i in rows if right[i]]
        alone = len(paid) == 1 and None not in paid and not paid & unpaid and not any(rights)
        yield (
            batch.step,
            gold[rows[0]],
            next(iter(paid)) if alone else None,
            not any(rights) if rights else None,
        )
