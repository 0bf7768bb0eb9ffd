"""Conclusions: who leads, what it is conditional on, and when nothing may be concluded."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstbad.playbooks.causes import causes as known_causes
from firstbad.playbooks.checkpoints import resume_from
from firstbad.playbooks.fill import fill
from firstbad.playbooks.findings import doubt_weights, merge_findings
from firstbad.playbooks.results import Finding, LeastBad, Onset, Verdict, first_spoiled
from firstbad.tools.evidence import Evidence

MakeVerdict = Callable[..., Verdict]
Seen = Callable[..., dict[str, Evidence]]

MOVED = {"n_signals": 3, "is_onset": True, "is_steady": False, "first_bad_step": 40}
BROKEN_ROWS = {"n": 9, "bad": 3, "first_bad_step": 31, "last_good_step": 30}
PARTED = {"n": 9, "gap": 4.0, "first_bad_step": 50, "last_good_step": 49}
JUMP = {"n": 9, "jump": 10.0, "first_bad_step": 45, "last_good_step": 44}
OUTAGE = {
    "n": 9,
    "wrong": 0.4,
    "right": 0.6,
    "constant": True,
    "one_sided": 1.0,
    "text": 1,
    "first_bad_step": 35,
    "last_good_step": 34,
}


def outcomes(found: Verdict) -> dict[str, str]:
    return {r.id: r.outcome for r in found.layers}


def causes(found: Verdict) -> list[str]:
    return [f.cause for f in found.findings]


# --------------------------------------------------------------------------------------- healthy


def test_healthy_needs_every_layer_and_no_failed_check(verdict: MakeVerdict) -> None:
    found = verdict()
    assert (found.outcome, found.window) == ("healthy", "steady")
    assert set(outcomes(found).values()) == {"pass"}
    assert found.leading is None
    assert (found.findings, found.conditional_on, found.requests) == ((), (), ())
    assert found.resume_from is None


@pytest.mark.parametrize("missing", ["onset", "rows", "same", "rate", "judge"])
def test_one_open_layer_is_enough_to_leave_it_undetermined(
    verdict: MakeVerdict, missing: str
) -> None:
    found = verdict(**{missing: None})
    assert found.outcome == "undetermined"
    assert found.leading is None
    assert "could not be decided" in found.headline


def test_a_change_that_left_the_outcome_alone_is_healthy(verdict: MakeVerdict) -> None:
    found = verdict(onset={**MOVED, "end_over_best": 0.9})
    assert (found.outcome, found.window) == ("healthy", "onset")
    assert found.first_bad.first_bad == 40
    assert "a change, not a fault" in found.headline


@pytest.mark.parametrize(("size", "outcome"), [(9.0, "undetermined"), (2.0, "healthy")])
def test_a_change_that_is_not_normal_stays_open_with_its_own_request(
    verdict: MakeVerdict, small: SimpleNamespace, size: float, outcome: str
) -> None:
    open_ = {
        "when": {"onset.size": "> 5"},
        "say": "It leaps by {onset.size}.",
        "need": "the settings of the sampler",
        "command": "firstbad runs show RUN",
        "decides": "what leapt",
    }
    book = small.book(unexplained=[open_])
    found = verdict(book=book, onset={**MOVED, "end_over_best": 0.9, "size": size})
    assert found.outcome == outcome
    assert ("It leaps by 9." in found.headline) == (outcome == "undetermined")
    assert len(found.left_open_by) == (outcome == "undetermined")
    assert [r.need for r in found.requests[:1]] == (
        ["the settings of the sampler"] if outcome == "undetermined" else []
    )


def test_a_finding_leads_over_a_change_that_is_not_normal(
    verdict: MakeVerdict, small: SimpleNamespace
) -> None:
    open_ = {"when": {"onset.is_onset": "== 1"}, "say": "x", "need": "y", "command": "z"}
    book = small.book(unexplained=[{**open_, "decides": "q"}])
    found = verdict(book=book, onset={**MOVED, "end_over_best": 0.9}, rows={"n": 9, "bad": 1})
    assert found.outcome == "incident"
    assert "y" not in [r.need for r in found.requests]


@pytest.mark.parametrize("left", [0.3, None])
def test_a_lost_outcome_that_nothing_explains_is_undetermined(
    verdict: MakeVerdict, left: float | None
) -> None:
    found = verdict(onset={**MOVED, "end_over_best": left})
    assert found.outcome == "undetermined"
    assert "where nothing was measured" in found.headline


def test_a_waived_layer_makes_health_conditional(verdict: MakeVerdict) -> None:
    found = verdict(same=None, waive={"probability": "same engine on both sides"})
    assert found.outcome == "healthy"
    assert outcomes(found)["probability"] == "waived"
    assert found.conditional_on == ("probability (waived)",)
    assert found.waivers[0].reason == "same engine on both sides"


def test_the_headline_of_health_names_what_was_waived(verdict: MakeVerdict) -> None:
    found = verdict(same=None, judge=None, waive={"probability": "as agreed", "reward": "no gold"})
    assert found.outcome == "healthy"
    assert found.headline.startswith("As far as it was read, no check failed.")
    assert "Waived, not passed: `probability`, `reward`" in found.headline
    assert "Every layer passed" not in found.headline
    assert "Waived" not in verdict(waive={"probability": "just in case"}).headline


def test_a_waiver_that_was_not_needed_is_told(verdict: MakeVerdict) -> None:
    found = verdict(waive={"probability": "just in case"})
    assert found.outcome == "healthy"
    assert found.conditional_on == ()
    assert any("`probability`" in note for note in found.notes)


def test_a_failed_window_is_not_healthy(verdict: MakeVerdict, small: SimpleNamespace) -> None:
    layers = copy.deepcopy(small.LAYERS)
    layers[0]["checks"][0]["gate"][0]["fail_if"] = {"onset.n_signals": "< 2"}
    onset = {"n_signals": 1, "is_onset": False, "is_steady": True}
    found = verdict(book=small.book(layers), onset=onset)
    assert outcomes(found)["window"] == "fail"
    assert found.outcome != "healthy"


CLAIMS: list[dict[str, Any]] = [
    {
        "symptom": "kl_up",
        "says": "KL rises",
        "contradicted_if": {"onset.kl_rose": "== 0"},
        "answered_by": ["probability.same"],
    },
    {
        "symptom": "slow",
        "says": "the run became slow",
        "contradicted_if": {"onset.timing_rose": "== 0"},
        "answers": [{"when": {"onset.timing_rose": "== 1"}, "say": "Step {onset.at} is slow."}],
    },
]
STEADY = {"n_signals": 3, "is_onset": False, "is_steady": True, "first_bad_step": None}
DECLARED = {"n": 0, "declared": True}


@pytest.mark.parametrize(
    ("symptoms", "rose", "same", "outcome"),
    [
        (("kl_up",), True, DECLARED, "undetermined"),
        (("kl_up",), None, DECLARED, "undetermined"),  # not logged: nothing contradicts it
        (("kl_up",), False, DECLARED, "healthy"),
        (("kl_up",), True, {"n": 9, "gap": 0.1}, "healthy"),
        ((), True, DECLARED, "healthy"),
        (("garbage_text",), True, DECLARED, "healthy"),  # no claim of this playbook
    ],
)
def test_a_change_that_was_complained_about_is_normal_only_on_direct_evidence(
    verdict: MakeVerdict,
    small: SimpleNamespace,
    symptoms: tuple[str, ...],
    rose: bool | None,
    same: dict[str, Any],
    outcome: str,
) -> None:
    found = verdict(
        book=small.book(complaints=CLAIMS),
        symptoms=symptoms,
        onset={**STEADY, "kl_rose": rose},
        same=same,
    )
    assert found.outcome == outcome
    assert [r.layer for r in found.requests] == (["probability"] if outcome != "healthy" else [])
    contradicted = any("KL rises. It is not so: no lasting" in answer for answer in found.answers)
    assert contradicted == (symptoms == ("kl_up",) and rose is False)
    # What direct evidence speaks for is told, and by which check.
    looked = any("`probability.same` (" in answer for answer in found.answers)
    assert looked == (same is not DECLARED)
    # What rests on a declaration alone is named in the first sentence.
    if outcome == "healthy":
        assert ("`probability`" in found.headline) == (same is DECLARED)


@pytest.mark.parametrize(("rose", "said"), [(True, "Step 60 is slow."), (False, "no lasting")])
def test_a_complaint_about_speed_is_answered_and_sets_no_window(
    verdict: MakeVerdict, small: SimpleNamespace, rose: bool, said: str
) -> None:
    found = verdict(
        book=small.book(complaints=CLAIMS),
        symptoms=("slow",),
        onset={**STEADY, "timing_rose": rose, "at": 60},
    )
    assert (found.outcome, found.window) == ("healthy", "steady")
    assert any(said in answer for answer in found.answers)


def test_a_complaint_that_no_check_looks_into_is_told_so(
    verdict: MakeVerdict, small: SimpleNamespace
) -> None:
    book = small.book(complaints=CLAIMS)
    found = verdict(book=book, symptoms=("entropy_down",))
    assert found.outcome == "healthy"
    (answer,) = found.answers
    assert "entropy down: no check of this playbook looks" in answer
    assert verdict(book=book, symptoms=()).answers == ()
    # Beside a finding it would only distract.
    assert verdict(book=book, symptoms=("entropy_down",), rate=JUMP).answers == ()


FELL: dict[str, Any] = {
    "symptom": "reward_drop",
    "says": "the reward fell",
    "contradicted_if": {"onset.outcome_fell": "== 0"},
    "measure": "around.reward",
    "called": "the reward",
    "true_if": {"around.reward_z": "< -2"},
    "open_if": {"around.reward_z": "< -2"},
    "answered_by": ["reward.judged"],
    "request": "both checkpoints on the same prompts",
}


def around(before: float | None, after: float | None, z: float | None) -> dict[str, Any]:
    return {
        "step": 90,
        "before_first_step": 60,
        "before_last_step": 89,
        "after_first_step": 90,
        "after_last_step": 119,
        "outside_by": 0,
        "reward_before": before,
        "reward_after": after,
        "reward_z": z,
    }


def test_a_fall_that_the_log_plainly_shows_is_never_called_none(
    verdict: MakeVerdict, small: SimpleNamespace
) -> None:
    # No signal leaves its band, and the judge agrees: the reward is right, and it fell.
    found = verdict(
        book=small.book(complaints=[FELL]),
        symptoms=("reward_drop",),
        onset={**STEADY, "outcome_fell": False},
        around=around(0.842, 0.76, -2.6),
    )
    assert found.outcome == "undetermined"
    assert "the log shows it" in found.headline
    (answer,) = found.answers
    assert "no lasting" not in answer
    assert (
        "0.842 in steps 60 to 89 and 0.76 in steps 90 to 119 (2.6 standard errors lower)" in answer
    )
    assert [r.need for r in found.requests] == ["both checkpoints on the same prompts"]


@pytest.mark.parametrize("z", [-1.2, 3.0])
def test_a_fall_that_is_none_is_told_with_its_numbers(
    verdict: MakeVerdict, small: SimpleNamespace, z: float
) -> None:
    found = verdict(
        book=small.book(complaints=[FELL]),
        symptoms=("reward_drop",),
        onset={**STEADY, "outcome_fell": False},
        around=around(0.8, 0.8, z),
    )
    assert found.outcome == "healthy"
    (answer,) = found.answers
    assert "no lasting change" in answer
    assert "averages 0.8 in steps 60 to 89" in answer


def test_what_is_not_logged_can_not_be_contradicted(
    verdict: MakeVerdict, small: SimpleNamespace
) -> None:
    found = verdict(
        book=small.book(complaints=[FELL]),
        symptoms=("reward_drop",),
        onset={**STEADY, "outcome_fell": None},
        around=around(None, None, None),
    )
    assert found.outcome == "undetermined"
    assert "the reward is not logged" in found.headline
    assert len(found.requests) == 1


def test_a_true_claim_without_a_check_is_named_and_no_alarm(
    verdict: MakeVerdict, small: SimpleNamespace
) -> None:
    unjudged = {k: v for k, v in FELL.items() if k not in ("answered_by", "contradicted_if")}
    unjudged["open_if"] = {"around.reward_z": "< -2", "onset.end_over_best": "< 0.75"}
    book = small.book(complaints=[unjudged])

    def told(end: float) -> Verdict:
        return verdict(
            book=book,
            symptoms=("reward_drop",),
            onset={**STEADY, "end_over_best": end},
            around=around(0.8, 0.6, -5.0),
        )

    assert told(0.9).outcome == "healthy"
    assert "Not judged: reward drop." in told(0.9).headline
    assert "It is so." in told(0.9).answers[0]
    assert told(0.5).outcome == "undetermined"
    assert told(0.5).requests


def test_a_claim_stays_open_while_one_of_its_checks_has_no_direct_evidence(
    verdict: MakeVerdict, small: SimpleNamespace
) -> None:
    both = {**CLAIMS[0], "answered_by": ["reward.judged", "probability.same"], "request": "a KL"}
    onset = {**STEADY, "kl_rose": True}
    book = small.book(complaints=[both])
    found = verdict(book=book, symptoms=("kl_up",), onset=onset, same=DECLARED)
    assert found.outcome == "undetermined"
    assert "(`probability.same` has no direct evidence)" in found.headline
    assert "`reward.judged` (" in found.answers[0]
    # What the open check lacks is asked for, not what the claim itself would need.
    assert [r.layer for r in found.requests] == ["probability"]
    assert "a KL" not in {r.need for r in found.requests}
    direct = {"n": 9, "gap": 0.1}
    found = verdict(book=book, symptoms=("kl_up",), onset=onset, same=direct)
    assert found.outcome == "healthy"
    assert "`reward.judged` (" in found.answers[0]
    assert "`probability.same` (" in found.answers[0]


def test_beside_a_finding_a_question_is_answered_and_numbers_stand_alone(
    verdict: MakeVerdict, small: SimpleNamespace
) -> None:
    asked = {"symptom": "mask_doubt", "says": "it is wrong", "answered_by": ["probability.same"]}
    fell = {k: v for k, v in FELL.items() if k != "contradicted_if"}
    found = verdict(
        book=small.book(complaints=[asked, fell]),
        symptoms=("mask_doubt", "reward_drop"),
        around=around(0.8, 0.6, -5.0),
        rate=JUMP,
    )
    assert found.outcome == "incident"
    question, numbers = found.answers
    assert "`probability.same` (" in question
    assert numbers.endswith("standard errors lower).")


@pytest.mark.parametrize(("at", "outcome"), [(60, "healthy"), (None, "undetermined")])
def test_what_is_explained_does_not_stay_open(
    verdict: MakeVerdict, small: SimpleNamespace, at: int | None, outcome: str
) -> None:
    normal = {"when": {"onset.at": "> 0"}, "say": "At step {onset.at} that is normal."}
    claim = {**CLAIMS[0], "answers": [normal]}
    found = verdict(
        book=small.book(complaints=[claim]),
        symptoms=("kl_up",),
        onset={**STEADY, "kl_rose": True, "at": at},
        same=DECLARED,
    )
    assert found.outcome == outcome
    assert [a.endswith("that is normal.") for a in found.answers] == ([True] if at else [])


def test_the_step_that_was_named_is_answered(verdict: MakeVerdict, small: SimpleNamespace) -> None:
    note = {"when": {"around.outside_by": "> 0"}, "say": "Step {around.step} is outside."}
    book = small.book(about_step=[note])
    outside = {**around(None, None, None), "step": 5000, "outside_by": 4880}
    assert verdict(book=book, noticed_step=5000, around=outside).answers == (
        "Step 5000 is outside.",
    )
    assert verdict(book=book, around=outside).answers == ()


def test_a_failed_check_leads_whatever_was_complained_about(
    verdict: MakeVerdict, small: SimpleNamespace
) -> None:
    found = verdict(
        book=small.book(complaints=CLAIMS),
        symptoms=("kl_up",),
        onset={**STEADY, "kl_rose": True},
        same=DECLARED,
        rate=JUMP,
    )
    assert found.outcome == "incident"
    assert found.requests == ()


def test_what_no_check_measures_is_named(verdict: MakeVerdict, small: SimpleNamespace) -> None:
    missing = {"layer": "prompt", "check": "reads_prompt", "why": "not built"}
    found = verdict(book=small.book(unbuilt=[missing]))
    assert found.outcome == "healthy"
    assert [(n.layer, n.check, n.why) for n in found.not_checked] == [tuple(missing.values())]


# -------------------------------------------------------------------------------------- incidents


def test_a_failed_layer_leads(verdict: MakeVerdict) -> None:
    found = verdict(onset={**MOVED}, rows=BROKEN_ROWS)
    assert found.outcome == "incident"
    assert found.leading is not None
    assert found.leading.cause == "id.rows"
    assert found.headline == found.leading.claim == "3 rows are broken"
    assert (found.first_bad.last_good, found.first_bad.first_bad) == (30, 31)
    assert found.first_bad.signal == "signal of rows"
    assert found.window == "onset"
    assert found.leading.supports == ("E2",)
    assert found.leading.confidence == "high"
    assert found.leading.independent
    assert found.leading.remedy
    assert found.leading.refuted_by
    assert found.conditional_on == ()


def test_a_form_of_a_cause_may_have_its_own_remedy_and_refutation(
    verdict: MakeVerdict, small: SimpleNamespace
) -> None:
    layers = copy.deepcopy(small.LAYERS)
    usual = verdict(rows=BROKEN_ROWS).leading
    (checks,) = (layer["checks"] for layer in layers if layer["id"] == "records")
    checks[0]["points_to"][0] |= {"remedy": "sort them again", "refuted_by": "rows in order"}
    found = verdict(book=small.book(layers), rows=BROKEN_ROWS).leading
    assert usual is not None
    assert found is not None
    assert (found.remedy, found.refuted_by) == ("sort them again", "rows in order")
    assert "sort" not in usual.remedy


def test_a_failed_layer_leads_over_an_earlier_fact_that_is_not_linked_to_it(
    verdict: MakeVerdict,
) -> None:
    found = verdict(same=PARTED, judge=OUTAGE)
    assert causes(found) == ["prob.weight_sync", "reward.verifier_outage"]
    assert [f.id for f in found.findings] == ["F1", "F2"]
    assert all(f.mechanism_of is None for f in found.findings)


def test_an_earlier_fact_that_leads_to_the_layer_leads_and_the_layer_is_its_mechanism(
    verdict: MakeVerdict,
) -> None:
    found = verdict(same=PARTED, rate=JUMP)
    assert causes(found) == ["opt.lr_jump", "prob.weight_sync"]
    leading, mechanism = found.findings
    assert leading.mechanism_of is None
    assert mechanism.mechanism_of == leading.id == "F1"
    assert found.first_bad.first_bad == 45
    assert found.headline == "the rate jumps 10-fold"


def test_what_the_leading_finding_brings_about_is_named_as_its_effect(
    verdict: MakeVerdict, small: SimpleNamespace
) -> None:
    book = small.book(leads_to=[{"cause": "id.*", "to": ["optimizer", "reward.judged"]}])
    for step, effects in ((31, {"rate", "judged"}), (40, {"rate"})):
        rows = {**BROKEN_ROWS, "first_bad_step": step, "last_good_step": step - 1}
        found = verdict(book=book, rows=rows, rate=JUMP, judge=OUTAGE)
        leading = found.findings[0]
        assert leading.cause == "id.rows"
        assert {f.check for f in found.findings if f.mechanism_of == leading.id} == effects
        for each in found.findings[1:]:
            if each.check in effects:
                assert each.claim.startswith("An effect of `id.rows`: ")
                assert (each.confidence, each.ruled_out) == ("low", ())
                assert "id.rows" in each.remedy
            else:
                assert each.mechanism_of is None


def test_an_effect_of_a_finding_that_does_not_lead(
    verdict: MakeVerdict, small: SimpleNamespace
) -> None:
    book = small.book(leads_to=[{"cause": "opt.lr_jump", "to": ["reward"]}])
    late = {**OUTAGE, "first_bad_step": 50, "last_good_step": 49}
    found = verdict(book=book, same=PARTED, rate=JUMP, judge=late)
    by_cause = {f.cause: f for f in found.findings}
    assert found.leading is by_cause["prob.weight_sync"]
    assert by_cause["reward.verifier_outage"].mechanism_of == by_cause["opt.lr_jump"].id


def test_a_linked_fact_that_began_later_does_not_lead(verdict: MakeVerdict) -> None:
    found = verdict(same=PARTED, rate={**JUMP, "first_bad_step": 60, "last_good_step": 59})
    assert causes(found) == ["prob.weight_sync", "opt.lr_jump"]
    assert all(f.mechanism_of is None for f in found.findings)


def test_a_linked_fact_before_a_sampled_bracket_leads(verdict: MakeVerdict) -> None:
    """The layer's onset lies in (40, 50]; the jump at 41 may be the reason, one at 40 is."""
    sampled = {**PARTED, "last_good_step": 40, "sampled": True}
    for step, first in ((40, "opt.lr_jump"), (41, "opt.lr_jump"), (45, "prob.weight_sync")):
        found = verdict(same=sampled, rate={**JUMP, "first_bad_step": step})
        assert causes(found)[0] == first


