"""Layer 1.5: the gradient on its way from the micro-batches to the weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from synthetic.cases import Case
from synthetic.policy import Array, Rows
from synthetic.trainer import Batch, Microbatch, Trainer

PROBES = (2, 40)
WHOLE, STATED = "accumulation.whole_gradient", "accumulation.objective"
LOSS, ALL = "accumulation.loss_identity", "accumulation.all_parameters"


class Faulty(Trainer):
    """A fault that is there from the step `onset` on."""

    def __init__(self, onset: int = 31, **settings: Any) -> None:
        """From the start: `onset=1`."""
        super().__init__(onset=onset, **settings)


class Scaled(Faulty):
    """Each micro-batch is divided by the tokens of one: accumulation steps are forgotten."""

    def microbatches(self, batch: Batch) -> Iterator[Microbatch]:
        scale = float(self.s.accumulation) if self.after else 1.0
        return (replace(one, scale=scale) for one in super().microbatches(batch))


class OwnCounts(Faulty):
    """The mean of each micro-batch, and the mean of these."""

    def microbatches(self, batch: Batch) -> Iterator[Microbatch]:
        n = self.s.accumulation * self.s.ranks
        for one in super().microbatches(batch):
            own = float(batch.loss_mask[one.rows].sum())
            yield replace(one, denominator=own, scale=1 / n) if self.after else one


class OwnCountsByDesign(OwnCounts):
    """The same, as the configured loss is defined."""

    def config(self) -> dict[str, object]:
        return super().config() | {"loss_type": "bnpo"}

    requested = config


class LastOneLeftOut(Faulty):
    """The last micro-batch never runs."""

    def microbatches(self, batch: Batch) -> Iterator[Microbatch]:
        every = list(super().microbatches(batch))
        return iter(every[:-1] if self.after and len(every) > 1 else every)


class GradientLost(Faulty):
    """Gradients are cleared after the first micro-batch; the loss holds all of them."""

    def reaches(self, microbatch: Microbatch) -> bool:
        return not self.after or microbatch.index > 0 or self.s.accumulation == 1


class Uneven(Trainer):
    """Micro-batches of about equal tokens, more of them where answers are long."""

    def microbatches(self, batch: Batch) -> Iterator[Microbatch]:
        tokens = batch.loss_mask.sum(axis=1)
        n = max(2, int(tokens.sum()) // 100)
        ends = np.searchsorted(tokens.cumsum(), tokens.sum() * np.arange(1, n) / n)
        for i, rows in enumerate(np.split(np.arange(len(tokens)), ends)):
            yield Microbatch(0, i, rows, float(tokens.sum()))


class Averaged(Trainer):
    """Ranks are averaged, and each loss is multiplied by their number beforehand."""

    def microbatches(self, batch: Batch) -> Iterator[Microbatch]:
        ranks = float(self.s.ranks)
        return (replace(one, scale=ranks) for one in super().microbatches(batch))

    def reduced(self, ranks: list[Array]) -> Array:
        return super().reduced(ranks) / len(ranks)

    def reduction(self) -> str | None:
        return "mean"


class AveragedTwice(Averaged):
    """The number of ranks is multiplied into the denominator instead."""

    def microbatches(self, batch: Batch) -> Iterator[Microbatch]:
        ranks = self.s.ranks
        for one in Trainer.microbatches(self, batch):
            yield replace(one, denominator=one.denominator * ranks)


class AveragedUnsaid(Averaged):
    """Ranks are averaged, and nothing makes up for it."""

    def microbatches(self, batch: Batch) -> Iterator[Microbatch]:
        return Trainer.microbatches(self, batch)


class WithPadding(Faulty):
    """The denominator counts all places of the padded rows."""

    def microbatches(self, batch: Batch) -> Iterator[Microbatch]:
        longest = int(batch.rows.made.sum(axis=1).max())
        for one in super().microbatches(batch):
            places = float(longest * len(batch.group))
            yield replace(one, denominator=places) if self.after else one


class OtherSide(Trainer):
    """The larger of the two objectives instead of the smaller: cut where it must flow."""

    def policy_terms(self, ratio: Array, advantage: Array) -> tuple[Array, Array]:
        low, high = 1 - self.s.clip, 1 + self.s.clip
        plain, clipped = ratio * advantage, np.clip(ratio, low, high) * advantage
        cut = (plain < clipped) & ((ratio < low) | (ratio > high))
        return np.maximum(plain, clipped), np.where(cut, 0.0, advantage)


class Unclipped(Trainer):
    """No clipping at all."""

    def policy_terms(self, ratio: Array, advantage: Array) -> tuple[Array, Array]:
        return ratio * advantage, advantage + 0 * ratio


class Halved(Trainer):
    """A weight of one half is multiplied into the advantage term."""

    def policy_terms(self, ratio: Array, advantage: Array) -> tuple[Array, Array]:
        objective, slope = super().policy_terms(ratio, advantage)
        return objective / 2, slope / 2


class KlTurned(Trainer):
    """KL is paid instead of charged."""

    def kl_sign(self) -> float:
        return -1.0


class InParts(Faulty):
    """The table as layers by task."""

    def groups(self) -> dict[str, slice]:
        return {"layers.0": slice(0, 4), "layers.1": slice(4, 8), "head": slice(8, None)}


class PartFrozen(InParts):
    """No gradient reaches one of the layers."""

    def gradient(self, rows: Rows, probs: Array, coefficient: Array) -> Array:
        found = super().gradient(rows, probs, coefficient)
        if self.after:
            found[self.groups()["layers.1"]] = 0.0
        return found


class Adapter(PartFrozen):
    """A base that is frozen, with an adapter that trains."""

    def groups(self) -> dict[str, slice]:
        return {"base.layers.1": slice(4, 8), "lora_A": slice(0, 4), "lora_B": slice(8, None)}

    def gradient(self, rows: Rows, probs: Array, coefficient: Array) -> Array:
        found = Trainer.gradient(self, rows, probs, coefficient)
        found[self.groups()["base.layers.1"]] = 0.0
        return found


class WarmUp(InParts):
    """The learning rate rises from 0."""

    def config(self) -> dict[str, object]:
        return super().config() | {
            "lr_scheduler_type": "constant_with_warmup",
            "warmup_steps": 10,
        }

    requested = config

    def rate(self) -> float:
        return self.s.rate * min(1.0, (self.step - 1) / 10)


class Detached(Trainer):
    """Nothing has a gradient."""

    def gradient(self, rows: Rows, probs: Array, coefficient: Array) -> Array:
        return np.zeros_like(self.table)


class Elsewhere(Trainer):
    """What is updated is not what is used."""

    def stored(self, table: Array) -> Array:
        return self.reference


SCALE, COUNTS = "grad.accumulation_scale", "grad.denominator"
MISSING, RANKS = "grad.missing_microbatch", "grad.reduction"
OBJECTIVE, FROZEN = "grad.objective", "grad.frozen"

CASES = [
    Case(
        "a1",
        lambda: InParts(probes=PROBES, accumulation=2, ranks=2),
        "healthy",
        checks={WHOLE: "pass", STATED: "pass", LOSS: "pass", ALL: "pass"},
        twin_of=FROZEN,
    ),
    Case("a2", Scaled, "incident", SCALE, (31, 31), {WHOLE: "fail"}),
    Case(
        "a3",
        lambda: Scaled(onset=1, probes=PROBES, accumulation=4),
        "incident",
        SCALE,
        (1, 1),
        {WHOLE: "fail"},
    ),
    Case("a4", lambda: OwnCounts(onset=1), "incident", COUNTS, (1, 1), {WHOLE: "fail"}),
    Case(
        "a5",
        lambda: OwnCounts(probes=PROBES, accumulation=4),
        "incident",
        COUNTS,
        (31, 31),
        {WHOLE: "fail"},
    ),
    Case("a6", lambda: LastOneLeftOut(onset=1), "incident", MISSING, (1, 1), {WHOLE: "fail"}),
    Case(
        "a7",
        lambda: LastOneLeftOut(probes=PROBES, accumulation=4),
        "incident",
        MISSING,
        (31, 31),
        {WHOLE: "fail"},
    ),
    Case("a8", GradientLost, "incident", MISSING, (31, 31), {WHOLE: "fail", LOSS: "pass"}),
    Case("a9", lambda: OtherSide(probes=PROBES), "incident", OBJECTIVE, (1, 2), {STATED: "fail"}),
    Case("a10", lambda: KlTurned(probes=(2,)), "incident", OBJECTIVE, (1, 2), {STATED: "fail"}),
    # The factor is that of the ranks, and one rank alone is right.
    Case(
        "a11",
        lambda: AveragedUnsaid(probes=PROBES, ranks=4, accumulation=2),
        "incident",
        RANKS,
        (1, 1),
        {WHOLE: "fail"},
    ),
    Case("a12", lambda: AveragedTwice(ranks=3), "incident", RANKS, (1, 1), {WHOLE: "fail"}),
    # The factor is that of the ranks as well, and one rank alone is as wrong.
    Case(
        "a13",
        lambda: Scaled(onset=1, probes=PROBES, ranks=2),
        "incident",
        SCALE,
        (1, 1),
        {WHOLE: "fail"},
        twin_of=RANKS,
    ),
    Case("a14", lambda: Averaged(ranks=4, probes=PROBES), "healthy", twin_of=RANKS),
    Case("a15", PartFrozen, "incident", FROZEN, (31, 31), {ALL: "fail"}),
    Case(
        "a26",
        lambda: PartFrozen(onset=1, probes=(2,)),
        "incident",
        FROZEN,
        (1, 2),
        {ALL: "fail"},
    ),
    Case("a16", Adapter, "healthy", checks={ALL: "pass"}, twin_of=FROZEN),
    Case("a17", lambda: Detached(probes=(2,)), "incident", FROZEN, (1, 2)),
    Case(
        "a27",
        lambda: Elsewhere(probes=(2,), beta=0.0),
        "incident",
        FROZEN,
        (1, 2),
        {"accumulation.gradient_arrives": "fail"},
    ),
    Case("a18", WarmUp, "healthy", twin_of=FROZEN),
    Case("a19", lambda: OwnCountsByDesign(onset=1), "healthy", twin_of=COUNTS),
    Case("a20", Uneven, "healthy", checks={WHOLE: "pass"}, twin_of=MISSING),
    Case(
        "a21",
        lambda: Trainer(updates=2, rate=0.01, probes=PROBES),
        "healthy",
        checks={STATED: "pass"},
        twin_of=OBJECTIVE,
    ),
    Case("a22", WithPadding, "incident", COUNTS, (31, 31), {WHOLE: "fail"}, twin_of=SCALE),
    Case("a23", lambda: Unclipped(probes=PROBES), "incident", OBJECTIVE, (1, 2), {STATED: "fail"}),
    Case("a25", Halved, "incident", OBJECTIVE, (1, 1), {STATED: "fail"}),
    Case("a24", lambda: Halved(probes=PROBES), "incident", OBJECTIVE, (1, 2), {STATED: "fail"}),
]
