"""Which batches are the one before, written again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from firstbad.tools.readers.repeats import Repeats
from firstbad.tools.run import RolloutBatch

Batch = Callable[..., RolloutBatch]
LONG = [f"first {i}, then {i * i}, so the answer is {i + 1}" for i in range(8)]


@pytest.mark.parametrize(
    ("texts", "names", "repeats"),
    [
        (LONG, None, 1),
        (LONG, lambda step: f"{step}-", 1),  # no chance gives these once more
        (["4"] * 8, None, 1),
        (["4"] * 8, lambda step: "a", 1),
        (["4"] * 8, lambda step: f"{step}-", None),
    ],
)
def test_texts_and_names(
    batch: Batch, texts: list[str], names: Callable[[int], str] | None, repeats: int | None
) -> None:
    made = {
        step: batch(
            step,
            prompts=["2 + 2"] * 8,
            completions=texts,
            rewards={"r": [1] * 8},
            sample=None if names is None else [f"{names(step)}{i}" for i in range(8)],
        )
        for step in (1, 2)
    }
    read = list(Repeats([1, 2], lambda steps: (made[s] for s in steps)).load([1, 2]))
    assert [b.repeats_step for b in read] == [None, repeats]
