"""Rows and gradient norms of recorded micro-batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstbad.tools.flight import FlightStep, Stages
from firstbad.tools.run import RolloutBatch, Run
from synthetic.by_hand import flight, ledger

ROWS, NORMS = "check_microbatch_rows", "check_microbatch_norms"
MakeRun = Callable[..., Run]
Measure = Callable[..., dict[str, Any]]
NAMES = ("a", "b", "c", "d")


def step_of(step: int, *held: str, trained: tuple[str, ...] = NAMES, **part: Any) -> FlightStep:
    """A step whose micro-batches hold these rows, a letter each."""
    parts = [{"samples": tuple(rows), "n_samples": len(rows), **part} for rows in held]
    return ledger(step, *parts, stages=Stages(trained=trained))


def test_every_row_in_a_micro_batch(make_run: MakeRun, measure: Measure) -> None:
    run = make_run(flight=flight(*(step_of(s, "ab", "cd") for s in (1, 2, 3))))
    found = measure(ROWS, run)
    assert (found["n_named"], found["share_missing"], found["share_twice"]) == (3, 0, 0)
    assert measure(ROWS, make_run(flight=flight(step_of(1, "d", "cab"))))["share_missing"] == 0


def test_rows_that_no_micro_batch_holds(make_run: MakeRun, measure: Measure) -> None:
    steps = [step_of(s, "ab", "cd") for s in (1, 2)] + [step_of(s, "ab") for s in (3, 4)]
    found = measure(ROWS, make_run(flight=flight(*steps)))
    assert (found["share_missing"], found["rows_missing"]) == (0.5, 0.5)
    assert (found["last_good_step"], found["first_bad_step"]) == (2, 3)


def test_rows_that_are_trained_twice(make_run: MakeRun, measure: Measure) -> None:
    steps = [step_of(s, "ab", "cd") for s in (1, 2)] + [step_of(s, "abc", "cda") for s in (3, 4)]
    found = measure(ROWS, make_run(flight=flight(*steps)))
    assert (found["share_twice"], found["twice_since"], found["rows_twice"]) == (0.5, 1, 0.5)
    assert (found["share_missing"], found["first_bad_step"]) == (0, 3)


@pytest.mark.parametrize(
    "step",
    [
        step_of(1, "abc", "cd", trained=("a", "b", "c", "c", "d")),  # meant to come twice
        ledger(  # each epoch of the update holds every row
            1,
            *({"samples": ("a", "b"), "epoch": e} for e in (0, 1)),
            stages=Stages(trained=("a", "b")),
        ),
        ledger(  # two ranks that each hold a part of one model
            1,
            *({"samples": ("a", "b"), "rank": r} for r in (0, 1)),
            stages=Stages(trained=("a", "b")),
        ),
    ],
    ids=["drawn twice", "epochs", "ranks"],
)
def test_rows_that_come_twice_by_design(
    make_run: MakeRun, measure: Measure, step: FlightStep
) -> None:
    assert measure(ROWS, make_run(flight=flight(step)))["share_twice"] == 0


def test_rows_of_another_rank_are_not_missing(
    make_run: MakeRun, measure: Measure, batch: Callable[..., RolloutBatch]
) -> None:
    rows = batch(
        1, rewards={"correct": [1, 0, 1, 0]}, sample=list(NAMES), rank=np.array([0, 0, 1, 1])
    )
    run = make_run(flight=flight(step_of(1, "ab")), rollouts=[rows])
    assert measure(ROWS, run)["share_missing"] == 0


@pytest.mark.parametrize(
    ("config", "whole"),
    [
        ({"gradient_accumulation_steps": 2}, True),
        ({"gradient_accumulation_steps": 2, "steps_per_generation": 4}, False),
        ({"gradient_accumulation_steps": 2, "updates_per_batch": 4}, False),
        ({}, None),
    ],
)
def test_rows_that_are_left_for_a_later_update(
    make_run: MakeRun, measure: Measure, config: dict[str, object], whole: bool | None
) -> None:
    run = make_run(flight=flight(step_of(1, "ab")), config=config)
    assert measure(ROWS, run)["whole_batch"] is whole


def test_without_names_the_number_of_micro_batches_tells(
    make_run: MakeRun, measure: Measure, missing: Callable[..., str]
) -> None:
    full, short = [{"n_samples": 4}] * 4, [{"n_samples": 4}] * 3
    steps = [ledger(s, *(full if s < 5 else short)) for s in range(1, 9)]
    found = measure(ROWS, make_run(flight=flight(*steps)))
    assert (found["first_bad_step"], found["rows_missing"]) == (5, 0.25)
    dynamic = flight(ledger(1, *full), ledger(2, {"n_samples": 9}, {"n_samples": 7}))
    assert "one size" in missing(ROWS, make_run(flight=dynamic))


def norms_of(make_run: MakeRun, measure: Measure, *parts: float, norm: float, **part: Any) -> Any:
    made = [{"grad_norm": g, **part} for g in parts]
    return measure(NORMS, make_run(flight=flight(ledger(1, *made, norm=norm))))


def test_the_norm_of_one_part_alone(make_run: MakeRun, measure: Measure) -> None:
    assert norms_of(make_run, measure, 0.3, 0.4, norm=0.4)["share_single"] == 1
    right_angle = norms_of(make_run, measure, 0.3, 0.4, norm=0.5)
    assert (right_angle["share_single"], right_angle["share_outside"]) == (0, 0)


def test_a_part_without_a_gradient_is_not_missed(make_run: MakeRun, measure: Measure) -> None:
    """Its groups have no contrast: the sum is rightly the other part."""
    assert norms_of(make_run, measure, 0.4, 0.0, norm=0.4)["share_single"] is None


@pytest.mark.parametrize(
    ("scales", "tokens", "silent"),
    [
        ((1.0, 0.0), 5, 1),
        ((1.0, 1.0), 5, 0),  # no gradient, but it counts: its groups have no contrast
        ((1.0, 0.0), 0, 0),  # nothing to train in it
        ((0.0, 0.0), 5, 0),  # the whole update is multiplied by 0
        ((1.0, None), 5, 0),
    ],
)
def test_a_part_that_is_multiplied_by_0(
    make_run: MakeRun,
    measure: Measure,
    scales: tuple[float | None, float | None],
    tokens: int,
    silent: int,
) -> None:
    made = [
        {"grad_norm": norm, "scale": scale, "n_tokens": n}
        for norm, scale, n in zip((0.4, 0.0), scales, (5, tokens), strict=True)
    ]
    found = measure(NORMS, make_run(flight=flight(ledger(1, *made, norm=0.4))))
    assert found["n_silent"] == silent


def test_a_norm_that_no_sum_of_the_parts_has(make_run: MakeRun, measure: Measure) -> None:
    above = norms_of(make_run, measure, 0.3, 0.4, norm=1.4)
    assert (above["share_outside"], above["norm_over_parts"]) == (1, 2)
    assert norms_of(make_run, measure, 0.1, 0.9, norm=0.5)["share_outside"] == 1
    assert norms_of(make_run, measure, 0.1, 0.9, norm=1.0)["share_outside"] == 0


def test_averaged_ranks_count_by_their_share(make_run: MakeRun, measure: Measure) -> None:
    parts = [{"grad_norm": 0.6, "rank": r, "reduction": "mean"} for r in (0, 1)]
    found = measure(NORMS, make_run(flight=flight(ledger(1, *parts, norm=0.6))))
    assert (found["share_outside"], found["norm_over_parts"]) == (0, 1)


@given(seed=st.integers(0, 200), n=st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_every_true_sum_is_inside(make_run: MakeRun, measure: Measure, seed: int, n: int) -> None:
    parts = np.random.default_rng(seed).normal(size=(n, 3))
    sizes = np.linalg.norm(parts, axis=1).tolist()
    whole = float(np.linalg.norm(parts.sum(axis=0)))
    found = norms_of(make_run, measure, *sizes, norm=whole)
    assert found["share_outside"] == 0
    assert not found["share_single"]
