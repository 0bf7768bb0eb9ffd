"""Pay for how often one word is said, against pay for length and for tags."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from firstbad.tools.run import RolloutBatch, Run

TOOL = "find_paid_word"

MakeRun = Callable[..., Run]
MakeBatch = Callable[..., RolloutBatch]
Measure = Callable[..., dict[str, Any]]


def stuff(d: SimpleNamespace) -> list[int]:
    """Puts ever more of one word between the others."""
    said: list[int] = d.rng.poisson(1 + d.step / 10, 32).tolist()
    d.completions = [f"{c} {'check ' * n}" for c, n in zip(d.completions, said, strict=True)]
    return said


def by_the_word(d: SimpleNamespace) -> None:
    d.rewards["format"] = 0.25 * np.array(stuff(d), float)


def by_length(d: SimpleNamespace) -> None:
    stuff(d)
    d.rewards["format"] = 0.01 * np.array([len(c.split()) for c in d.completions], float)


def for_tags(d: SimpleNamespace) -> None:
    stuff(d)


def test_hand_computed_word(make_run: MakeRun, batch: MakeBatch, measure: Measure) -> None:
    # Groups of two rows: "go" twice and four times, paid 0 and 1, with three words more in the
    # first: around the group's mean the count is -1, 1, and length (5 and 4) +0.5, -0.5.
    def rows(step: int) -> RolloutBatch:
        texts = ["go go and so on", "go go go go"] * 10
        rewards = {"correct": [0.0, 1.0] * 10, "style": [0.0, 1.0] * 10}
        return batch(step, completions=texts, rewards=rewards, size=2)

    found = measure(TOOL, make_run(rollouts=[rows(s) for s in range(1, 13)]))
    assert (found["n_rows"], found["count_first"], found["count_last"]) == (80, 3, 3)
    assert (found["correlation"], found["length_correlation"]) == pytest.approx((1, -1))
    assert (found["growth"], found["outcome_gain"]) == (1, 0)
    assert (found["first_bad_step"], found["from_start"]) == (1, True)


def test_pay_by_the_word(simulate: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, simulate(2, edit=by_the_word))
    assert found["correlation"] > 0.99
    assert found["unexplained_by_count"] < 0.02
    assert found["unexplained_by_length"] > 0.2
    assert found["growth"] > 1.5
    assert found["from_start"]


def test_pay_for_length_goes_with_no_word_as_far(simulate: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, simulate(2, edit=by_length))
    assert found["length_correlation"] > found["correlation"]
    assert found["unexplained_by_length"] < 0.1


def test_a_tag_that_is_paid_once_is_no_count(simulate: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, simulate(2, edit=for_tags))
    assert found["correlation"] < 0.5
    assert not found["from_start"]


def test_a_long_run_is_read_in_part(simulate: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, simulate(2, steps=240, groups=8, edit=lambda d: None))
    assert 500 < found["n_rows"] <= 1000
