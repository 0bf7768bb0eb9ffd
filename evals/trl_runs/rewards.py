"""Reward functions with a real fault or oddity; each factory returns the three of a run.

Each is a real change in a real code path: the trainer is paid by the function as it stands here.
TRL names a reward column after `__name__`, so a replaced function keeps the name of the sound one.
"""

from __future__ import annotations

import logging
import random
import re
import time
from typing import Any

from firstbad.evals.trl_runs import task
from firstbad.evals.trl_runs.task import RewardFunction, answer_in, reply_text

LOG = logging.getLogger("lab")
NEVER = 10**9


def healthy() -> list[RewardFunction]:
    """The three rewards as they should be."""
    return [task.correctness_reward, task.format_reward, task.brevity_reward]


def _replaced(name: str, function: RewardFunction) -> list[RewardFunction]:
    """The sound rewards with one replaced."""
    function.__name__ = name
    return [function if sound.__name__ == name else sound for sound in healthy()]


def _step(kwargs: dict[str, Any]) -> int:
    """Optimizer step in progress, from 1."""
    return int(kwargs["trainer_state"].global_step) + 1


def strict_parser(onset: int, longest: int = 4) -> list[RewardFunction]:
    """The parser's pattern takes at most `longest` digits, so longer right answers get 0."""
    pattern = re.compile(rf"<answer> (\d(?: \d){{0,{longest - 1}}}) </answer>")

    def score(completions: list[Any], answer: list[str], **kwargs: Any) -> list[float]:
        if _step(kwargs) < onset:
            return task.correctness_reward(completions, answer)
        found = [pattern.search(reply_text(reply)) for reply in completions]
        return [float(f is not None and f[1] == a) for f, a in zip(found, answer, strict=True)]

    return _replaced("correctness_reward", score)


def no_verdict(onset: int, stop: int, share: float) -> list[RewardFunction]:
    """The verifier's service answers for part of the rows only; the others get None."""
    rng = random.Random(5)

    def score(completions: list[Any], answer: list[str], **kwargs: Any) -> list[float | None]:
        scores: list[float | None] = list(task.correctness_reward(completions, answer))
        if not onset <= _step(kwargs) < stop:
            return scores
        return [None if rng.random() < share else score for score in scores]

    return _replaced("correctness_reward", score)


def thoughts_required(onset: int) -> list[RewardFunction]:
    """The parser's pattern asks for a thought word before the answer; replies without get 0."""
    pattern = re.compile(r"[a-z] </think> <answer>(.*?)</answer>")

    def score(completions: list[Any], answer: list[str], **kwargs: Any) -> list[float]:
        if _step(kwargs) < onset:
            return task.correctness_reward(completions, answer)
        found = [pattern.search(reply_text(reply)) for reply in completions]
        return [
            float(f is not None and " ".join(f[1].split()) == a)
            for f, a in zip(found, answer, strict=True)
        ]

    return _replaced("correctness_reward", score)


def any_answer(onset: int) -> list[RewardFunction]:
    """The verifier counts anything with an answer tag as right."""

    def score(completions: list[Any], answer: list[str], **kwargs: Any) -> list[float]:
        if _step(kwargs) < onset:
            return task.correctness_reward(completions, answer)
        return [float("<answer>" in reply_text(reply)) for reply in completions]

    return _replaced("correctness_reward", score)


def same_digits(onset: int) -> list[RewardFunction]:
    """The verifier compares digits without their order."""

    def score(completions: list[Any], answer: list[str], **kwargs: Any) -> list[float]:
        if _step(kwargs) < onset:
            return task.correctness_reward(completions, answer)
        given = [sorted((answer_in(reply_text(reply)) or "").split()) for reply in completions]
        return [float(digits == a.split()) for digits, a in zip(given, answer, strict=True)]

    return _replaced("correctness_reward", score)


