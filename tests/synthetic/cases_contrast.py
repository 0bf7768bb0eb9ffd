"""Groups that are all right: from the start, or because the policy learned them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from synthetic.cases import Case
from synthetic.policy import DIGITS, STOP
from synthetic.trainer import Trainer

EASY, CONTRAST = "collapse.all_right", "samples.contrast"


class Known(Trainer):
    """The first policy answers nearly every task right."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for task, digit in enumerate(DIGITS):
            self.table[task, : DIGITS[0], digit] += 6.0
            self.table[task, DIGITS[-1] + 1 :, digit] += 6.0
        self.table[:, list(DIGITS), STOP] += 4.0
        self.engine, self.reference = self.table.copy(), self.table.copy()


def since_60(folder: Path) -> None:
    """What was recorded before step 60 is gone."""
    file = folder / "metrics.jsonl"
    rows = [line for line in file.read_text().splitlines() if json.loads(line)["step"] >= 60]
    file.write_text("\n".join(rows) + "\n")
    for step in sorted((folder / "steps").iterdir()):
        if int(step.name) < 60:
            for each in step.iterdir():
                each.unlink()
            step.rmdir()


def _quick(steps: int) -> Trainer:
    return Trainer(steps=steps, rate=0.25, beta=0.0, group=4)


CASES = [
    Case("c1", lambda: Known(group=4), "incident", EASY, (1, 1), {CONTRAST: "fail"}),
    Case("c2", lambda: _quick(120), "healthy", checks={CONTRAST: "pass"}, twin_of=EASY),
    Case("c3", lambda: _quick(120), "healthy", twin_of=EASY, files=since_60),
]
