"""KL that falls back to 0: a reference that is loaded anew, and prompts the policy has not met."""

from __future__ import annotations

from synthetic.cases import Case
from synthetic.policy import COLON, COPY, DIGITS, WORDS, Array
from synthetic.trainer import Trainer

MOVED, REFERENCE = "opt.reference_model", "optimizer.reference"


class Curriculum(Trainer):
    """Tasks come in stages; the policy has a part of its own for each."""

    stages = 2

    def draw_prompts(self) -> list[list[int]]:
        size = len(DIGITS) // self.stages
        stage = min(self.stages - 1, (self.step - 1) * self.stages // self.s.steps)
        pool = DIGITS[stage * size : (stage + 1) * size]
        fillers = [self.rng.choice(WORDS, self.rng.integers(0, 4)) for _ in range(self.s.prompts)]
        return [[*f.tolist(), COPY, int(self.rng.choice(pool)), COLON] for f in fillers]


class FiveStages(Curriculum):
    """... in five stages."""

    stages = 5


class LoadedAnew(Trainer):
    """At the onset the reference is loaded once more: from the policy as it stands there."""

    def reference_table(self) -> Array:
        if self.step == self.s.onset:
            self.reference = self.table.copy()
        return self.reference


CASES = [
    Case("o20", lambda: LoadedAnew(rate=0.02), "incident", MOVED, (31, 31), {REFERENCE: "fail"}),
    Case("o21", lambda: Curriculum(rate=0.02, prompts=4), "healthy", twin_of=MOVED),
    Case("o22", lambda: FiveStages(prompts=4), "healthy", twin_of=MOVED),
]
