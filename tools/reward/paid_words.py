"""Does a reward part pay for how often one word is said?"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated
from firstbad.tools.outcome import outcome_part
from firstbad.tools.registry import Measured, tool
from firstbad.tools.rewards import group_stats
from firstbad.tools.row_table import RowTable
from firstbad.tools.run import FloatArray, IntArray, RolloutBatch, Run

ROWS, WORDS = 1000, 100_000
"""Most rows and words that are read of each third of the run."""
OFTEN = 30
"""Rows that must hold a word more than once."""
CANDIDATES, CLOSELY = 200, 5
"""Words that are looked at, and how many of them closely for each part."""
PAID, PAID_EARLY = 0.95, 0.5
"""Correlations, in the last third and the first, from which on the same pay counts as there."""
SAME = 0.25
"""Share by which the pay for one more word may differ between the two."""
WORD = re.compile(r"[^\W\d_]{2,}")


class PaidWord(Dated):
    """The word whose count a part beside the outcome goes with most, in the last third.

    All correlations are of rows that hold the word, around the means of their groups: a tag that is
    paid once does not count. None where no word is said twice by enough rows. The onset is that of
    the pay, which is known only where it is there in the first third already.
    """

    n_rows: int
    correlation: float | None
    length_correlation: float | None
    """Of the same part with the number of words of the text, over the same rows."""
    unexplained_by_count: float | None
    """Share of the part's variance that a straight line over the count leaves."""
    unexplained_by_length: float | None
    count_first: float | None
    """Mean count per row in the first third of the run."""
    count_last: float | None
    growth: float | None
    outcome_gain: float | None
    """Mean of the outcome, last third less first."""


@dataclass(frozen=True)
class _Found:
    part: str
    word: str
    r: float
    r_length: float
    slope: float
    """Pay for one more of the word."""
    count: float


@tool
def find_paid_word(run: Run) -> Measured[PaidWord]:
    """The single word whose count explains a reward part best, against the length of the text.

    A part that pays for length goes with the count of each common word a little, and with the
    length most; one that pays by the word goes with its count alone. Up to 1,000 rows are read.

    Cannot tell: a word that is paid once, which looks like a tag that is asked for.
    """
    batches = [b for b in run.rollouts.batches() if len(b.rewards) > 1]
    if len(batches) < 6:
        raise NoData("rollouts with two or more reward parts of fewer than six steps")
    outcome = outcome_part(run, batches)
    first, _, last = (_sample(part) for part in _thirds(batches))
    table = RowTable(run, last)
    texts = [_words(text) for batch in last for text in batch.completions]
    length = np.array([float(sum(text.values())) for text in texts])
    names = [name for name in table.parts if name != outcome]
    found = [
        each
        for word in _likeliest(table, names, texts)
        for each in _fits(table, names, word, np.array([float(t[word]) for t in texts]), length)
    ]
    best = max(found, key=lambda each: each.r, default=None)
    scored = [_scores(side, outcome) for side in (first, last)]
    gain = float(scored[1].mean() - scored[0].mean()) if all(map(len, scored)) else None
    count_first, from_start = None, False
    if best is not None:
        said = [
            float(WORD.findall(text.lower()).count(best.word))
            for batch in first
            for text in batch.completions
        ]
        count_first = float(np.mean(said))
        early = _fits(RowTable(run, first), [best.part], best.word, np.array(said), np.array(said))
        from_start = bool(early) and _same_pay(early[0], best)
    pays = best is not None and best.r > 0
    metrics = PaidWord(
        n_rows=len(texts),
        correlation=_r(best.r if best else None),
        length_correlation=_r(best.r_length if best else None),
        unexplained_by_count=_r(1 - best.r**2 if best and pays else None),
        unexplained_by_length=_r(1 - best.r_length**2 if best and pays else None),
        count_first=_r(count_first),
        count_last=_r(best.count if best else None),
        growth=_r(best.count / max(count_first or 0.0, 1 / len(texts)) if best else None),
        outcome_gain=_r(gain),
        first_bad_step=batches[0].step if from_start else None,
        from_start=from_start,
    )
    return Measured(
        metrics,
        f"`{best.part}` goes with the count of `{best.word}` by r {best.r:.3f} in groups, with the "
        f"length by {best.r_length:.3f}; {count_first:.2f} -> {best.count:.2f} of it per row"
        if best
        else "no word is said more than once by enough rows",
        window=(batches[0].step, batches[-1].step),
        signal="pay for a word",
        quote=f"The word is `{best.word}`." if best else "",
    )


