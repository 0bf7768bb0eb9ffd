"""A small policy: a table of logits by task and previous token, and tasks that it can learn.

A prompt asks to copy a digit; the answer is right when the last digit said is that one. R rows,
L tokens in a row, V tokens in the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

PAD, STOP, COPY, COLON, CALL, RESULT = range(6)
DIGITS = tuple(range(6, 16))
WORDS = tuple(range(16, 24))
V = 24
TEXTS = {
    PAD: "<pad>", STOP: "</s>", COPY: "copy", COLON: ":", CALL: "<call>", RESULT: "<result>",
    **{d: str(i) for i, d in enumerate(DIGITS)},
    **dict(zip(WORDS, ["so", "then", "we", "say", "it", "is", "now", "thus"], strict=True)),
}  # fmt: skip
UNKNOWN = len(DIGITS)
"""Row of the table for a prompt that names no digit."""
NEVER = (PAD, COPY, COLON, RESULT)


@dataclass(frozen=True)
class Rows:
    """Token rows as the trainer gets them: prompt to the left, completion to the right."""

    ids: Ints
    """(R, L)"""
    attention: Ints
    """(R, L) 1 where a token may be seen."""
    position: Ints
    """(R, L)"""
    source: Ints
    """(R, L) 0 padding, 2 prompt, 3 sampled, 4 tool."""

    @property
    def made(self) -> Bools:
        """(R, L) sampled by the policy."""
        return np.asarray(self.source == 3)


def first_table(rng: np.random.Generator) -> Array:
    """(tasks, V, V) logits of the policy that training begins with: right in about a third."""
    table = 0.3 * rng.normal(size=(UNKNOWN + 1, V, V))
    table[:, :, NEVER] = -30.0
    table[:, :, list(DIGITS)] += 0.3
    table[:, list(DIGITS), STOP] += 3.0
    table[:, :, CALL] = -30.0
    for i, digit in enumerate(DIGITS):
        table[i, :, digit] += 1.5
    return table


def that_calls(table: Array) -> Array:
    """The same with calls of a tool: a call ends its turn with the stop token."""
    table = table.copy()
    table[:, :, CALL] = 0.5
    table[:, CALL, CALL] = -30.0
    table[:, CALL, STOP] += 9.0
    return table


def positions_bias(width: int = 64) -> Array:
    """(width, V) a fixed part of the logits by position, as a model with position ids has."""
    bias = 0.2 * np.random.default_rng(5).normal(size=(width, V))
    bias[:, NEVER] = 0.0
    return bias


BIAS = positions_bias()


def task_of(ids: Ints) -> Ints:
    """(R,) digit that each prompt names, or UNKNOWN."""
    at = (ids == COPY).argmax(axis=1)
    named = ids[np.arange(len(ids)), np.minimum(at + 1, ids.shape[1] - 1)] - DIGITS[0]
    known = (ids == COPY).any(axis=1) & (named >= 0) & (named < len(DIGITS))
    return np.where(known, named, UNKNOWN)


def logits(table: Array, rows: Rows) -> Array:
    """(R, L, V) logits for the token at each place, given what stands before it."""
    before = np.concatenate([np.full((len(rows.ids), 1), PAD), rows.ids[:, :-1]], axis=1)
    place = np.minimum(rows.position, len(BIAS) - 1)
    return np.asarray(table[task_of(rows.ids)[:, None], before] + BIAS[place])


def log_softmax(values: Array) -> Array:
    """Over the last axis."""
    top = values.max(axis=-1, keepdims=True)
    return np.asarray(values - top - np.log(np.exp(values - top).sum(axis=-1, keepdims=True)))


def picked(log_probs: Array, ids: Ints) -> Array:
    """(R, L) log-prob of the token that stands at each place."""
    return np.asarray(np.take_along_axis(log_probs, ids[..., None], axis=-1)[..., 0])


def prompts(rng: np.random.Generator, n: int) -> list[list[int]]:
    """`n` prompts of three to six tokens."""
    digits = rng.choice(len(DIGITS), n, replace=n > len(DIGITS))
    fillers = [rng.choice(WORDS, rng.integers(0, 4)).tolist() for _ in range(n)]
    pairs = zip(fillers, digits, strict=True)
    return [[*filler, COPY, DIGITS[digit], COLON] for filler, digit in pairs]


def text(ids: Ints | list[int]) -> str:
    """Tokens as text, without padding and stop."""
    return " ".join(TEXTS[i] for i in np.asarray(ids).tolist() if i not in (PAD, STOP))


def said(ids: Ints | list[int]) -> int | None:
    """The digit that an answer ends with, or None."""
    digits = [int(i) - DIGITS[0] for i in ids if int(i) in DIGITS]
    return digits[-1] if digits else None
