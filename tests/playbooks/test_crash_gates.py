"""Gates of the crash playbook on figures: the look-alike beside the fault."""

from __future__ import annotations

from typing import Any

import pytest

from firstbad.playbooks.findings import build_finding
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
    change = next(c for c in load("crash").playbook.unexplained if "sudden.explained" in c.when)
    assert all_hold(change.when, seen_of(sudden={**SUDDEN, **figures})) == open_


@pytest.mark.parametrize(
    ("figures", "open_"),
    [
        ({"beyond_metrics": 60, "empty_texts": 0.0}, True),
        ({"beyond_metrics": 0, "empty_texts": 1.0}, True),
        ({"beyond_metrics": 3, "empty_texts": 0.1}, False),
    ],
)
def test_what_was_not_looked_at_leaves_a_run_open(figures: dict[str, Any], open_: bool) -> None:
    when = [change.when for change in load("crash").playbook.unexplained]
    assert any(all_hold(bounds, seen_of(stock=figures)) for bounds in when) == open_


def test_a_cap_that_no_answer_reaches_cuts_none() -> None:
    cut = {"n_steps": 80, "truncated_start": 1.0, "truncated_first": 1.0, "reaches_cap": False}
    assert judged("records", "completion_cap", cut=cut, stops=None).outcome != "fail"


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
    masks = {"n_rows": 264, "n_captures_without": without, "prompt_trained": 0, "tool_trained": 0}
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
        "form_gain": 0.4,
        "outcome_gain": -0.3,
        "total_gain": 0.1,
        "outcome_level_first": 0.7,
        "outcome_level_last": 0.4,
    }
    seen = seen_of(ranges=ranges, form={})
    check = check_of("reward", "form_pay")
    found = build_finding(check, judge(check, seen, playbook="crash", layer="reward"), seen)
    assert "the outcome goes from 0.7 to 0.4" in found.claim
    assert "optimizer.learning_rate" in check.voided_by, "a jump of the rate lets the outcome fall"


GOES_ON = {
    "truncated_before": 0.0,
    "truncated_after": 1.0,
    "truncated_leap": 1.0,
    "length_rise": 2.8,
    "text_rise": 1.05,
}
MASKS = {
    "n_rows": 240,
    "n_captures_without": 0,
    "prompt_trained": 0,
    "share_rows_wrong": 0.0,
    "share_wrong_shifted": 0.0,
    "padding_trained": 0,
    "made_after_stop_share": 0.0,
}


@pytest.mark.parametrize(
    ("stops", "cause"),
    [
        (GOES_ON, "mask.eos"),
        ({**GOES_ON, "text_rise": 2.6}, None),  # the model rambles
        ({**GOES_ON, "length_rise": 0.8, "text_rise": 0.8}, None),  # a tighter cap
        ({**GOES_ON, "truncated_leap": 0.1}, None),  # lengths grew into the cap
        ({**GOES_ON, "truncated_before": 0.9}, None),  # a cap that was too low all along
        (None, None),
    ],
)
def test_generation_that_runs_on_without_more_text(
    stops: dict[str, Any] | None, cause: str | None
) -> None:
    counted = {"n_steps": 80, "off_steps_share": 0.0}
    check, seen = check_of("masks", "token_counts"), seen_of(trained=counted, stops=stops)
    result = judge(check, seen, playbook="crash", layer="masks")
    assert (build_finding(check, result, seen).cause if result.outcome == "fail" else None) == cause
    if cause:
        assert build_finding(check, result, seen).confidence == "medium"


@pytest.mark.parametrize(
    ("masks", "cause"),
    [
        ({}, None),
        ({"padding_trained": 500, "share_rows_wrong": 0.6}, "mask.padding"),
        (
            {"padding_trained": 500, "share_rows_wrong": 0.6, "made_after_stop_share": 1.0},
            "mask.eos",
        ),
        (
            {"padding_trained": 500, "share_rows_wrong": 0.6, "made_after_stop_share": 0.1},
            "mask.padding",
        ),
    ],
)
def test_what_is_trained_after_the_stop(masks: dict[str, Any], cause: str | None) -> None:
    check, seen = check_of("masks", "captured"), seen_of(masks={**MASKS, **masks})
    result = judge(check, seen, playbook="crash", layer="masks")
    assert (build_finding(check, result, seen).cause if result.outcome == "fail" else None) == cause


