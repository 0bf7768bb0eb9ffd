"""Are the gold answers those of their prompts? The samples' own consensus is the witness."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy as np

from firstbad.tools.answers import (
    EXTRACTORS,
    agree,
    extract,
    likely_extractor,
    loose,
    normalise,
    words_of,
)
from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Scalar, Table
from firstbad.tools.numbers import percent
from firstbad.tools.records.prompt_kinds import MARKS, telling_word
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import BoolArray, IntArray, Run
from firstbad.tools.stats import Stretch, raised_stretch

STRONG = 0.6
"""Share of a group that must give one answer before it counts as a consensus."""
OFTEN = 0.15
"""Share of contradicted consensus groups beyond which the gold answers are dated as wrong."""
FEWEST = 20
SURE_GAIN = 10.0
MOSTLY = 0.8
"""Share of groups from which on the loss of repeated words dates wrong gold answers."""
ONCE = re.compile(r"uniq|distinct|once|duplicat|repeat|\bsets?\b|differ", re.IGNORECASE)
"""A prompt that may ask for each word once."""
COINCIDE = 0.1
"""Chance for two right answers to be the same from which a neighbour's tells nothing."""
_Row = tuple[int, str, str | None, str, float]
"""Step, gold answer, consensus, prompt, share of the samples that give the consensus."""


class Gold(Dated):
    """Consensus answers of groups against their gold answers."""

    n_groups: int
    """Groups with a known gold answer."""
    n_consensus: int
    """Groups in which at least 60 % of the samples give one answer."""
    consensus_share: float
    consensus_wrong_share: float
    """Of consensus groups, inside the stretch where it is raised: consensus is not the gold."""
    consensus_wrong_before: float | None
    stretch_gain: float
    elsewhere_share: float
    """Of those contradicted groups: the consensus is the gold answer of another prompt that was
    seen in the run or stands in the same data file within eight rows."""
    learned_away: bool
    """The contradictions are there from the start and end before the run does: the policy learned
    what the gold answers say."""
    neighbour_share: float
    """... and always of the same neighbour (same distance in the batch)."""
    words_differ_share: float
    """Of contradicted groups: gold and consensus are made of different words."""
    prompt_words_gap: float
    """Share of the consensus answer's words that stand in the prompt, less that of the gold's; 0
    where most words of the gold answers that samples agree on do not stand there either, since a
    policy that echoes its prompt is then no witness."""
    prompt_words_gold: float
    """Mean share of the gold answer's words that stand in the prompt, contradicted groups."""
    prompt_words_consensus: float
    repeats_lost_share: float
    """Of contradicted groups: the gold answer is the consensus with each repeated word said once,
    the prompt repeats these words as the consensus does, and does not ask for words once."""
    repeats_lost_of_all: float
    """The same groups, of all that agree on an answer with a repeated word of their prompt."""
    n_misfits: int
    """Contradicted groups whose consensus stands in the prompt, word by word, and whose gold answer
    does not but is right for another prompt that has it."""
    misfit_prompts: int
    """Distinct prompts of these."""
    misfit_share: float
    """Of all groups that agree on an answer."""
    prompt_words_agreed: float
    """Mean share of the gold answer's words that stand in the prompt, where groups agree on it."""
    n_often: int
    """Prompts that come three times or more."""
    n_stuck: int
    """... of which no sample is ever right while most of its groups agree on one other answer."""
    n_kind: int
    """Consensus groups of a kind of prompts, told by a word of theirs, that contradict the gold
    answer to the end while those of no other prompt do; 0 without such a kind."""