def test_a_linked_fact_without_a_date_does_not_lead(verdict: MakeVerdict) -> None:
    undated = {"n": 9, "gap": 4.0}, {"n": 9, "jump": 10.0}
    found = verdict(same=undated[0], rate=undated[1])
    assert causes(found)[0] == "prob.weight_sync"


@pytest.mark.parametrize(
    ("size", "first"),
    [
        ({"first_bad_step": 50, "last_good_step": 30, "sampled": True}, "opt.lr_jump"),
        ({"first_bad_step": 45, "last_good_step": 44}, "opt.lr_jump"),
        ({"first_bad_step": 44, "last_good_step": 43}, "opt.step_too_large"),
        ({"first_bad_step": 1, "from_start": True}, "opt.step_too_large"),
    ],
    ids=["began in a bracket around it", "at the same step", "before it", "from the start"],
)
def test_of_one_layer_the_surest_leads_unless_another_plainly_began_before_it(
    verdict: MakeVerdict, size: dict[str, Any], first: str
) -> None:
    found = verdict(rate=JUMP, size={"kl": 0.9, **size})
    assert {f.cause: f.confidence for f in found.findings} == {
        "opt.lr_jump": "high",
        "opt.step_too_large": "medium",
    }
    assert causes(found)[0] == first


def test_a_fact_explains_the_check_that_is_linked_and_no_other_of_its_layer(
    verdict: MakeVerdict, small: SimpleNamespace
) -> None:
    late = {**JUMP, "first_bad_step": 60, "last_good_step": 59}
    for to, first in (("optimizer.rate", OUTAGE), ("optimizer.size", late)):
        book = small.book(leads_to=[{"cause": "reward.verifier_outage", "to": [to]}])
        found = verdict(book=book, rate=late, judge=OUTAGE)
        assert found.first_bad.first_bad == first["first_bad_step"]


