"""Micro-batches that count for nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from synthetic.cases import Case
from synthetic.trainer import Batch, Microbatch, Trainer

WHOLE, MISSING = "accumulation.whole_gradient", "grad.missing_microbatch"


class FourParts(Trainer):
    """Four micro-batches, every step captured."""

    def __init__(self) -> None:
        super().__init__(accumulation=4, captures=60)


class TimesZero(FourParts):
    """From the onset on the last micro-batch is multiplied by 0."""

    def microbatches(self, batch: Batch) -> Iterator[Microbatch]:
        every = list(super().microbatches(batch))
        last = replace(every[-1], scale=0.0) if self.after else every[-1]
        return iter([*every[:-1], last])


CASES = [
    Case("a96", TimesZero, "incident", MISSING, (31, 31), {WHOLE: "fail"}),
    Case("a97", FourParts, "healthy", checks={WHOLE: "pass"}, twin_of=MISSING),
]
