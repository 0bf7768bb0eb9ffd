"""Gates: ordered alternatives, three-valued bounds, and what a check shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstbad.playbooks.gate import all_hold, compare, decide, judge, observe, why_undecided
from firstbad.playbooks.model import Alternative, Check
from firstbad.playbooks.results import CheckResult
from firstbad.tools.evidence import Evidence

Seen = Callable[..., dict[str, Evidence]]
MakeCheck = Callable[..., Check]


def judged(check: Check, seen: dict[str, Evidence], **fields: Any) -> CheckResult:
    return judge(check, seen, playbook="small", layer="records", **fields)


def test_a_number_is_observed_or_unknown(seen: Seen) -> None:
    found = seen(rows={"bad": 2, "share": None}, judge=None, lost="ValueError: x")
    assert observe(found, "rows.bad") == 2
    for measure in ("rows.share", "rows.other", "judge.n", "lost.n", "absent.n"):
        assert observe(found, measure) is None


@pytest.mark.parametrize(
    ("bad", "worse", "outcome", "reason"),
    [
        (0, 0, "pass", "bounds_held"),
        (5, 0, "fail", "bound_broken"),
        (0, 5, "fail", "bound_broken"),
        (None, 0, "inconclusive", "evidence_missing"),
        (None, None, "inconclusive", "evidence_missing"),
        (None, 5, "fail", "bound_broken"),  # one known breach is enough
    ],
)
def test_fail_if_is_three_valued(
    seen: Seen, bad: int | None, worse: int | None, outcome: str, reason: str
) -> None:
    way = Alternative.model_validate(
        {"strength": "direct", "fail_if": {"rows.bad": "> 3", "rows.worse": "> 3"}}
    )
    found = decide(way, seen(rows={"bad": bad, "worse": worse}))
    assert found[:2] == (outcome, reason)
    assert [c.observed for c in found[2]] == [bad, worse]


@pytest.mark.parametrize(
    ("bad", "odd", "outcome", "reason"),
    [
        (0, 0, "pass", "bounds_held"),
        (0, 5, "inconclusive", "bound_doubtful"),
        (0, None, "inconclusive", "bound_doubtful"),  # a doubt that cannot be cleared stays one
        (5, 5, "fail", "bound_broken"),
        (None, 5, "inconclusive", "evidence_missing"),
    ],
)
def test_doubt_if_is_three_valued(
    seen: Seen, bad: int | None, odd: int | None, outcome: str, reason: str
) -> None:
    way = Alternative.model_validate(
        {
            "strength": "proxy",
            "fail_if": {"rows.bad": "> 3"},
            "doubt_if": {"rows.odd": "> 3"},
        }
    )
    assert decide(way, seen(rows={"bad": bad, "odd": odd}))[:2] == (outcome, reason)


def test_a_way_without_bounds_passes(seen: Seen) -> None:
    way = Alternative.model_validate({"strength": "declared"})
    assert decide(way, seen()) == ("pass", "bounds_held", ())


TWO = (
    {"needs": {"rows.n": ">= 10"}, "fail_if": {"rows.bad": "> 0"}},
    {"strength": "proxy", "needs": {"logged.n": ">= 1"}, "excludes_not": "single rows"},
)


def test_the_first_way_whose_needs_hold_decides(seen: Seen, check: MakeCheck) -> None:
    strong = judged(check(*TWO), seen(rows={"n": 12, "bad": 3}, logged={"n": 5}))
    assert (strong.outcome, strong.strength, strong.reason) == ("fail", "direct", "bound_broken")
    weak = judged(check(*TWO), seen(rows={"n": 9, "bad": 3}, logged={"n": 5}))
    assert (weak.outcome, weak.strength, weak.reason) == ("pass", "proxy", "bounds_held")


@pytest.mark.parametrize("rows", [{"n": None, "bad": 0}, None])
def test_needs_that_are_unknown_do_not_hold(seen: Seen, check: MakeCheck, rows: Any) -> None:
    found = judged(check(*TWO), seen(rows=rows, logged={"n": 5}))
    assert (found.outcome, found.strength) == ("pass", "proxy")


def test_a_weaker_way_does_not_pass_what_a_broken_tool_might_have_failed(
    seen: Seen, check: MakeCheck
) -> None:
    found = judged(check(*TWO), seen(rows="ValueError: x", logged={"n": 5}))
    assert (found.outcome, found.reason) == ("inconclusive", "tool_error")
    assert found.message == "no rows to be read"
    failing = check({"fail_if": {"logged.n": "> 4"}}, evidence={"rows": "a", "logged": "b"})
    found = judged(failing, seen(rows="ValueError: x", logged={"n": 5}))
    assert found.outcome == "fail", "what failed stands"


def test_a_way_whose_needs_hold_decides_even_where_a_weaker_one_would_pass(
    seen: Seen, check: MakeCheck
) -> None:
    found = judged(check(*TWO), seen(rows={"n": 12, "bad": None}, logged={"n": 5}))
    assert (found.outcome, found.strength) == ("inconclusive", "direct")
    assert found.reason == "evidence_missing"


def test_where_no_way_is_open_the_strongest_one_s_needs_are_shown(
    seen: Seen, check: MakeCheck
) -> None:
    found = judged(check(*TWO, request="bring rows"), seen(rows={"n": 3, "bad": 0}, logged=None))
    assert (found.outcome, found.strength) == ("inconclusive", None)
    assert found.reason == "evidence_missing"
    (clause,) = found.clauses
    assert (clause.measure, clause.role, clause.op, clause.limit) == ("rows.n", "needs", ">=", 10)
    assert (clause.observed, clause.held) == (3, False)
    assert found.message == "no logged to be read"
    plain = judged(check(*TWO, request="bring rows"), seen(rows={"n": 3}, logged={"n": 0}))
    assert plain.message == "not enough to decide: rows was read", "in words, not in clauses"


def test_the_nearest_way_is_told_where_none_is_open(seen: Seen, check: MakeCheck) -> None:
    far = {"needs": {"rows.n": ">= 10", "rows.bad": "== 1", "logged.n": ">= 9"}}
    near = {"needs": {"rows.n": ">= 5", "logged.n": ">= 9"}}
    found = judged(check(far, near), seen(rows={"n": 7, "bad": 0}, logged={"n": 5}))
    assert [(c.measure, c.limit) for c in found.clauses] == [("logged.n", 9)]


def test_why_a_check_decided_nothing_is_told_without_what_it_measured(
    seen: Seen, check: MakeCheck
) -> None:
    short = judged(check(*TWO), seen(rows={"n": 3}, logged={"n": 0}))
    assert why_undecided(short) == "too little to decide: needs `rows.n` >= 10"
    doubt = {"needs": {"rows.n": ">= 1"}, "doubt_if": {"rows.bad": "> 0.5"}}
    found = judged(check(doubt), seen(rows={"n": 3, "bad": 0.7}))
    assert found.outcome == "inconclusive"
    assert why_undecided(found) == (
        "in doubt: `rows.bad` > 0.5, which neither passes nor names a fault"
    )
    # What the tool says of data that is not there stays, as does a layer that is in the way.
    absent = judged(check(*TWO), seen(rows=None, logged=None))
    assert why_undecided(absent) == absent.message == "no logged to be read; no rows to be read"
    blocked = judged(check(*TWO), seen(), blocked_by=("window",))
    assert why_undecided(blocked) == "not read: depends on window"


def test_a_tool_that_broke_is_told(seen: Seen, check: MakeCheck) -> None:
    found = judged(check(*TWO), seen(rows="ValueError: x", logged=None))
    assert (found.outcome, found.reason) == ("inconclusive", "tool_error")
    assert found.message == "no rows to be read"


@pytest.mark.parametrize("bad", [0, 7, None])
def test_a_blocked_check_is_not_read(seen: Seen, check: MakeCheck, bad: int | None) -> None:
    found = judged(
        check(*TWO, depends_on=("window", "records.rows")),
        seen(rows={"n": 12, "bad": bad}, logged={"n": 5}),
        blocked_by=("window",),
    )
    assert (found.outcome, found.reason) == ("not_reached", "depends_on_open")
    assert found.strength is None
    assert found.clauses == ()
    assert found.blocked_by == ("window",)
    assert found.depends_on == ("window", "records.rows")
    assert found.message == "not read: depends on window"


def test_both_operands_and_their_source_are_shown(seen: Seen, check: MakeCheck) -> None:
    found = judged(check(*TWO), seen(rows={"n": 12, "bad": 3}, logged=None))
    clauses = {c.measure: c for c in found.clauses}
    assert (clauses["rows.n"].role, clauses["rows.n"].held) == ("needs", True)
    bad = clauses["rows.bad"]
    assert (bad.role, bad.op, bad.limit, bad.observed, bad.held) == ("fail_if", ">", 0, 3, True)
    assert bad.evidence == "E1"
    assert set(found.evidence) == {"E1", "E2"}
    assert found.message == "rows was read"
    assert (found.playbook, found.layer, found.check) == ("small", "records", "rows")


def test_what_a_pass_does_not_exclude_is_said_of_a_pass_only(seen: Seen, check: MakeCheck) -> None:
    way = {"fail_if": {"rows.bad": "> 0"}, "excludes_not": "single rows"}
    assert judged(check(way), seen(rows={"bad": 0})).excludes_not == "single rows"
    assert judged(check(way), seen(rows={"bad": 1})).excludes_not == ""
    assert judged(check(way), seen(rows=None)).excludes_not == ""


def test_a_check_that_cannot_pass_its_layer_says_so(seen: Seen, check: MakeCheck) -> None:
    assert judged(check(*TWO), seen()).required
    assert not judged(check(*TWO, passes=False), seen()).required


def test_all_hold_needs_every_bound_known(seen: Seen) -> None:
    way = Alternative.model_validate(
        {"strength": "direct", "needs": {"rows.n": ">= 1", "rows.bad": "== 0"}}
    )
    assert all_hold(way.needs, seen(rows={"n": 1, "bad": 0}))
    assert not all_hold(way.needs, seen(rows={"n": 1, "bad": None}))
    assert not all_hold(way.needs, seen(rows={"n": 1, "bad": 2}))
    assert all_hold({}, {})
    assert [c.held for c in compare(way.needs, "needs", {})] == [None, None]


VALUES = st.one_of(st.none(), st.integers(0, 6))


@settings(max_examples=60, derandomize=True)
@given(n=VALUES, bad=VALUES, logged=VALUES)
def test_the_outcome_follows_from_the_numbers_by_the_order_of_the_ways(
    seen: Seen, check: MakeCheck, n: int | None, bad: int | None, logged: int | None
) -> None:
    ways = (
        {"needs": {"rows.n": ">= 3"}, "fail_if": {"rows.bad": "> 2"}},
        {"strength": "proxy", "needs": {"logged.n": ">= 3"}},
    )
    found = judged(check(*ways), seen(rows={"n": n, "bad": bad}, logged={"n": logged}))
    if n is not None and n >= 3:
        expected = "inconclusive" if bad is None else "fail" if bad > 2 else "pass"
    else:
        expected = "pass" if logged is not None and logged >= 3 else "inconclusive"
    assert found.outcome == expected


def test_what_was_looked_for_is_shown_once(seen: Seen, check: MakeCheck) -> None:
    """Two tests that begin with the same condition, neither met, say so in one clause."""
    ways = (
        {"needs": {"rows.bad": "> 3", "rows.n": ">= 1"}},
        {"needs": {"rows.bad": "> 3"}},
        {"needs": {"rows.n": ">= 1"}, "fail_if": {"rows.worse": "> 0"}},
    )
    result = judged(check(*ways), seen(rows={"bad": 0, "n": 5, "worse": 0}))
    assert [(c.measure, c.role) for c in result.clauses] == [
        ("rows.n", "needs"),
        ("rows.worse", "fail_if"),
        ("rows.bad", "looked_for"),
    ]
