"""Checks of the records layer on figures: what fails them, and what looks alike and does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from firstbad.playbooks.findings import build_finding
from firstbad.playbooks.gate import judge
from firstbad.playbooks.loader import load
from firstbad.playbooks.model import Check
from firstbad.playbooks.results import Outcome
from firstbad.tools.evidence import Evidence

Seen = Callable[..., dict[str, Evidence]]
PLAIN = {"template_known": True, "plain_prompts": True, "n_captures": 0, "lost": False}
RAMBLES = {
    "truncated_start": 0.95,
    "truncated_first": 0.95,
    "truncated_last": 0.9,
    "reaches_cap": True,
    "n_steps": 40,
}


def check_of(name: str) -> Check:
    (layer,) = [layer for layer in load("crash").playbook.layers if layer.id == "records"]
    return next(check for check in layer.checks if check.id == name)


def verdict_of(name: str, seen: dict[str, Evidence]) -> tuple[Outcome, str | None, str | None]:
    """Outcome, cause and confidence."""
    check = check_of(name)
    result = judge(check, seen, playbook="crash", layer="records")
    if result.outcome != "fail":
        return result.outcome, None, None
    finding = build_finding(check, result, seen)
    return "fail", finding.cause, finding.confidence


@pytest.mark.parametrize(
    ("template", "cut", "expected"),
    [
        (PLAIN, RAMBLES, ("fail", "cfg.resolved", "medium")),
        # A base model without a template, and answers that end all the same.
        ({**PLAIN, "template_known": False}, RAMBLES, ("inconclusive", None, None)),
        (PLAIN, {**RAMBLES, "truncated_first": 0.1}, ("inconclusive", None, None)),
        (PLAIN, {**RAMBLES, "reaches_cap": False}, ("inconclusive", None, None)),
        ({**PLAIN, "plain_prompts": False}, RAMBLES, ("pass", None, None)),
    ],
)
def test_bare_prompts(
    seen: Seen,
    template: dict[str, Any],
    cut: dict[str, Any],
    expected: tuple[Outcome, str | None, str | None],
) -> None:
    assert verdict_of("chat_template", seen(template=template, cut=cut)) == expected


@pytest.mark.parametrize(
    ("surprise", "cause"),
    [(0.01, "cfg.resolved"), (1.5, "prob.tokenization"), (None, "cfg.resolved")],
)
def test_a_lost_template_and_whom_it_was_lost_for(
    seen: Seen, surprise: float | None, cause: str
) -> None:
    lost = {"lost": True, "first_bad_step": 50, "last_good_step": 40, "sampled": True}
    found = seen(template=lost, surprise={"largest": surprise})
    assert verdict_of("chat_template", found)[:2] == ("fail", cause)


PLACES = {"pair_rate_worst": 1.0, "pair_rate_rest": 0.0, "excess_z": 30.0}


@pytest.mark.parametrize(
    ("figures", "surprise", "outcome"),
    [
        ({**PLACES, "places_share": 1.0}, None, "fail"),
        ({**PLACES, "places_share": 0.25}, None, "pass"),  # two greedy rows of each eight
        ({"pair_rate_worst": 1.0, "pair_rate_rest": 0.8, "excess_z": 9.0}, None, "pass"),
        ({"pair_rate_worst": 0.5, "pair_rate_rest": 0.2, "excess_z": 9.0}, None, "pass"),
        ({"captured_excess": 0.9, "captured_z": 20.0}, 0.01, "fail"),
        ({"captured_excess": 0.9, "captured_z": 20.0}, 0.8, "pass"),  # a colder sampler
        ({"captured_excess": 0.9, "captured_z": 20.0}, None, "pass"),
        ({"captured_excess": 0.05, "captured_z": 20.0}, 0.01, "pass"),
    ],
)
def test_completions_that_come_twice(
    seen: Seen, figures: dict[str, Any], surprise: float | None, outcome: Outcome
) -> None:
    found = seen(twice={"n_groups": 300, **figures}, surprise={"largest": surprise})
    assert verdict_of("completion_draw", found)[0] == outcome


@pytest.mark.parametrize(
    ("differs", "cause"),
    [
        (["lr"], "opt.lr_jump"),
        (["kl"], "opt.kl_constraint"),
        (["cap"], "cfg.completion_cap"),
        (["sampling"], "prob.processed_logprobs"),
        (["entropy"], "opt.entropy_bonus"),
        (["other"], "cfg.resolved"),
        (["lr", "cap"], "cfg.resolved"),
    ],
)
@pytest.mark.parametrize("recorded", [True, False])
def test_a_setting_that_did_not_run_has_the_cause_of_its_kind(
    seen: Seen, differs: list[str], cause: str, recorded: bool
) -> None:
    kinds = ("lr", "kl", "cap", "sampling", "entropy", "other")
    figures = {f"{kind}_differs": kind in differs for kind in kinds}
    n = len(differs)
    asked = {"from_recorder": recorded, "n_compared": 9, "n_differ": n, "n_families": n, **figures}
    outcome, named, confidence = verdict_of("settings_in_force", seen(asked=asked))
    assert (outcome, named) == ("fail", cause)
    assert (confidence == "high") is (recorded and cause != "prob.processed_logprobs")


@pytest.mark.parametrize(
    ("moved", "confidence"), [(3.9, "high"), (0.1, "medium"), (None, "medium")]
)
def test_a_stall_is_surer_where_the_clock_shows_it(
    seen: Seen, moved: float | None, confidence: str
) -> None:
    stall = {"too_long": 11, "n_batches": 40, "time_moved": moved, "first_bad_step": 31}
    found = verdict_of("fresh_rollouts", seen(stall=stall))
    assert found == ("fail", "infra.rollout_stall", confidence)
    assert verdict_of("fresh_rollouts", seen(stall={**stall, "too_long": 2}))[0] == "pass"


@pytest.mark.parametrize(("conflict", "confidence"), [(False, "medium"), (True, "low")])
def test_a_low_cap_is_less_sure_where_files_name_other_stop_tokens(
    seen: Seen, conflict: bool, confidence: str
) -> None:
    found = seen(cut={**RAMBLES, "cap_fell": None}, ends={"conflict": conflict})
    assert verdict_of("completion_cap", found) == ("fail", "cfg.completion_cap", confidence)


@pytest.mark.parametrize(
    ("known", "ratios", "expected"),
    [
        ({"engine_logprobs_unused": True, "n_met": 0}, {}, "pass"),
        ({"engine_logprobs_unused": True, "n_met": 1}, {}, "inconclusive"),
        ({"engine_logprobs_unused": None, "n_met": 0}, {}, "inconclusive"),
        (None, {}, "inconclusive"),
        (
            {"engine_logprobs_unused": True, "n_met": 0},
            {"share_off_before_update": 0.4},
            "fail",
        ),
    ],
)
def test_a_version_that_takes_no_log_probs_of_the_engine(
    seen: Seen, known: dict[str, Any] | None, ratios: dict[str, Any], expected: Outcome
) -> None:
    (layer,) = [layer for layer in load("crash").playbook.layers if layer.id == "probability"]
    check = next(check for check in layer.checks if check.id == "ratio_before_update")
    found = seen(
        known=known,
        ratios={"share_off_before_update": 0.0, **ratios},
        declared={"engine_used": True, "updates_per_batch": 1.0},
        sampling={"filtered": False},
    )
    result = judge(check, found, playbook="crash", layer="probability")
    assert result.outcome == expected
    if expected == "pass":
        assert result.strength == "declared"
        assert "an engine that samples" in result.excludes_not


@pytest.mark.parametrize(("start", "outcome"), [(0.95, "fail"), (0.1, "pass")])
def test_a_cap_that_cuts_from_the_start(seen: Seen, start: float, outcome: Outcome) -> None:
    """A policy that loses its end within the first third is cut as often, and not by a low cap."""
    found = verdict_of("completion_cap", seen(cut={**RAMBLES, "truncated_start": start}))
    assert found[0] == outcome


TWICE = {
    "n_steps": 40,
    "duplicate_excess": 0.45,
    "adjacent_excess": 0.0,
    "copies": 2,
    "copies_alike_least": -0.01,
}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, ("pass", None, None)),  # a group in two blocks since the first step
        ({"copies_alike_least": 0.4}, ("fail", "data.sampling", "high")),
        ({"copies": None, "copies_alike_least": None}, ("fail", "data.sampling", "high")),
        ({"adjacent_excess": 0.8}, ("fail", "data.sampling", "high")),
        # Groups of one row: nothing tells whether their texts are samples of their own.
        ({"copies_alike_least": None}, ("inconclusive", None, None)),
    ],
)
def test_prompts_that_stand_twice_in_every_step(
    seen: Seen, change: dict[str, Any], expected: tuple[Outcome, str | None, str | None]
) -> None:
    assert verdict_of("prompt_draw", seen(prompts={**TWICE, **change})) == expected
