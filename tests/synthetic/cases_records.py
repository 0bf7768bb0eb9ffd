"""Faults of the records layer, and sound runs that look like them."""

from __future__ import annotations

from synthetic import policy
from synthetic.cases import Case
from synthetic.policy import CALL
from synthetic.trainer import Batch, Trainer


class Framed(Trainer):
    """Prompts with a special token of a chat template behind them, which the text lacks."""

    def draw_prompts(self) -> list[list[int]]:
        return [[*prompt, CALL] for prompt in super().draw_prompts()]

    def rollout_rows(self, batch: Batch) -> list[dict[str, object]]:
        rows = super().rollout_rows(batch)
        for row in rows:
            row["prompt"] = str(row["prompt"]).replace(policy.TEXTS[CALL], "").strip()
        return rows


class TemplateLost(Framed):
    """From the onset on prompts go in bare, to sampler and trainer alike."""

    def draw_prompts(self) -> list[list[int]]:
        prompts = super().draw_prompts()
        return [prompt[:-1] for prompt in prompts] if self.after else prompts


CASES = [
    Case(
        "r1",
        TemplateLost,
        "incident",
        "cfg.resolved",
        (28, 38),
        checks={"records.chat_template": "fail"},
    ),
    Case(
        "r2",
        Framed,
        "healthy",
        checks={"records.chat_template": "pass"},
        twin_of="cfg.resolved",
    ),
]
