"""Independent re-judging: a plain judge, calibrated on the earliest steps, against the reward."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from firstbad.tools.answers import likely_extractor
from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Scalar, Table
from firstbad.tools.judges import (
    CALIBRATED,
    ByGold,
    Judge,
    JudgedRows,
    calibrate,
    earliest,
    judge_rows,
    judged_batches,
)
from firstbad.tools.numbers import percent
from firstbad.tools.registry import Measured, tool
from firstbad.tools.reward.answer_forms import forms
from firstbad.tools.reward.fair_judge import agreement_by_gold, fair_judge, goes_one_way
from firstbad.tools.reward.patterns import Pattern, explain_rows
from firstbad.tools.run import BoolArray, FloatArray, IntArray, RolloutBatch, Run
from firstbad.tools.stats import Stretch, least_rate, raised_stretch

FEWEST = 60
SURE_GAIN = 12.0
"""Log-likelihood a stretch of disagreement must gain, in nats, to be read as one."""
ALL_ALONG = 0.03
"""Share of disagreement outside a stretch from which on a judge that never agreed differs all
along,"""
ALL_ALONG_OF = 5.0
"""... unless it is so many times as frequent inside."""
SILENT = 0.05
"""Chance that the fault shows in none of the rows before its first hit: up to it they are good."""
ALIKE = 15
"""Rows on which judge and score agree that a pattern is held against."""
EXAMPLES = 8
"""Rows shown on which judge and reward disagree."""


class Judging(Dated):
    """Judged against scored, over the rows whose gold answer is known."""

    by_command: bool
    """Judged by the user's own judge, and not by plain comparison with gold answers."""
    command_set_aside: bool
    """There is a judge of the user's, and its scores were not used: it does not agree with itself,
    fell silent, errs both ways, or tells no rows apart, and plain comparison does not."""
    command_has_threshold: bool
    """Some threshold on its scores tells right from wrong; true without such a judge."""
    command_agreement: float | None
    """Its agreement with the score over all rows, where it was set aside for erring both ways."""
    plain_agreement: float | None
    """Of comparison with gold answers on the earliest rows, beside a judge of the user's that does
    not agree with them."""
    plain_agreement_after: float | None
    """Of comparison with gold answers inside the stretch, where the user's judge agreed with the
    earliest rows and parts from the score there."""
    n_rows: int
    """Rows that could be judged."""
    coverage: float
    """Of all rows with that part."""
    calibrated: bool
    """Agreement above 99 % on the earliest steps."""
    calibration_agreement: float
    agreement_all: float
    agreement_before: float | None
    """Outside the stretch of raised disagreement."""
    agreement_after: float
    """Inside it (or over everything, when there is none)."""
    rejected_right: int
    """Rows judged right and scored wrong."""
    accepted_wrong: int
    """Rows judged wrong and scored right."""
    rejected_right_share: float
    """Of rows judged right, inside the stretch: share scored wrong."""
    accepted_wrong_share: float
    """Of rows judged wrong, inside the stretch: share scored right."""
    rejected_right_least: float
    """The least that the share may be behind the rows seen (Wilson, one-sided 99.5 %)."""
    accepted_wrong_least: float
    one_sided: float | None
    """Share of the disagreements that go the more frequent way; None without any."""
    stretch_gain: float
    """Log-likelihood gained by a stretch of raised disagreement, nats; 0 when there is none."""
    stretch_steps: int
    stretch_reaches_end: bool
    scored_constant: bool
    """Inside the stretch every row has the same score."""
    scored_right_share_after: float
    judged_right_before: float | None
    judged_right_after: float
    judged_right_first: float
    """Judged accuracy in the first third of the run."""
    judged_right_last: float
    shift_agreement: float
    """Best agreement inside the stretch when scores are moved by 1 to G rows against the rows."""
    exchange_z: float
    """Rejected right less accepted wrong rows inside the stretch, in standard errors of an equal
    exchange: near 0 for scores permuted among the rows, large for a judge that errs one way."""
    pattern_found: bool
    """A plain property of the text separates the rows scored against the judge, in the direction
    in which more of them are."""
    pattern_purity: float | None
    explained_by_form: float | None
    """Of rejected right rows: share whose form part is below its top."""
    new_value: float | None
    """The score that most rows inside the stretch have of those that no early row has; None when
    no row has such a score."""
    new_value_share: float
    """Of rows inside the stretch."""
    new_value_gap: float
    """Difference of its shares among right and among wrong answers: near 0 for a score that is
    given whatever the answer."""
    timing_shift: float | None
    """Step time after the first step of the stretch over before; None without step times."""
    batch_level: float | None
    """Share of steps inside the stretch in which all or none of the right rows are rejected."""


