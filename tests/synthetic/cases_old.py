"""Old log-probs of the update before, and old log-probs that were only rounded in between."""

from __future__ import annotations

import numpy as np

from synthetic.cases import Case
from synthetic.policy import Array
from synthetic.trainer import Batch, Trainer

SOURCE = "prob.old_logprob_source"
RATIO = "probability.ratio_before_update"


class OneUpdateOld(Trainer):
    """Old log-probs are computed with the weights before the latest update."""

    def __init__(self, **settings: object) -> None:
        super().__init__(**settings)
        self.past: list[Array] = []

    def old_table(self) -> Array:
        self.past.append(self.table.copy())
        return self.past[-2] if self.after and len(self.past) > 1 else self.table


class OldRounded(Trainer):
    """Old log-probs are kept in bfloat16 until they are used."""

    def prepared(self, batch: Batch) -> Batch:
        batch = super().prepared(batch)
        bits = batch.old.astype(np.float32).view(np.uint32) + np.uint32(0x8000)
        batch.old = (bits & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)
        return batch


CASES = [
    Case("p40", lambda: OneUpdateOld(rate=0.02), "incident", SOURCE, (31, 33), {RATIO: "fail"}),
    Case("p41", lambda: OneUpdateOld(rate=0.01, onset=1), "incident", SOURCE, (2, 6)),
    Case("p42", OldRounded, "healthy", checks={RATIO: "pass"}, twin_of=SOURCE),
    Case("p43", lambda: Trainer(rate=0.1), "healthy", checks={RATIO: "pass"}, twin_of=SOURCE),
]