def test_an_open_layer_and_a_failed_fact_are_a_conditional_incident(verdict: MakeVerdict) -> None:
    found = verdict(same=None, judge=OUTAGE)
    assert found.outcome == "incident"
    assert causes(found) == ["reward.verifier_outage"]
    assert found.conditional_on == ("probability",)
    (request,) = found.requests
    assert (request.layer, request.need) == ("probability", "log-probs of both sides")
    assert request.decides == "Do both sides agree?"
    assert outcomes(found)["reward"] == "not_reached"
    assert found.leading is not None
    assert found.leading.confidence == "high", "a fact stands whatever the open layer turns out"


def test_nothing_behind_an_open_layer_clears_the_weights() -> None:
    sound = finding(weights="sound", rollback="no rollback")
    assert doubt_weights(sound, []) == sound
    doubted = doubt_weights(sound, ["accumulation"])
    assert doubted.weights == "unclear"
    assert doubted.rollback.startswith("not decided: `accumulation` did not pass")
    spoiled = finding(weights="spoiled")
    assert doubt_weights(spoiled, ["accumulation"]) == spoiled


def test_of_several_facts_behind_an_open_layer_the_earliest_leads(verdict: MakeVerdict) -> None:
    found = verdict(same=None, judge=OUTAGE, rate=JUMP)
    assert causes(found) == ["reward.verifier_outage", "opt.lr_jump"]
    found = verdict(same=None, judge=OUTAGE, rate={**JUMP, "first_bad_step": 12})
    assert causes(found) == ["opt.lr_jump", "reward.verifier_outage"]
    undated = {k: v for k, v in JUMP.items() if not k.endswith("_step")}
    found = verdict(same=None, judge=OUTAGE, rate=undated)
    assert causes(found) == ["reward.verifier_outage", "opt.lr_jump"]


