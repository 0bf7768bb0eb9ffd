"""Rows that name no weights, or weights that came later: other weights, or only another label."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from synthetic.cases import Case
from synthetic.policy import Array, Bools, Rows
from synthetic.trainer import Batch, Trainer


def mixed(one: Batch, other: Batch, take: Bools) -> Batch:
    """Rollouts of one set of prompts; rows of the other where `take` (R,) says so."""
    return replace(
        one,
        rows=Rows(*(
            np.where(take[:, None], getattr(other.rows, name), getattr(one.rows, name))
            for name in ("ids", "attention", "position", "source")
        )),
        engine_logp=np.where(take[:, None], other.engine_logp, one.engine_logp),
        finish=[b if t else a for a, b, t in zip(one.finish, other.finish, take, strict=True)],
        version=np.where(take, other.version, one.version),
    )  # fmt: skip


class Worker(Trainer):
    """From the onset on every fourth row comes from a worker with weights of its own."""

    def others(self) -> Array:
        """What the worker samples from."""
        return self.reference

    def is_its(self, n: int) -> Bools:
        return np.asarray(np.arange(n) % 4 == 0)

    def generate(self, step: int) -> Batch:
        noise = self.rng.bit_generator.state
        batch = super().generate(step)
        if not self.after:
            return batch
        held, self.engine = self.engine, self.others()
        self.rng.bit_generator.state = noise
        other = super().generate(step)
        self.engine = held
        return mixed(batch, other, self.is_its(len(batch.group)))


class Unnamed(Worker):
    """... which was never given any, and names none."""

    def rollout_rows(self, batch: Batch) -> list[dict[str, object]]:
        rows = super().rollout_rows(batch)
        for row, its in zip(rows, self.is_its(len(rows)), strict=True):
            if its and self.after:
                del row["policy_version"]
        return rows


class FromLater(Worker):
    """... left in the queue by a process that had trained on, and was lost."""

    def others(self) -> Array:
        return 1.6 * self.table

    def generate(self, step: int) -> Batch:
        batch = super().generate(step)
        its = self.is_its(len(batch.group)) & self.after
        return replace(batch, version=batch.version + 12 * its)


class NotWritten(Unnamed):
    """Look-alike: the worker has the trainer's weights, and does not write down which."""

    def others(self) -> Array:
        return self.engine


class CountedFromOne(Trainer):
    """Look-alike: the engine counts the weights it gets from 1, the trainer from 0."""

    def generate(self, step: int) -> Batch:
        batch = super().generate(step)
        return replace(batch, version=batch.version + 1)


class UnnamedUnseen(NotWritten):
    """... and no log-probs of the engine are on record, but for their logged mean."""

    def more_tokens(self, batch: Batch) -> dict[str, object]:
        return {"logp_engine": None}


class Coarse(Trainer):
    """Look-alike: a second engine has the trainer's weights on a coarse grid, and names none."""

    def engine_arithmetic(self, values: Array) -> Array:
        out = super().engine_arithmetic(values)
        its = slice(len(out) // 2, None)
        out[its] = np.round(2.5 * out[its]) / 2.5
        return out

    def rollout_rows(self, batch: Batch) -> list[dict[str, object]]:
        rows = super().rollout_rows(batch)
        for row in rows[len(rows) // 2 :]:
            del row["policy_version"]
        return rows


STALE, CHECK = "prob.stale_rollouts", "probability.origin"

CASES = [
    Case("p75", Unnamed, "incident", STALE, (31, 33), {CHECK: "fail"}),
    Case("p76", lambda: FromLater(captures=20), "incident", STALE, (31, 33), {CHECK: "fail"}),
    Case("p77", NotWritten, "healthy", checks={CHECK: "pass"}, twin_of=STALE),
    Case("p78", CountedFromOne, "healthy", checks={CHECK: "pass"}, twin_of=STALE),
    Case(
        "p91",
        Coarse,
        "incident",
        "prob.engine_mismatch",
        (1, 1),
        {CHECK: "fail"},
        twin_of=STALE,
    ),
    Case("p79", UnnamedUnseen, "undetermined", checks={CHECK: "inconclusive"}, twin_of=STALE),
]
