"""Gradients of whole ranks, or of one micro-batch of several, that do not reach the sum."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from synthetic.cases import Case
from synthetic.cases_accumulation import MISSING, RANKS, WHOLE, Averaged, Faulty
from synthetic.policy import Array
from synthetic.trainer import Batch, Microbatch


class LastRankLost(Faulty):
    """Ranks are joined without the last one; no ledger says how they are joined."""

    def reduced(self, ranks: list[Array]) -> Array:
        return super().reduced(ranks[:-1] if self.after else ranks)


class FirstRankAlone(Averaged):
    """Every rank steps by its own gradient, divided as if all had been averaged."""

    def reduced(self, ranks: list[Array]) -> Array:
        return ranks[0] / len(ranks)


class SecondLost(Faulty):
    """The second of the micro-batches never reaches the sum; the loss holds all of them."""

    def reaches(self, microbatch: Microbatch) -> bool:
        return microbatch.index != 1


class SmallRank(Faulty):
    """The second rank has one row in eight."""

    def microbatches(self, batch: Batch) -> Iterator[Microbatch]:
        n, total = len(batch.group), float(batch.loss_mask.sum())
        first, second = np.arange(n - n // 8), np.arange(n - n // 8, n)
        for rank, own in enumerate((first, second)):
            for index, rows in enumerate(np.array_split(own, self.s.accumulation)):
                yield Microbatch(rank, index, rows, total)


CASES = [
    Case("a31", lambda: LastRankLost(ranks=2), "incident", RANKS, (31, 31), {WHOLE: "fail"}),
    Case("a32", lambda: LastRankLost(ranks=4, onset=1), "incident", RANKS, (1, 1)),
    Case("a33", lambda: FirstRankAlone(ranks=4, accumulation=1), "incident", RANKS, (1, 1)),
    Case("a34", lambda: Faulty(ranks=4), "healthy", checks={WHOLE: "pass"}, twin_of=RANKS),
    Case("a35", lambda: SmallRank(ranks=2), "healthy", checks={WHOLE: "pass"}, twin_of=RANKS),
    Case("a36", lambda: SecondLost(accumulation=4), "incident", MISSING, (1, 1), {WHOLE: "fail"}),
    Case("a37", lambda: Faulty(accumulation=6), "healthy", twin_of=MISSING),
]
