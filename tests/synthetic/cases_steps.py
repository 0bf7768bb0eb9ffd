"""Steps that are too bold: a rate, too many passes over a batch, or nothing that holds the policy.

Only where tasks share weights does a step on one undo what another has learned.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from synthetic import policy
from synthetic.cases import Case
from synthetic.policy import DIGITS, Array
from synthetic.trainer import Trainer

STEP, REUSE, KL = "opt.step_too_large", "opt.data_reuse", "opt.kl_constraint"
CHECK = "optimizer.step_size"


class Shared(Trainer):
    """A policy that can do its tasks and that has a part of its weights in common for them all.

    A logit is the task's own weight and `share` times a common one; Adam moves both.
    """

    share = 12.0

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        others = [token for token in range(policy.V) if token not in DIGITS]
        for task, digit in enumerate(DIGITS):
            self.table[task, others, digit] += 3.0
        self.engine, self.reference = self.table.copy(), self.table.copy()
        self.common = np.zeros_like(self.table[0]), np.zeros_like(self.table[0])

    def update(self, grad: Array) -> Array:
        own = super().update(grad)
        first, second = self.common
        along = self.share * grad.sum(axis=0)
        first[:] = 0.9 * first + 0.1 * along
        second[:] = 0.999 * second + 0.001 * along**2
        a, b = first / (1 - 0.9**self.count), second / (1 - 0.999**self.count)
        moved: Array = own - self.share * self.rate() * a / (np.sqrt(b) + 1e-8)
        return moved


class NoKl(Shared):
    """The loss has no KL term, and no KL is logged."""

    def scalars(self, row: dict[str, float]) -> dict[str, float]:
        return {name: value for name, value in row.items() if name != "kl_ref"}


CASES = [
    Case("o40", lambda: Shared(rate=0.5, prompts=2), "incident", STEP, (1, 12), {CHECK: "fail"}),
    Case(
        "o66",
        lambda: Shared(rate=2.0, cap=30),
        "incident",
        STEP,
        checks={"optimizer.heavy_update": "fail"},
    ),
    Case("o67", lambda: Shared(rate=1.0), "incident", STEP),
    Case("o41", lambda: Shared(rate=0.01), "healthy", twin_of=STEP),
    Case(
        "o42",
        lambda: Shared(rate=0.2, updates=8, steps=25, prompts=3),
        "incident",
        REUSE,
        checks={CHECK: "fail"},
    ),
    Case("o43", lambda: Shared(rate=0.005, updates=8, steps=25), "healthy", twin_of=REUSE),
    # Two prompts a step: rewards that scatter from batch to batch are not lost.
    Case(
        "o46",
        lambda: Shared(rate=0.005, updates=8, steps=25, prompts=2),
        "undetermined",
        twin_of=REUSE,
    ),
    Case(
        "o44",
        lambda: NoKl(rate=0.5, prompts=2, beta=0.0, weights=(1.0, 0.0)),
        "incident",
        KL,
        checks={CHECK: "fail"},
    ),
    Case("o45", lambda: NoKl(rate=0.01, beta=0.0), "healthy", twin_of=KL),
]
