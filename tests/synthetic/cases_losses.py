"""Losses made of log-probs: sound, with a fault, and of a type that is not known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from synthetic.cases import Case
from synthetic.policy import Array
from synthetic.trainer import Batch, Microbatch, Trainer


class Cispo(Trainer):
    """-w A logp with w the ratio up to a cap, which has no gradient of its own."""

    cap = 1.28

    def __init__(self, onset: int = 31, **settings: object) -> None:
        """All steps are captured."""
        super().__init__(**{"onset": onset, "captures": 60, "accumulation": 1, **settings})

    def config(self) -> dict[str, object]:
        return super().config() | {"loss_type": "cispo", "epsilon_high": self.cap}

    requested = config

    def weight(self, batch: Batch, ratio: Array) -> Array:
        """(R, L) of each token."""
        return np.minimum(ratio, self.cap)

    def token_terms(self, batch: Batch, new: Array) -> tuple[Array, Array, Array, Array, Array]:
        ratio, _, kl, _, _ = super().token_terms(batch, new)
        weighed = self.weight(batch, ratio) * batch.advantage[:, None]
        away, weight = batch.ref - new, self.kl_sign() * self.s.beta
        value = -weighed * new + weight * kl
        return ratio, weighed * new, kl, value, -weighed + weight * (1 - np.exp(away))


class Vespo(Cispo):
    """w is a function of the ratio of the whole sequence."""

    def config(self) -> dict[str, object]:
        return super().config() | {"loss_type": "vespo"}

    requested = config

    def weight(self, batch: Batch, ratio: Array) -> Array:
        log_w = np.where(batch.loss_mask, np.log(ratio), 0.0).sum(axis=1, keepdims=True)
        above = (batch.advantage >= 0)[:, None]
        k, rate = np.where(above, 2.0, 3.0), np.where(above, 3.0, 2.0)
        return np.broadcast_to(np.exp(k * log_w + rate * (1 - np.exp(log_w))), ratio.shape)


class Doubled(Cispo):
    """From the onset on the loss carries a factor."""

    def microbatches(self, batch: Batch) -> Iterator[Microbatch]:
        scale = 2.0 if self.after else 1.0
        return (replace(one, scale=scale) for one in super().microbatches(batch))


class Unknown(Trainer):
    """A loss of one's own, by its name."""

    def config(self) -> dict[str, object]:
        return super().config() | {"loss_type": "mine"}

    requested = config


def without_ledger(folder: Path) -> None:
    """What a trainer without a ledger of micro-batches leaves."""
    for file in folder.glob("steps/*/microbatches.jsonl"):
        file.unlink()


LOSS, STATED = "accumulation.loss_identity", "accumulation.objective"
SCALE = "grad.accumulation_scale"

CASES = [
    Case("a30", Cispo, "healthy", checks={LOSS: "pass"}, twin_of=SCALE, files=without_ledger),
    Case("a51", Vespo, "healthy", checks={LOSS: "pass"}, twin_of=SCALE, files=without_ledger),
    Case("a52", Doubled, "incident", SCALE, (31, 31), {LOSS: "fail"}, files=without_ledger),
    # Few captures: the losses of their micro-batches are what is left.
    Case(
        "a53",
        lambda: Vespo(captures=8, updates=2, rate=0.01, accumulation=3),
        "healthy",
        checks={LOSS: "pass", STATED: "pass"},
        twin_of="grad.objective",
    ),
    Case(
        "a54",  # nothing is accumulated, by the settings
        lambda: Cispo(captures=8),
        "healthy",
        checks={LOSS: "pass"},
        twin_of=SCALE,
        files=without_ledger,
    ),
    Case("a55", Unknown, "undetermined", checks={LOSS: "inconclusive"}, files=without_ledger),
]
