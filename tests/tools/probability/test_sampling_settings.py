"""Settings that bend the sampler and that the trainer does not follow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from firstbad.tools.readers.settings import with_common_names
from firstbad.tools.run import Config, Run

TOOL = "check_sampling_settings"

MakeRun = Callable[..., Run]
Measure = Callable[..., dict[str, Any]]

DEFAULTS = {"use_vllm": False, "temperature": 0.7}


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"top_p": 1.0, "top_k": 0, "min_p": None, "repetition_penalty": 1.0},
        {"top_p": 1, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1},
        {"top_k": None, "generation_kwargs": None},
        {"top_p": 0.9, "generation_kwargs": {"top_p": 1.0}},
        {"generation_kwargs": {"temperature": 0.7, "cache_implementation": "static"}},
    ],
)
def test_defaults_written_out_bend_nothing(
    make_run: MakeRun, measure: Measure, config: dict[str, Any]
) -> None:
    found = measure(TOOL, make_run(config={**DEFAULTS, **config}, signals={"loss": [0.0] * 9}))
    assert (found["filtered"], found["penalty_not_scored"]) == (False, 0.0)
    assert (found["first_bad_step"], found["from_start"]) == (None, False)


@pytest.mark.parametrize(
    ("config", "penalty"),
    [
        ({"top_p": 0.95}, 0.0),
        ({"top_k": 20}, 0.0),
        ({"min_p": 0.05}, 0.0),
        ({"repetition_penalty": 1.3}, 0.3),
        ({"repetition_penalty": 0.9}, 0.1),
        ({"generation_kwargs": {"repetition_penalty": 1.2}}, 0.2),
        ({"generation_kwargs": {"temperature": 1.0}}, 0.0),
        ({"generation_kwargs": {"no_repeat_ngram_size": 3}}, 0.0),
    ],
)
def test_what_the_trainer_does_not_follow(
    make_run: MakeRun, measure: Measure, config: dict[str, Any], penalty: float
) -> None:
    found = measure(TOOL, make_run(config={**DEFAULTS, **config}, signals={"loss": [0.0] * 9}))
    assert found["filtered"]
    assert found["penalty_not_scored"] == pytest.approx(penalty)
    assert (found["first_bad_step"], found["from_start"]) == (1, True)


@pytest.mark.parametrize(
    ("framework", "engine"), [("trl", True), ("trl", None), ("own", False), ("verl", True)]
)
def test_whether_the_penalty_is_scored_is_known_of_trl_alone(
    make_run: MakeRun, measure: Measure, framework: str, engine: bool | None
) -> None:
    config = {"repetition_penalty": 1.3, "use_vllm": engine}
    found = measure(TOOL, make_run(config=config, framework=framework))
    assert (found["filtered"], found["penalty_not_scored"]) == (True, None)


def test_settings_of_the_last_launch_are_dated_at_its_resume(
    make_run: MakeRun, measure: Measure
) -> None:
    run = make_run(
        config={**DEFAULTS, "top_p": 0.8},
        events=[("resume", 41, "")],
        signals={"loss": [0.0] * 80},
    )
    run = replace(run, config=replace(run.config, changed=frozenset({"top_p"})))
    found = measure(TOOL, run)
    assert (found["first_bad_step"], found["from_start"]) == (41, False)


def test_verl_states_them_under_its_own_names() -> None:
    values = {f"actor_rollout_ref.rollout.{k}": v for k, v in {"top_p": 0.9, "top_k": -1}.items()}
    found = with_common_names(Config(values))
    assert (found.number("top_p"), found.number("top_k")) == (0.9, -1)