@pytest.mark.parametrize(
    ("figures", "outcome"),
    [
        ({}, "fail"),
        ({"masks": {**MASKS, "padding_trained": 500, "made_after_stop_share": 1.0}}, "pass"),
        ({"masks": {**MASKS, "padding_trained": 500}}, "fail"),
        ({"stops": GOES_ON}, "pass"),
        ({"stops": {**GOES_ON, "text_rise": 2.6}}, "fail"),
    ],
)
def test_rows_that_run_on_behind_their_stop_are_not_cut_by_the_cap(
    figures: dict[str, Any], outcome: str
) -> None:
    cut = {"n_steps": 80, "truncated_start": 0.9, "truncated_first": 0.95, "reaches_cap": True}
    assert judged("records", "completion_cap", cut=cut, **figures).outcome == outcome


IDENTITY = {
    "n_steps": 80,
    "whole_loss": True,
    "policy_coefficient": 0.69,
    "kl_coefficient": 0.7,
    "joint_correlation": 0.997,
    "correlation_least": 0.997,
    "slope_worst": 0.69,
    "slope_deviation": 0.44,
    "factor": None,
    "padded_deviation": 0.01,
    "padded_correlation": 0.9993,
    "padded_error_ratio": 0.26,
}


@pytest.mark.parametrize(
    ("figures", "cause"),
    [
        ({}, "grad.denominator"),
        ({"correlation_least": 0.9, "joint_correlation": 0.9}, "grad.denominator"),
        # A constant that happens to be as large as the mean share of padding.
        ({"padded_correlation": 0.997, "padded_error_ratio": 3.9}, "grad.accumulation_scale"),
        ({"padded_correlation": 0.997, "padded_error_ratio": None}, "grad.accumulation_scale"),
        (
            {"slope_worst": 2.0, "slope_deviation": 1.0, "factor": 2.0, "padded_deviation": 1.9},
            "grad.accumulation_scale",
        ),
        # Nothing is off: that padding would fit as well says nothing.
        ({"slope_worst": 1.0, "slope_deviation": 0.02}, None),
        # The policy term alone, whose reduction over micro-batches is not known.
        ({"whole_loss": False}, None),
    ],
)
def test_padding_in_the_denominator_of_the_loss(figures: dict[str, Any], cause: str | None) -> None:
    check, seen = (
        check_of("accumulation", "loss_identity"),
        seen_of(identity={**IDENTITY, **figures}),
    )
    result = judge(check, seen, playbook="crash", layer="accumulation")
    assert (build_finding(check, result, seen).cause if result.outcome == "fail" else None) == cause


WHOLE = {
    "from_start": False,
    "share_rows_cut": 0.0,
    "tokens_kept": None,
    "cut_by_setting": False,
    "n_tokens_scored": 0,
    "surprise_gap": None,
    "surprise_gap_z": None,
}
CUT = {**WHOLE, "share_rows_cut": 1.0, "tokens_kept": 8, "n_tokens_scored": 2000}
APART = {"surprise_gap": 0.3, "surprise_gap_z": 8.0}
BY_PADDING = {"largest": 0.23, "z_largest": 9.0, "padding_dependence": 0.5}


@pytest.mark.parametrize(
    ("given", "surprise", "cause"),
    [
        ({**CUT, **APART}, {**QUIET, **BY_PADDING}, "prob.conditioning"),
        ({**CUT, **APART, "cut_by_setting": True}, QUIET, "prob.conditioning"),
        (WHOLE, {**QUIET, **BY_PADDING}, "prob.positions"),
        # The tokens fit the prompt that was cut: the sampler saw no more of it.
        ({**CUT, "surprise_gap": 0.01, "surprise_gap_z": 0.5}, QUIET, None),
        # Off alike under whole prompts: that is the sampler, not the prompt.
        (
            {**CUT, "surprise_gap": 0.02, "surprise_gap_z": 1.0},
            {**QUIET, **BY_PADDING},
            "prob.positions",
        ),
        # Without entropies nothing tells; a setting that says so is no fault.
        ({**CUT, "n_tokens_scored": 0}, None, "prob.conditioning"),
        ({**CUT, "n_tokens_scored": 0, "cut_by_setting": True}, None, None),
        ({**CUT, "n_tokens_scored": 0, "from_start": True}, None, None),
        (WHOLE, QUIET, None),
        (None, QUIET, None),
    ],
)
def test_a_prompt_that_was_cut_for_the_trainer_alone(
    given: dict[str, Any] | None, surprise: dict[str, Any] | None, cause: str | None
) -> None:
    check, seen = check_of("probability", "sampler"), seen_of(given=given, surprise=surprise)
    result = judge(check, seen, playbook="crash", layer="probability")
    assert (build_finding(check, result, seen).cause if result.outcome == "fail" else None) == cause


