"""Prompts, rows and positions that come again: by plan, and by fault."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from synthetic import policy
from synthetic.cases import Case
from synthetic.policy import Rows
from synthetic.trainer import Batch, Microbatch, Trainer


class OnePrompt(Trainer):
    """One prompt a step, sampled in two blocks of its group."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"prompts": 2, "group": 24, **settings})

    def draw_prompts(self) -> list[list[int]]:
        """See the class."""
        return policy.prompts(self.rng, 1) * 2


class HardOnesTwice(Trainer):
    """Two prompts of a step get two groups, the others one."""

    def draw_prompts(self) -> list[list[int]]:
        """See the class."""
        drawn = policy.prompts(self.rng, 4)
        return [drawn[0], *drawn, drawn[1]]


class TwiceSinceOnset(HardOnesTwice):
    """From the onset on each prompt stands in two groups."""

    def draw_prompts(self) -> list[list[int]]:
        """See the class."""
        return policy.prompts(self.rng, 3) * 2 if self.after else Trainer.draw_prompts(self)


class BeginAgain(Trainer):
    """From the onset on the trainer counts positions of a completion from 0 again."""

    def trainer_rows(self, rows: Rows) -> Rows:
        """See the class."""
        if not self.after:
            return rows
        made = np.asarray(rows.source == 3)
        first = rows.position[np.arange(len(made)), made.argmax(axis=1)]
        position = np.where(made, rows.position - first[:, None], rows.position)
        return Rows(rows.ids, rows.attention, position, rows.source)

    def more_tokens(self, batch: Batch) -> dict[str, object]:
        """Nothing on another layout."""
        return {"logp_layout": None}


class PassedTwice(Trainer):
    """From the onset on rows are passed twice by plan, and the loss is divided by all of them."""

    whole = True

    def microbatches(self, batch: Batch) -> Iterator[Microbatch]:
        """See the class."""
        parts = list(super().microbatches(batch))
        if self.after:
            again = parts if self.whole else [replace(parts[0], rows=parts[0].rows[:8])]
            parts += [replace(p, index=len(parts) + i) for i, p in enumerate(again)]
            below = float(sum(batch.loss_mask[p.rows].sum() for p in parts))
            parts = [replace(p, denominator=below) for p in parts]
        yield from parts


class OneGroupTwice(PassedTwice):
    """... eight of them."""

    whole = False


DRAW, POSITIONS = "records.prompt_draw", "probability.positions"
GRADIENT = "accumulation.whole_gradient"

CASES = [
    Case("r140", OnePrompt, "healthy", checks={DRAW: "pass"}, twin_of="data.sampling"),
    Case("r141", HardOnesTwice, "healthy", checks={DRAW: "pass"}, twin_of="data.sampling"),
    Case("r142", TwiceSinceOnset, "incident", "data.sampling", (31, 31), {DRAW: "fail"}),
    Case("p90", BeginAgain, "incident", "prob.positions", (31, 33), {POSITIONS: "fail"}),
    Case("a80", PassedTwice, "healthy", checks={GRADIENT: "pass"}, twin_of="id.rows"),
    Case("a81", OneGroupTwice, "healthy", checks={GRADIENT: "pass"}, twin_of="id.rows"),
]
