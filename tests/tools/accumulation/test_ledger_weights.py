"""Weights of trained tokens in recorded micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstbad.tools.accumulation.ledger import span_of, whole_factor
from firstbad.tools.run import RolloutBatch, Run
from synthetic.by_hand import flight, ledger, means

TOOL = "check_microbatch_weights"
MakeRun = Callable[..., Run]
Measure = Callable[..., dict[str, Any]]
Parts = Sequence[dict[str, Any]]


@pytest.fixture
def weights(make_run: MakeRun, measure: Measure) -> Callable[..., dict[str, Any]]:
    """Metrics of updates with these micro-batches, at steps 1, 2, ..."""

    def of(*updates: Parts, loss: Sequence[float] | None = None, **config: object) -> Any:
        steps = [ledger(i, *parts) for i, parts in enumerate(updates, 1)]
        signals = {} if loss is None else {"loss": loss}
        run = make_run(signals=signals, config=config, flight=flight(*steps))
        return measure(TOOL, run)

    return of


def ranks(dp: int, *, below: float, scale: float = 1.0, **fields: object) -> Parts:
    """Eight rows a rank, one token each, every loss 1."""
    return [
        {
            "rank": rank, "n_samples": 8, "n_tokens": 8, "denominator": below, "scale": scale,
            "loss": 8 * scale / below, **fields,
        }
        for rank in range(dp)
    ]  # fmt: skip


# Recipe: three normaliser faults in one ledger, each with its twin.


def test_ranks_in_the_denominator_make_the_loss_too_small_by_their_square(
    weights: Measure,
) -> None:
    """Four ranks, 32 rows, every loss 1: 0.0625 where 1 is right."""
    found = weights(ranks(4, below=32.0 * 4), loss=[0.0625], loss_type="grpo")
    assert found["loss_of_parts"] == 0.0625
    assert found["loss_one_denominator"] == 1.0
    assert found["factor"] == found["weight_sum"] == 0.0625
    assert found["factor_is_ranks"] is True
    assert found["n_off"] == 1


@pytest.mark.parametrize("said", [{"reduction": "mean"}, {}])
def test_ranks_in_the_numerator_are_right(weights: Measure, said: dict[str, str]) -> None:
    found = weights(ranks(4, below=32.0, scale=4.0, **said), loss=[1.0], loss_type="grpo")
    assert (found["n_off"], found["weight_sum"], found["loss_of_parts"]) == (0, 1.0, 1.0)


def test_one_rank_needs_no_factor(weights: Measure) -> None:
    found = weights(ranks(1, below=8.0), loss=[1.0], loss_type="grpo")
    assert (found["n_off"], found["factor_is_ranks"]) == (0, False)


@pytest.mark.parametrize(("generated", "accumulated", "sum_"), [(4, 2, 0.5), (2, 2, 1), (2, 4, 2)])
def test_a_denominator_that_spans_a_generation_batch(
    weights: Measure, generated: int, accumulated: int, sum_: float
) -> None:
    parts = means([10] * accumulated, [1.0] * accumulated, below=10.0 * generated)
    found = weights(
        parts,
        loss_type="dapo",
        steps_per_generation=generated,
        gradient_accumulation_steps=accumulated,
    )
    assert found["weight_sum"] == sum_
    assert found["factor_is_generation"] is (sum_ != 1)
    assert found["factor"] == (None if sum_ == 1 else sum_)
    assert found["loss_one_denominator"] == pytest.approx(1.0)


def test_a_gradient_of_the_wrong_sign_shows_in_its_denominator(weights: Measure) -> None:
    right, turned = ranks(1, below=8.0), ranks(1, below=-8.0)
    found = weights(right, right, turned, turned, turned, loss_type="grpo")
    assert (found["n_negative"], found["n_off"], found["weight_sum"]) == (3, 0, 1.0)
    assert (found["last_good_step"], found["first_bad_step"]) == (2, 3)
    found = weights(right, turned, right, right, loss_type="grpo")
    assert found["n_negative"] < 2, "one of many is no rule"


LENGTHS, TERMS = [10, 100, 400, 1500], [1.0, -1.0, 0.5, -0.25]


def test_the_mean_of_means_turns_the_sign_of_the_loss(weights: Measure) -> None:
    found = weights(means(LENGTHS, TERMS), loss_type="dapo")
    assert found["loss_of_parts"] == 0.0625  # 0.25 / 4
    assert found["loss_one_denominator"] == pytest.approx(-0.132, abs=5e-4)  # -265 / 2010
    assert found["n_unequal"] == 1
    assert found["own_counts"] is True
    assert found["weight_ratio"] == pytest.approx(150)
    assert found["n_off"] == 0, "each mean weighs a quarter"


def test_equal_lengths_agree(weights: Measure) -> None:
    found = weights(means([50] * 4, TERMS), loss_type="dapo")
    assert (found["n_unequal"], found["n_off"], found["weight_ratio"]) == (0, 0, 1)
    assert found["loss_of_parts"] == found["loss_one_denominator"]


def test_one_denominator_is_right_at_any_length(weights: Measure) -> None:
    found = weights(means(LENGTHS, TERMS, below=2010.0), loss_type="dapo")
    assert (found["n_unequal"], found["n_off"]) == (0, 0)
    assert found["loss_of_parts"] == pytest.approx(-265 / 2010, abs=1e-6)


def test_means_of_micro_batches_may_be_the_stated_loss(weights: Measure) -> None:
    found = weights(means(LENGTHS, TERMS), loss_type="bnpo")
    assert found["local_by_design"] is True


# Which count is meant, and what else a weight may be.


def rows_of(lengths: Sequence[int], size: int) -> Parts:
    """Row means over the rows of the step, `size` rows in a micro-batch."""
    return [
        {"n_samples": size, "n_tokens": n, "denominator": float(size * len(lengths)), "scale": 1.0}
        for n in lengths
    ]


def test_a_mean_over_rows_is_told_from_one_over_tokens(weights: Measure) -> None:
    updates = [rows_of(n, 4) for n in ([31, 80], [40, 22], [9, 77])]
    for config in ({}, {"loss_type": "grpo"}):
        found = weights(*updates, **config)
        assert (found["by_tokens"], found["n_off"], found["n_unequal"]) == (False, 0, 0)
    assert weights(*updates, loss_type="dapo")["n_off"] == 3, "the stated loss counts tokens"


def test_a_constant_denominator_counts_rows_times_the_cap(weights: Measure) -> None:
    updates = [rows_of(n, 4) for n in ([31, 80], [40, 22])]
    constant = [[{**p, "denominator": p["denominator"] * 64} for p in parts] for parts in updates]
    found = weights(*constant, loss_type="dr_grpo", max_completion_length=64)
    assert (found["weight_sum"], found["n_off"]) == (1, 0)
    assert weights(*constant, max_completion_length=64)["n_off"] == 0, "loss type not stated"


def test_padding_in_the_denominator_is_named_by_the_rows(
    make_run: MakeRun, measure: Measure, batch: Callable[..., RolloutBatch]
) -> None:
    lengths = {1: [4, 9], 2: [10, 3], 3: [2, 7]}
    steps = [
        ledger(s, {"n_samples": 2, "n_tokens": sum(n), "denominator": 2.0 * max(n)})
        for s, n in lengths.items()
    ]
    rollouts = [batch(s, rewards={"correct": [1, 0]}, n_tokens=n) for s, n in lengths.items()]
    run = make_run(rollouts=rollouts, flight=flight(*steps), config={"loss_type": "dapo"})
    found = measure(TOOL, run)
    assert (found["padded"], found["n_off"]) == (True, 3)
    assert found["weight_sum"] == pytest.approx(13 / 20, abs=1e-6)
    assert found["weight_sum_spread"] > 0.04


def test_a_fault_is_dated_and_single_updates_are_not(weights: Measure) -> None:
    sound = means([10, 30], [1.0, 1.0], below=40.0)
    double = [{**part, "scale": 2.0} for part in sound]
    found = weights(*[sound] * 6, *[double] * 6, loss_type="dapo")
    assert (found["last_good_step"], found["first_bad_step"]) == (6, 7)
    assert (found["n_off"], found["factor"]) == (6, 2.0)
    lone = weights(*[sound] * 6, double, *[sound] * 6, loss_type="dapo")
    assert (lone["n_off"], lone["first_bad_step"], lone["last_bad_step"]) == (1, 7, 7)


def test_one_rank_of_several_scatters_and_shows_no_factor(weights: Measure) -> None:
    """A ledger of rank 0 alone, whose tokens are more or fewer than the average rank's."""
    rng = np.random.default_rng(0)
    updates, logged = [], []
    for _ in range(60):
        tokens = rng.integers(60, 140, 4)
        below = float(tokens.sum())
        updates.append([{"n_tokens": int(tokens[0]), "denominator": below, "scale": 4.0,
                         "loss": float(rng.normal())}])  # fmt: skip
        logged.append(float(rng.normal()))
    found = weights(*updates, loss=logged, loss_type="dapo")
    assert found["log_agreement"] < 0.5
    assert found["n_off"] < 20


