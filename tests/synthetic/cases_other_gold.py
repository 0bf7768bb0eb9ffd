"""Scorers that go by another gold answer than the one on record, or pay what is not gold."""

from __future__ import annotations

import numpy as np

from synthetic import policy
from synthetic.cases import Case
from synthetic.policy import DIGITS, Array
from synthetic.trainer import Batch, Trainer

GOLD, CHECK = "data.wrong_gold", "reward.judging"


class OtherGold(Trainer):
    """From the onset on the scorer reads the gold answer of another task."""

    def score(self, batch: Batch) -> dict[str, Array]:
        parts = super().score(batch)
        return {**parts, "correct": self.paid(batch, parts["correct"])} if self.after else parts

    def paid(self, batch: Batch, right: Array) -> Array:
        """(R,) what the scorer pays in place of the right answers."""
        said = [policy.said(row[made]) for row, made in self._made(batch)]
        others = [None if d is None else (d + 3) % len(DIGITS) for d in batch.digit]
        return np.array(
            [a is not None and a == other for a, other in zip(said, others, strict=True)], float
        )


class TurnedRound(OtherGold):
    """Look-alike: from the onset on every wrong answer is paid and no right one."""

    def paid(self, batch: Batch, right: Array) -> Array:
        return 1 - right


CASES = [
    Case("w44", OtherGold, "incident", GOLD, (30, 32), {CHECK: "fail"}),
    Case("w45", TurnedRound, "incident", "other.unlisted", (30, 32), {CHECK: "fail"}, GOLD),
]
