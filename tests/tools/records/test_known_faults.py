"""Faults on record for the version that ran: only where version and settings both say so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from firstbad.tools.evidence import Evidence
from firstbad.tools.run import Run

TOOL = "check_known_faults"
MakeRun = Callable[..., Run]
Measure = Callable[..., dict[str, Any]]
OFF = {"loss_type": "dapo", "steps_per_generation": 4, "gradient_accumulation_steps": 2}
"""TRL before 1.9.1: loss and gradient are off by accumulation over steps per generation."""


def made(
    make_run: MakeRun, version: str | None, config: Mapping[str, object], **fields: Any
) -> Run:
    framework = fields.get("framework", "trl")
    versions = {} if version is None else {framework: version}
    return make_run(config=config, versions=versions, **fields)


@pytest.mark.parametrize(
    ("version", "config", "met"),
    [
        ("1.9.0", OFF, 1),
        ("0.22.1", {**OFF, "loss_type": "cispo"}, 1),
        ("1.9.1", OFF, 0),
        ("1.16.0", OFF, 0),
        ("1.9.1.dev0", OFF, 0),
        ("1.9.0", {**OFF, "steps_per_generation": 2}, 0),
        ("1.9.0", {**OFF, "loss_type": "grpo"}, 0),
        ("0.15.2", {"use_vllm": True, "adapter.peft_type": "LORA"}, 1),
        ("0.15.2", {"use_vllm": False, "adapter.peft_type": "LORA"}, 0),
        ("0.16.0", {"use_vllm": True, "adapter.peft_type": "LORA"}, 0),
        ("1.9.0", {"use_vllm": True, "vllm_enable_sleep_mode": True}, 1),
        ("1.9.0", {"use_vllm": True, "vllm_enable_sleep_mode": False}, 0),
    ],
)
def test_version_and_settings_must_both_fit(
    make_run: MakeRun, measure: Measure, version: str, config: dict[str, object], met: int
) -> None:
    found = measure(TOOL, made(make_run, version, config))
    assert found["n_met"] == met
    assert found["version_known"]


def test_settings_that_no_file_states_are_told_apart(make_run: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, made(make_run, "1.9.0", {"loss_type": "dapo"}))
    assert (found["n_met"], found["n_settings_unknown"]) == (0, 2)


def test_other_frameworks_have_their_own(make_run: MakeRun, measure: Measure) -> None:
    config = {"actor_rollout_ref.actor.use_dynamic_bsz": True}
    found = measure(TOOL, made(make_run, "0.4.0", config, framework="verl"))
    assert (found["n_listed"], found["n_met"]) == (2, 1)
    assert measure(TOOL, made(make_run, "1.9.0", OFF, framework="verl"))["n_met"] == 0


@pytest.mark.parametrize(
    ("version", "rows", "met"), [("0.7.1", 4, 1), ("0.7.1", 64, 0), ("0.8.0", 4, 0)]
)
def test_means_of_micro_batches_end_with_the_legacy_workers(
    make_run: MakeRun, measure: Measure, version: str, rows: int, met: int
) -> None:
    actor = "actor_rollout_ref.actor."
    config = {
        f"{actor}loss_agg_mode": "token-mean",
        f"{actor}ppo_mini_batch_size": 64,
        f"{actor}ppo_micro_batch_size_per_gpu": rows,
    }
    assert measure(TOOL, made(make_run, version, config, framework="verl"))["n_met"] == met


@pytest.mark.parametrize(
    ("rate", "version", "met"), [(5e-5, "0.2.5", 1), (1e-6, "0.2.5", 0), (5e-5, "0.2.6", 0)]
)
def test_a_package_around_the_framework_has_its_own(
    make_run: MakeRun, evidence: Callable[..., Evidence], rate: float, version: str, met: int
) -> None:
    config = {"learning_rate": rate}
    found = evidence(TOOL, make_run(config=config, versions={"hello-agents": version}))
    assert found.metrics is not None
    assert (found.metrics["n_met"], found.metrics["version_known"]) == (met, False)
    assert found.quote.startswith("On record for hello-agents 0.2.5") == bool(met)
    # ... and only around the framework that it trains with.
    other = make_run(config=config, versions={"hello-agents": version}, framework="verl")
    assert evidence(TOOL, other).status == "no_data"


def test_an_unknown_version_claims_nothing(make_run: MakeRun, missing: Callable[..., str]) -> None:
    assert "version" in missing(TOOL, made(make_run, None, OFF))
    assert "version" in missing(TOOL, made(make_run, None, OFF, framework="unknown"))


def test_settings_that_came_with_a_version_tell_the_least(
    make_run: MakeRun, measure: Measure
) -> None:
    found = measure(TOOL, made(make_run, None, {**OFF, "entropy_coef": 0.0}))
    assert (found["version_known"], found["n_met"]) == (False, 0), "1.8 or later, so not known"


@pytest.mark.parametrize(
    ("version", "config", "facts"),
    [
        ("0.22.0", {"use_vllm": True}, (True, None, None)),
        ("1.16.0", {"use_vllm": True, "vllm_importance_sampling_correction": False}, (True,)),
        ("1.16.0", {"use_vllm": True, "vllm_importance_sampling_correction": True}, (None, True)),
        ("1.17.0", {"use_vllm": True, "vllm_importance_sampling_correction": True}, (None, None)),
        (
            "1.16.0",
            {
                "use_vllm": False,
                "num_iterations": 1,
                "steps_per_generation": 2,
                "gradient_accumulation_steps": 2,
            },
            (True, None, True),
        ),
    ],
)
def test_what_a_version_does(
    make_run: MakeRun,
    measure: Measure,
    version: str,
    config: dict[str, object],
    facts: tuple[bool | None, ...],
) -> None:
    found = measure(TOOL, made(make_run, version, config))
    names = ("engine_logprobs_unused", "old_logprobs_recomputed", "ratio_one_by_construction")
    assert tuple(found[name] for name in names)[: len(facts)] == facts


def test_what_is_told_names_its_source(
    make_run: MakeRun, evidence: Callable[..., Evidence]
) -> None:
    told = evidence(TOOL, made(make_run, "1.9.0", OFF))
    assert "On record for trl 1.9.0" in told.quote
    assert "not measured here" in told.quote
    assert "https://github.com/huggingface/trl/pull/6024" in told.quote
    assert told.tables[0].rows[0][0] == "grad.accumulation_scale"
    assert evidence(TOOL, made(make_run, "1.16.0", OFF)).quote == ""