def paid_length() -> list[RewardFunction]:
    """The brevity part has the wrong sign: tokens are paid for."""

    def score(completion_ids: list[Any], **_: Any) -> list[float]:
        return [0.1 * (len(ids) - 24.0) for ids in completion_ids]

    return _replaced("brevity_reward", score)


def short_form(longest: int = 4) -> list[RewardFunction]:
    """The format part's pattern takes at most `longest` digits, so longer answers lose its pay."""
    answer = rf"<answer> \d(?: \d){{0,{longest - 1}}} </answer>"
    pattern = re.compile(rf"<think>[^<]*</think> {answer}")

    def score(completions: list[Any], **_: Any) -> list[float]:
        return [float(pattern.fullmatch(reply_text(reply)) is not None) for reply in completions]

    return _replaced("format_reward", score)


def paid_word(word: str = "check", pay: float = 0.5) -> list[RewardFunction]:
    """The format part pays for each time that a word is said."""

    def score(completions: list[Any], **_: Any) -> list[float]:
        said = [reply_text(reply).split().count(word) for reply in completions]
        return [f + pay * n for f, n in zip(task.format_reward(completions), said, strict=True)]

    return _replaced("format_reward", score)


def scaled_format(onset: int, factor: float = 10.0) -> list[RewardFunction]:
    """The format part comes in another unit."""

    def score(completions: list[Any], **kwargs: Any) -> list[float]:
        unit = factor if _step(kwargs) >= onset else 1.0
        return [unit * value for value in task.format_reward(completions)]

    return _replaced("format_reward", score)


def outliers(onset: int, value: float = 1000.0, share: float = 0.02) -> list[RewardFunction]:
    """The verifier's client now and then returns its latency field in place of the score."""
    rng = random.Random(0)

    def score(completions: list[Any], answer: list[str], **kwargs: Any) -> list[float]:
        scores = task.correctness_reward(completions, answer)
        if _step(kwargs) < onset:
            return scores
        return [value if rng.random() < share else s for s in scores]

    return _replaced("correctness_reward", score)


def outage(
    onset: int, until: int = NEVER, share: float = 1.0, wait: float = 0.4
) -> list[RewardFunction]:
    """The verifier times out for a share of the rows, which its client then scores 0.0."""
    rng = random.Random(0)

    def score(completions: list[Any], answer: list[str], **kwargs: Any) -> list[float]:
        scores = task.correctness_reward(completions, answer)
        if not onset <= _step(kwargs) < until:
            return scores
        lost = {i for i in range(len(scores)) if rng.random() < share}
        time.sleep(wait)
        text = "verifier client: deadline exceeded (%d items), fallback score 0.0"
        LOG.warning(text, len(lost))
        return [0.0 if i in lost else s for i, s in enumerate(scores)]

    return _replaced("correctness_reward", score)


def slow_once(step: int, wait: float = 4.0) -> list[RewardFunction]:
    """One verifier call is slow, its scores are right: no fault."""

    def score(completions: list[Any], answer: list[str], **kwargs: Any) -> list[float]:
        if _step(kwargs) == step:
            time.sleep(wait)
            text = "verifier client: slow response (%d items, %.1f s)"
            LOG.warning(text, len(completions), wait)
        return task.correctness_reward(completions, answer)

    return _replaced("correctness_reward", score)


def slow_always(onset: int, wait: float = 1.5) -> list[RewardFunction]:
    """Each verifier call takes long; its scores are right."""

    def score(completions: list[Any], answer: list[str], **kwargs: Any) -> list[float]:
        if _step(kwargs) >= onset:
            time.sleep(wait)
        return task.correctness_reward(completions, answer)

    return _replaced("correctness_reward", score)


def strict_format() -> list[RewardFunction]:
    """By design only a rightly formatted reply can be right: no fault."""

    def score(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
        right = task.correctness_reward(completions, answer)
        return [r * f for r, f in zip(right, task.format_reward(completions), strict=True)]

    return _replaced("correctness_reward", score)
