"""Gates of the crash playbook on figures: the look-alike beside the fault."""

from __future__ import annotations

from typing import Any

import pytest

from firstbad.playbooks.conclude import build_finding
from firstbad.playbooks.gate import all_hold, judge
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
SAMPLING = {"filtered": False, "penalty_not_scored": 0.0}
RATIOS = {"ratio_logged": True, "share_off_before_update": 0.0}
PLAIN = {"ratios": RATIOS, "declared": DECLARED, "sampling": SAMPLING}
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
    before = judged("probability", "ratio_before_update", **PLAIN, surprise=surprise)
    assert before.outcome == declared
    assert judged("probability", "sampler", surprise=surprise).outcome == sampler


STRETCH = {
    "stretch_first": 40,
    "stretch_last": 60,
    "stretch_tokens": 1000,
    "stretch_surprise": 0.2,
    "stretch_size": 0.2,
    "stretch_chance": 1e-4,
    "stretch_k1_over_k3": None,
    "stretch_alone": True,
    "stretch_ends": True,
}
BELOW = {"stretch_surprise": -0.08, "stretch_size": 0.08}


@pytest.mark.parametrize(
    ("figures", "outcome", "told"),
    [
        ({}, "fail", "for a while"),
        ({"stretch_ends": False}, "fail", "older weights"),
        ({"stretch_chance": 0.01}, "pass", ""),
        ({**BELOW, "stretch_k1_over_k3": 11.0}, "fail", "for a while"),
        ({**BELOW, "stretch_k1_over_k3": 2.0}, "pass", ""),
        ({**BELOW, "stretch_k1_over_k3": 11.0, "entropy_mean": 0.1}, "pass", ""),
    ],
    ids=["in the middle", "to the end", "chance", "tail cut", "tail there", "no entropy left"],
)
def test_a_short_stretch_of_another_sampler(
    figures: dict[str, Any], outcome: str, told: str
) -> None:
    seen = {"surprise": {**QUIET, **STRETCH, **figures}, "declared": DECLARED}
    result = judged("probability", "sampler", **seen)
    assert result.outcome == outcome
    if outcome == "fail":
        finding = build_finding(check_of("probability", "sampler"), result, seen_of(**seen))
        assert (finding.cause, finding.confidence) == ("prob.processed_logprobs", "medium")
        assert told in finding.claim


PARTED = {
    "n_before": 2000,
    "n_after": 1100,
    "before": -0.004,
    "before_z": 0.2,
    "after": -0.085,
    "after_size": 0.085,
    "after_z": 5.4,
    "difference_z": 3.6,
    "entropy_after": 0.68,
}


@pytest.mark.parametrize(
    ("figures", "outcome"),
    [
        ({}, "fail"),
        ({"after_z": 4.7}, "pass"),
        ({"after_size": 0.049, "after": -0.049}, "pass"),
        ({"before_z": 5.0}, "pass"),  # there before the change: not its doing
        ({"entropy_after": 0.1}, "pass"),
    ],
)
def test_a_sampler_that_parts_where_the_text_changes_at_once(
    figures: dict[str, Any], outcome: str
) -> None:
    sudden = {"found": True, "first_bad_step": 50}
    result = judged("probability", "sampler_changed", parted={**PARTED, **figures}, sudden=sudden)
    assert result.outcome == outcome


def test_without_a_sudden_change_no_capture_is_asked_for() -> None:
    for found, outcome in ((False, "pass"), (True, "inconclusive")):
        result = judged("probability", "sampler_changed", parted=None, sudden={"found": found})
        assert result.outcome == outcome
    result = judged("probability", "sampler_changed", parted=PARTED, sudden={"found": False})
    assert result.outcome == "pass", "halves of a steady run are compared and not judged"


SUDDEN = {"moved_share": 0.41, "at_once_share": 0.65, "n_updates": 1.0, "explained": False}


@pytest.mark.parametrize(
    ("figures", "open_"),
    [
        ({}, True),
        ({"explained": True}, False),
        ({"moved_share": 0.2}, False),
        ({"at_once_share": 0.22}, False),
        ({"n_updates": 16.0}, False),
    ],
)
def test_what_no_training_does_at_once_is_not_normal(figures: dict[str, Any], open_: bool) -> None:
    (change,) = load("crash").playbook.unexplained
    assert all_hold(change.when, seen_of(sudden={**SUDDEN, **figures})) == open_


