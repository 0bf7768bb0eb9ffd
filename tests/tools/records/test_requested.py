"""Settings as asked for against those in force."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from firstbad.tools.evidence import Evidence
from firstbad.tools.flight import Flight
from firstbad.tools.records.requested import FAMILIES, same
from firstbad.tools.run import Config, Run

TOOL = "compare_requested"
MakeRun = Callable[..., Run]
Measure = Callable[..., dict[str, Any]]
RAN = {
    "learning_rate": 5e-5,
    "beta": 0.04,
    "max_completion_length": 256,
    "temperature": 1.0,
    "loss_type": "dapo",
    "lr_scheduler_type": "SchedulerType.COSINE",
    "scale_rewards": "group",
    "reward_weights": [1.0, 0.5],
    "logging_steps": 1,
    "use_vllm": False,
    "warmup_steps": 10,
    "top_k": -1,
    "chat_template": "{{ messages }}",
}


def asked(make_run: MakeRun, wanted: Mapping[str, object], **fields: Any) -> Run:
    return make_run(config=RAN, flight=Flight(requested=wanted), **fields)


@pytest.mark.parametrize(
    ("wanted", "families"),
    [
        ({"learning_rate": 1e-6}, {"lr"}),
        ({"beta": 0.0}, {"kl"}),
        ({"max_completion_length": 512}, {"cap"}),
        ({"temperature": 0.6}, {"sampling"}),
        ({"loss_type": "grpo"}, {"other"}),
        ({"reward_weights": [1.0, 0.1]}, {"other"}),
        ({"learning_rate": 1e-6, "max_completion_length": 512}, {"lr", "cap"}),
    ],
)
def test_what_differs_and_of_what_kind(
    make_run: MakeRun, measure: Measure, wanted: dict[str, object], families: set[str]
) -> None:
    found = measure(TOOL, asked(make_run, wanted))
    assert (found["n_differ"], found["n_families"]) == (len(wanted), len(families))
    assert {name for name in FAMILIES if found[f"{name}_differs"]} == families
    assert found["from_start"]


@pytest.mark.parametrize(
    "wanted",
    [
        RAN,
        {"learning_rate": "5e-05", "beta": "0.04"},
        {"lr_scheduler_type": "cosine", "scale_rewards": True, "loss_type": "DAPO"},
        {"reward_weights": ["1", "0.5"], "learning_rate": 0.00005},
        {"learning_rate": 5e-5, "beta": None, "logging_steps": 10, "output_dir": "x"},
        {"learning_rate": 5e-5, "use_vllm": True, "seed": 7, "save_steps": 3, "run_name": "y"},
        {"learning_rate": "auto", "beta": 0.04, "warmup_steps": -1, "top_k": 0},
        {"beta": 0.04, "chat_template": "templates/plain.jinja"},
    ],
)
def test_what_is_written_otherwise_is_the_same(
    make_run: MakeRun, measure: Measure, wanted: dict[str, object]
) -> None:
    found = measure(TOOL, asked(make_run, wanted))
    assert found["n_compared"] >= 1
    assert (found["n_differ"], found["from_start"]) == (0, False)


def test_a_command_line_speaks_where_no_recorder_does(make_run: MakeRun, measure: Measure) -> None:
    launch = Config({"learning_rate": 1e-6, "beta": 0.04})
    found = measure(TOOL, make_run(config=RAN, launch=launch))
    assert (found["from_recorder"], found["n_compared"], found["n_differ"]) == (False, 2, 1)


def test_settings_that_a_later_launch_changed_are_left_out(
    make_run: MakeRun, measure: Measure, missing: Callable[..., str]
) -> None:
    run = make_run(launch=Config({"learning_rate": 1e-6, "beta": 0.04}))
    run.config = Config(RAN, changed=frozenset({"learning_rate"}))
    found = measure(TOOL, run)
    assert (found["n_compared"], found["n_differ"]) == (1, 0)
    run.config = Config(RAN, changed=frozenset({"learning_rate", "beta"}))
    assert "no setting stands both" in missing(TOOL, run)


def test_without_a_request(make_run: MakeRun, missing: Callable[..., str]) -> None:
    assert "as they were asked for" in missing(TOOL, make_run(config=RAN))


def test_the_values_are_quoted(make_run: MakeRun, evidence: Callable[..., Evidence]) -> None:
    found = evidence(TOOL, asked(make_run, {"learning_rate": 1e-6}))
    assert found.quote == "`learning_rate` 1e-06 was asked for and 5e-05 ran."


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (1, "1.0", True),
        (1e-6, "1e-06", True),
        (True, "True", True),
        (True, 1, True),
        (False, "none", True),
        (True, False, False),
        (0.1, 0.2, False),
        ([1, 2], "1", False),
        ((0.9, 0.99), ["0.9", 0.99], True),
        ("a", "b", False),
    ],
)
def test_values_that_are_one(one: object, other: object, equal: bool) -> None:
    assert same(one, other) is equal
    assert same(other, one) is equal


@pytest.mark.parametrize(
    ("wanted", "longest", "reached"),
    [(512, 300, True), (512, 200, False), (128, 200, True), (256, 300, None)],
)
def test_whether_an_answer_reaches_either_cap(
    make_run: MakeRun, measure: Measure, wanted: int, longest: float, reached: bool | None
) -> None:
    lengths = {"completion_length_max": [90.0, longest, 100.0]}
    found = measure(TOOL, asked(make_run, {"max_completion_length": wanted}, signals=lengths))
    assert found["cap_reached"] is reached
    assert measure(TOOL, asked(make_run, {"max_completion_length": 512}))["cap_reached"] is None
