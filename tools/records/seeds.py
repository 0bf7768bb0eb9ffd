"""Seeds as recorded with the rollouts: do rows of one prompt share them, and does it show?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Table
from firstbad.tools.numbers import percent
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import RolloutBatch, Run

LONG = 3
"""Words from which on a completion counts: shorter ones repeat by themselves."""
NEARLY = 0.9
"""Share of a step from which on its rows count as being all alike, for a date."""
SHOWN = 15


class Seeds(Dated):
    """Pairs of completions of one prompt in one step, by whether they share their recorded seed.

    Of the steps from the first bad one on, where there is one, else of all. Both of a pair have
    three words or more. Shares are None where there is no such pair.
    """

    n_rows: int
    """With a recorded seed."""
    equal_pairs: int
    """Pairs that were sampled with one seed."""
    equal_same_share: float | None
    """Of these: word for word the same."""
    other_pairs: int
    """Pairs of different seeds."""
    other_same_share: float | None
    equal_rows_share: float | None
    """Of the rows with a seed: another one of their prompt has the same. Few do where seeds collide
    by chance, or a row of each group is copied or sampled greedily on purpose."""
    ranks_sharing: int | None
    """Most ranks that used one seed in one step; None where no ranks are recorded."""


@tool
def check_seeds(run: Run) -> Measured[Seeds]:
    """Equal seeds as recorded, and whether completions that share one are the same.

    A seed that many rows have is no fault by itself: an engine that draws all samples of a request
    from one stream writes its one seed on each. The fault is that equal seeds give equal texts,
    where other seeds do not.

    Cannot tell: seeds that are not recorded with each row; a seed that all samples share, since no
    pair of other seeds says how often chance repeats a text (see `find_duplicates`).
    """
    batches = [b for b in run.rollouts.batches() if b.seed is not None and any(b.seed)]
    if not batches:
        raise NoData("no rollouts with the seed that sampled them")
    counts = [_pairs(batch) for batch in batches]
    alike = [c.equal > 0 and c.equal_same >= NEARLY * c.equal for c in counts]
    at = None
    if alike[-1]:
        at = 0 if all(alike) else len(alike) - alike[::-1].index(False)
    total = sum(counts[at or 0 :], start=_Pairs())
    ranks = [_ranks_sharing(b) for b in batches if b.rank is not None]
    metrics = Seeds(
        n_rows=sum(seed is not None for b in batches for seed in b.seed or ()),
        equal_pairs=total.equal,
        equal_same_share=_share(total.equal_same, total.equal),
        other_pairs=total.other,
        other_same_share=_share(total.other_same, total.other),
        equal_rows_share=_share(total.equal_rows, total.rows),
        ranks_sharing=max(ranks, default=None),
        last_good_step=batches[at - 1].step if at else None,
        first_bad_step=None if at is None else batches[at].step,
        from_start=at == 0,
    )
    worst = sorted(
        (i for i, c in enumerate(counts) if c.equal), key=lambda i: -counts[i].equal_same
    )
    table = Table(
        title="pairs of completions of one prompt with one seed",
        columns=(
            "step",
            "pairs with one seed",
            "the same text",
            "pairs of other seeds",
            "the same",
        ),
        rows=tuple(
            (batches[i].step, c.equal, c.equal_same, c.other, c.other_same)
            for i in sorted(worst[:SHOWN])
            for c in (counts[i],)
        ),
        cut_rows=max(0, len(worst) - SHOWN),
    )
    text = "no two completions of a prompt share their recorded seed"
    if metrics.equal_same_share is not None:
        text = (
            f"{total.equal} pairs of completions of a prompt share their seed, "
            f"{percent(metrics.equal_same_share)} of them are the same text"
        )
        if metrics.other_same_share is not None:
            text += f"; of {total.other} pairs of other seeds {percent(metrics.other_same_share)}"
    return Measured(
        metrics, text, tables=(table,) if worst else (), signal="seeds of the completions"
    )


@dataclass(frozen=True)
class _Pairs:
    """Pairs of long completions of one prompt: with one seed or others, and of those the same."""

    equal: int = 0
    equal_same: int = 0
    other: int = 0
    other_same: int = 0
    rows: int = 0
    equal_rows: int = 0
    """Rows that share their seed with another of their prompt."""

    def __add__(self, more: _Pairs) -> _Pairs:
        return _Pairs(
            self.equal + more.equal,
            self.equal_same + more.equal_same,
            self.other + more.other,
            self.other_same + more.other_same,
            self.rows + more.rows,
            self.equal_rows + more.equal_rows,
        )


def _pairs(batch: RolloutBatch) -> _Pairs:
    """Counted by their keys: comparing each with each would grow with the square of a group."""
    rows = [
        (group, seed, text)
        for group, seed, text, words in zip(
            batch.group.tolist(), batch.seed or (), batch.completions, batch.words, strict=True
        )
        if seed is not None and words >= LONG
    ]
    every = _among(Counter(group for group, _, _ in rows))
    same = _among(Counter((group, text) for group, _, text in rows))
    seeds = Counter((group, seed) for group, seed, _ in rows)
    equal, equal_same = _among(seeds), _among(Counter(rows))
    return _Pairs(
        equal,
        equal_same,
        every - equal,
        same - equal_same,
        len(rows),
        sum(n for n in seeds.values() if n > 1),
    )


def _among(counts: Mapping[Any, int]) -> int:
    """Pairs inside sets of these sizes."""
    return sum(n * (n - 1) // 2 for n in counts.values())


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 6) if whole else None


def _ranks_sharing(batch: RolloutBatch) -> int:
    """Most ranks that one seed stands on."""
    assert batch.rank is not None
    pairs = set(zip(batch.seed or (), batch.rank.tolist(), strict=True))
    return max(Counter(seed for seed, _ in pairs if seed is not None).values(), default=0)
