"""Gates of the crash playbook on figures: the look-alike beside the fault."""

from __future__ import annotations

from typing import Any

import pytest

from firstbad.playbooks.conclude import build_finding
from firstbad.playbooks.gate import judge
from firstbad.playbooks.loader import load
from firstbad.playbooks.model import Check
from firstbad.playbooks.results import CheckResult
from firstbad.tools.evidence import Evidence


def check_of(layer: str, name: str) -> Check:
    (found,) = (
        c
        for each in load("crash").playbook.layers
        for c in each.checks
        if (each.id, c.id) == (layer, name)
    )
    return found


def seen_of(**figures: dict[str, Any] | None) -> dict[str, Evidence]:
    return {
        alias: Evidence(
            id=f"E{i}",
            tool=alias,
            tool_version="test",
            args={},
            status="no_data" if metrics is None else "measured",
            metrics=metrics,
            summary=alias,
        )
        for i, (alias, metrics) in enumerate(figures.items(), 1)
    }


def judged(layer: str, name: str, **figures: dict[str, Any] | None) -> CheckResult:
    return judge(check_of(layer, name), seen_of(**figures), playbook="crash", layer=layer)


RIGHT = {
    "n_rows": 5000,
    "estimator_known": True,
    "estimator_named": True,
    "group_method": True,
    "group_sum_largest": 0.0,
    "over_bound": None,
    "share_rows_differ_after": 0.0,
    "tiny_spread_share": 0.0,
    "best_fit": 0.0,
}


@pytest.mark.parametrize(
    ("figures", "outcome"),
    [
        ({}, "pass"),
        ({"over_bound": 0.4}, "fail"),
        ({"share_rows_differ_after": 0.4}, "fail"),
        ({"tiny_spread_share": 0.2}, "fail"),
        # No setting names the way: only a change that another known way explains is a fault.
        ({"estimator_named": False}, "pass"),
        ({"estimator_named": False, "share_rows_differ_after": 0.4, "best_fit": 0.9}, "fail"),
        ({"estimator_named": False, "share_rows_differ_after": 0.4, "best_fit": 0.3}, "pass"),
        # No known way explains the rows: sums of a group that are not 0 speak, without a critic.
        (
            {"estimator_named": False, "estimator_known": False, "share_rows_differ_after": 1.0},
            "pass",
        ),
        (
            {"estimator_named": False, "estimator_known": False, "group_sum_largest": 0.5},
            "fail",
        ),
        (
            {
                "estimator_named": False,
                "estimator_known": False,
                "group_sum_largest": 0.5,
                "group_method": False,
            },
            "pass",
        ),
    ],
)
def test_advantages(figures: dict[str, Any], outcome: str) -> None:
    assert judged("reward", "advantages", adv={**RIGHT, **figures}).outcome == outcome


DECLARED = {"updates_per_batch": 1.0, "engine_used": False}
RATIOS = {"ratio_logged": True, "share_off_before_update": 0.0}
QUIET = {
    "n_tokens": 5000,
    "largest": 0.03,
    "signed_largest": -0.03,
    "z_largest": 2.0,
    "entropy_mean": 1.0,
    "k1_over_k3_late": 1.1,
    "kl_gap_z": -0.5,
    "k1_z_late": 8.0,
    "k3_late": 0.03,
}
SHARP = {"largest": 0.088, "signed_largest": -0.088, "z_largest": 16.8}
TAIL = {"k1_over_k3_late": 7.4, "kl_gap_z": -20.0}


@pytest.mark.parametrize(
    ("figures", "declared", "sampler"),
    [
        ({}, "pass", "pass"),
        (SHARP, "inconclusive", "pass"),
        (TAIL, "inconclusive", "pass"),
        ({**SHARP, **TAIL}, "inconclusive", "fail"),
        # Where entropy is near 0 the sample misses the rare tokens: both explode in healthy runs.
        ({**SHARP, **TAIL, "entropy_mean": 0.05}, "pass", "pass"),
    ],
)
def test_a_surprise_below_the_floor(figures: dict[str, Any], declared: str, sampler: str) -> None:
    surprise = {**QUIET, **figures}
    before = judged(
        "probability", "ratio_before_update", ratios=RATIOS, declared=DECLARED, surprise=surprise
    )
    assert before.outcome == declared
    assert judged("probability", "sampler", surprise=surprise).outcome == sampler


def test_without_captures_the_declaration_decides() -> None:
    before = judged(
        "probability", "ratio_before_update", ratios=RATIOS, declared=DECLARED, surprise=None
    )
    assert (before.outcome, before.strength) == ("pass", "declared")


