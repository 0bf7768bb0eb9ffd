"""Answers of one sign alone reach the loss, and a sound loss of both."""

from __future__ import annotations

import numpy as np

from synthetic.cases import Case
from synthetic.cases_accumulation import Faulty
from synthetic.cases_losses import without_ledger
from synthetic.policy import Array
from synthetic.trainer import Trainer


class GainsAlone(Faulty):
    """The loss clamps advantages at 0 from below."""

    def policy_terms(self, ratio: Array, advantage: Array) -> tuple[Array, Array]:
        own = np.maximum(advantage, 0.0) if self.after else advantage
        return super().policy_terms(ratio, own)


class LossesAlone(Faulty):
    """The loss clamps advantages at 0 from above."""

    def policy_terms(self, ratio: Array, advantage: Array) -> tuple[Array, Array]:
        own = np.minimum(advantage, 0.0) if self.after else advantage
        return super().policy_terms(ratio, own)


LOSS, OBJECTIVE = "accumulation.loss_identity", "grad.objective"

CASES = [
    Case("a56", GainsAlone, "incident", OBJECTIVE, (31, 31), {LOSS: "fail"}, files=without_ledger),
    Case("a57", LossesAlone, "incident", OBJECTIVE, (31, 31), {LOSS: "fail"}, files=without_ledger),
    Case("a58", Trainer, "healthy", checks={LOSS: "pass"}, twin_of=OBJECTIVE, files=without_ledger),
]
