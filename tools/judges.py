"""Independent judges of rollouts: plain reading against gold answers, or the user's own command."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Protocol

import numpy as np

from firstbad.tools.answers import (
    EXTRACTORS,
    READINGS,
    Reading,
    agree,
    extract,
    likely_extractor,
    normalise,
)
from firstbad.tools.errors import NoData, ToolInputError
from firstbad.tools.judge_scores import JudgeScores
from firstbad.tools.numbers import percent
from firstbad.tools.outcome import looks_like_outcome, outcome_part
from firstbad.tools.row_table import RowTable
from firstbad.tools.run import BoolArray, FloatArray, IntArray, RolloutBatch, Run

CALIBRATED = 0.99
"""Agreement on the earliest steps above which the judge is fair (playbook, layer 5)."""
CALIBRATION_ROWS = 300
FEWEST_ENDED = 60
"""Rows that ended by themselves from which on cut ones are left out."""
LEVELS = 8
"""Most values of a part whose largest may stand for a right answer."""
COMMON = 0.02
"""Share of the earliest rows that a value must have to be one of them."""
ALIKE_STEPS = 100
"""About how many steps, spread over the run, tell ways apart that agree on the earliest rows."""
CUTS = 40
"""Most thresholds tried on the scores of the user's judge."""


class Way(Protocol):
    """One way of judging rows."""

    @property
    def text(self) -> str:
        """In words; the bracket is left open."""

    def judge(self, batch: RolloutBatch) -> tuple[BoolArray, BoolArray]:
        """(R,) rows that can be judged, and (R,) rows judged right."""


@dataclass(frozen=True)
class ByGold:
    """An answer is extracted from the text and compared with the gold answer."""

    extractor: str
    reading: Reading

    def judge(self, batch: RolloutBatch) -> tuple[BoolArray, BoolArray]:
        """(R,) rows with a gold answer, and (R,) rows judged right."""
        known, right = "has gold", ("judged right", self.extractor, self.reading)
        if known not in batch.derived:
            has = [answer is not None for answer in batch.gold or [None] * len(batch)]
            batch.derived[known] = np.array(has, bool)
        if right not in batch.derived:
            batch.derived[right] = np.array(self._right(batch), bool)
        return batch.derived[known], batch.derived[right]

    def _right(self, batch: RolloutBatch) -> list[bool]:
        """Rows judged right; what agrees plainly agrees in every reading."""
        name, texts = self.extractor, batch.completions
        gold = batch.gold or [None] * len(batch)
        if self.reading == "plain":
            return [
                answer is not None and extract(name, text) == normalise(answer)
                for text, answer in zip(texts, gold, strict=True)
            ]
        plain = ByGold(name, "plain").judge(batch)[1].tolist()
        return [
            done or (answer is not None and agree(extract(name, text), answer, self.reading))
            for done, text, answer in zip(plain, texts, gold, strict=True)
        ]

    @property
    def text(self) -> str:
        """In words; the bracket is left open."""
        said = {"plain": "", "loose": ", letters and digits only", "number": ", numbers only"}
        return f"against gold answers ({self.extractor}{said[self.reading]}"


@dataclass(frozen=True)
class ByCommand:
    """A score of the user's judge at or above a threshold is right."""

    scores: JudgeScores
    at_least: float

    def judge(self, batch: RolloutBatch) -> tuple[BoolArray, BoolArray]:
        """(R,) rows that it scored, and (R,) rows judged right."""
        score = self.scores.of(batch.step, len(batch))
        return np.isfinite(score), score >= self.at_least

    @property
    def text(self) -> str:
        """In words; the bracket is left open."""
        return f"against the judge of `--judge` (right from {self.at_least + 0.0:g} on"


@dataclass(frozen=True)
class Judge:
    """A part, how rows are judged, and the agreement of the two on the earliest rows."""

    part: str
    way: Way
    top: float | None
    """Score of a right answer."""
    agreement: float = 0.0

    def scored(self, score: FloatArray) -> BoolArray:
        """Rows that the part scored right."""
        found: BoolArray = score >= (np.inf if self.top is None else self.top) - 1e-6
        return found


@dataclass
class JudgedRows:
    """Rows that were both judged and scored, N of them."""

    steps: FloatArray
    """(N,) step of each."""
    right: BoolArray
    """(N,) judged right."""
    scored: BoolArray
    """(N,) scored right."""
    score: FloatArray
    """(N,) the part's own value."""
    form_low: BoolArray
    """(N,) another part is below its largest value of the step."""
    batches: list[RolloutBatch]
    at: IntArray
    """(N,) place of each row among the rows of all batches."""

    @cached_property
    def rows(self) -> list[tuple[RolloutBatch, int]]:
        """Batch of each judged row, and its place there."""
        starts = np.cumsum([0, *map(len, self.batches)])
        of = np.searchsorted(starts, self.at, side="right") - 1
        own = (self.at - starts[of]).tolist()
        return [(self.batches[k], i) for k, i in zip(of.tolist(), own, strict=True)]


