"""Which rollouts belong to one prompt's group."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Literal

import numpy as np

from firstbad.tools.run import IntArray

GroupSource = Literal["key", "position", "prompt"]


def numbered(values: Sequence[Hashable]) -> IntArray:
    """Values as numbers in order of first appearance."""
    seen: dict[Hashable, int] = {}
    return np.array([seen.setdefault(value, len(seen)) for value in values], np.int64)


def prompts_say_nothing(prompts: Sequence[str]) -> bool:
    """Whether prompts can't tell groups: all unlike (a nonce in each), or some of them missing."""
    return len(set(prompts)) == len(prompts) or not all(prompts)


def group_rows(prompts: Sequence[str], size: int | None) -> tuple[IntArray, GroupSource]:
    """Group of each row: by position where a group size is stated and the prompts agree.

    Two groups of the same prompt next to each other stay apart by position. Where prompts and
    positions disagree the prompts are what the data says; judging that is not a reader's job.
    """
    rows = len(prompts)
    if size and size > 1 and rows % size == 0:
        heads = [prompts[i - i % size] for i in range(rows)]
        if prompts_say_nothing(prompts) or heads == list(prompts):
            return np.arange(rows, dtype=np.int64) // size, "position"
    return numbered(prompts), "prompt"
