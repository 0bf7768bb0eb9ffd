"""KL that is logged as a sum over each sequence, or with its weight, and the loss identity."""

from __future__ import annotations

import numpy as np

from synthetic.cases import Case
from synthetic.cases_logged import Kept
from synthetic.policy import picked


class KlOfSequences(Kept):
    """KL is logged as the mean over sequences of its sum over tokens."""

    def scalars(self, row: dict[str, float]) -> dict[str, float]:
        """See the class."""
        batch = self.batch
        away = batch.ref - picked(self.log_probs(), batch.rows.ids)
        summed = np.where(batch.rows.made, np.exp(away) - away - 1, 0.0).sum(axis=1)
        return {**row, "kl_ref": float(summed.mean())}


class KlWeighed(Kept):
    """KL is logged as what it adds to the loss."""

    def scalars(self, row: dict[str, float]) -> dict[str, float]:
        """See the class."""
        return {**row, "kl_ref": self.s.beta * row["kl_ref"]}


class KlLeftOut(KlOfSequences):
    """... and the loss has no KL term."""

    def kl_sign(self) -> float:
        """See the class."""
        return 0.0


KL, CHECK = "opt.kl_constraint", "accumulation.loss_identity"

CASES = [
    Case("a82", KlOfSequences, "healthy", checks={CHECK: "pass"}, twin_of=KL),
    Case("a83", KlWeighed, "healthy", checks={CHECK: "pass"}, twin_of=KL),
    Case("a84", KlLeftOut, "incident", KL, (1, 30), {CHECK: "fail"}),
]