@pytest.mark.parametrize(
    ("figures", "outcome"),
    [
        ({"excess_worst": 0.1}, "pass"),
        ({"stepped_share": 1.0}, "fail"),
        ({"stepped_share": 0.04}, "inconclusive"),  # stored or rounded last: not to be told
        ({"stepped_share": 0.04, "storage_coarse": True}, "pass"),
    ],
)
def test_the_grid_of_bfloat16(figures: dict[str, Any], outcome: str) -> None:
    grid = {
        "n_values": 900,
        "n_small": 2000,
        "excess_worst": 0.9,
        "stepped_share": 0.04,
        "storage_coarse": False,
        **figures,
    }
    assert judged("numerics", "grid", grid=grid).outcome == outcome


@pytest.mark.parametrize(("captures", "said"), [(3, True), (0, False)])
def test_log_probs_are_called_finite_only_where_some_were_captured(
    captures: int, said: bool
) -> None:
    numbers = {
        "n_captures": captures,
        "n_signals": 9,
        "nonfinite_captured": 0,
        "nonfinite_logged_steps": 4,
        "first_nonfinite_order": 3,
    }
    seen = seen_of(numbers=numbers)
    check = check_of("numerics", "finite")
    result = judge(check, seen, playbook="crash", layer="numerics")
    assert result.outcome == "fail"
    assert ("captured" in build_finding(check, result, seen).claim) == said


@pytest.mark.parametrize(
    ("settled", "jump", "outcome", "strength"),
    [
        (True, 1.0, "pass", "direct"),
        (False, 1.0, "pass", "proxy"),  # resumed, and no file shows the state
        (False, 20.0, "fail", "direct"),
    ],
)
def test_a_resume_whose_state_nobody_could_read(
    settled: bool, jump: float, outcome: str, strength: str
) -> None:
    rate = {"n_steps": 120, "expected_known": True, "jump_factor": jump, "largest_factor": 1.0}
    found = judged("optimizer", "learning_rate", lr=rate, state={"settled": settled})
    assert (found.outcome, found.strength) == (outcome, strength)


JUDGED = {
    "n_rows": 600,
    "calibrated": True,
    "stretch_gain": 0.0,
    "agreement_all": 0.98,
    "rejected_right_share": 0.0,
    "accepted_wrong_share": 0.0,
    "rejected_right_least": 0.0,
    "accepted_wrong_least": 0.0,
}


@pytest.mark.parametrize(
    ("figures", "outcome"),
    [
        # Noise of the judge: 3 of 124 wrong answers, that may be 0.6 %.
        ({"accepted_wrong_share": 0.024, "accepted_wrong_least": 0.006}, "pass"),
        # 14 of 113 are more than noise, however well the rows agree in all.
        ({"accepted_wrong_share": 0.124, "accepted_wrong_least": 0.063}, "inconclusive"),
        ({"rejected_right_share": 0.3, "rejected_right_least": 0.2}, "inconclusive"),
        (
            {"accepted_wrong_share": 0.124, "accepted_wrong_least": 0.07, "stretch_gain": 13.0},
            "inconclusive",
        ),
        ({"accepted_wrong_share": 0.3, "accepted_wrong_least": 0.16, "stretch_gain": 13.0}, "fail"),
        (
            {"accepted_wrong_share": 0.02, "accepted_wrong_least": 0.01, "stretch_gain": 13.0},
            "pass",
        ),
    ],
)
def test_agreement_over_all_rows_hides_no_lenient_verifier(
    figures: dict[str, Any], outcome: str
) -> None:
    found = judged("reward", "judging", judge={**JUDGED, **figures}, parts=None, log=None)
    assert found.outcome == outcome


@pytest.mark.parametrize(("first", "confidence"), [(0.0, "low"), (0.9, "high")])
def test_what_was_solved_before_is_no_collapse_of_its_own(first: float, confidence: str) -> None:
    figures = {
        "n_groups": 100,
        "all_right_first": 0.0,
        "all_right_last": 0.0,
        "all_wrong_first": first,
        "all_wrong_last": 0.95,
    }
    seen = seen_of(groups=figures, judge={"n_rows": 600, "agreement_all": 1.0})
    check = check_of("samples", "contrast")
    found = build_finding(check, judge(check, seen, playbook="crash", layer="samples"), seen)
    assert (found.cause, found.confidence) == ("collapse.all_wrong", confidence)
    assert ("This is an effect" in found.claim) == (confidence == "low")


def test_form_that_rises_while_the_outcome_falls_is_told_with_both_levels() -> None:
    ranges = {
        "n_steps": 60,
        "form_gain": 0.1,
        "outcome_gain": -0.3,
        "outcome_level_first": 0.7,
        "outcome_level_last": 0.4,
    }
    seen = seen_of(ranges=ranges, form={})
    check = check_of("reward", "form_pay")
    found = build_finding(check, judge(check, seen, playbook="crash", layer="reward"), seen)
    assert "the outcome goes from 0.7 to 0.4" in found.claim
    assert "optimizer.learning_rate" in check.voided_by, "a jump of the rate lets the outcome fall"
