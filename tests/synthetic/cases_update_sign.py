"""Updates against the advantages, and with them; the same prompts in every step."""

from __future__ import annotations

import numpy as np

from synthetic import policy
from synthetic.cases import Case
from synthetic.policy import Array
from synthetic.trainer import Trainer

SIGN, OBJECTIVE = "accumulation.update_sign", "grad.objective"


class SamePrompts(Trainer):
    """Every step asks the same prompts, and every step is captured."""

    def __init__(self, *, beta: float = 0.0) -> None:
        super().__init__(captures=60, beta=beta, steps=60)

    def draw_prompts(self) -> list[list[int]]:
        return policy.prompts(np.random.default_rng(7), self.s.prompts)


class Maximised(SamePrompts):
    """From the onset on the optimizer maximises the loss."""

    def update(self, grad: Array) -> Array:
        return super().update(-grad if self.after else grad)


CASES = [
    Case("a90", Maximised, "incident", OBJECTIVE, (27, 36), {SIGN: "fail"}),
    Case("a91", SamePrompts, "healthy", checks={SIGN: "pass"}, twin_of=OBJECTIVE),
    Case("a92", lambda: SamePrompts(beta=1.0), "healthy", twin_of=OBJECTIVE),
]