def test_a_world_that_is_larger_than_the_ledger_is_not_judged(
    make_run: MakeRun, missing: Callable[..., str]
) -> None:
    step = ledger(1, *means([10, 30], [1.0, 1.0], below=160.0))
    run = make_run(flight=flight(step, environment={"WORLD_SIZE": "4"}))
    assert "1 of 4 ranks" in missing(TOOL, run)


@given(
    lengths=st.lists(st.integers(1, 500), min_size=1, max_size=8),
    factor=st.sampled_from([1 / 8, 1 / 3, 1.0, 2.0, 5.0]),
    seed=st.integers(0, 9),
)
@settings(max_examples=40, deadline=None)
def test_order_does_not_matter_and_a_factor_is_found(
    make_run: MakeRun, measure: Measure, lengths: list[int], factor: float, seed: int
) -> None:
    parts = means(lengths, [1.0] * len(lengths), below=float(sum(lengths)))
    parts = [{**part, "scale": factor} for part in parts]
    mixed = [parts[i] for i in np.random.default_rng(seed).permutation(len(parts))]
    found = [
        measure(TOOL, make_run(flight=flight(ledger(1, *p)), config={"loss_type": "dapo"}))
        for p in (parts, mixed)
    ]
    assert found[0] == found[1]
    assert found[0]["weight_sum"] == pytest.approx(factor, abs=1e-6)
    assert found[0]["factor"] == (None if factor == 1 else pytest.approx(factor))


@pytest.mark.parametrize(
    ("ratio", "named"),
    [(2, 2), (0.25, 0.25), (1, None), (1.01, None), (1.5, None), (7.95, 8), (0, None), (-2, None)],
)
def test_whole_factors(ratio: float, named: float | None) -> None:
    assert whole_factor(ratio) == named


def test_a_span_begins_where_most_of_what_follows_is_bad() -> None:
    span = span_of([2, 4, 6, 8, 10, 12], np.array([1, 0, 0, 1, 1, 1], bool))
    assert (span.last_good_step, span.first_bad_step, span.last_bad_step) == (6, 8, None)
    assert span.sampled is True
    ended = span_of([1, 2, 3, 4], np.array([1, 1, 0, 0], bool))
    assert (ended.from_start, ended.first_bad_step, ended.last_bad_step) == (True, 1, 2)