@tool
def check_gold(run: Run) -> Measured[Gold]:
    """Consensus of each group's samples against the group's gold answer.

    Where most samples of a prompt agree on one answer and the gold answer is another, either the
    policy is wrong with conviction or the gold answer is. Gold answers that belong to other
    prompts, or that share no words with a prompt whose answers otherwise do, speak for the latter.

    Cannot tell: a gold file that is wrong in the same way as the policy.
    """
    batches = [b for b in run.rollouts.batches() if b.gold is not None]
    if not batches:
        raise NoData("no rollouts whose right answers are known")
    extractor = likely_extractor(batches)
    rows: list[_Row] = []
    contradicted: list[bool] = []
    for batch in batches:
        for members in batch.members:
            gold = batch.gold[members[0]] if batch.gold else None
            if gold is None or len(members) < 3:
                continue
            texts = [batch.completions[i] for i in members]
            text, share = _consensus([extract(extractor, text) for text in texts])
            wanted = normalise(gold)
            rows.append((batch.step, wanted, text, batch.prompts[members[0]], share))
            contradicted.append(
                text is not None and _contradict(wanted, text) and not _said_otherwise(texts, gold)
            )
    agreed = [i for i, r in enumerate(rows) if r[2] is not None]
    if len(agreed) < FEWEST:
        raise NoData(
            f"groups that agree on an answer and have a gold one: {len(agreed)} of {FEWEST} needed"
        )
    return _measured(run, rows, agreed, [contradicted[i] for i in agreed])


def _measured(
    run: Run,
    rows: list[_Row],
    agreed: list[int],
    contradicted: list[bool],
) -> Measured[Gold]:
    steps, where = np.unique([rows[i][0] for i in agreed], return_inverse=True)
    wrong = np.array(contradicted)
    totals = np.bincount(where).astype(np.int64)
    hits = np.bincount(where, weights=wrong).astype(np.int64)
    stretch = raised_stretch(hits, totals)
    if stretch is not None and stretch.gain < SURE_GAIN:
        stretch = None
    inside = (
        np.ones(len(wrong), bool)
        if stretch is None
        else (where >= stretch.first) & (where < stretch.stop)
    )
    bad = [i for i, w, s in zip(agreed, wrong, inside, strict=True) if w and s]
    elsewhere, neighbour = _elsewhere(rows, bad)
    words = [(set(rows[i][1].split()), set(str(rows[i][2]).split())) for i in bad]
    prompts = [set(rows[i][3].lower().split()) for i in bad]
    first = int(steps[stretch.first]) if stretch else None
    off = bool(wrong[inside].mean() > OFTEN)
    lost = _Repeats(rows, agreed, wrong)
    misfits = _Misfits(rows, agreed, wrong)
    often, stuck = _stuck(rows)
    kind = _unsolved_kind(rows, agreed, wrong)
    metrics = Gold(
        n_groups=len(rows),
        n_consensus=len(agreed),
        consensus_share=_r(len(agreed) / len(rows)),
        consensus_wrong_share=_r(float(wrong[inside].mean())),
        consensus_wrong_before=_r(float(wrong[~inside].mean())) if (~inside).any() else None,
        stretch_gain=_r(stretch.gain) if stretch else 0.0,
        elsewhere_share=_r(elsewhere),
        learned_away=off
        and stretch is not None
        and stretch.first == 0
        and stretch.stop < len(steps) - 1,
        neighbour_share=0.0 if _coincidence(rows) > COINCIDE else _r(neighbour),
        words_differ_share=_mean([g != c for g, c in words]),
        prompt_words_gap=0.0
        if misfits.n_sound >= FEWEST and misfits.within < 0.5
        else _mean(
            [_within(c, p) - _within(g, p) for (g, c), p in zip(words, prompts, strict=True)]
        ),
        prompt_words_gold=_mean([_within(g, p) for (g, _), p in zip(words, prompts, strict=True)]),
        prompt_words_consensus=_mean(
            [_within(c, p) for (_, c), p in zip(words, prompts, strict=True)]
        ),
        repeats_lost_share=_r(lost.of_wrong),
        repeats_lost_of_all=_r(lost.of_all),
        n_misfits=len(misfits.bad),
        misfit_prompts=len({rows[i][3] for i in misfits.bad}),
        misfit_share=_r(len(misfits.bad) / len(agreed)),
        prompt_words_agreed=_r(misfits.within),
        n_often=often,
        n_stuck=len(stuck),
        n_kind=0 if kind is None else kind[1],
        **(
            lost.dated()
            if off and lost.of_wrong > MOSTLY and lost.of_all > MOSTLY
            else _dated(off, stretch, steps)
            if off or not misfits.bad
            else misfits.dated()
        ),
    )
    shown: list[tuple[Scalar, ...]] = [
        (rows[i][0], rows[i][3][:200], rows[i][2], rows[i][1], _r(rows[i][4])) for i in bad[:12]
    ]
    table = Table(
        title="groups whose samples agree on another answer than the gold one",
        columns=("step", "prompt", "consensus", "gold", "share of samples"),
        rows=tuple(shown),
        cut_rows=max(0, len(bad) - len(shown)),
    )
    text = (
        f"{len(agreed)} of {len(rows)} groups agree on an answer; "
        f"{percent(metrics.consensus_wrong_share)} of them contradict the gold answer"
    )
    if off and first is not None and not metrics.from_start:
        text += f" from step {first} ({percent(metrics.consensus_wrong_before or 0)} before)"
    return Measured(
        metrics,
        text,
        tables=(table,) if shown else (),
        sources=tuple(run.rollouts.answers()),
        signal="gold answer against the samples' consensus",
        quote="" if kind is None else f"`{kind[0][:40]}`",
    )