def test_an_open_layer_without_facts_is_undetermined_with_precise_requests(
    verdict: MakeVerdict,
) -> None:
    found = verdict(rows=None)
    assert found.outcome == "undetermined"
    assert "layer `records`" in found.headline
    (request,) = found.requests
    assert request.command == "firstbad runs show csv:heron"
    assert request.decides == "whether rows are whole"
    closed = {(n.layer, n.check) for n in found.not_checked}
    assert closed == {("records", "rows"), ("probability", "same"), ("optimizer", "size")}


def test_what_a_check_that_only_informs_lacks_is_not_asked_for(verdict: MakeVerdict) -> None:
    found = verdict(means=None)
    assert found.outcome == "healthy"
    assert found.requests == ()
    (left,) = found.not_checked
    assert (left.layer, left.check, left.why) == ("records", "means", "no means to be read")


def test_what_would_decide_a_check_stands_beside_why_it_did_not(verdict: MakeVerdict) -> None:
    found = verdict(rows=None)
    asked = {(n.layer, n.check): n.needs for n in found.not_checked}
    assert asked["records", "rows"] == found.requests[0].need
    assert asked["probability", "same"] == "", "it waits for the layer before it, as it says"


def test_a_finding_behind_a_waiver_is_conditional_and_not_of_high_confidence(
    verdict: MakeVerdict, small: SimpleNamespace
) -> None:
    layers = copy.deepcopy(small.LAYERS)
    layers[3]["checks"][1]["gate"][0]["strength"] = "direct"
    sure = verdict(book=small.book(layers), size={"kl": 3.0, "first_bad_step": 50})
    assert [f.confidence for f in sure.findings] == ["high"]
    found = verdict(
        book=small.book(layers),
        same=None,
        size={"kl": 3.0, "first_bad_step": 50},
        waive={"probability": "same engine"},
    )
    assert causes(found) == ["opt.step_too_large"]
    assert found.conditional_on == ("probability (waived)",)
    assert [f.confidence for f in found.findings] == ["medium"]
    assert not found.findings[0].independent


