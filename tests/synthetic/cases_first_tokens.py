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


class Averaged(Asked):
    """Look-alike: an engine that serves a moving average of the weights, as it is meant to."""

    keeps = 0.5

    def sync(self) -> dict[str, object]:
        sent = self.table.copy()
        first = self.version == 0
        self.engine = sent if first else self.keeps * self.engine + (1 - self.keeps) * sent
        self.engine_version = self.version
        return self.answers()


class AveragedRoughly(Averaged):
    """The same, by an engine that is a little off besides: one late delivery would look alike."""

    def engine_arithmetic(self, values: Array) -> Array:
        return values + 0.005 * np.random.default_rng(self.step).normal(size=values.shape)


class SlowlyAveraged(Averaged):
    """So slowly that ratios leave the clip range, with the engine's log-probs on record."""

    keeps = 0.9

    def more_tokens(self, batch: Batch) -> dict[str, object]:
        return Trainer.more_tokens(self, batch)

    def scalars(self, row: dict[str, float]) -> dict[str, float]:
        return row


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
    Case(
        "p62",
        Averaged,
        "healthy",
        checks={"probability.first_tokens": "pass"},
        twin_of="prob.weight_sync",
    ),
    Case(
        "p63",
        AveragedRoughly,
        "incident",
        "prob.weight_sync",
        (5, 15),
        checks={"probability.first_tokens": "fail"},
        says="averages the weights by design",
    ),
    Case(
        "p64",
        SlowlyAveraged,
        "incident",
        "prob.weight_sync",
        (2, 6),
        checks={"probability.first_tokens": "pass", "probability.engine": "fail"},
        says="By design that is no fault of the delivery",
    ),
]
