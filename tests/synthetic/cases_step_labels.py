"""Logs whose rows carry the label of the step behind, sound and with a fault in the loss."""

from __future__ import annotations

import json
from pathlib import Path

from synthetic.cases import Case
from synthetic.trainer import Trainer

LOSS = "accumulation.loss_identity"


def a_step_late(folder: Path) -> None:
    """Label each row of the metrics with the step behind."""
    file = folder / "metrics.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps({**row, "step": row["step"] + 1}) + "\n" for row in rows))


class RewardsLate(Trainer):
    """Look-alike: rewards alone are logged a step late; the loss stands where it belongs."""

    last: dict[str, float] | None = None

    def scalars(self, row: dict[str, float]) -> dict[str, float]:
        rewards = {name: v for name, v in row.items() if name.startswith("reward")}
        late, self.last = self.last or rewards, rewards
        return {**row, **late}


class Doubled(Trainer):
    """The logged loss is twice that of its rows."""

    def scalars(self, row: dict[str, float]) -> dict[str, float]:
        return {**row, "loss": 2 * row["loss"]}


CASES = [
    Case(
        "a93",
        Trainer,
        "healthy",
        checks={LOSS: "pass"},
        twin_of="grad.objective",
        files=a_step_late,
        complaint="KL explodes",
    ),
    Case("a94", RewardsLate, "healthy", checks={LOSS: "pass"}, twin_of="grad.objective"),
    Case(
        "a95",
        Doubled,
        "incident",
        "grad.accumulation_scale",
        None,
        {LOSS: "fail"},
        files=a_step_late,
    ),
]
