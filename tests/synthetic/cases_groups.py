"""Rows that do not stand in whole groups, and what the record says of its rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from synthetic.cases import Case
from synthetic.policy import Array, Ints, Rows
from synthetic.trainer import Batch, Trainer


def taken(batch: Batch, at: Ints) -> Batch:
    """The rows at these places, before anything is scored."""
    rows = batch.rows
    return replace(
        batch,
        rows=Rows(rows.ids[at], rows.attention[at], rows.position[at], rows.source[at]),
        engine_logp=batch.engine_logp[at],
        group=batch.group[at],
        digit=[batch.digit[i] for i in at],
        sample=[batch.sample[i] for i in at],
        finish=[batch.finish[i] for i in at],
        version=batch.version[at],
    )


class AsFinished(Trainer):
    """From the onset on the engine returns rows as they finish, and groups are cut by place."""

    by_name = False

    def generate(self, step: int) -> Batch:
        """See the class."""
        batch = super().generate(step)
        return taken(batch, self.rng.permutation(len(batch.group))) if self.after else batch

    def advantages(self, total: Array, group: Ints) -> Array:
        """See the class."""
        by_place = np.arange(len(total)) // self.s.group
        return super().advantages(total, group if self.by_name else by_place)


class JoinedByKey(AsFinished):
    """The same order of rows, which the record admits; groups are taken by their key."""

    by_name = True

    def about(self, batch: Batch) -> dict[str, object]:
        """See the class."""
        return {**super().about(batch), "in_order": False}


class Filtered(Trainer):
    """From the onset on single rows are taken out after scoring, and the record says so."""

    def prepared(self, batch: Batch) -> Batch:
        """See the class."""
        batch = super().prepared(batch)
        if not self.after:
            return batch
        at = np.sort(self.rng.permutation(len(batch.group))[: len(batch.group) * 3 // 4])
        rest = taken(batch, at)
        return replace(
            rest,
            parts={name: values[at] for name, values in batch.parts.items()},
            total=batch.total[at],
            advantage=batch.advantage[at],
            loss_mask=batch.loss_mask[at],
            old=batch.old[at],
            ref=batch.ref[at],
        )

    def about(self, batch: Batch) -> dict[str, object]:
        """See the class."""
        return {**super().about(batch), "whole_groups": False, "filters": "after"}


class SaidWhole(Filtered):
    """The same rows in a record that says that its groups are whole: rows are lost on the way."""

    def about(self, batch: Batch) -> dict[str, object]:
        """See the class."""
        return Trainer.about(self, batch)


CASES = [
    Case("r40", AsFinished, "incident", "id.rows", (31, 31)),
    Case("r41", JoinedByKey, "healthy", checks={"records.groups": "pass"}, twin_of="id.rows"),
    Case("r42", Filtered, "healthy", checks={"records.groups": "pass"}, twin_of="id.rows"),
    Case("r43", SaidWhole, "incident", "id.rows", (31, 31)),
]
