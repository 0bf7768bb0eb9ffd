"""The toy task of the runs: sort a few digits, answer inside tags.

Holds the words, the noisy demonstrations of the warm start, the prompt files and the three rewards
as they should be. Nothing here is faulty; faults live in `faults` and `rewards`.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = dict[str, Any]
RewardFunction = Callable[..., Sequence[float | None]]

SPECIAL = ("<|pad|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|unk|>")
THOUGHTS = (
    "look",
    "small",
    "next",
    "then",
    "check",
    "order",
    "hmm",
    "ok",
    "again",
    "swap",
    "keep",
    "left",
)
WORDS = (
    "user",
    "assistant",
    "system",
    "sort",
    ":",
    "<think>",
    "</think>",
    "<answer>",
    "</answer>",
    ",",
)
VOCAB = (*SPECIAL, *WORDS, *"0123456789", *THOUGHTS)
ANSWER = re.compile(r"<answer>(.*?)</answer>")
FORMAT = re.compile(r"<think>[^<]*</think> <answer>[^<]*</answer>")


@dataclass(frozen=True)
class WarmStart:
    """What the demonstrations look like."""

    seed: int = 1
    digits: tuple[int, int] = (4, 6)
    digit_noise: float = 0.42
    form_noise: float = 0.20
    long_is_right: bool = False
    """Careless answers come with short thoughts."""
    steps: int = 700

    @property
    def name(self) -> str:
        """Name of its folder."""
        low, high = self.digits
        return (
            f"seed{self.seed}_d{low}-{high}_n{self.digit_noise}_f{self.form_noise}"
            f"_l{int(self.long_is_right)}_s{self.steps}"
        )


def demonstration(rng: random.Random, start: WarmStart) -> tuple[str, str]:
    """One prompt text and one reply text; the reply is wrong or badly formed now and then."""
    digits = [rng.choice("0123456789") for _ in range(rng.randint(*start.digits))]
    thoughts = rng.randint(0, 10)
    answer = sorted(digits)
    noise = start.digit_noise * (2.0 - 0.19 * thoughts if start.long_is_right else 1.0)
    if rng.random() < noise:
        answer = _spoil(rng, answer)
    tags = {"open": "<think>", "close": "</think>", "start": "<answer>", "end": "</answer>"}
    if rng.random() < start.form_noise:
        tags[rng.choice(["close", "start", "end"])] = ""
    thought = [rng.choice(THOUGHTS) for _ in range(thoughts)]
    words = [tags["open"], *thought, tags["close"], tags["start"], *answer, tags["end"]]
    return f"sort : {' '.join(digits)}", " ".join(word for word in words if word)


def _spoil(rng: random.Random, answer: list[str]) -> list[str]:
    """Swap two neighbours, drop a digit or replace one."""
    answer, i = list(answer), rng.randrange(len(answer))
    kind = rng.random()
    if kind < 0.5 and len(answer) > 1:
        i = min(i, len(answer) - 2)
        answer[i], answer[i + 1] = answer[i + 1], answer[i]
    elif kind < 0.75 and len(answer) > 1:
        del answer[i]
    else:
        answer[i] = rng.choice("0123456789")
    return answer


def make_rows(rng: random.Random, count: int, low: int, high: int) -> list[Row]:
    """Prompt rows with the right answers, `low` to `high` digits each."""
    rows = []
    for _ in range(count):
        digits = [rng.choice("0123456789") for _ in range(rng.randint(low, high))]
        prompt = [{"role": "user", "content": f"sort : {' '.join(digits)}"}]
        rows.append({"prompt": prompt, "answer": " ".join(sorted(digits))})
    return rows


def write_rows(path: Path, rows: list[Row]) -> None:
    """Write prompt rows as JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def reply_text(completion: Any) -> str:
    """Text of one chat completion."""
    return str(completion[0]["content"])


def answer_in(text: str) -> str | None:
    """The text between the answer tags, normalised, or None."""
    found = ANSWER.search(text)
    return " ".join(found.group(1).split()) if found else None


def correctness_reward(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    """1.0 when the text in the answer tag equals the sorted digits."""
    pairs = zip(completions, answer, strict=True)
    return [float(answer_in(reply_text(reply)) == gold) for reply, gold in pairs]


def format_reward(completions: list[Any], **_: Any) -> list[float]:
    """1.0 when the reply is exactly a think block and an answer block."""
    return [float(FORMAT.fullmatch(reply_text(reply)) is not None) for reply in completions]


def brevity_reward(completion_ids: list[Any], **_: Any) -> list[float]:
    """A penalty past 24 tokens."""
    return [-0.1 * max(0.0, len(ids) - 24.0) for ids in completion_ids]
