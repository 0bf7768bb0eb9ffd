"""How surprising it is that sampling gives the same completions once more."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from firstbad.tools.drawn_again import may_be_drawn_again, surprise
from firstbad.tools.run import RolloutBatch

Batch = Callable[..., RolloutBatch]


@pytest.mark.parametrize(
    ("texts", "nats", "chance"),
    [
        (["4"] * 32, 0.0, True),
        (["4"] * 16 + ["5"] * 16, 32 * np.log(2), False),
        (["4"] * 31 + ["5"], 31 * np.log(32 / 31) + np.log(32) + 0.1, True),
        (["x" * 300, "y" * 300], 2 * (np.log(2) + 10), False),
    ],
)
def test_surprise(batch: Batch, texts: list[str], nats: float, chance: bool) -> None:
    made = batch(1, completions=texts, prompts=["2 + 2"] * len(texts), rewards={})
    assert surprise(made) == pytest.approx(nats)
    assert may_be_drawn_again(made) == chance