@pytest.mark.parametrize(("from_start", "confidence"), [(False, "high"), (True, "medium")])
def test_a_cut_from_the_start_has_no_whole_prompts_beside_it(
    from_start: bool, confidence: str
) -> None:
    check = check_of("probability", "sampler")
    seen = seen_of(given={**CUT, **APART, "from_start": from_start}, surprise=QUIET)
    finding = build_finding(check, judge(check, seen, playbook="crash", layer="probability"), seen)
    assert (finding.cause, finding.confidence) == ("prob.conditioning", confidence)


@pytest.mark.parametrize(("form", "total", "outcome"), [(0.4, 0.1, "fail"), (0.033, -0.3, "pass")])
def test_an_outcome_that_is_lost_for_nothing_is_no_pay_for_form(
    form: float, total: float, outcome: str
) -> None:
    """A policy that collapses keeps the form and earns less."""
    ranges = {"n_steps": 120, "form_gain": form, "outcome_gain": -0.34, "total_gain": total}
    assert judged("reward", "form_pay", ranges=ranges).outcome == outcome


HALVED = {
    "n_steps": 120,
    "neighbours_still": True,
    "factor_named": 0.5,
    "contrast_known": True,
    "shift_size": 1.9,
    "shift_factor": 0.54,
}


@pytest.mark.parametrize(
    ("identity", "outcome"),
    [
        (None, "fail"),
        ({"correlation_least": 0.7, "slope_deviation": 0.0}, "fail"),
        ({"correlation_least": 0.999, "slope_deviation": 1.0}, "fail"),
        ({"correlation_least": 0.999, "slope_deviation": 0.002}, "pass"),
    ],
    ids=["loss unread", "loss unexplained", "the loss doubled as well", "the loss has no factor"],
)
def test_a_norm_names_a_factor_only_where_the_loss_does_not_deny_it(
    identity: dict[str, Any] | None, outcome: str
) -> None:
    found = judged("accumulation", "norm_factor", norm=HALVED, identity=identity)
    assert found.outcome == outcome


STILL = {
    "n_tensors": 38,
    "still_tensors": 36,
    "counted_still": 36,
    "counted_at": 60,
    "weights_still": 0,
    "weights_still_share": 0.0,
    "freezing_declared": False,
    "all_still": False,
    "adapter_outputs": 0,
    "adapters_idle": False,
    "first_bad_step": 61,
}


@pytest.mark.parametrize(
    ("figures", "told", "confidence"),
    [
        ({}, "stands at 60", "high"),
        ({"freezing_declared": True}, "stands at 60", "medium"),
        ({"counted_still": 0, "weights_still": 36}, "bit for bit", "high"),
        (
            {"still_tensors": 0, "counted_still": 0, "adapter_outputs": 12, "adapters_idle": True},
            "all 12 output factors",
            "high",
        ),
        (
            {"still_tensors": 0, "counted_still": 0, "all_still": True},
            "Nothing that is saved trains",
            "high",
        ),
    ],
)
def test_a_part_that_stands_still(figures: dict[str, Any], told: str, confidence: str) -> None:
    seen = seen_of(still={**STILL, **figures})
    check = check_of("accumulation", "all_parameters")
    found = build_finding(check, judge(check, seen, playbook="crash", layer="accumulation"), seen)
    assert (found.cause, found.confidence) == ("grad.frozen", confidence)
    assert told in found.claim


def test_no_part_stands_still() -> None:
    still = {**STILL, "still_tensors": 0, "counted_still": 0}
    assert judged("accumulation", "all_parameters", still=still).outcome == "pass"


LATE = {
    **QUIET,
    "largest": 0.18,
    "signed_largest": 0.18,
    "z_largest": 6.7,
    "growth": 1.0,
    "from_start": False,
    "stretch_alone": False,
    "k1_over_k3_late": 0.0002,
    "kl_gap_z": 1.6,
    "k3_late": 11.8,
    "padding_dependence": 0.05,
    "fork_surprise": 0.017,
    "fork_share": 0.095,
    "kl_before": 0.4,
    "follows_speed": True,
    "first_bad_step": 70,
}
AT_ANY_SPEED = {"follows_speed": False, "kl_before": 0.03}