def test_a_failed_layer_that_was_waived_still_shows_its_finding(verdict: MakeVerdict) -> None:
    found = verdict(same=PARTED, waive={"probability": "known"})
    assert found.outcome == "incident"
    assert causes(found) == ["prob.weight_sync"]
    assert outcomes(found)["probability"] == "waived"
    assert found.conditional_on == ("probability (waived)",)


# --------------------------------------------------------------------------------- single findings


def test_the_first_pointer_whose_bounds_hold_is_named(verdict: MakeVerdict) -> None:
    outage = verdict(judge=OUTAGE).findings[0]
    assert (outage.cause, outage.claim) == ("reward.verifier_outage", "40 % are scored wrong")
    assert outage.ruled_out == ("too hard: 60 % are right",)
    assert outage.contradicts == ()
    strict = verdict(judge={**OUTAGE, "constant": False}).findings[0]
    assert (strict.cause, strict.claim) == ("reward.false_negative", "some are scored wrong")


def test_what_speaks_against_a_cause_is_kept_and_weakens_it(verdict: MakeVerdict) -> None:
    found = verdict(judge={**OUTAGE, "one_sided": 0.6}).findings[0]
    assert found.contradicts == found.supports == ("E7",)
    assert found.confidence == "medium"


def test_a_weak_strength_weakens_a_finding(verdict: MakeVerdict) -> None:
    found = verdict(size={"kl": 3.0}).findings[0]
    assert (found.cause, found.confidence) == ("opt.step_too_large", "medium")


def test_no_pointer_that_fits_is_unlisted_and_says_so(
    verdict: MakeVerdict, small: SimpleNamespace
) -> None:
    layers = copy.deepcopy(small.LAYERS)
    layers[4]["checks"][0]["points_to"] = layers[4]["checks"][0]["points_to"][:1]
    found = verdict(book=small.book(layers), judge={**OUTAGE, "constant": False}).findings[0]
    assert (found.cause, found.confidence) == ("other.unlisted", "low")
    assert found.claim == "judge was read"


def test_a_fault_from_the_start_has_no_good_window(verdict: MakeVerdict) -> None:
    rows = {"n": 9, "bad": 3, "first_bad_step": 1, "last_good_step": None, "from_start": True}
    found = verdict(onset=MOVED, rows=rows, checkpoints=[20, 40])
    assert found.window == "bad_from_start"
    assert found.first_bad.from_start
    assert found.resume_from is None


def test_a_finding_without_a_date_says_so(verdict: MakeVerdict) -> None:
    found = verdict(rows={"n": 9, "bad": 3})
    assert found.first_bad.first_bad is None
    assert found.first_bad.signal == "nothing measured here dates it"


def test_notes_are_of_checks_that_were_read(verdict: MakeVerdict, small: SimpleNamespace) -> None:
    assert verdict(judge={**small.HEALTHY["judge"], "right": 1}).notes == (
        "All 9 answers are right.",
    )
    assert verdict().notes == ()


# ---------------------------------------------------------------------------------------- merging


def finding(**fields: Any) -> Finding:
    made: dict[str, Any] = {
        "id": "F:records.rows",
        "cause": "id.rows",
        "layer": "records",
        "check": "rows",
        "claim": "rows are broken",
        "first_bad": Onset(last_good=30, first_bad=31, signal="rows"),
        "supports": ("E1",),
        "confidence": "medium",
        "refuted_by": "sound rows",
        "remedy": "mend them",
        "remedy_kind": "fixes",
    }
    return Finding(**{**made, **fields})


def test_two_checks_that_name_one_cause_support_each_other(verdict: MakeVerdict) -> None:
    found = verdict(rows=BROKEN_ROWS, means={"off": 0.25, "first_bad_step": 20})
    (merged,) = found.findings
    assert merged.supports == ("E2", "E3")
    assert merged.claim == "3 rows are broken"
    assert merged.first_bad.first_bad == 31


def test_merging_keeps_the_sharper_date_and_the_surer_claim() -> None:
    sampled = Onset(last_good=20, first_bad=40, signal="captures", sampled=True)
    a = finding(first_bad=sampled, confidence="high", claim="surer", contradicts=("E9",))
    b = finding(supports=("E2", "E1"), ruled_out=("collapse",), independent=True)
    (merged,) = merge_findings([a, b])
    assert merged.first_bad == b.first_bad
    assert (merged.claim, merged.confidence) == ("surer", "high")
    assert merged.supports == ("E1", "E2")
    assert merged.contradicts == ("E9",)
    assert merged.ruled_out == ("collapse",)
    assert merged.independent
    undated = finding(first_bad=Onset(last_good=None, first_bad=None, signal="none"))
    assert merge_findings([undated, a])[0].first_bad == sampled