def _thirds(batches: list[RolloutBatch]) -> list[list[RolloutBatch]]:
    places = np.array_split(np.arange(len(batches)), 3)
    return [[batches[i] for i in part] for part in places]


def _sample(batches: Sequence[RolloutBatch]) -> list[RolloutBatch]:
    """Steps spread evenly that hold at most so many rows and words."""
    rows = sum(len(b) for b in batches)
    words = sum(float(b.words.sum()) for b in batches)
    keep = max(1, int(len(batches) * min(1.0, ROWS / max(rows, 1), WORDS / max(words, 1.0))))
    return [batches[i] for i in np.unique(np.linspace(0, len(batches) - 1, keep).astype(int))]


def _scores(batches: Sequence[RolloutBatch], part: str) -> FloatArray:
    """All finite values of a part."""
    values = np.concatenate([b.rewards.get(part, np.empty(0)) for b in batches])
    found: FloatArray = values[np.isfinite(values)]
    return found


def _words(text: str) -> Counter[str]:
    return Counter(WORD.findall(text.lower()))


def _candidates(texts: Sequence[Counter[str]]) -> list[str]:
    """The words that most rows say more than once."""
    twice: Counter[str] = Counter()
    for text in texts:
        twice.update(word for word, n in text.items() if n > 1)
    return [word for word, n in twice.most_common(CANDIDATES) if n >= OFTEN]


def _likeliest(
    table: RowTable, names: Sequence[str], texts: Sequence[Counter[str]]
) -> dict[str, None]:
    """The words whose counts go most with one of the parts, over all rows at once."""
    words = _candidates(texts)
    counts = np.array([[float(text[word]) for word in words] for text in texts])
    found: dict[str, None] = {}
    for name in names if words else ():
        value = table.part(name)
        use = np.isfinite(value)
        if not use.any():
            continue
        order = np.argsort(table.group[use], kind="stable")
        starts = np.flatnonzero(np.diff(table.group[use][order], prepend=-1))
        x, y = (_centred(v[use][order], starts) for v in (counts, value[:, None]))
        scale = np.sqrt((x * x).sum(axis=0) * (y * y).sum(axis=0))
        r = (x * y).sum(axis=0) / np.maximum(scale, 1e-9)
        found |= dict.fromkeys(words[i] for i in np.argsort(-r, kind="stable")[:CLOSELY])
    return found


def _centred(x: FloatArray, starts: IntArray) -> FloatArray:
    """(N, V) less the mean of each run of rows that begins at one of `starts`."""
    size = np.diff(starts, append=len(x))
    found: FloatArray = x - np.repeat(np.add.reduceat(x, starts) / size[:, None], size, axis=0)
    return found


def _fits(
    table: RowTable, names: Sequence[str], word: str, count: FloatArray, length: FloatArray
) -> list[_Found]:
    found = []
    for name in names:
        value = table.part(name)
        use = (count > 0) & np.isfinite(value)
        if use.sum() < 2 * OFTEN:
            continue
        group = np.unique(table.group[use], return_inverse=True)[1]
        n, size, paid = (_around(x[use], group) for x in (count, length, value))
        slope = float(n @ paid) / max(float(n @ n), 1e-9)
        mean = float(count.mean())
        found.append(_Found(name, word, _cosine(n, paid), _cosine(size, paid), slope, mean))
    return found


def _around(x: FloatArray, group: IntArray) -> FloatArray:
    """Differences from the mean of the group."""
    stats = group_stats(x, group)
    found: FloatArray = x - stats.mean[stats.index]
    return found


def _cosine(a: FloatArray, b: FloatArray) -> float:
    scale = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / scale if scale > 1e-9 else 0.0


def _same_pay(early: _Found, late: _Found) -> bool:
    alike = abs(early.slope - late.slope) < SAME * abs(late.slope)
    return late.r > PAID and early.r > PAID_EARLY and alike


def _r(value: float | None) -> float | None:
    return None if value is None else round(float(value), 6)
