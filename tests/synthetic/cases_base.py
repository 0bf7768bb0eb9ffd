"""Sound runs without a fault, which every layer must pass."""

from __future__ import annotations

from synthetic.cases import Case
from synthetic.trainer import Trainer

CASES = [
    Case("b1", Trainer, "healthy"),
    Case("b2", lambda: Trainer(seed=1, updates=2, steps=40, rate=0.01), "healthy"),
    Case("b3", lambda: Trainer(seed=2, accumulation=1, group=4, prompts=10), "healthy"),
    Case("b4", lambda: Trainer(seed=3, accumulation=4, temperature=0.8), "healthy"),
]