def test_other_causes_and_other_layers_stay_apart() -> None:
    made = [finding(), finding(cause="data.sampling"), finding(layer="reward")]
    assert merge_findings(made) == made
    assert merge_findings([]) == []


# -------------------------------------------------------------------------------------- brackets

SAMPLED = {"n": 9, "gap": 4.0, "first_bad_step": 60, "last_good_step": 40, "sampled": True}


def onset_of(small: SimpleNamespace, *moves: tuple[str, int, str]) -> Evidence:
    found: Evidence = small.evidence(
        "onset", MOVED, tool="find_first_bad", tables=(small.moves(*moves),)
    )
    return found


def test_a_bracket_is_narrowed_by_an_abrupt_signal_inside_it(
    verdict: MakeVerdict, small: SimpleNamespace
) -> None:
    moves = [("kl", 52, "abrupt"), ("reward", 55, "abrupt"), ("entropy", 30, "abrupt")]
    found = verdict(onset=onset_of(small, *moves), same=SAMPLED)
    assert (found.first_bad.last_good, found.first_bad.first_bad) == (40, 52)
    assert (
        found.first_bad.signal
        == "kl, the first to move between step 40 and step 60, where signal of same went bad"
    )
    assert found.first_bad.is_bracket, "a fault may act on signals only after some steps"


@pytest.mark.parametrize(
    "move",
    [
        ("kl", 52, "gradual"),  # a slow move is dated too loosely
        ("kl", 40, "abrupt"),  # at the last good sample: outside
        ("kl", 61, "abrupt"),  # after the first bad one
        ("step_time", 52, "abrupt"),
    ],
)
def test_what_does_not_narrow_a_bracket(
    verdict: MakeVerdict, small: SimpleNamespace, move: tuple[str, int, str]
) -> None:
    found = verdict(onset=onset_of(small, move), same=SAMPLED)
    assert (found.first_bad.last_good, found.first_bad.first_bad) == (40, 60)
    assert found.first_bad.sampled


def test_a_quiet_test_opens_a_bracket_and_marks_no_step_as_good(
    verdict: MakeVerdict, small: SimpleNamespace
) -> None:
    same = {**SAMPLED, "last_good_step": None, "quiet_step": 40}
    found = verdict(same=same, checkpoints=[20, 38, 41, 55])
    assert (found.first_bad.last_good, found.first_bad.first_bad) == (None, 60)
    assert (found.first_bad.quiet, found.first_bad.bracket_start) == (40, 40)
    assert found.resume_from == "checkpoint-38"
    narrowed = verdict(onset=onset_of(small, ("kl", 52, "abrupt")), same=same)
    assert narrowed.first_bad.first_bad == 52


def test_the_checkpoint_lies_before_every_certain_fault(verdict: MakeVerdict) -> None:
    found = verdict(same=PARTED, judge=OUTAGE, checkpoints=[20, 40, 49])
    assert causes(found) == ["prob.weight_sync", "reward.verifier_outage"]
    assert found.first_bad.first_bad == 50, "the leading finding keeps its own date"
    assert found.first_spoiled == found.findings[1]
    assert found.resume_from == "checkpoint-20"


def test_a_doubtful_earlier_finding_does_not_move_the_checkpoint(verdict: MakeVerdict) -> None:
    doubtful = {**OUTAGE, "one_sided": 0.5}
    found = verdict(same=PARTED, judge=doubtful, checkpoints=[20, 40, 49])
    assert found.findings[1].confidence != "high"
    assert found.first_spoiled == found.leading
    assert found.resume_from == "checkpoint-49"
    later = {**OUTAGE, "first_bad_step": 70, "last_good_step": 69}
    assert verdict(same=PARTED, judge=later, checkpoints=[20, 49]).resume_from == "checkpoint-49"


def with_weights(found: Verdict, *worth: str) -> list[Finding]:
    pairs = zip(found.findings, worth, strict=True)
    return [f.model_copy(update={"weights": w}) for f, w in pairs]


def test_a_fault_that_leaves_the_weights_sound_moves_no_checkpoint(verdict: MakeVerdict) -> None:
    found = verdict(same=PARTED, judge={**OUTAGE, "one_sided": 0.5}, checkpoints=[20, 40, 49])
    leading, other = found.findings
    assert other.confidence != "high"
    for worth, spoiler in (
        (("sound", "sound"), None),
        (("sound", "spoiled"), other),
        (("spoiled", "sound"), leading),
        (("spoiled", "spoiled"), leading),
    ):
        first = first_spoiled(with_weights(found, *worth))
        assert (first and first.cause) == (spoiler and spoiler.cause)
    assert resume_from(None, [20, 60, 40]) == "checkpoint-60"
    assert resume_from(None, []) is None


def test_a_finding_carries_what_its_cause_says_of_the_weights(verdict: MakeVerdict) -> None:
    (found,) = verdict(same=PARTED).findings
    cause = known_causes()[found.cause]
    assert (found.weights, found.rollback, found.log_next) == (
        "spoiled",
        cause.rollback,
        cause.log_next,
    )


def test_a_certain_fault_from_the_start_leaves_no_checkpoint(verdict: MakeVerdict) -> None:
    always = {**OUTAGE, "from_start": True, "first_bad_step": 1, "last_good_step": None}
    found = verdict(same=PARTED, judge=always, checkpoints=[20, 49])
    assert found.first_bad.first_bad == 50
    assert found.resume_from is None


@pytest.mark.parametrize(
    ("same", "resume"),
    [
        (PARTED, "checkpoint-49"),  # saved before step 50 was trained on
        ({**PARTED, "first_bad_step": 49}, "checkpoint-41"),
        (SAMPLED, "checkpoint-40"),  # the onset lies after 40
        ({**PARTED, "first_bad_step": 20}, None),
        ({"n": 9, "gap": 4.0}, None),
    ],
)
def test_the_checkpoint_to_resume_from_lies_before_the_onset(
    verdict: MakeVerdict, same: dict[str, Any], resume: str | None
) -> None:
    found = verdict(same=same, checkpoints=[20, 40, 41, 49, 60])
    assert found.resume_from == resume
    assert verdict(checkpoints=[20]).resume_from is None


# ----------------------------------------------------------------------------------------- record