def judged_batches(run: Run) -> list[RolloutBatch]:
    """Batches with rewards of which rows can be judged.

    Raises:
        NoData: there are none.
    """
    batches = [b for b in run.rollouts.batches() if b.rewards]
    if run.judge is None:
        batches = [b for b in batches if b.gold is not None]
    if not batches:
        raise NoData("no rollouts whose right answers are known (gold column or data file)")
    return batches


def judge_rows(run: Run, batches: list[RolloutBatch], judge: Judge) -> JudgedRows:
    """Judge the rows of some batches."""
    batches = [b for b in batches if judge.part in b.rewards]
    if not batches:
        none, empty = np.empty(0, bool), np.empty(0)
        return JudgedRows(empty, none, none, empty, none, batches, np.empty(0, np.int64))
    table = RowTable.of(run, batches)
    score = table.part(judge.part)
    low = np.zeros(len(score), bool)
    for part in table.parts:
        if part != judge.part:
            values = table.part(part)
            low |= values < table.highest(values)[table.step] - 1e-6
    known, right = (
        np.concatenate(each)
        for each in zip(*(judge.way.judge(batch) for batch in batches), strict=True)
    )
    use = known & np.isfinite(score)
    # Whether the answer in a cut completion counts is another question than whether it is right.
    ended = use & ~table.cut
    at = np.flatnonzero(ended if ended.sum() >= FEWEST_ENDED else use)
    return JudgedRows(
        table.steps[table.step[at]].astype(np.float64),
        right[at],
        judge.scored(score[at]),
        score[at],
        low[at],
        batches,
        at,
    )


def calibrate(run: Run, batches: list[RolloutBatch], part: str = "") -> Judge:
    """The part and way of judging that agree best on the earliest rows.

    Raises:
        NoData: no part that could be the outcome, or no way to judge it.
        ToolInputError: no part of the name that was asked for.
    """
    if run.judge is not None and len(set(run.judge.scores.values())) < 2:
        raise NoData("the judge gives every row the same score, which tells no rows apart")
    early = earliest(run, batches)
    tops = _tops(run, batches, early, part)
    if not tops:
        raise NoData(
            f"no reward part with few values to judge; parts: {', '.join(batches[0].rewards)}"
        )
    best: Judge | None = None
    informative = -1.0
    alike: list[Judge] = []
    """Ways that the earliest rows do not tell apart."""
    for name, (top, graded) in tops.items():
        for way in _ways(run, early):
            judge = Judge(name, way, top)
            judged = judge_rows(run, early, judge)
            if len(judged.steps) < 10 or not judged.right.any():
                continue
            agreement = float((judged.right == judged.scored).mean())
            if graded and agreement < CALIBRATED:
                continue  # which of its values means right is not known
            # A way that finds more right answers explains more; agreement decides first.
            value = agreement + 1e-3 * float(judged.right.mean())
            if value > informative:
                informative, best = value, replace(judge, agreement=agreement)
                alike = []
            if best is not None and value == informative:
                alike.append(replace(judge, agreement=agreement))
    if len(alike) > 1:
        best = _of_alike(run, batches, alike)
    if best is not None and run.judge is not None and best.agreement < CALIBRATED:
        best = _uncalibrated(run, early, best)
    if best is None:
        return _by_looks(run, batches, tops)
    named = part or run.judge is not None or looks_like_outcome(best.part)
    if best.agreement < CALIBRATED and not named:
        raise NoData(
            f"no part is named like an outcome, and none agrees with plain judging "
            f"(`{best.part}` best, {percent(best.agreement)})"
        )
    return best


