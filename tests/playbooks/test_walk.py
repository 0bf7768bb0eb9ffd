"""The walk: what blocks a check, and what a layer's checks add up to."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstbad.playbooks.model import Check, Layer, Setting
from firstbad.playbooks.results import STRENGTHS, CheckResult, LayerResult, Outcome, Waiver
from firstbad.playbooks.walk import (
    blocked_by,
    judge_layer,
    layer_outcome,
    resolve_call,
    window_kind,
)
from firstbad.tools.evidence import Evidence

Seen = Callable[..., dict[str, Evidence]]
MakeCheck = Callable[..., Check]

LAYER = Layer.model_validate(
    {
        "id": "records",
        "number": "0.5",
        "asks": "?",
        "checks": [{"id": "rows", "asks": "?", "evidence": {}, "gate": [{"strength": "direct"}]}],
    }
)


def result(outcome: str, strength: str | None = None, **fields: Any) -> CheckResult:
    made: dict[str, Any] = {
        "playbook": "small",
        "layer": "records",
        "check": "rows",
        "outcome": outcome,
        "strength": strength or ("direct" if outcome in ("pass", "fail") else None),
        "required": True,
        "depends_on": (),
        "reason": "bounds_held",
        "clauses": (),
        "evidence": (),
        "message": f"it did {outcome}",
    }
    return CheckResult(**{**made, **fields})


def outcome_of(*results: CheckResult, way_open: bool = True, waived: str = "") -> LayerResult:
    waiver = Waiver(layer="records", reason=waived) if waived else None
    return layer_outcome(LAYER, results, way_open=way_open, waiver=waiver)


@pytest.mark.parametrize(
    ("outcomes", "adds_up_to"),
    [
        (["pass"], "pass"),
        (["pass", "pass"], "pass"),
        (["fail"], "fail"),
        (["pass", "fail"], "fail"),
        (["inconclusive", "fail"], "fail"),
        (["inconclusive"], "inconclusive"),
        (["pass", "inconclusive"], "inconclusive"),
        (["pass", "not_reached"], "inconclusive"),
        ([], "inconclusive"),
        # In capitals: a check that is only necessary.
        (["PASS"], "inconclusive"),
        (["pass", "INCONCLUSIVE"], "pass"),
        (["pass", "NOT_REACHED"], "pass"),
        (["pass", "FAIL"], "fail"),
        (["PASS", "inconclusive"], "inconclusive"),
    ],
)
def test_what_checks_add_up_to(outcomes: list[str], adds_up_to: str) -> None:
    found = outcome_of(*(result(o.lower(), required=o.islower()) for o in outcomes))
    assert found.outcome == adds_up_to
    assert (found.id, found.number) == ("records", "0.5")
    assert (found.strength is None) == (adds_up_to == "inconclusive")
    assert found.reason or adds_up_to == "pass"


@pytest.mark.parametrize(
    ("strengths", "weakest"),
    [
        (["direct"], "direct"),
        (["direct", "proxy"], "proxy"),
        (["declared", "direct", "differential"], "declared"),
        (["certified", "differential"], "differential"),
    ],
)
def test_a_pass_is_as_strong_as_the_weakest_check(strengths: list[str], weakest: str) -> None:
    assert outcome_of(*(result("pass", s) for s in strengths)).strength == weakest


def test_a_check_that_is_only_necessary_does_not_weaken_a_pass() -> None:
    found = outcome_of(result("pass"), result("pass", "declared", required=False))
    assert found.strength == "direct"


def test_a_doubtful_measure_leaves_the_layer_open_even_if_it_could_not_pass_it() -> None:
    doubt = result("inconclusive", required=False, reason="bound_doubtful", message="coarse values")
    found = outcome_of(result("pass"), doubt)
    assert found.outcome == "inconclusive"
    assert "coarse values" in found.reason
    missing = result("inconclusive", required=False, reason="evidence_missing")
    assert outcome_of(result("pass"), missing).outcome == "pass"


def test_a_failure_tells_what_failed_and_how_strong_that_is() -> None:
    found = outcome_of(
        result("pass"),
        result("fail", "proxy", message="rows are broken"),
        result("fail", "direct", message="means are off"),
    )
    assert found.strength == "proxy"
    assert found.reason == "rows are broken; means are off"


def test_an_open_layer_tells_which_checks_are_open() -> None:
    found = outcome_of(result("pass"), result("inconclusive", check="keys", message="no keys"))
    assert found.reason == "keys: no keys"
    assert outcome_of(result("pass", required=False)).reason == "nothing here can pass it"


@pytest.mark.parametrize("outcome", ["pass", "fail", "inconclusive"])
def test_a_closed_way_reaches_nothing(outcome: str) -> None:
    found = outcome_of(result(outcome), way_open=False)
    assert (found.outcome, found.strength) == ("not_reached", None)
    assert outcome_of(result(outcome), way_open=False, waived="no").outcome == "not_reached"


@pytest.mark.parametrize("outcome", ["fail", "inconclusive"])
def test_a_waiver_opens_a_layer_and_keeps_what_it_was(outcome: str) -> None:
    found = outcome_of(result(outcome, message="no keys"), waived="known and harmless")
    assert found.outcome == "waived"
    assert "known and harmless" in found.reason
    assert f"it was {outcome}" in found.reason
    assert "no keys" in found.reason


def test_a_waiver_of_a_layer_that_passed_changes_nothing() -> None:
    assert outcome_of(result("pass"), waived="no need") == outcome_of(result("pass"))


# ------------------------------------------------------------------------------------ blocking


def layers_of(**outcomes: Outcome) -> dict[str, LayerResult]:
    return {
        name: LayerResult(id=name, number="1", outcome=o, strength=None, reason="")
        for name, o in outcomes.items()
    }


@pytest.mark.parametrize(
    ("outcome", "blocks"),
    [
        ("pass", False),
        ("waived", False),
        ("fail", True),
        ("inconclusive", True),
        ("not_reached", True),
    ],
)
def test_a_layer_that_has_not_passed_blocks(
    check: MakeCheck, outcome: Outcome, blocks: bool
) -> None:
    asked = check({}, depends_on=("records",))
    found = blocked_by(asked, layers_of(records=outcome), ())
    assert found == (("records",) if blocks else ())


def test_a_layer_that_was_never_judged_blocks(check: MakeCheck) -> None:
    assert blocked_by(check({}, depends_on=("masks",)), {}, ()) == ("masks",)


@pytest.mark.parametrize("outcome", ["pass", "fail", "inconclusive", "not_reached"])
def test_a_check_blocks_by_its_own_outcome(check: MakeCheck, outcome: str) -> None:
    asked = check({}, depends_on=("records.rows", "records"))
    found = blocked_by(asked, layers_of(records="pass"), [result(outcome)])
    assert found == (() if outcome == "pass" else ("records.rows",))


def test_a_waived_layer_opens_its_checks_too(check: MakeCheck) -> None:
    asked = check({}, depends_on=("records.rows",))
    assert blocked_by(asked, layers_of(records="waived"), [result("fail")]) == ()


@pytest.mark.parametrize(
    ("outcome", "blocks"),
    [("pass", False), ("inconclusive", False), ("not_reached", False), ("fail", True)],
)
def test_only_a_failure_voids_a_check(check: MakeCheck, outcome: str, blocks: bool) -> None:
    asked = check({}, voided_by=("records.rows",))
    layers = layers_of(records="inconclusive")
    found = blocked_by(asked, layers, [result(outcome)])
    assert found == (("records.rows",) if blocks else ())
    assert blocked_by(asked, layers_of(records="waived"), [result(outcome)]) == ()


def test_an_independent_fact_is_never_blocked(check: MakeCheck) -> None:
    assert blocked_by(check({}), layers_of(records="fail"), [result("fail")]) == ()


def test_checks_of_one_layer_may_depend_on_earlier_ones(seen: Seen, small: SimpleNamespace) -> None:
    layer = Layer.model_validate(
        {
            "id": "reward",
            "number": "5",
            "asks": "?",
            "checks": [
                {
                    "id": "first",
                    "asks": "?",
                    "evidence": {"rows": "read_rows"},
                    "gate": [{"strength": "direct", "fail_if": {"rows.bad": "> 0"}}],
                },
                {
                    "id": "second",
                    "asks": "?",
                    "depends_on": ["reward.first"],
                    "evidence": {"rows": "read_rows"},
                    "gate": [{"strength": "direct", "fail_if": {"rows.bad": "> 9"}}],
                },
            ],
        }
    )

    def outcomes(bad: int | None) -> list[str]:
        found = judge_layer(layer, seen(rows={"bad": bad}), playbook="b", layers={}, checks=())
        return [r.outcome for r in found]

    assert outcomes(0) == ["pass", "pass"]
    assert outcomes(3) == ["fail", "not_reached"]
    assert outcomes(None) == ["inconclusive", "not_reached"]


# ----------------------------------------------------------------------------- a whole playbook


@pytest.mark.parametrize(
    ("readings", "outcomes"),
    [
        ({}, ["pass", "pass", "pass", "pass", "pass"]),
        ({"rows": {"n": 9, "bad": 1}}, ["pass", "fail", *["not_reached"] * 3]),
        ({"rows": None}, ["pass", "inconclusive", *["not_reached"] * 3]),
        ({"means": {"off": 1.0}}, ["pass", "fail", *["not_reached"] * 3]),
        ({"means": None}, ["pass"] * 5),
        ({"same": None}, ["pass", "pass", "inconclusive", *["not_reached"] * 2]),
        ({"size": {"kl": 3.0}}, ["pass", "pass", "pass", "fail", "not_reached"]),
        ({"onset": None}, ["inconclusive", *["not_reached"] * 4]),
    ],
)
def test_the_first_layer_that_has_not_passed_closes_the_way(
    seen: Seen, small: SimpleNamespace, readings: dict[str, Any], outcomes: list[str]
) -> None:
    layers, _ = small.walk(small.book(), seen(**{**small.HEALTHY, **readings}), {})
    assert [r.outcome for r in layers] == outcomes


def test_facts_are_read_behind_a_closed_way_and_dependent_checks_are_not(
    seen: Seen, small: SimpleNamespace
) -> None:
    changed = {
        "same": {"n": 9, "gap": 4.0},
        "size": {"kl": 3.0},
        "rate": {"n": 9, "jump": 10.0},
    }
    _, checks = small.walk(small.book(), seen(**{**small.HEALTHY, **changed}), {})
    found = {f"{c.layer}.{c.check}": (c.outcome, c.blocked_by) for c in checks}
    assert found["probability.same"] == ("fail", ())
    assert found["optimizer.rate"] == ("fail", ())
    assert found["reward.judged"] == ("pass", ())
    assert found["optimizer.size"] == ("not_reached", ("probability",))


@pytest.mark.parametrize("reading", [None, {"n": 9, "gap": 4.0}])
def test_after_a_waiver_what_depends_on_the_layer_is_read(
    seen: Seen, small: SimpleNamespace, reading: dict[str, float] | None
) -> None:
    readings = seen(**{**small.HEALTHY, "same": reading, "size": {"kl": 3.0}})
    layers, checks = small.walk(small.book(), readings, {"probability": "other engine"})
    assert [r.outcome for r in layers][2:] == ["waived", "fail", "not_reached"]
    size = next(c for c in checks if c.check == "size")
    assert (size.outcome, size.blocked_by) == ("fail", ())


# --------------------------------------------------------------------------------------- calls


def test_settings_are_taken_from_what_was_measured(seen: Seen) -> None:
    found = seen(onset={"last_good_step": 30, "first_bad_step": None})
    call: dict[str, dict[str, Setting]] = {
        "read_rollouts": {
            "before": "$onset.last_good_step",
            "after": "$onset.first_bad_step",
            "noticed": "$noticed_step",
            "lost": "$other.number",
            "rows": 8,
            "text": "$x",
        }
    }
    assert resolve_call(call, found, 41) == (
        "read_rollouts",
        {"before": 30, "after": None, "noticed": 41, "lost": None, "rows": 8, "text": "$x"},
    )
    assert resolve_call("check_rows", found, None) == ("check_rows", {})


@pytest.mark.parametrize(
    ("symptoms", "asked"),
    [(("eval_down",), True), (("kl_up", "reward_rise_eval_down"), True), (("kl_up",), False)],
)
def test_a_setting_may_ask_what_is_complained_of(
    seen: Seen, symptoms: tuple[str, ...], asked: bool
) -> None:
    call: dict[str, dict[str, Setting]] = {"compare_evaluations": {"asked": "$complaint.eval"}}
    found = resolve_call(call, seen(), None, symptoms=symptoms)
    assert found == ("compare_evaluations", {"asked": asked})


def test_the_kind_of_window_is_that_of_the_first_rule_that_holds(
    seen: Seen, small: SimpleNamespace
) -> None:
    book = small.book()
    assert window_kind(book, seen(onset={"is_onset": True, "is_steady": False})) == "onset"
    assert window_kind(book, seen(onset={"is_onset": False, "is_steady": True})) == "steady"
    assert window_kind(book, seen(onset=None)) == "steady"


@settings(max_examples=60, derandomize=True)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["pass", "fail", "inconclusive", "not_reached"]),
            st.booleans(),
            st.sampled_from(STRENGTHS),
        ),
        max_size=6,
    ),
    st.randoms(use_true_random=False),
)
def test_the_order_of_checks_does_not_matter_for_outcome_and_strength_of_a_pass(
    made: list[tuple[str, bool, str]], random: Any
) -> None:
    results = [result(o, s if o in ("pass", "fail") else None, required=r) for o, r, s in made]
    before = outcome_of(*results)
    random.shuffle(results)
    after = outcome_of(*results)
    assert after.outcome == before.outcome
    if after.outcome == "pass":
        assert after.strength == before.strength
        weakest = max(STRENGTHS.index(r.strength) for r in results if r.required and r.strength)
        assert after.strength == STRENGTHS[weakest]
