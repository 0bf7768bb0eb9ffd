"""Rows without a score: a list that is too short, and a verifier that gives no verdict."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from synthetic.cases import Case
from synthetic.policy import Array, Bools, Ints
from synthetic.trainer import Batch, Trainer

LOST = 5


class ScoresLost(Trainer):
    """From the onset on a few rows of each step have no score, and count as 0 in the total."""

    def lost(self, n: int) -> Ints:
        """Rows without a score."""
        return np.arange(n - LOST, n)

    def score(self, batch: Batch) -> dict[str, Array]:
        parts = super().score(batch)
        if self.after:
            for values in parts.values():
                values[self.lost(len(values))] = np.nan
        return parts

    def rollout_rows(self, batch: Batch) -> list[dict[str, object]]:
        rows = super().rollout_rows(batch)
        for i in self.lost(len(rows)).tolist() if self.after else []:
            del rows[i]["rewards"], rows[i]["reward"]
        return rows


class NoVerdict(ScoresLost):
    """As many rows anywhere in the step."""

    def lost(self, n: int) -> Ints:
        return np.random.default_rng(self.step).choice(n, LOST, replace=False)


class Aborted(ScoresLost):
    """The last rows are aborted in every step, as where rollouts go on in the next one."""

    after = True

    def generate(self, step: int) -> Batch:
        batch = super().generate(step)
        batch.finish[-LOST:] = ["abort"] * LOST
        return batch


class Fillers(ScoresLost):
    """The last rows fill a step up for the ranks: no score, no advantage, not in the loss."""

    after = True

    def advantages(self, total: Array, group: Ints) -> Array:
        found = super().advantages(total, group)
        found[-LOST:] = 0
        return found


class OutOfLoss(ScoresLost):
    """The last rows have no score, and are out of the loss."""

    after = True

    def loss_mask(self, batch: Batch) -> Bools:
        mask = batch.rows.made.copy()
        mask[-LOST:] = False
        return mask


class Silent(Trainer):
    """For seven steps the verifier returns nothing, and the rows are paid for their form alone."""

    def speaks(self) -> bool:
        return not 31 <= self.step <= 37

    def score(self, batch: Batch) -> dict[str, Array]:
        parts = super().score(batch)
        return parts if self.speaks() else {"format": parts["format"]}

    def total(self, parts: Mapping[str, Array]) -> Array:
        if "correct" in parts:
            return super().total(parts)
        return self.s.weights[1] * next(iter(parts.values()))


class OtherTask(Silent):
    """Every tenth step is another task's, whose own part scores it."""

    def speaks(self) -> bool:
        return self.step % 10 != 0

    def score(self, batch: Batch) -> dict[str, Array]:
        parts = super().score(batch)
        return parts if self.speaks() else {"other": parts["format"]}


LISTS, SCORED = "records.score_lists", "reward.unscored"
CASES = [
    Case(
        "r110",
        ScoresLost,
        "incident",
        "id.rows",
        (31, 31),
        {LISTS: "fail", SCORED: "not_reached"},
        twin_of="reward.verifier_outage",
    ),
    Case(
        "r111",
        NoVerdict,
        "incident",
        "reward.verifier_outage",
        (28, 33),
        {LISTS: "pass", SCORED: "fail"},
        twin_of="id.rows",
    ),
    Case(
        "r130",
        Aborted,
        "healthy",
        checks={LISTS: "pass", SCORED: "pass"},
        twin_of="id.rows",
    ),
    Case(
        "r131",
        Fillers,
        "healthy",
        checks={LISTS: "pass", SCORED: "pass"},
        twin_of="id.rows",
    ),
    Case("w72", Silent, "incident", "reward.verifier_outage", (31, 31), {"reward.silent": "fail"}),
    Case("w73", OtherTask, "healthy", checks={"reward.silent": "pass"}),
    Case("r132", OutOfLoss, "healthy", checks={LISTS: "pass"}, twin_of="id.rows"),
]
