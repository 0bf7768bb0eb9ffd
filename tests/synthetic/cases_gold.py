"""Gold answers that are wrong for a part of the prompts, from the first step on."""

from __future__ import annotations

from typing import Any

from synthetic import policy
from synthetic.cases import Case
from synthetic.policy import DIGITS, WORDS
from synthetic.trainer import Batch, Trainer

GOLD, CHECK = "data.wrong_gold", "records.gold_answers"


class PartWrong(Trainer):
    """Prompts that begin with one word of eight have the gold answer of another task."""

    def prepared(self, batch: Batch) -> Batch:
        for row, ids in enumerate(batch.rows.ids):
            prompt = ids[batch.rows.source[row] == 2]
            digit = batch.digit[row]
            if digit is not None and self.is_wrong(prompt.tolist()):
                batch.digit[row] = (digit + 3) % len(DIGITS)
        return super().prepared(batch)

    def is_wrong(self, prompt: list[int]) -> bool:
        """Whether the gold answer of a prompt is wrong."""
        return prompt[0] == WORDS[0]


class Sums(PartWrong):
    """Prompts are written as sums; those with one number of ten have a wrong gold answer."""

    wrong: tuple[int, ...] = (2,)

    def is_wrong(self, prompt: list[int]) -> bool:
        return len(prompt) % 4 in self.wrong

    def rollout_rows(self, batch: Batch) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = super().rollout_rows(batch)
        for row, ids, source in zip(rows, batch.rows.ids, batch.rows.source, strict=True):
            prompt = ids[source == 2]
            value = int(policy.task_of(prompt[None])[0])
            row["prompt"] = row["prompt_id"] = f"{value + len(prompt)} - {len(prompt)} ="
        return rows


class SoundSums(Sums):
    """The same prompts with right gold answers."""

    wrong = ()


class Convinced(Trainer):
    """The first policy answers three tasks of ten with the next digit, and is sure of it."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for task in (1, 4, 7):
            self.table[task, :, DIGITS[task + 1]] += 4.0
        self.engine, self.reference = self.table.copy(), self.table.copy()


CASES = [
    Case("w40", lambda: PartWrong(prompts=10), "incident", GOLD, (1, 10), {CHECK: "fail"}),
    Case("w41", lambda: Convinced(prompts=10), "healthy", twin_of=GOLD),
    Case("w42", lambda: Sums(prompts=10), "incident", GOLD, (1, 6), {CHECK: "fail"}),
    Case("w43", lambda: SoundSums(prompts=10), "healthy", twin_of=GOLD),
]
