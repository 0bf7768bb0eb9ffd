"""Log-probs on the bfloat16 grid."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstbad.tools.run import Capture, Run, Vocabulary

TOOL = "check_precision"

MakeRun = Callable[..., Run]
MakeCapture = Callable[..., Capture]
Measure = Callable[..., dict[str, Any]]


def bf16(values: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """Rounded to bfloat16: eight significant bits, held in float32."""
    bits = np.asarray(values, np.float32).view(np.uint32)
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)
    found: npt.NDArray[np.float32] = (rounded & np.uint32(0xFFFF0000)).view(np.float32)
    return found


@pytest.mark.parametrize(("low", "gap"), [(1.0, 2**-7), (8.0, 0.0625)])
def test_the_grid_of_bfloat16(low: float, gap: float) -> None:
    grid = np.unique(bf16(np.linspace(low, 2 * low, 20_000, endpoint=False)))
    assert np.unique(np.diff(grid)).tolist() == [gap]


def spread(seed: int, dtype: Any = np.float32) -> npt.NDArray[Any]:
    """Log-probs of four rows of 50 tokens, all different."""
    return -np.random.default_rng(seed).gamma(2.0, 1.0, (4, 50)).astype(dtype)


def capture_of(capture: MakeCapture, step: int, logp: npt.NDArray[Any], **fields: Any) -> Capture:
    return capture(step, token_id=np.full(logp.shape, 5), logp_new=logp, **fields)


def test_hand_counted_share(
    make_run: MakeRun, capture: MakeCapture, words: Vocabulary, measure: Measure
) -> None:
    # 100 values: -1 - i/128 for i in 0..49 is on the grid (neighbours 1/128 apart), the same plus
    # 1/4096 is not. Half of the values; in float32 none is there by chance.
    on = -1 - np.arange(50) / 128
    values = np.array([on, on - 1 / 4096], np.float32)
    made = capture_of(capture, 3, values)
    found = measure(TOOL, make_run(captures=[made], vocabulary=words))
    assert found["n_values"] == 100
    assert found["coarse_share"] == found["coarse_excess"] == found["excess_worst"] == 0.5
    assert found["first_bad_step"] is None
    assert found["sampled"]


@pytest.mark.parametrize(("dtype", "chance"), [(np.float32, 0.0), (np.float16, 0.125)])
def test_values_on_the_grid_are_dated_between_captures(
    make_run: MakeRun,
    capture: MakeCapture,
    words: Vocabulary,
    measure: Measure,
    dtype: Any,
    chance: float,
) -> None:
    made = []
    for step in (10, 20, 30, 40):
        logp = spread(step, dtype)
        if step >= 30:
            logp = bf16(logp).astype(dtype)
        made.append(capture_of(capture, step, logp))
    found = measure(TOOL, make_run(captures=made, vocabulary=words))
    assert found["excess_worst"] == pytest.approx(1 - chance, abs=0.01)
    assert 0.4 < found["coarse_share"] < 0.7
    assert (found["last_good_step"], found["first_bad_step"]) == (20, 30)
    assert not found["from_start"]


@pytest.mark.parametrize(("dtype", "chance"), [(np.float32, 0.0), (np.float16, 0.125)])
def test_fine_values_are_there_by_chance_only(
    make_run: MakeRun,
    sample: MakeCapture,
    words: Vocabulary,
    measure: Measure,
    dtype: Any,
    chance: float,
) -> None:
    # Of float16's eleven significant bits the last three are 0 for one value in eight.
    made = [sample(s, seed=s, dtype=dtype) for s in (1, 2, 3)]
    found = measure(TOOL, make_run(captures=made, vocabulary=words))
    assert found["coarse_share"] == pytest.approx(chance, abs=0.08)
    assert found["coarse_excess"] == pytest.approx(0, abs=0.08)
    assert found["first_bad_step"] is None


def test_a_policy_that_is_sure_of_itself_is_not_on_the_grid(
    make_run: MakeRun, capture: MakeCapture, words: Vocabulary, measure: Measure
) -> None:
    """Log-probs of exactly 0, and the same few values over and over, are no grid."""
    logp = spread(1)
    logp[:, ::2] = 0.0
    logp[0, 1::2] = -1.0
    found = measure(TOOL, make_run(captures=[capture_of(capture, 1, logp)], vocabulary=words))
    assert found["coarse_share"] < 0.05


def sure(seed: int) -> npt.NDArray[np.float64]:
    """Probabilities near 1 of four rows of 50 tokens."""
    return 1 - np.random.default_rng(seed).uniform(0.002, 0.06, (4, 50))


def test_log_probs_computed_in_bfloat16_are_told_from_those_stored_in_it(
    make_run: MakeRun, capture: MakeCapture, words: Vocabulary, measure: Measure
) -> None:
    """Near 0 storing keeps eight bits; a probability, a sum or a difference keeps its own step."""
    p = sure(1)
    computed = {
        "probability": np.log(bf16(p)),
        "sum of exp": -np.log(bf16(1 / p)),
        "difference": bf16(1 + np.log(p)) - 1,
        "difference of larger numbers": bf16(5 + np.log(p)) - 5,
    }
    for way, values in {**computed, "stored": np.log(p)}.items():
        logp = bf16(np.concatenate([values, spread(1) - 0.1], axis=1))
        found = measure(TOOL, make_run(captures=[capture_of(capture, 1, logp)], vocabulary=words))
        assert found["coarse_share"] == 1, way
        if way == "stored":
            assert found["n_small"] > 150
            assert found["stepped_share"] < 0.2
        else:
            assert found["stepped_share"] > 0.99, way


def test_fine_captures_from_before_do_not_hide_a_computation_in_bfloat16(
    make_run: MakeRun, capture: MakeCapture, words: Vocabulary, measure: Measure
) -> None:
    def logp(step: int) -> npt.NDArray[Any]:
        p = sure(step) if step < 6 else bf16(sure(step))
        near, far = np.log(p), spread(step) - 0.1
        values = np.concatenate([near, far], axis=1)
        return values.astype(np.float32) if step < 6 else bf16(values)

    made = [capture_of(capture, step, logp(step)) for step in range(1, 8)]
    found = measure(TOOL, make_run(captures=made, vocabulary=words))
    assert (found["last_good_step"], found["first_bad_step"]) == (5, 6)
    assert found["stepped_share"] > 0.99


def test_a_dump_that_was_stored_in_bfloat16_is_told_from_a_computation_in_it(
    make_run: MakeRun, sample: MakeCapture, words: Vocabulary, measure: Measure
) -> None:
    """Advantages pass through no log-softmax: where they lie on the grid too, storage is coarse."""
    fine = sample(1)
    logp, advantage = bf16(fine.arrays["logp_new"]), np.asarray(fine.arrays["advantage"])
    for stored, coarse in ((advantage.astype(np.float32), False), (bf16(advantage), True)):
        made = sample(1, logp_new=logp, advantage=stored)
        found = measure(TOOL, make_run(captures=[made], vocabulary=words))
        assert found["coarse_share"] == 1
        assert found["storage_coarse"] is coarse
    few = sample(1, logp_new=logp, advantage=np.array([0.5, -0.5] * 32, np.float32))
    assert measure(TOOL, make_run(captures=[few], vocabulary=words))["storage_coarse"] is None


def test_only_completion_tokens_are_looked_at(
    make_run: MakeRun, capture: MakeCapture, words: Vocabulary, measure: Measure
) -> None:
    logp = spread(1)
    ids = np.full(logp.shape, 5)
    ids[:, 30] = 1
    logp[:, 31:] = -1 - np.arange(19) / 128
    made = capture(1, token_id=ids, logp_new=logp)
    found = measure(TOOL, make_run(captures=[made], vocabulary=words))
    assert found["n_values"] == 4 * 31
    assert found["coarse_share"] == 0


def test_without_data(
    make_run: MakeRun, capture: MakeCapture, words: Vocabulary, missing: Callable[..., str]
) -> None:
    assert "finer than bfloat16" in missing(TOOL, make_run())
    stored = capture_of(capture, 1, bf16(spread(1)), dtypes={"logp_new": "bfloat16"})
    assert "finer than bfloat16" in missing(TOOL, make_run(captures=[stored]))
    few = capture_of(capture, 1, spread(1)[:, :10])
    assert "60 log-probs" in missing(TOOL, make_run(captures=[few]))


@settings(max_examples=8, derandomize=True)
@given(seed=st.integers(0, 100), by=st.integers(0, 1000))
def test_the_order_of_rows_and_padding_do_not_matter(
    make_run: MakeRun,
    capture: MakeCapture,
    words: Vocabulary,
    measure: Measure,
    changed: SimpleNamespace,
    seed: int,
    by: int,
) -> None:
    rng = np.random.default_rng(seed)
    ids, logp = np.full((4, 50), 5), spread(seed)
    logp[:2] = bf16(logp[:2])
    ids[:, -1] = 1
    run = make_run(captures=[capture(1, token_id=ids, logp_new=logp)], vocabulary=words)
    before = measure(TOOL, run)
    order = rng.permutation(4)
    wide = {
        "token_id": np.pad(ids, ((0, 0), (0, 7)))[order],
        "logp_new": np.pad(logp, ((0, 0), (0, 7)), constant_values=-1.0)[order],
    }
    padded = make_run(captures=[capture(1, **wide)], vocabulary=words)
    assert measure(TOOL, changed.shift_steps(padded, by)) == changed.dates_moved(before, by)
    assert before["coarse_share"] == pytest.approx(0.5, abs=0.05)


def test_numbers_stored_with_64_bits_are_read_too(
    make_run: MakeRun, capture: MakeCapture, words: Vocabulary, measure: Measure
) -> None:
    coarse = bf16(spread(3)).astype(np.float64)
    found = measure(TOOL, make_run(captures=[capture_of(capture, 1, coarse)], vocabulary=words))
    assert found["coarse_excess"] == 1.0
    fine = spread(3, np.float64)
    found = measure(TOOL, make_run(captures=[capture_of(capture, 1, fine)], vocabulary=words))
    assert found["coarse_excess"] < 0.01


def f16(values: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """Rounded to float16: eleven significant bits, held in float32."""
    return np.asarray(values, np.float16).astype(np.float32)


def test_log_probs_computed_in_float16_lie_on_its_own_grid(
    make_run: MakeRun, capture: MakeCapture, words: Vocabulary, measure: Measure
) -> None:
    """Near 1 to 2 its numbers lie 2^-10 apart; of bfloat16's grid it holds one in eight."""
    p = sure(1)
    for name, near in {"computed": np.log(f16(p)), "stored": np.log(p)}.items():
        logp = f16(np.concatenate([near, spread(1) - 0.1], axis=1))
        found = measure(TOOL, make_run(captures=[capture_of(capture, 1, logp)], vocabulary=words))
        assert found["in_float16"]
        assert found["coarse_share"] == 1
        assert (found["stepped_share"] > 0.99) == (name == "computed")
    half = logp.astype(np.float16)  # its own storage says nothing
    found = measure(TOOL, make_run(captures=[capture_of(capture, 1, half)], vocabulary=words))
    assert not found["in_float16"]
    assert found["excess_worst"] < 0.5


def test_log_ratios_on_the_grid_are_zero_or_leap(
    make_run: MakeRun, capture: MakeCapture, words: Vocabulary, measure: Measure
) -> None:
    """After an update of 0.001 nats: half of a step of 2^-7 and more is lost for most tokens."""
    old = spread(2) - 0.5
    new = old + np.random.default_rng(0).normal(0, 0.001, old.shape).astype(np.float32)

    def found(convert: Callable[[Any], Any], new: Any, old: Any) -> dict[str, Any]:
        made = capture_of(capture, 1, convert(new), logp_old=convert(old))
        return measure(TOOL, make_run(captures=[made], vocabulary=words))

    coarse = found(bf16, new, old)
    assert coarse["n_ratios"] == 200
    assert coarse["ratio_zero_share"] > 0.6
    assert coarse["ratio_leap"] >= 2**-8
    fine = found(np.float32, new, old)
    assert (fine["n_ratios"], fine["ratio_zero_share"]) == (0, None)  # not on a grid
    before = found(bf16, old, old)
    assert (before["n_ratios"], before["ratio_zero_share"]) == (0, None)  # before any update