def _dated(off: bool, stretch: Stretch | None, steps: IntArray) -> dict[str, Any]:
    """The onset by the stretch in which groups are contradicted."""
    if not off:
        return {}
    first = stretch.first if stretch else 0
    return {
        "last_good_step": int(steps[first - 1]) if first else None,
        "first_bad_step": int(steps[first]),
        "from_start": first == 0,
        "last_bad_step": int(steps[stretch.stop]) - 1
        if stretch and stretch.stop < len(steps)
        else None,
    }


class _Misfits:
    """Where answers are read off the prompt: gold answers that belong to another one."""

    def __init__(self, rows: list[_Row], agreed: list[int], wrong: BoolArray) -> None:
        sound = [rows[i] for i, w in zip(agreed, wrong, strict=True) if not w]
        parts = [_within(set(r[1].split()), set(r[3].lower().split())) for r in sound]
        self.within = float(np.mean(parts)) if parts else 0.0
        self.n_sound = len(parts)
        right = {r[1] for r, part in zip(sound, parts, strict=True) if part == 1}
        self.bad = [
            i
            for i, w in zip(agreed, wrong, strict=True)
            if w and rows[i][1] in right and _misfits(rows[i])
        ]
        self._first = rows[self.bad[0]][0] if self.bad else None
        self._good = [r[0] for r in sound if self._first is not None and r[0] < self._first]
        self._steps = sorted({r[0] for r in rows})

    def dated(self) -> dict[str, Any]:
        """The onset; a few steps without one are no healthy beginning where few are wrong."""
        early = self._first in self._steps[: max(5, len(self._steps) // 6)]
        return {
            "last_good_step": None if early or not self._good else self._good[-1],
            "first_bad_step": self._first,
            "from_start": early,
            "sampled": not early,
        }


def _misfits(row: _Row) -> bool:
    """Whether the consensus stands in the prompt, and nothing of the gold answer does."""
    prompt = set(row[3].lower().split())
    return _within(set(str(row[2]).split()), prompt) == 1 and not _within(
        set(row[1].split()), prompt
    )


def _stuck(rows: list[_Row]) -> tuple[int, list[str]]:
    """Prompts that come often, and those whose groups agree on an answer that is never right."""
    by_prompt: dict[str, list[_Row]] = {}
    for row in rows:
        by_prompt.setdefault(row[3], []).append(row)
    often = {text: own for text, own in by_prompt.items() if len(own) >= 3}
    stuck = []
    for text, own in often.items():
        said = Counter(r[2] for r in own if r[2] is not None)
        top, times = said.most_common(1)[0] if said else (None, 0)
        never = all(r[2] is None or _contradict(r[1], r[2]) for r in own)
        if top is not None and never and times > MOSTLY * len(own):
            stuck.append(text)
    return len(often), stuck


def _unsolved_kind(rows: list[_Row], agreed: list[int], wrong: BoolArray) -> tuple[str, int] | None:
    """A word of the prompts whose consensus is never right, to the end, and how many groups it is.

    Other prompts are answered right, so it is no policy that can do nothing.
    """
    prompts = [rows[i][3] for i in agreed]
    word = telling_word(
        [p for p, w in zip(prompts, wrong, strict=True) if w],
        [p for p, w in zip(prompts, wrong, strict=True) if not w],
    )
    if word is None:
        return None
    has = np.array([word in p.lower().split() for p in prompts])
    late = np.arange(len(prompts)) >= 2 * len(prompts) // 3
    ends_wrong = bool((has & late).any()) and bool(wrong[has & late].mean() > MARKS)
    return (word, int(has.sum())) if ends_wrong and wrong[has].mean() > MARKS else None


class _Repeats:
    """Groups whose consensus repeats a word of the prompt, and whose gold answer says it once."""

    def __init__(self, rows: list[_Row], agreed: list[int], wrong: BoolArray) -> None:
        could = [i for i in agreed if _repeats(rows[i])]
        lost = [i for i in could if _said_once(rows[i])]
        bad = {i for i, w in zip(agreed, wrong, strict=True) if w}
        self.of_wrong = len(bad.intersection(lost)) / max(1, len(bad))
        self.of_all = len(lost) / max(1, len(could))
        self._bad = [rows[i][0] for i in lost]
        self._good = [rows[i][0] for i in could if rows[i][1] == rows[i][2]]

    def dated(self) -> dict[str, Any]:
        """The onset: only groups with a repeated word can show it."""
        first = self._bad[0]
        good = [step for step in self._good if step < first]
        return {
            "last_good_step": good[-1] if good else None,
            "first_bad_step": first,
            "from_start": not good,
        }


def _repeats(row: _Row) -> bool:
    """Whether the consensus holds a word twice or more, as often as its prompt, unasked."""
    said, asked = Counter(str(row[2]).split()), Counter(words_of(row[3].lower()))
    return max(said.values(), default=0) > 1 and said <= asked and not ONCE.search(row[3])


def _said_once(row: _Row) -> bool:
    """Whether the gold answer is the consensus with each word said once."""
    return list(dict.fromkeys(str(row[2]).split())) == row[1].split()


def _consensus(answers: list[str | None]) -> tuple[str | None, float]:
    """The answer that a strong share gives, or None, and the share of the most common one."""
    counts: dict[str, int] = {}
    for answer in answers:
        if answer is not None:
            counts[answer] = counts.get(answer, 0) + 1
    if not counts:
        return None, 0.0
    top = max(counts, key=counts.__getitem__)
    share = counts[top] / len(answers)
    return (top if share >= STRONG else None), share


def _contradict(gold: str, consensus: str) -> bool:
    """Whether two answers differ in more than form: neither holds the other's words in a row."""
    if gold == consensus:
        return False
    a, b = words_of(gold), words_of(consensus)
    return loose(gold) != loose(consensus) and not _holds(a, b) and not _holds(b, a)


def _said_otherwise(completions: list[str], gold: str) -> bool:
    """Whether another way of reading the answers finds the group agreed on the gold one.

    The likely extractor goes by looks: of `1 3 5` it may read the last number where the gold answer
    is written `135`.
    """
    said = [sum(agree(extract(name, c), gold, "loose") for c in completions) for name in EXTRACTORS]
    return max(said) >= STRONG * len(completions)


def _holds(whole: list[str], part: list[str]) -> bool:
    n = len(part)
    return n > 0 and any(whole[i : i + n] == part for i in range(len(whole) - n + 1))


def _elsewhere(rows: list[_Row], bad: list[int]) -> tuple[float, float]:
    """How often a contradicted consensus is the gold answer of a neighbour in the batch."""
    if not bad:
        return 0.0, 0.0
    distance: Counter[int] = Counter()
    hits = 0
    for i in bad:
        found = False
        for d in range(-8, 9):
            j = i + d
            if d and 0 <= j < len(rows) and rows[j][0] == rows[i][0] and rows[j][1] == rows[i][2]:
                distance[d] += 1
                found = True
        hits += found
    return hits / len(bad), (distance.most_common(1)[0][1] / len(bad)) if distance else 0.0


def _coincidence(rows: list[_Row]) -> float:
    """Chance for the right answers of two groups to be the same."""
    counts = np.array(list(Counter(row[1] for row in rows).values()), np.float64)
    return float(((counts / counts.sum()) ** 2).sum())


def _within(words: set[str], prompt: set[str]) -> float:
    return len(words & prompt) / len(words) if words else 0.0


def _mean(values: list[float] | list[bool]) -> float:
    return _r(float(np.mean(values))) if values else 0.0


def _r(value: float) -> float:
    return round(float(value), 6)