@pytest.mark.parametrize(
    ("figures", "cause", "confidence"),
    [
        ({}, "prob.stale_rollouts", "medium"),
        (AT_ANY_SPEED, "prob.processed_logprobs", "medium"),
        (
            {**AT_ANY_SPEED, "fork_surprise": 0.06, "fork_share": 0.33},
            "prob.processed_logprobs",
            "high",
        ),
        (
            {**AT_ANY_SPEED, "fork_surprise": None, "fork_share": None},
            "prob.processed_logprobs",
            "high",
        ),
        ({**AT_ANY_SPEED, "from_start": True}, "prob.processed_logprobs", "high"),
        ({"growth": 2.5}, "prob.weight_sync", "high"),
    ],
    ids=["with the speed", "a penalty or old weights", "hotter", "few forks", "all along", "grows"],
)
def test_a_late_surprise_is_told_by_what_goes_with_it(
    figures: dict[str, Any], cause: str, confidence: str
) -> None:
    seen = seen_of(surprise={**LATE, **figures}, declared=DECLARED)
    check = check_of("probability", "sampler")
    result = judge(check, seen, playbook="crash", layer="probability")
    found = build_finding(check, result, seen)
    assert (found.cause, found.confidence) == (cause, confidence)


@pytest.mark.parametrize(
    ("figures", "outcome"),
    [
        ({}, "fail"),
        # Learning all the same, however much of the budget is spent; and far from spent.
        ({"reward_gain_z": 11.6}, "pass"),
        ({"used_share": 0.32}, "pass"),
    ],
)
def test_a_pinned_policy_learns_nothing(figures: dict[str, Any], outcome: str) -> None:
    budget = {
        "beta": 5.0,
        "beta_loose": 0.6,
        "used_share": 1.4,
        "kl_late": 0.0017,
        "contrast": 0.98,
    }
    budget |= {"reward_gain": 0.006, "reward_gain_z": 0.3, "first_bad_step": 1} | figures
    steps = {"n_steps": 120, "runaway": False, "reuse_alarm": False, "resume_jump": False}
    steps |= {"unheld": False}
    found = judged("optimizer", "step_size", steps=steps, norms=None, budget=budget)
    assert found.outcome == outcome


@pytest.mark.parametrize(
    ("figures", "kl_first", "cause"),
    [
        ({}, 0.077, "prob.nondeterministic_trainer"),
        ({"deviation_before_update": None}, 0.077, "prob.nondeterministic_trainer"),
        # The reference agrees with the trainer: what is off is the old side.
        ({}, 0.0, "prob.old_logprob_source"),
        ({"off_at_step_1": False}, 0.077, "prob.old_logprob_source"),
        # As coarse arithmetic of a pass of its own leaves them, or exact.
        ({"deviation_before_update": 0.05, "clip_before_update": 0.0}, 0.0, None),
        ({"share_off_before_update": 0.0}, 0.0, None),
    ],
)
def test_ratios_before_the_second_pass(
    figures: dict[str, Any], kl_first: float, cause: str | None
) -> None:
    ratios = {"ratio_logged": True, "share_off_before_update": 1.0, "off_at_step_1": True}
    ratios |= {"deviation_before_update": 25.0, "clip_before_update": 0.06, "first_bad_step": 1}
    declared = {"updates_per_batch": 2.0, "engine_used": False}
    figures = {"ratios": ratios | figures, "declared": declared, "surprise": None}
    figures["reference"] = {"kl_first": kl_first, "kl_back": None, "policy_back": False}
    figures["sampling"] = SAMPLING
    result = judged("probability", "ratio_before_update", **figures)
    assert result.outcome == ("pass" if cause is None else "fail")
    if cause:
        check = check_of("probability", "ratio_before_update")
        assert build_finding(check, result, seen_of(**figures)).cause == cause


