"""A plain property of the text that separates two sets of rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstbad.tools.reward.patterns import PROPERTIES, explain_rows
from firstbad.tools.run import RolloutBatch

MakeBatch = Callable[..., RolloutBatch]

ROWS = 60


def varied(batch: MakeBatch, marked: int, **odd: object) -> RolloutBatch:
    """Rows that differ at random, and the marked ones in one property too."""
    rng = np.random.default_rng(0)
    completions = ["word " * int(rng.integers(3, 9)) for _ in range(ROWS)]
    prompts = ["ask " * int(rng.integers(2, 6)) for _ in range(ROWS)]
    gold = [str(rng.integers(10, 99)) for _ in range(ROWS)]
    for i in range(marked):
        completions[i] = str(odd.get("completion", completions[i]))
        prompts[i] = str(odd.get("prompt", prompts[i]))
        gold[i] = str(odd.get("gold", gold[i]))
    mix = rng.permutation(ROWS)
    return batch(
        completions=[completions[i] for i in mix],
        prompts=[prompts[i] for i in mix],
        gold=[gold[i] for i in mix],
        rewards={"mark": (mix < marked).astype(float)},
    )


@pytest.mark.parametrize(
    ("odd", "text"),
    [
        ({"gold": "two words"}, "words of the gold answer at least 2"),
        ({"gold": "7"}, "characters of the gold answer below 2"),
        ({"completion": "word " * 20}, "words of the completion at least 20"),
        ({"completion": "word\nword word word"}, "line breaks of the completion at least 1"),
        ({"prompt": "ask " * 12}, "words of the prompt at least 12"),
    ],
)
def test_the_property_that_differs_is_named(
    batch: MakeBatch, odd: dict[str, object], text: str
) -> None:
    made = varied(batch, 20, **odd)
    marked = made.rewards["mark"] == 1
    found = explain_rows([(made, i) for i in range(ROWS)], marked, ~marked)
    assert found is not None
    assert (found.text, found.purity) == (text, 1)


def test_the_place_in_the_batch(batch: MakeBatch) -> None:
    made = varied(batch, 0)
    marked = np.arange(ROWS) >= 40
    found = explain_rows([(made, i) for i in range(ROWS)], marked, ~marked)
    assert found is not None
    assert found.text == "place in the batch at least 40"


@pytest.mark.parametrize("marked", [14, 46])
def test_too_few_rows_on_a_side_show_nothing(batch: MakeBatch, marked: int) -> None:
    made = varied(batch, marked, gold="two words")
    side = made.rewards["mark"] == 1
    assert explain_rows([(made, i) for i in range(ROWS)], side, ~side) is None


@settings(max_examples=20, derandomize=True)
@given(st.integers(0, 1000))
def test_rows_marked_at_random_have_no_pattern(batch: MakeBatch, seed: int) -> None:
    made = varied(batch, 0)
    marked = np.random.default_rng(seed).random(ROWS) < 0.5
    found = explain_rows([(made, i) for i in range(ROWS)], marked, ~marked)
    assert found is None or found.purity >= 0.95
    assert found is None


def test_every_property_can_be_measured_without_a_gold_answer(batch: MakeBatch) -> None:
    made = batch(completions=["a b\nc"], prompts=["p"])
    values = {name: measure((made, 0)) for name, measure in PROPERTIES.items()}
    assert values == {
        "words of the gold answer": 0,
        "characters of the gold answer": 0,
        "words of the completion": 3,
        "line breaks of the completion": 1,
        "words of the prompt": 1,
        "place in the batch": 0,
    }
