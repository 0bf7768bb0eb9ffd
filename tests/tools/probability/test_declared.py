"""Settings as the run's files declare them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstbad.tools.evidence import Evidence
from firstbad.tools.run import Run

TOOL = "read_declared"

MakeRun = Callable[..., Run]
Measure = Callable[..., dict[str, Any]]


def test_settings_are_read_as_they_stand(make_run: MakeRun, measure: Measure) -> None:
    config = {
        "gradient_accumulation_steps": 4,
        "steps_per_generation": 8,
        "num_iterations": 2,
        "use_vllm": True,
        "bf16": True,
        "fp16": False,
        "beta": 0.0,
        "max_grad_norm": 0.2,
        "entropy_coef": 0.01,
        "temperature": 0.7,
        "top_p": 0.95,
        "top_k": 50,
        "repetition_penalty": 1.1,
    }
    assert measure(TOOL, make_run(config=config)) == {
        "n_settings": 13,
        "accumulation_steps": 4.0,
        # A generation serves 8 micro-steps, 4 make an optimizer step: 2 updates, twice over.
        "updates_per_batch": 4.0,
        "engine_used": True,
        "evaluates": None,
        "low_precision": True,
        "beta": 0.0,
        "max_grad_norm": 0.2,
        "entropy_coefficient": 0.01,
        "loss_from_rollouts": True,
        "temperature": 0.7,
        "top_p": 0.95,
        "top_k": 50.0,
        "repetition_penalty": 1.1,
    }


def test_what_is_not_stated_is_unknown_and_never_a_default(
    make_run: MakeRun, measure: Measure
) -> None:
    found = measure(TOOL, make_run(config={"seed": 1}))
    assert (found.pop("n_settings"), found.pop("loss_from_rollouts")) == (1, True)
    assert set(found.values()) == {None}


@pytest.mark.parametrize(
    ("kind", "follows"),
    [("dapo", True), ("grpo", True), ("sapo", True), ("cispo", False), ("mine", False)],
)
def test_some_losses_do_not_follow_from_rollouts(
    make_run: MakeRun, measure: Measure, kind: str, follows: bool
) -> None:
    assert measure(TOOL, make_run(config={"loss_type": kind}))["loss_from_rollouts"] is follows


@pytest.mark.parametrize(
    ("config", "updates"),
    [
        ({"gradient_accumulation_steps": 1}, 1),
        ({"gradient_accumulation_steps": 8}, 1),
        ({"gradient_accumulation_steps": 1, "num_iterations": 3}, 3),
        ({"gradient_accumulation_steps": 2, "steps_per_generation": 8}, 4),
        ({"num_iterations": 3}, None),
    ],
)
def test_updates_per_batch(
    make_run: MakeRun, measure: Measure, config: dict[str, object], updates: float | None
) -> None:
    assert measure(TOOL, make_run(config=config))["updates_per_batch"] == updates


@pytest.mark.parametrize(
    ("config", "low"),
    [
        ({"bf16": False, "fp16": False}, False),
        ({"bf16": False, "fp16": True}, True),
        ({"bf16": False}, None),
        ({"bf16": True}, True),
    ],
)
def test_low_precision(
    make_run: MakeRun, measure: Measure, config: dict[str, object], low: bool | None
) -> None:
    assert measure(TOOL, make_run(config=config))["low_precision"] is low


def test_values_of_another_type_are_unknown(make_run: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, make_run(config={"beta": "0.04", "use_vllm": 1, "max_grad_norm": None}))
    assert (found["beta"], found["engine_used"], found["max_grad_norm"]) == (None, None, None)


def test_the_table_shows_known_settings_cut_to_size(
    make_run: MakeRun, evidence: Callable[..., Evidence]
) -> None:
    found = evidence(TOOL, make_run(config={"loss_type": "x" * 500, "own_thing": 1}))
    assert found.tables[0].rows == (("loss_type", "x" * 120),)


def test_without_data(make_run: MakeRun, missing: Callable[..., str]) -> None:
    assert "args.json" in missing(TOOL, make_run())


@settings(max_examples=20, derandomize=True)
@given(st.permutations(["beta", "bf16", "fp16", "max_grad_norm", "num_iterations"]))
def test_the_order_of_settings_does_not_matter(
    make_run: MakeRun, measure: Measure, order: list[str]
) -> None:
    values: dict[str, object] = {
        "beta": 0.1,
        "bf16": False,
        "fp16": True,
        "max_grad_norm": 1,
        "num_iterations": 2,
    }
    found = measure(TOOL, make_run(config={k: values[k] for k in order}))
    assert found == measure(TOOL, make_run(config=values))