def test_without_captures_the_declaration_decides() -> None:
    before = judged("probability", "ratio_before_update", **PLAIN, surprise=None)
    assert (before.outcome, before.strength) == ("pass", "declared")


TOP_P = {"filtered": True, "penalty_not_scored": 0.0}
PENALTY = {"filtered": True, "penalty_not_scored": 0.3}


@pytest.mark.parametrize(
    ("sampling", "surprise", "outcome"),
    [
        (TOP_P, None, "inconclusive"),
        (TOP_P, QUIET, "pass"),
        (TOP_P, {**QUIET, "largest": 0.07}, "inconclusive"),
        (PENALTY, None, "fail"),
        (PENALTY, QUIET, "pass"),  # what is measured stands above what is declared
        ({"filtered": True, "penalty_not_scored": None}, None, "inconclusive"),
        ({"filtered": True, "penalty_not_scored": 0.02}, None, "inconclusive"),
        (SAMPLING, None, "pass"),
    ],
)
def test_a_declared_sampler_that_the_trainer_does_not_score(
    sampling: dict[str, Any], surprise: dict[str, Any] | None, outcome: str
) -> None:
    seen = {**PLAIN, "declared": {**DECLARED, "repetition_penalty": 1.3}, "sampling": sampling}
    before = judged("probability", "ratio_before_update", **seen, surprise=surprise)
    assert before.outcome == outcome
    if outcome == "fail":
        check = check_of("probability", "ratio_before_update")
        finding = build_finding(check, before, seen_of(**seen, surprise=surprise))
        assert (finding.cause, finding.confidence) == ("prob.processed_logprobs", "low")
        assert "penalty of 1.3" in finding.claim


def test_a_sampler_cut_by_its_settings_excuses_no_ratio() -> None:
    seen = {**PLAIN, "sampling": PENALTY, "ratios": {**RATIOS, "share_off_before_update": 0.5}}
    before = judged("probability", "ratio_before_update", **seen, surprise=None)
    finding = build_finding(check_of("probability", "ratio_before_update"), before, seen_of(**seen))
    assert (before.outcome, finding.cause) == ("fail", "prob.old_logprob_source")


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


@pytest.mark.parametrize(
    ("order", "beside", "claims", "refuted_by", "confidence"),
    [
        (2, 0, "The ratio is the first value", "a finite ratio", "medium"),
        (3, 1, "KL, loss or gradient", "clamped before exp", "medium"),
        (4, 3, "KL, loss or gradient", "clamped before exp", "medium"),
        (5, 4, "The gradient alone", "another operation", "low"),
        (5, 0, "KL, loss or gradient", "clamped before exp", "medium"),  # nothing else is logged
    ],
)
def test_what_is_said_follows_from_what_broke_first(
    order: int, beside: int, claims: str, refuted_by: str, confidence: str
) -> None:
    numbers = {
        "n_captures": 3,
        "n_signals": 9,
        "nonfinite_captured": 0,
        "nonfinite_logged_steps": 4,
        "first_nonfinite_order": order,
        "finite_beside": beside,
        "first_bad_step": 55,
    }
    seen = seen_of(numbers=numbers, events={"n_errors": 1})
    seen["events"] = seen["events"].model_copy(update={"quote": "The log says: `inf`."})
    check = check_of("numerics", "finite")
    result = judge(check, seen, playbook="crash", layer="numerics")
    found = build_finding(check, result, seen)
    assert found.cause == "num.exp_overflow"
    assert found.claim.startswith(claims)
    assert found.claim.endswith("The log says: `inf`.")
    assert refuted_by in found.refuted_by
    assert found.confidence == confidence


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


@pytest.mark.parametrize(
    ("settings_fit_after", "said"),
    [(True, "those of the part of the run"), (False, "its schedule")],
)
def test_a_jump_beside_settings_of_either_side(settings_fit_after: bool, said: str) -> None:
    rate = {
        "n_steps": 120,
        "expected_known": True,
        "jump_factor": 20.0,
        "rate_before": 1e-4,
        "rate_after": 2e-3,
        "configured": 2e-3,
        "settings_fit_after": settings_fit_after,
    }
    seen = seen_of(lr=rate, state={"settled": True})
    check = check_of("optimizer", "learning_rate")
    found = build_finding(check, judge(check, seen, playbook="crash", layer="optimizer"), seen)
    assert found.cause == "opt.lr_jump"
    assert said in found.claim
    # "Equals the schedule at every step" would hold in a run that keeps the wrong rate.
    assert ("0.0001" in found.verify) == settings_fit_after
    assert ("0.0001" in found.remedy) == settings_fit_after