@tool
def rejudge(run: Run, *, part: str = "") -> Measured[Judging]:
    """Agreement of the logged outcome reward with an independent judge, step by step.

    Where the user gave a judge (`--judge`), its scores count as right from the threshold on that
    agrees best with the logged score on the earliest rows. Else an answer is extracted (tags,
    boxed, last number, ...) and compared with the gold answer after plain normalisation, in the way
    that agrees best there. Above 99 % agreement it is a fair judge, and a change-point of the
    disagreement is an onset of its own. Where nearly all disagreement goes one way, its rate is
    taken over the rows that can go that way. Below 99 %, only the direction of it counts; a judge
    of the user's that errs both ways, or gives no score for the later steps, is set aside where
    comparison with gold answers is fair, and one that does not agree with itself in any case.

    Cannot tell: answers that need more than plain comparison; rows whose gold answer is not known;
    a gold file that is wrong itself (see `check_gold`).
    """
    fair = fair_judge(run, part)
    run = fair.run
    batches = judged_batches(run)
    judge = calibrate(run, batches, part)
    judged = judge_rows(run, batches, judge)
    if len(judged.steps) < FEWEST:
        raise NoData(f"{len(judged.steps)} rows can be judged; at least {FEWEST} are needed")
    disagree = judged.right != judged.scored
    rejected, accepted = judged.right & ~judged.scored, ~judged.right & judged.scored
    more = max(int(rejected.sum()), int(accepted.sum()))
    steps, inverse = np.unique(judged.steps, return_inverse=True)
    where: IntArray = inverse.astype(np.int64)
    could = np.ones(len(disagree), bool)
    if goes_one_way(judged):
        # Only the rows that can go wrong that way tell when it began.
        could = judged.right if rejected.sum() == more else ~judged.right
    totals = np.bincount(where, weights=could).astype(np.int64)
    stretch = raised_stretch(np.bincount(where, weights=disagree & could).astype(np.int64), totals)
    if stretch is not None and (stretch.gain < SURE_GAIN or stretch.rate_in < 0.02):
        stretch = None
    calibrated = judge.agreement >= CALIBRATED and bool(judged.right.any())
    if stretch is not None and not calibrated:
        # A judge that never agreed differs from the start, more or less often as rows change.
        apart = stretch.rate_in > ALL_ALONG_OF * stretch.rate_out
        stretch = stretch if apart or stretch.rate_out < ALL_ALONG else None
    if stretch is None and disagree.mean() > 0.02:
        stretch = Stretch(0, len(steps), float(disagree.mean()), 0.0, 0.0)
    inside = np.ones(len(disagree), bool)
    if stretch is not None:
        inside = (where >= stretch.first) & (where < stretch.stop)
    steps_inside = {int(s) for s in np.unique(judged.steps[inside])[:60]}
    pattern = _pattern(judge, judged, inside)
    new = _new_value(run, batches, judge, judged, inside)
    all_rows = sum(len(b) for b in run.rollouts.batches())
    began = stretch and _began(stretch, where, inside, rejected & could, accepted & could, totals)
    first = int(steps[began.first]) if began else None
    reaches_end = stretch is not None and stretch.stop >= len(steps) - 1
    by_gold = None
    if run.judge is not None and calibrated and stretch is not None:
        of_stretch = {int(s) for s in np.unique(judged.steps[inside])}
        by_gold = agreement_by_gold(run, of_stretch, part)
    metrics = Judging(
        by_command=run.judge is not None,
        command_set_aside=fair.set_aside,
        command_has_threshold=fair.has_threshold,
        command_agreement=fair.command_agreement,
        plain_agreement=fair.plain_agreement,
        plain_agreement_after=by_gold,
        n_rows=len(disagree),
        coverage=_r(len(disagree) / max(1, all_rows)),
        calibrated=calibrated,
        calibration_agreement=_r(judge.agreement),
        agreement_all=_r(1 - disagree.mean()),
        agreement_before=_mean(~disagree[~inside]),
        agreement_after=_r(1 - disagree[inside].mean()),
        rejected_right=int(rejected.sum()),
        accepted_wrong=int(accepted.sum()),
        rejected_right_share=_mean(rejected[inside & judged.right]) or 0.0,
        accepted_wrong_share=_mean(accepted[inside & ~judged.right]) or 0.0,
        rejected_right_least=_r(least_rate(rejected[inside & judged.right])),
        accepted_wrong_least=_r(least_rate(accepted[inside & ~judged.right])),
        one_sided=_r(more / disagree.sum()) if disagree.any() else None,
        stretch_gain=_r(stretch.gain) if stretch else 0.0,
        stretch_steps=stretch.stop - stretch.first if stretch else 0,
        stretch_reaches_end=reaches_end,
        scored_constant=bool(inside.any() and np.ptp(judged.scored[inside].astype(int)) == 0),
        scored_right_share_after=_mean(judged.scored[inside]) or 0.0,
        judged_right_before=_mean(judged.right[~inside]),
        judged_right_after=_mean(judged.right[inside]) or 0.0,
        judged_right_first=_mean(judged.right[where < max(1, len(steps) // 3)]) or 0.0,
        judged_right_last=_mean(judged.right[where >= len(steps) - max(1, len(steps) // 3)]) or 0.0,
        shift_agreement=_shift_agreement(batches, judge, steps_inside),
        exchange_z=_exchange(rejected & inside, accepted & inside),
        pattern_found=pattern is not None,
        pattern_purity=None if pattern is None else _r(pattern.purity),
        explained_by_form=_mean(judged.form_low[rejected & inside]),
        new_value=new.value,
        new_value_share=_r(new.share),
        new_value_gap=_r(new.gap),
        timing_shift=_timing(run, first),
        batch_level=_batch_level(where, rejected & inside, judged.right & inside),
        last_good_step=_last_good(steps, totals, began) if began else None,
        first_bad_step=first,
        last_bad_step=None if stretch is None or reaches_end else int(steps[stretch.stop]) - 1,
        from_start=began is not None and began.first == 0,
    )
    tables = [_per_step(steps, where, judged), _examples(judged, rejected | accepted, inside)]
    if pattern is not None:
        tables.append(
            Table(
                title="what the rows on which they disagree share",
                columns=("property",),
                rows=((pattern.text,),),
            )
        )
    return Measured(
        metrics,
        _summary(
            metrics,
            judge.part,
            judge.way.text,
            pattern.text if pattern else "",
            int(steps[stretch.first]) if stretch else None,
        ),
        tables=tuple(t for t in tables if t.rows),
        window=(int(steps[0]), int(steps[-1])),
        sources=tuple(run.rollouts.answers()),
        signal=f"agreement of `{judge.part}` with independent judging",
        quote=f"What these rows share: {pattern.text}." if pattern else "",
    )


def _began(
    stretch: Stretch,
    where: IntArray,
    inside: BoolArray,
    rejected: BoolArray,
    accepted: BoolArray,
    totals: IntArray,
) -> Stretch:
    """The stretch, or one that leads up to it in which the same disagreement is rarer.

    A policy learns to use a verifier that passes wrong answers, so what began with a few rows is a
    change-point of its own much later.
    """
    same = rejected if (rejected & inside).sum() >= (accepted & inside).sum() else accepted
    hits = np.bincount(where, weights=same, minlength=len(totals)).astype(np.int64)
    while (before := raised_stretch(hits[: stretch.first], totals[: stretch.first])) is not None:
        leads_up = before.first > 0 and before.stop == stretch.first
        if not leads_up or before.gain < SURE_GAIN:
            break
        stretch = before
    return stretch


def _last_good(steps: FloatArray, totals: IntArray, stretch: Stretch) -> int | None:
    """Last step before the stretch in which its rate would have shown, with those that follow.

    `totals` (S,): rows per step that could go wrong. A few that did not are no good step yet.
    """
    rows = np.cumsum(totals[: stretch.first][::-1])[::-1]
    silent = np.flatnonzero((1 - stretch.rate_in) ** rows <= SILENT)
    return int(steps[silent[-1]]) if len(silent) else None


def _pattern(judge: Judge, judged: JudgedRows, inside: BoolArray) -> Pattern | None:
    """What the rows share that are judged one way and scored the other, in the stretch.

    They are held against the rows of the same kind on which judge and score agree, in the stretch
    or, where it has too few, anywhere.
    """
    rejected, accepted = judged.right & ~judged.scored, ~judged.right & judged.scored
    one_way = rejected.sum() >= accepted.sum()
    wrong = rejected if one_way else accepted
    alike = judged.right & judged.scored if one_way else ~judged.right & ~judged.scored
    others = alike & inside if (alike & inside).sum() >= ALIKE else alike
    with_gold = [batch for batch in judged.batches if batch.gold is not None]
    flags = {}
    if isinstance(judge.way, ByGold):
        flags = forms(judge.way.extractor)
    elif with_gold:
        flags = forms(likely_extractor(with_gold))
    return explain_rows(judged.rows, wrong & inside, others, flags)


@dataclass(frozen=True)
class _NewValue:
    """A score that no early row has."""

    value: float | None = None
    share: float = 0.0
    gap: float = 0.0


def _new_value(
    run: Run, batches: list[RolloutBatch], judge: Judge, judged: JudgedRows, inside: BoolArray
) -> _NewValue:
    """The most frequent score of the stretch that the earliest steps do not know."""
    last = earliest(run, batches)[-1].step
    known = np.unique(judged.score[judged.steps <= last])
    score, right = judged.score[inside], judged.right[inside]
    values, times = np.unique(score[~np.isin(score, known)], return_counts=True)
    if not len(values):
        return _NewValue()
    value = float(values[int(np.argmax(times))])
    has = score == value
    gap = abs((_mean(has[right]) or 0.0) - (_mean(has[~right]) or 0.0))
    return _NewValue(_r(value), float(has.mean()), gap)


def _summary(m: Judging, part: str, way: str, pattern: str, change: int | None) -> str:
    """`change`: first step of the stretch that the shares are of."""
    doubt = "" if m.calibrated else ", too few to trust it alone"
    text = (
        f"`{part}` {way}; it agrees with the score in "
        f"{percent(m.calibration_agreement)} of the earliest rows{doubt}): "
        f"{m.n_rows} rows, {percent(m.agreement_all)} agree"
    )
    if change is not None:
        text += (
            f"; from step {change} on {percent(m.agreement_after)} agree: "
            f"{percent(m.rejected_right_share)} of the right answers are scored as wrong, "
            f"{percent(m.accepted_wrong_share)} of the wrong ones as right"
        )
    if m.first_bad_step is not None and m.first_bad_step != change:
        text += f"; it began more rarely at step {m.first_bad_step}"
    return text + (f"; the rows on which they disagree share: {pattern}" if pattern else "")


def _shift_agreement(batches: list[RolloutBatch], judge: Judge, wanted: set[int]) -> float:
    """Best agreement when the scores of a step are rolled against its rows (up to 60 steps)."""
    agreed: dict[int, list[bool]] = {}
    for batch in batches:
        if batch.step not in wanted or judge.part not in batch.rewards:
            continue
        known, right = judge.way.judge(batch)
        scored = judge.scored(batch.rewards[judge.part])
        group = max(2, int(np.bincount(batch.group).max()))
        for k in (*range(1, group + 1), *range(-group, 0)):
            agreed.setdefault(k, []).extend((np.roll(scored, k) == right)[known].tolist())
    return _r(max((float(np.mean(v)) for v in agreed.values() if v), default=0.0))


def _exchange(rejected: BoolArray, accepted: BoolArray) -> float:
    """abs(R - A) / sqrt(R + A); 99 where there is too little disagreement to tell."""
    r, a = int(rejected.sum()), int(accepted.sum())
    return _r(abs(r - a) / np.sqrt(r + a)) if r + a >= 30 else 99.0


def _timing(run: Run, first: int | None) -> float | None:
    signal = run.signals.get("step_time")
    if signal is None or first is None:
        return None
    before, after = signal.between(first - 20, first - 1), signal.between(first, first + 19)
    if len(before) < 3 or len(after) < 3:
        return None
    base = float(np.median(before))
    return _r(float(np.median(after)) / base) if base > 0 else None


def _batch_level(where: IntArray, rejected: BoolArray, right: BoolArray) -> float | None:
    index = where
    bad = np.bincount(index, weights=rejected)
    all_ = np.bincount(index, weights=right)
    use = all_ >= 3
    return _r(float(((bad == all_) | (bad == 0))[use].mean())) if use.any() else None


def _per_step(steps: FloatArray, where: IntArray, judged: JudgedRows) -> Table:
    index = where
    n = np.bincount(index)
    right, scored = (
        np.bincount(index, weights=judged.right),
        np.bincount(index, weights=judged.scored),
    )
    agree = np.bincount(index, weights=judged.right == judged.scored)
    shown = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), 200)).astype(int))
    return Table(
        title="per step: judged and scored right",
        columns=("step", "rows", "judged right", "scored right", "agreement"),
        rows=tuple(
            (int(steps[i]), int(n[i]), *(_r(v[i] / n[i]) for v in (right, scored, agree)))
            for i in shown
        ),
        cut_rows=len(steps) - len(shown),
    )


def _examples(judged: JudgedRows, wrong: BoolArray, inside: BoolArray) -> Table:
    """Rows spread over the bad stretch first, and over the rest where it has too few."""
    rows: list[tuple[Scalar, ...]] = []
    for i in [*_spread(wrong & inside), *_spread(wrong & ~inside)][:EXAMPLES]:
        batch, r = judged.rows[i]
        gold = batch.gold[r] if batch.gold else None
        verdict = "right" if judged.right[i] else "wrong"
        rows.append(
            (
                batch.step,
                r,
                batch.prompts[r][:300],
                batch.completions[r][-400:],
                gold,
                verdict,
                "right" if judged.scored[i] else "wrong",
            )
        )
    return Table(
        title="rows on which judge and reward disagree",
        columns=("step", "row", "prompt", "completion", "gold", "judged", "scored"),
        rows=tuple(rows),
        cut_rows=int(wrong.sum()) - len(rows),
    )


def _spread(chosen: BoolArray) -> list[int]:
    found = np.flatnonzero(chosen)
    return [int(i) for i in found[:: max(1, len(found) // EXAMPLES)][:EXAMPLES]]


def _mean(flags: BoolArray) -> float | None:
    return _r(float(flags.mean())) if len(flags) else None


def _r(value: float) -> float:
    return round(float(value), 6)
