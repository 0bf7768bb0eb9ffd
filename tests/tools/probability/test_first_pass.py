"""Trainer and reference before any update: one model, one log-prob."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstbad.tools.run import Capture, Run, Vocabulary

TOOL = "compare_first_pass"

MakeRun = Callable[..., Run]
MakeCapture = Callable[..., Capture]
Measure = Callable[..., dict[str, Any]]


def test_hand_computed_difference(
    make_run: MakeRun, capture: MakeCapture, words: Vocabulary, measure: Measure
) -> None:
    # Four rows without padding differ by 0.01 in each of two tokens; four with one pad token by
    # 0.05 in the first of two: 0.025 on average. All in all (8 x 0.01 + 4 x 0.05)/16 = 0.0175.
    # What stands after the stop token counts for nothing.
    gap = np.array([[0.01, 0.01, 9.0]] * 4 + [[0.05, 0.0, 9.0]] * 4)
    made = capture(
        1,
        token_id=[[5, 1, 0]] * 8,
        logp_new=-1.0 - gap,
        logp_ref=np.full((8, 3), -1.0),
        prompt_mask=[[1, 1]] * 4 + [[0, 1]] * 4,
    )
    found = measure(TOOL, make_run(captures=[made], vocabulary=words))
    assert found["n_tokens"] == 16
    assert found["difference"] == pytest.approx(0.0175)
    assert (found["least"], found["largest"]) == pytest.approx((0.01, 0.025))
    assert found["depends_on_padding"] == pytest.approx(2.5)
    # k1 is -0.0175; k3 (8 (e^0.01 - 1.01) + 4 (e^0.05 - 1.05))/16 = 3.4286e-4.
    assert found["k1_over_k3"] == pytest.approx(-51.04, abs=0.01)
    assert (found["first_bad_step"], found["from_start"]) == (1, True)


def test_one_model_on_both_sides_does_not_differ(
    make_run: MakeRun, sample: MakeCapture, words: Vocabulary, measure: Measure
) -> None:
    found = measure(TOOL, make_run(captures=[sample(1, moved=0.0)], vocabulary=words))
    assert found["difference"] == found["largest"] == found["depends_on_padding"] == 0
    assert found["first_bad_step"] is found["k1_over_k3"] is None
    assert not found["from_start"]


def test_another_reference_differs_whatever_the_padding(
    make_run: MakeRun, sample: MakeCapture, words: Vocabulary, measure: Measure
) -> None:
    found = measure(TOOL, make_run(captures=[sample(1, moved=0.5)], vocabulary=words))
    assert found["difference"] > 0.2
    assert found["depends_on_padding"] < 2
    assert found["k1_over_k3"] == pytest.approx(1, abs=0.3)
    assert (found["first_bad_step"], found["from_start"]) == (1, True)


def test_a_trainer_with_noise_of_its_own_did_not_sample_the_tokens(
    make_run: MakeRun, sample: MakeCapture, words: Vocabulary, measure: Measure
) -> None:
    made = sample(1, moved=0.0, rows=96)
    # Noise of sd 0.5 lowers the mean log-prob of what another policy sampled by half its variance.
    logp = np.asarray(made.arrays["logp_new"])
    noisy = logp + 0.5 * np.random.default_rng(0).standard_normal(logp.shape) - 0.125
    run = make_run(
        captures=[replace(made, arrays={**made.arrays, "logp_new": noisy})], vocabulary=words
    )
    found = measure(TOOL, run)
    assert found["depends_on_padding"] < 2
    assert found["k1_over_k3"] < 0


def test_positions_that_count_the_padding_differ_with_it(
    make_run: MakeRun, sample: MakeCapture, words: Vocabulary, measure: Measure
) -> None:
    made = sample(1, moved=0.0, rows=96)
    pads = (np.asarray(made.arrays["prompt_mask"]) == 0).sum(axis=1)
    wrong = np.asarray(made.arrays["logp_new"]) - 0.2 * pads[:, None]
    run = make_run(
        captures=[replace(made, arrays={**made.arrays, "logp_new": wrong})], vocabulary=words
    )
    found = measure(TOOL, run)
    assert (found["least"], found["largest"]) == pytest.approx((0, 0.4), abs=1e-3)
    assert found["depends_on_padding"] == pytest.approx(80, rel=0.01)


def test_later_steps_may_differ(
    make_run: MakeRun, sample: MakeCapture, words: Vocabulary, measure: Measure
) -> None:
    made = [sample(1, moved=0.0), sample(2, moved=1.0)]
    assert measure(TOOL, make_run(captures=made, vocabulary=words))["largest"] == 0


def test_without_data(
    make_run: MakeRun, sample: MakeCapture, words: Vocabulary, missing: Callable[..., str]
) -> None:
    assert "no capture of step 1" in missing(TOOL, make_run())
    assert "no capture of step 1" in missing(TOOL, make_run(captures=[sample(2)]))
    made = sample(1)
    bare = replace(made, arrays={k: v for k, v in made.arrays.items() if k != "logp_ref"})
    assert "reference log-probs" in missing(TOOL, make_run(captures=[bare]))
    few = make_run(captures=[sample(1, rows=3)], vocabulary=words)
    assert "at least 4 rows" in missing(TOOL, few)


@settings(max_examples=8, derandomize=True)
@given(seed=st.integers(0, 50), sign=st.sampled_from([1, -1]))
def test_the_order_of_rows_and_the_sign_of_the_difference_do_not_matter(
    make_run: MakeRun,
    sample: MakeCapture,
    words: Vocabulary,
    measure: Measure,
    seed: int,
    sign: int,
) -> None:
    made = sample(1, seed=seed, moved=0.3)
    before = measure(TOOL, make_run(captures=[made], vocabulary=words))
    order = np.random.default_rng(seed).permutation(64)
    ref, new = (np.asarray(made.arrays[k], float) for k in ("logp_ref", "logp_new"))
    mirrored = {**made.arrays, "logp_new": ref + sign * (new - ref), "logp_ref": ref}
    moved = replace(made, arrays={k: v[order] for k, v in mirrored.items()})
    after = measure(TOOL, make_run(captures=[moved], vocabulary=words))
    for name in ("n_tokens", "difference", "least", "largest", "depends_on_padding"):
        assert after[name] == pytest.approx(before[name], rel=1e-3)
