"""Captured position ids that jump, and ones that only begin elsewhere."""

from __future__ import annotations

import numpy as np

from synthetic.cases import Case
from synthetic.policy import Rows
from synthetic.trainer import Batch, Trainer


def columns(rows: Rows) -> np.ndarray:
    """(R, L) positions that count every column, padding as well."""
    return np.broadcast_to(np.arange(rows.ids.shape[1]), rows.ids.shape).copy()


class Alone(Trainer):
    """Nothing on record but the trainer's own passes, in one layout."""

    def more_tokens(self, batch: Batch) -> dict[str, object]:
        gone = ("logp_layout", "logp_engine", "logp_ref", "entropy", "varentropy")
        return dict.fromkeys(gone)

    def scalars(self, row: dict[str, float]) -> dict[str, float]:
        return {k: v for k, v in row.items() if k != "logprob_diff_mean"}

    def config(self) -> dict[str, object]:
        return {**super().config(), "use_vllm": False}


class PadsBetween(Alone):
    """Answers are numbered from the width of the longest prompt, prompts from their own start."""

    def trainer_rows(self, rows: Rows) -> Rows:
        if not self.after:
            return rows
        position = np.where(rows.source == 3, columns(rows), rows.position)
        return Rows(rows.ids, rows.attention, position, rows.source)


class PadsBefore(Alone):
    """Rows are numbered from their first column on; nothing tells whether that matters."""

    def trainer_rows(self, rows: Rows) -> Rows:
        return Rows(rows.ids, rows.attention, columns(rows), rows.source)


class Relative(Trainer):
    """Look-alike: ... of a model that knows positions only relative to each other."""

    def more_tokens(self, batch: Batch) -> dict[str, object]:
        return {"position": columns(batch.rows)}


class Packed(Trainer):
    """Look-alike: rows stand behind one another in one sequence, and are numbered on."""

    def more_tokens(self, batch: Batch) -> dict[str, object]:
        tokens = batch.rows.attention.sum(axis=1)
        before = np.concatenate([[0], tokens[:-1]]).reshape(-1, 4).cumsum(axis=1).reshape(-1)
        return {"position": batch.rows.position + before[:, None]}


CAUSE, CHECK = "prob.positions", "probability.positions"

CASES = [
    Case("p80", PadsBetween, "incident", CAUSE, (31, 33), {CHECK: "fail"}),
    Case("p81", PadsBefore, "undetermined", checks={CHECK: "inconclusive"}, twin_of=CAUSE),
    Case("p82", Relative, "healthy", checks={CHECK: "pass"}, twin_of=CAUSE),
    Case("p83", Packed, "healthy", checks={CHECK: "pass"}, twin_of=CAUSE),
    Case("p84", Alone, "healthy", checks={CHECK: "pass"}, twin_of=CAUSE),
]