def test_the_verdict_comes_back_from_json_as_it_was(verdict: MakeVerdict) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    for found in (verdict(), verdict(same=None, judge=OUTAGE), verdict(same=PARTED, rate=JUMP)):
        text = found.model_dump_json()
        json.loads(text, parse_constant=refuse)
        assert Verdict.model_validate_json(text) == found


def test_what_was_asked_stands_in_the_verdict(verdict: MakeVerdict) -> None:
    found = verdict(noticed_step=77)
    assert (found.incident, found.run, found.framework) == ("I7", "csv:heron", "csv")
    assert (found.noticed_step, found.usage.tool_calls) == (77, 7)
    assert found.versions == {"firstbad": "0.1.0"}
    assert [p.name for p in found.playbooks] == ["small"]


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("{a.share}", "0.123"),
        ("{a.share:2}", "0.12"),
        ("{a.share:%}", "12 %"),
        ("{a.n} of {a.n}", "1,234,567 of 1,234,567"),
        ("{a.flag}", "yes"),
        ("{a.gone} and {b.n}", "unknown and unknown"),
        ("{not a place} {a}", "{not a place} {a}"),
    ],
)
def test_numbers_are_put_into_claims(seen: Seen, text: str, filled: str) -> None:
    found = seen(a={"share": 0.12345, "n": 1234567, "flag": True, "gone": None})
    assert fill(text, found) == filled


# -------------------------------------------------------------------------------------- properties

READINGS = {
    "rows": st.sampled_from([None, {"n": 9, "bad": 0}, BROKEN_ROWS]),
    "means": st.sampled_from([None, {"off": 0.0}, {"off": 1.0, "first_bad_step": 20}]),
    "same": st.sampled_from([None, {"n": 9, "gap": 0.1}, PARTED, SAMPLED]),
    "rate": st.sampled_from([None, {"n": 9, "jump": 1.0}, JUMP]),
    "size": st.sampled_from([None, {"kl": 0.1}, {"kl": 9.0, "first_bad_step": 48}]),
    "judge": st.sampled_from([None, {"n": 9, "wrong": 0.0}, OUTAGE]),
}


@settings(max_examples=120, derandomize=True)
@given(
    st.fixed_dictionaries(READINGS),
    st.lists(st.sampled_from(["records", "probability", "optimizer", "reward"]), unique=True),
)
def test_the_rules_hold_for_every_record(
    verdict: MakeVerdict, readings: dict[str, Any], waived: list[str]
) -> None:
    found = verdict(waive=dict.fromkeys(waived, "a reason"), **readings)
    by_layer = outcomes(found)
    failed_checks = [c for c in found.checks if c.outcome == "fail" and c.layer != "window"]
    # An incident is a failed check, and a failed check is an incident.
    assert (found.outcome == "incident") == bool(failed_checks) == bool(found.findings)
    if found.outcome == "healthy":
        assert set(by_layer.values()) <= {"pass", "waived"}
        assert {f"{n} (waived)" for n, o in by_layer.items() if o == "waived"} == set(
            found.conditional_on
        )
    if found.outcome == "undetermined":
        assert "inconclusive" in by_layer.values()
        assert found.requests or by_layer["optimizer"] == "inconclusive"
    # Behind the first layer that has not passed nothing is reached.
    order = list(by_layer.values())
    closed = next((i for i, o in enumerate(order) if o in ("fail", "inconclusive")), len(order))
    assert set(order[closed + 1 :]) <= {"not_reached"}
    # A failed layer leads, or a fact that the playbook links to it.
    for name, outcome in by_layer.items():
        if outcome == "fail":
            lead = found.findings[0]
            linked = lead.cause == "opt.lr_jump" and name in ("probability", "records")
            passed_by = [n for n, o in by_layer.items() if o == "waived"]
            assert lead.layer == name or linked or lead.layer in passed_by
    # What is cited is in the record, and no number behind a closed layer is read.
    for f in found.findings:
        assert set(f.supports) <= {f"E{i}" for i in range(1, 8)}
    size = next(c for c in found.checks if c.check == "size")
    if by_layer["probability"] not in ("pass", "waived"):
        assert (size.outcome, size.clauses) == ("not_reached", ())
    # The same record gives the same verdict.
    assert verdict(waive=dict.fromkeys(waived, "a reason"), **readings) == found


@pytest.mark.parametrize(
    ("checkpoints", "least"),
    [
        ([20, 40], None),  # one is earlier
        ([31, 60], ("checkpoint-31", 1)),  # saved at the first bad step: it holds that update
        ([60, 90], ("checkpoint-60", 30)),
        ([], None),
    ],
)
def test_the_least_bad_checkpoint_is_named_where_none_is_good(
    verdict: MakeVerdict, checkpoints: list[int], least: tuple[str, int] | None
) -> None:
    found = verdict(onset={**MOVED}, rows=BROKEN_ROWS, checkpoints=checkpoints)
    assert found.first_bad.first_bad == 31
    got = found.least_bad
    assert (None if got is None else (got.checkpoint, got.updates)) == least
    assert (found.resume_from is None) == (least is not None or not checkpoints)


def test_bad_updates_are_counted_to_the_end_of_the_fault_and_over_its_bracket(
    verdict: MakeVerdict,
) -> None:
    ended = verdict(judge={**OUTAGE, "last_bad_step": 61}, checkpoints=[90])
    assert ended.least_bad == LeastBad(checkpoint="checkpoint-90", updates=27)
    assert ended.headline.endswith(" It lasted from step 35 to step 61.")
    inside = verdict(judge={**OUTAGE, "last_bad_step": 61}, checkpoints=[50])
    assert inside.least_bad == LeastBad(checkpoint="checkpoint-50", updates=16)
    # After step 40, by step 60: the first bad update is one of 41 to 60.
    bracket = verdict(same=SAMPLED, checkpoints=[80])
    assert bracket.least_bad == LeastBad(checkpoint="checkpoint-80", updates=21, updates_most=40)


LACKING: dict[str, Any] = {
    "request": [
        {"need": "gold answers", "unless": {"stock.gold": "== 1"}},
        {"need": "a part that scores the answer"},
    ],
}


def lacking_book(small: SimpleNamespace, **gate: Any) -> Any:
    layers = copy.deepcopy(small.LAYERS)
    layers[-1]["checks"][0] |= LACKING
    layers[-1]["checks"][0]["gate"][0] |= gate
    return small.book(layers)