@pytest.mark.parametrize(
    ("off", "k1_over_k3", "outcome"),
    [
        (None, None, "fail"),
        (False, 1.06, "fail"),
        # The trainer differs from itself, or from what sampled: no sign of another reference.
        (True, None, "pass"),
        (None, -0.05, "pass"),
    ],
)
def test_what_differs_from_the_reference_at_step_1(
    off: bool | None, k1_over_k3: float | None, outcome: str
) -> None:
    reference = {"kl_first": 0.077, "kl_back": None, "policy_back": False, "first_bad_step": 1}
    ratios, first = {"off_at_step_1": off}, {"k1_over_k3": k1_over_k3}
    found = judged("optimizer", "reference", reference=reference, ratios=ratios, first=first)
    assert found.outcome == outcome


@pytest.mark.parametrize(
    ("figures", "cause"),
    [
        ({}, "prob.nondeterministic_trainer"),
        # Tokens of the trainer's own policy: another reference, which is judged elsewhere.
        ({"k1_over_k3": 1.06}, None),
        ({"difference": 0.001, "largest": 0.001}, None),
        ({"n_tokens": 60}, None),
        ({"depends_on_padding": 17.0, "k1_over_k3": -1.03}, "prob.positions"),
    ],
)
def test_the_first_pass_tells_which_side_is_off(figures: dict[str, Any], cause: str | None) -> None:
    first = {"n_tokens": 338, "difference": 0.35, "least": 0.3, "largest": 0.4}
    first |= {"k1_over_k3": -0.05, "depends_on_padding": 1.3, "first_bad_step": 1} | figures
    result = judged("probability", "padding", first=first)
    assert result.outcome == ("pass" if cause is None else "fail")
    if cause:
        found = build_finding(check_of("probability", "padding"), result, seen_of(first=first))
        assert found.cause == cause


@pytest.mark.parametrize(
    ("size", "z", "outcome"),
    [(1.93, 5.1, "inconclusive"), (1.93, 2.7, "pass"), (1.0, 0.0, "pass"), (None, None, "pass")],
)
def test_a_norm_that_changes_against_its_advantages_excludes_no_factor(
    size: float | None, z: float | None, outcome: str
) -> None:
    level = {"late_over_early": 1.5, "early_over_late": 0.66, "change_size": size, "change_z": z}
    found = judged(
        "accumulation",
        "loss_identity",
        identity=None,
        scatter=None,
        onset={"is_steady": True},
        events={"n_settings_changed": 0},
        setting={
            "accumulation_steps": 2.0,
            "updates_per_batch": 1.0,
            "loss_from_rollouts": True,
        },
        level=level,
    )
    assert found.outcome == outcome


@pytest.mark.parametrize(
    ("identity", "strength", "said"),
    [
        # Advantages cancel and beta is 0: the loss is 0 whichever way the weights are moved.
        (None, "proxy", "wrong sign"),
        # ... and with a KL term it is that term alone which agrees.
        ({"n_steps": 60, "correlation_least": 1.0, "slope_deviation": 0.0}, "direct", "wrong sign"),
    ],
)
def test_a_loss_whose_advantages_cancel_vouches_for_no_sign(
    identity: dict[str, Any] | None, strength: str, said: str
) -> None:
    scatter = {"n_steps": 60, "flat": True, "distance": 1e-9}
    found = judged("accumulation", "loss_identity", identity=identity, scatter=scatter)
    assert (found.outcome, found.strength) == ("pass", strength)
    assert said in found.excludes_not
    if identity:
        varied = {**scatter, "flat": False}
        sound = judged("accumulation", "loss_identity", identity=identity, scatter=varied)
        assert (sound.outcome, sound.strength) == ("pass", "direct")
        assert said not in sound.excludes_not


@pytest.mark.parametrize(("follows", "said"), [(True, "all along"), (False, "captures")])
@pytest.mark.parametrize(("changed", "outcome"), [(0, "pass"), (1, "inconclusive")])
def test_steady_norms_pass_a_loss_that_is_not_recomputed_unless_settings_changed(
    follows: bool, said: str, changed: int, outcome: str
) -> None:
    """Figures that agree from the first third to the last tell nothing across other settings."""
    found = judged(
        "accumulation",
        "loss_identity",
        identity=None,
        scatter=None,
        onset={"is_steady": True},
        events={"n_settings_changed": changed},
        setting={
            "accumulation_steps": 2.0,
            "updates_per_batch": 1.0,
            "loss_from_rollouts": follows,
        },
        level={"late_over_early": 1.0, "early_over_late": 1.0},
    )
    assert found.outcome == outcome
    if outcome == "pass":
        assert found.strength == "differential"
        assert said in found.excludes_not


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