@pytest.mark.parametrize("known", [True, False])
def test_a_factor_is_joined_with_the_accumulation_steps_where_they_are_one(known: bool) -> None:
    identity = {
        "n_steps": 120,
        "policy_coefficient": 2.0,
        "kl_coefficient": None,
        "joint_correlation": 0.99,
        "correlation_least": 0.99,
        "whole_loss": True,
        "slope_deviation": 1.0,
        "slope_worst": 2.01,
        "factor": 2.0,
        "factor_is_accumulation": known,
    }
    seen = seen_of(identity=identity, setting={"accumulation_steps": 2.0}, level={})
    check = check_of("accumulation", "loss_identity")
    found = build_finding(check, judge(check, seen, playbook="crash", layer="accumulation"), seen)
    assert found.cause == "grad.accumulation_scale"
    assert ("2 accumulation steps" in found.claim) == known
    assert ("by 2, the accumulation steps" in found.remedy) == known


@pytest.mark.parametrize(
    ("without", "wrong", "outcome", "strength"),
    [(0, 0.0, "pass", "direct"), (3, 0.0, "pass", "proxy"), (3, 0.4, "fail", "proxy")],
)
def test_captures_that_lost_their_mask_are_not_claimed(
    without: int, wrong: float, outcome: str, strength: str
) -> None:
    masks = {"n_rows": 264, "n_captures_without": without, "prompt_trained": 0}
    found = judged("masks", "captured", masks={**masks, "share_rows_wrong": wrong})
    assert (found.outcome, found.strength) == (outcome, strength)
    assert bool(found.excludes_not) == (outcome == "pass" and without > 0)


@pytest.mark.parametrize(
    ("ratio", "excess", "cause"),
    [(0.8, -3.0, "mask.dropped"), (1.0, 0.0, "other.unlisted"), (1.8, 12.0, "mask.prompt")],
)
def test_tokens_are_dropped_only_where_fewer_are_trained(
    ratio: float, excess: float, cause: str
) -> None:
    figures = {
        "n_steps": 120,
        "off_steps_share": 0.25,
        "ratio_worst": ratio,
        "excess_per_row": excess,
        "excess_steady": True,
        "lack_is_one": False,
    }
    check = check_of("masks", "token_counts")
    result = judged("masks", "token_counts", trained=figures, masks=None)
    found = build_finding(check, result, seen_of(trained=figures, masks=None))
    assert (result.outcome, found.cause) == ("fail", cause)


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


WORD = {
    "n_rows": 768,
    "unexplained_by_count": 0.018,
    "unexplained_by_length": 0.36,
    "growth": 17.0,
    "count_first": 0.7,
    "count_last": 12.25,
    "outcome_gain": -0.19,
}
PAY = {"growth": 1.0, "paid_part_correlation": 0.2}


@pytest.mark.parametrize(
    ("word", "pay", "outcome"),
    [
        ({}, {}, "fail"),
        ({"outcome_gain": 0.2}, {}, "pass"),  # the task is learned all the same
        ({"outcome_gain": 0.2}, {"growth": 1.5, "paid_part_correlation": 0.5}, "fail"),
        ({"growth": 1.1}, {}, "pass"),
        ({"unexplained_by_count": 0.4}, {}, "pass"),
        ({"unexplained_by_length": 0.02}, {}, "pass"),  # pay for length
        ({"unexplained_by_count": None, "unexplained_by_length": None}, {}, "pass"),
    ],
)
def test_pay_by_the_word(word: dict[str, Any], pay: dict[str, Any], outcome: str) -> None:
    seen = {"word": {**WORD, **word}, "pay": {**PAY, **pay}}
    result = judged("reward", "word_pay", **seen)
    assert result.outcome == outcome
    if outcome == "fail":
        finding = build_finding(check_of("reward", "word_pay"), result, seen_of(**seen))
        assert (finding.cause, finding.confidence) == ("reward.hack_format", "high")