@pytest.mark.parametrize(
    ("strength", "gold", "asks"),
    [
        ("proxy", False, ["gold answers"]),  # weak evidence, and stronger can be had
        ("proxy", True, []),  # weak evidence, and nothing is missing
        ("direct", False, []),
    ],
)
def test_a_finding_on_weak_evidence_asks_for_stronger(
    verdict: MakeVerdict, small: SimpleNamespace, strength: str, gold: bool, asks: list[str]
) -> None:
    found = verdict(
        book=lacking_book(small, strength=strength),
        judge={"n": 9, "wrong": 0.4, "constant": False},
        stock={"gold": gold},
    )
    assert found.outcome == "incident"
    assert [r.need for r in found.requests] == asks


def test_an_open_check_of_a_failed_layer_asks_for_nothing(
    verdict: MakeVerdict, small: SimpleNamespace
) -> None:
    layers = copy.deepcopy(small.LAYERS)
    layers[3]["checks"].append(
        {
            "id": "norms",
            "asks": "Are norms in band?",
            "evidence": {"norms": "read_norms"},
            "gate": [{"strength": "direct", "needs": {"norms.n": ">= 1"}}],
            "request": "norms",
        }
    )
    book = small.book(layers)
    assert verdict(book=book, norms=None, rate=JUMP).requests == ()
    assert [r.need for r in verdict(book=book, norms=None).requests] == ["norms"]


FALLEN: dict[str, Any] = {**STEADY, "is_onset": True, "is_steady": False, "end_over_best": 0.2}
OTHERWISE = {"need": "both checkpoints", "command": "firstbad runs show RUN", "decides": "which"}


@pytest.mark.parametrize(
    ("readings", "asks"),
    [
        ({"means": None}, ["never asked for, since it decides nothing"]),  # it found nothing out
        ({"same": DECLARED}, ["log-probs of both sides"]),  # it passed on a declaration
        ({}, ["both checkpoints"]),
    ],
)
def test_an_undetermined_outcome_always_asks_for_something(
    verdict: MakeVerdict, small: SimpleNamespace, readings: dict[str, Any], asks: list[str]
) -> None:
    found = verdict(book=small.book(otherwise=OTHERWISE), onset=FALLEN, **readings)
    assert found.outcome == "undetermined"
    assert [r.need for r in found.requests] == asks


@pytest.mark.parametrize(
    ("readings", "said"),
    [
        ({}, "Nothing odd was found in what was checked."),
        ({"rate": JUMP}, "Something is wrong: see the verdict and what to do now."),
        ({"same": None}, "That can't be said yet: see what is asked for."),
    ],
)
def test_a_question_is_no_symptom_and_gets_its_reply(
    verdict: MakeVerdict, readings: dict[str, Any], said: str
) -> None:
    found = verdict(symptoms=("is_normal",), **readings)
    assert found.answers == (said,)
    assert "Not judged" not in found.headline
    assert verdict(**readings).answers == ()


COMPARED: list[dict[str, Any]] = [
    {"alias": "at_resume", "symptom": "resume_worse", "call": "compare_around"},
    {"alias": "at_finding", "least_z": 2, "call": "compare_around"},
]
RESUME: dict[str, Any] = {
    "symptom": "resume_worse",
    "says": "the resume changed the run",
    "begins_at": "at_resume.step",
    "is_cause": ["infra.resume"],
    "excluded": "Not the judge.",
    "answered_by": ["reward.judged"],
}


@pytest.mark.parametrize(
    ("step", "jump", "seen_there"),
    [(45, JUMP, True), (90, JUMP, False), (45, {**JUMP, "first_bad_step": None}, False)],
)
def test_a_fault_that_begins_at_the_resume_is_what_the_complaint_means(
    verdict: MakeVerdict,
    small: SimpleNamespace,
    step: int,
    jump: dict[str, Any],
    seen_there: bool,
) -> None:
    found = verdict(
        book=small.book(complaints=[RESUME], compared=COMPARED),
        symptoms=("resume_worse",),
        rate=jump,
        at_resume={**around(0.8, 0.6, -5.0), "step": step},
    )
    (answer,) = found.answers
    assert ("It did: see the verdict. Not the judge." in answer) is seen_there
    assert ("passes on direct evidence" in answer) is not seen_there


@pytest.mark.parametrize(
    ("z", "noticed", "told"),
    [(-5.0, None, 0.2), (-1.0, None, 0.8), (-5.0, 90, 0.8), (-5.0, 45, 0.2)],
)
def test_without_a_named_step_a_signal_is_compared_where_the_finding_begins(
    verdict: MakeVerdict, small: SimpleNamespace, z: float, noticed: int | None, told: float
) -> None:
    at_finding = {**around(0.9, 0.2, z), "step": 45}
    found = verdict(
        book=small.book(complaints=[FELL], compared=COMPARED),
        symptoms=("reward_drop",),
        noticed_step=noticed,
        onset={**STEADY, "outcome_fell": False},
        rate=JUMP,
        around=around(0.8, 0.8, 0.1),
        at_finding=at_finding,
    )
    (answer,) = found.answers
    assert f"and {told} in steps" in answer
    # It may not be called none where the verdict dates it.
    assert ("It is so." in answer and "begins at step 45" in answer) is (told == 0.2)
    assert ("It is not so" in answer) is (told == 0.8)


def test_the_whole_is_told_beside_its_part(verdict: MakeVerdict, small: SimpleNamespace) -> None:
    claim = {
        **FELL,
        "measure": "around.outcome",
        "called": "the part",
        "true_if": {"around.outcome_z": "< -2"},
        "open_if": {},
        "whole": "around.reward",
        "whole_called": "the total",
        "whole_true_if": {"around.reward_z": "< -2"},
    }
    part = {"outcome_before": 0.5, "outcome_after": 0.5, "outcome_z": 0.0}
    book = small.book(complaints=[claim])
    onset = {**STEADY, "outcome_fell": False}
    total = {**around(1.09, 0.27, -40.0), **part}
    found = verdict(book=book, symptoms=("reward_drop",), onset=onset, around=total)
    (answer,) = found.answers
    assert "It is so for the total. The part averages 0.5" in answer
    assert "The total averages 1.09 in steps 60 to 89 and 0.27 in" in answer
    same = {**around(0.5, 0.5, 0.0), **part}
    found = verdict(book=book, symptoms=("reward_drop",), onset=onset, around=same)
    assert "The total" not in found.answers[0]
    assert "It is not so" in found.answers[0]