def _of_alike(run: Run, batches: list[RolloutBatch], alike: list[Judge]) -> Judge:
    """Of ways that the earliest rows do not tell apart, one that explains all scores, or the first.

    It must find about as many right answers as any other, or it may be blind where a verifier is.
    """
    some = batches[:: max(1, len(batches) // ALIKE_STEPS)]
    rows = [judge_rows(run, some, judge) for judge in alike]
    most = max(float(r.right.mean()) for r in rows)
    for judge, judged in zip(alike, rows, strict=True):
        agrees = float((judged.right == judged.scored).mean()) >= CALIBRATED
        if agrees and judged.right.mean() >= 0.9 * most:
            return judge
    return alike[0]


def earliest(run: Run, batches: list[RolloutBatch]) -> list[RolloutBatch]:
    """The first steps, that hold enough rows which can be judged."""
    early: list[RolloutBatch] = []
    known = 0
    for batch in batches:
        early.append(batch)
        known += int(
            np.isfinite(run.judge.of(batch.step, len(batch))).sum()
            if run.judge is not None
            else sum(g is not None for g in batch.gold or ())
        )
        if known >= CALIBRATION_ROWS and len(early) >= 5:
            break
    return early


def _ways(run: Run, early: list[RolloutBatch]) -> Iterator[Way]:
    """Ways of judging to be tried; of equal ones the first is taken."""
    if run.judge is None:
        # Of ways that agree alike the plainest reading counts: a loose one fits by chance.
        for reading, extractor in product(READINGS, EXTRACTORS):
            yield ByGold(extractor, reading)
        return
    scores = _scores(run.judge, early)
    natural = _natural(scores)
    cuts = np.unique(np.quantile(scores, np.linspace(0, 1, CUTS))) if len(scores) else scores
    for cut in ([] if natural is None else [natural]) + cuts[1:].tolist():
        yield ByCommand(run.judge, cut)


def _scores(judge: JudgeScores, batches: list[RolloutBatch]) -> FloatArray:
    found = np.concatenate([judge.of(b.step, len(b)) for b in batches])
    scores: FloatArray = found[np.isfinite(found)]
    return scores


def _natural(scores: FloatArray) -> float | None:
    """The threshold that a judge's scores have by themselves: the higher of two, or one half."""
    values = np.unique(scores)
    if len(values) == 2:
        return float(values[1])
    return 0.5 if len(values) and values[0] >= 0 and values[-1] <= 1 else None


def _uncalibrated(run: Run, early: list[RolloutBatch], best: Judge) -> Judge:
    """The user's judge at its natural threshold, since fitting one to the reward would bend it.

    Raises:
        NoData: it has none.
    """
    assert run.judge is not None
    natural = _natural(_scores(run.judge, early))
    if natural is None:
        raise NoData("no threshold on the judge's scores agrees with the reward's first rows")
    judge = replace(best, way=ByCommand(run.judge, natural))
    judged = judge_rows(run, early, judge)
    return replace(judge, agreement=float((judged.right == judged.scored).mean()))


def _by_looks(run: Run, batches: list[RolloutBatch], tops: dict[str, tuple[float, bool]]) -> Judge:
    """Nothing is right by any way: the extractor whose answers look like gold answers judges."""
    name = next((n for n, (_, graded) in tops.items() if not graded), None)
    if name is None or run.judge is not None:
        raise NoData("no way of judging agrees with the reward, whose scores are graded")
    judge = Judge(name, ByGold(likely_extractor(batches), "loose"), tops[name][0])
    judged = judge_rows(run, batches, judge)
    if not len(judged.steps):
        raise NoData("no row with a gold answer and a score")
    return replace(judge, agreement=float((judged.right == judged.scored).mean()))


def _tops(
    run: Run, batches: list[RolloutBatch], early: list[RolloutBatch], part: str
) -> dict[str, tuple[float, bool]]:
    """Score of a right answer of each part that may be the outcome, and whether it is graded.

    The part asked for, the one that looks like it, or all with two values.
    """
    parts = list(batches[0].rewards)
    if part and part not in parts:
        raise ToolInputError(f"no reward part `{part}`; there are: {', '.join(parts)}")
    likely = part or outcome_part(run, batches)
    if part or looks_like_outcome(likely):
        found = _top(batches, likely)
        found = _top(early, likely) if found is None else found
        if found is not None:
            return {likely: (found, False)}
        levels = _levels(early, likely)
        return {likely: (levels[-1], True)} if 1 < len(levels) <= LEVELS else {}
    return {n: (top, False) for n in parts if (top := _top(batches, n)) is not None}


def _top(batches: list[RolloutBatch], name: str) -> float | None:
    """Score of a right answer: the higher of the two values that nearly every row has.

    None when more than two values are common. A part with one value so far is right above 0.
    """
    common = _counted(batches, name)
    two = [v for v, _ in common.most_common(2)]
    if not two or sum(common[v] for v in two) < 0.95 * sum(common.values()):
        return None
    top: float = max(two)
    return top if len(two) > 1 or top > 0 else top + 1.0


def _levels(batches: list[RolloutBatch], name: str) -> list[float]:
    """Values that are common in some batches, ascending; empty where others are common as well."""
    counted = _counted(batches, name)
    n = sum(counted.values())
    common = sorted(v for v, times in counted.items() if times >= COMMON * n)
    return common if sum(counted[v] for v in common) >= 0.95 * n else []


def _counted(batches: list[RolloutBatch], name: str) -> Counter[float]:
    return Counter(
        value
        for b in batches[:: max(1, len(batches) // 60)]
        if name in b.rewards
        for value in b.rewards[name].tolist()
        if math.isfinite(value)
    )
