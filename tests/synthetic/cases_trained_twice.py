"""Rows that are trained twice, rows that are replaced, and rows that two ranks share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from synthetic.cases import Case
from synthetic.trainer import Batch, Microbatch, Trainer


class TrainedTwice(Trainer):
    """From the onset on, eight rows of the first micro-batch stand in the second as well."""

    def microbatches(self, batch: Batch) -> Iterator[Microbatch]:
        """See the class."""
        first, second = super().microbatches(batch)
        if self.after:
            second = replace(second, rows=np.concatenate([second.rows, first.rows[:8]]))
        yield from (first, second)


class PartsOfAModel(Trainer):
    """Two ranks hold a part of the model each, and both pass every row."""

    def backward(self, *args: Any, **named: Any) -> Any:
        """The ledger is written on both."""
        grad, loss, ledger = super().backward(*args, **named)
        return (
            grad,
            loss,
            [{**part, "rank": r, "reduction": "mean"} for r in (0, 1) for part in ledger],
        )


class Replaced(Trainer):
    """From the onset on, rows of the first micro-batch stand in the second, in place of its own."""

    def microbatches(self, batch: Batch) -> Iterator[Microbatch]:
        """See the class."""
        first, second = super().microbatches(batch)
        if self.after:
            n = len(second.rows) // 4
            second = replace(second, rows=np.concatenate([first.rows[:n], second.rows[n:]]))
        yield from (first, second)


CHECK = "accumulation.whole_gradient"

CASES = [
    Case("a70", TrainedTwice, "incident", "id.rows", (31, 31), {CHECK: "fail"}),
    Case("a71", PartsOfAModel, "healthy", checks={CHECK: "pass"}, twin_of="id.rows"),
    Case("a72", Replaced, "incident", "grad.missing_microbatch", (31, 31), {CHECK: "fail"}),
]
