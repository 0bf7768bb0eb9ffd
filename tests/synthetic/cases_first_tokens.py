"""Fixed prompts that both sides answer after each delivery, with no other log-prob kept."""

from __future__ import annotations

import numpy as np

from synthetic import policy
from synthetic.cases import Case
from synthetic.policy import COLON, COPY, DIGITS, Array
from synthetic.trainer import Batch, Trainer

PROMPTS = tuple((COPY, DIGITS[i], COLON) for i in (1, 4, 7))


class Asked(Trainer):
    """Asks three fixed prompts with each delivery, and keeps no other word of the engine."""

    def sync(self) -> dict[str, object]:
        super().sync()
        return self.answers()

    def answers(self) -> dict[str, object]:
        said = []
        for prompt in PROMPTS:
            here = self.first_token(self.table, prompt)
            there = policy.log_softmax(
                self.engine_arithmetic(self.first_logits(self.engine, prompt))[None]
            )[0]
            for token in np.argsort(-here, kind="stable")[:10].tolist():
                said.append({
                    "prompt": policy.text(list(prompt)), "token_id": token,
                    "trainer": float(here[token]), "engine": float(there[token]),
                })  # fmt: skip
        return {"first_tokens": said}

    def first_logits(self, table: Array, prompt: tuple[int, ...]) -> Array:
        """(V,) of the token behind a prompt."""
        task = int(policy.task_of(np.array([prompt]))[0])
        return np.asarray(table[task, prompt[-1]] + policy.BIAS[len(prompt)])

    def first_token(self, table: Array, prompt: tuple[int, ...]) -> Array:
        """(V,) log-probs in the trainer."""
        return np.asarray(policy.log_softmax(self.first_logits(table, prompt)[None])[0])

    def more_tokens(self, batch: Batch) -> dict[str, object]:
        return {"logp_engine": None}

    def scalars(self, row: dict[str, float]) -> dict[str, float]:
        return {k: v for k, v in row.items() if k != "logprob_diff_mean"}


class NotLoaded(Asked):
    """From the onset on, weights are sent and not loaded; the engine names the new version."""

    def sync(self) -> dict[str, object]:
        if not self.after:
            return super().sync()
        self.engine_version = self.version
        return self.answers()


class Coarse(Asked):
    """Look-alike: an engine whose logits are on a coarse grid, a little off after each delivery."""

    def engine_arithmetic(self, values: Array) -> Array:
        return np.asarray(np.round(values * 8) / 8)


CASES = [
    Case(
        "p60",
        NotLoaded,
        "incident",
        "prob.weight_sync",
        (31, 31),
        checks={"probability.first_tokens": "fail"},
    ),
    Case(
        "p61",
        Coarse,
        "healthy",
        checks={"probability.first_tokens": "pass"},
        twin_of="prob.weight_sync",
    ),
]
