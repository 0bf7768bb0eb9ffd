"""Equal completions of a prompt: by the place in the group, and against what log-probs predict."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from firstbad.tools.run import Capture, RolloutBatch, Run

TOOL = "find_duplicates"
MakeRun = Callable[..., Run]
Batch = Callable[..., RolloutBatch]
Measure = Callable[..., dict[str, Any]]


def said(word: object) -> str:
    return f"the answer is {word}"


def drawn(batch: Batch, step: int, texts: list[list[str]]) -> RolloutBatch:
    """A group for each list of texts."""
    size = len(texts[0])
    rng = np.random.default_rng(step)
    flat = [text for group in texts for text in group]
    return batch(
        step,
        rewards={"r": rng.random(len(flat))},
        completions=flat,
        size=size,
        advantage=rng.normal(size=len(flat)),
    )


def test_two_places_that_share_a_seed(make_run: MakeRun, batch: Batch, measure: Measure) -> None:
    # Groups of 4: places 1 and 3 are the same, the others differ: 1 of 6 pairs.
    groups = [[said(f"{i}a"), said(f"{i}b"), said(f"{i}a"), said(f"{i}c")] for i in range(6)]
    found = measure(TOOL, make_run(rollouts=[drawn(batch, s, groups) for s in range(1, 6)]))
    assert found["n_groups"] == 30
    assert found["pair_rate"] == pytest.approx(1 / 6, abs=1e-6)
    assert (found["pair_rate_worst"], found["pair_rate_rest"]) == (1.0, 0.0)
    assert found["places_alike"] == 1
    # Nothing equal elsewhere: an error of one pair in 30, sqrt(1/30 / 30) = 1/30.
    assert found["excess_z"] == pytest.approx(30.0)
    assert (found["from_start"], found["first_bad_step"]) == (True, 1)


def test_two_greedy_rows_of_each_group(make_run: MakeRun, batch: Batch, measure: Measure) -> None:
    groups = [[said(f"{i}{c}") for c in "cabadfeg"] for i in range(6)]
    found = measure(TOOL, make_run(rollouts=[drawn(batch, s, groups) for s in range(1, 6)]))
    assert (found["pair_rate_worst"], found["places_share"]) == (1.0, 0.25)


@pytest.mark.parametrize("onset", [7, 31])
def test_seeds_that_become_equal_are_dated_and_counted_from_there(
    make_run: MakeRun, batch: Batch, measure: Measure, onset: int
) -> None:
    fresh = [[said(f"{i}{c}") for c in "bdac"] for i in range(6)]
    equal = [[said(f"{i}{c}") for c in "baba"] for i in range(6)]
    rollouts = [drawn(batch, s, fresh if s < onset else equal) for s in range(1, 60)]
    found = measure(TOOL, make_run(rollouts=rollouts))
    assert (found["last_good_step"], found["first_bad_step"]) == (onset - 1, onset)
    assert found["places_alike"] == 2
    assert (found["pair_rate_worst"], found["pair_rate_rest"]) == (1.0, 0.0)
    assert found["places_share"] == 1.0


@pytest.mark.parametrize("n_words", [2, 5, 40])
def test_a_sharp_policy_repeats_itself_at_all_places_alike(
    make_run: MakeRun, batch: Batch, measure: Measure, n_words: int
) -> None:
    rng = np.random.default_rng(n_words)
    rollouts = [
        drawn(
            batch, s, [[said(f"{i} {rng.integers(n_words)}") for _ in range(8)] for i in range(6)]
        )
        for s in range(1, 41)
    ]
    found = measure(TOOL, make_run(rollouts=rollouts))
    assert found["pair_rate"] == pytest.approx(1 / n_words, abs=0.05)
    assert found["pair_rate_worst"] < 0.75
    assert found["first_bad_step"] is None


def test_short_answers_and_lone_completions_say_nothing(
    make_run: MakeRun, batch: Batch, missing: Callable[..., str]
) -> None:
    short = [drawn(batch, s, [["4", "4", "4", "4"]] * 6) for s in range(1, 9)]
    assert "3 words or more" in missing(TOOL, make_run(rollouts=short))
    alone = [drawn(batch, s, [[said(s)]]) for s in range(1, 40)]
    assert "several completions" in missing(TOOL, make_run(rollouts=alone))


@pytest.mark.parametrize("by", ["text", "reward"])
def test_rows_that_were_sorted_stand_side_by_side_by_themselves(
    make_run: MakeRun, batch: Batch, missing: Callable[..., str], by: str
) -> None:
    rng = np.random.default_rng(0)
    rollouts = []
    for step in range(1, 30):
        rows = [(said(int(n)), float(n < 3)) for n in rng.integers(0, 5, 8)]
        rows.sort(key=lambda row: row[0] if by == "text" else -row[1])
        rollouts.append(
            batch(
                step,
                rewards={"r": [r for _, r in rows]},
                completions=[t for t, _ in rows],
                total=[r for _, r in rows],
            )
        )
    assert "in the order of" in missing(TOOL, make_run(rollouts=rollouts))


def captured(capture: Callable[..., Capture], step: int, *, equal: bool) -> Capture:
    """Two prompts with two completions each of 4 words and a stop, 0.5 nats per token."""
    rows = [[3, 4, 5, 6, 1], [3, 4, 5, 6, 1] if equal else [3, 4, 5, 7, 1]] * 2
    return capture(
        step,
        token_id=rows,
        logp_new=np.full((4, 5), -0.5),
        prompt_token_id=[[2, step + 2]] * 2 + [[3, step + 2]] * 2,
        prompt_mask=np.ones((4, 2)),
    )


@pytest.mark.parametrize("equal", [True, False])
def test_what_log_probs_predict(
    make_run: MakeRun,
    batch: Batch,
    capture: Callable[..., Capture],
    measure: Measure,
    words: Any,
    equal: bool,
) -> None:
    rollouts = [
        drawn(batch, s, [[said(f"{i}{c}") for c in "ab"] for i in range(6)]) for s in (1, 2, 3, 4)
    ]
    captures = [captured(capture, s, equal=equal) for s in range(1, 13)]
    found = measure(TOOL, make_run(rollouts=rollouts, captures=captures, vocabulary=words))
    chance = math.exp(-2.5)  # 5 tokens of 0.5 nats
    assert found["expected_rate"] == pytest.approx(chance, abs=1e-6)
    assert found["captured_rate"] == float(equal)
    assert found["captured_excess"] == pytest.approx(float(equal) - chance, abs=1e-6)
    # 24 prompts with the same excess: its mean over its error is the square root of 24.
    assert abs(found["captured_z"]) == pytest.approx(math.sqrt(24), abs=1e-3)
    assert (found["captured_z"] > 0) is equal
