"""What the design notes claim, tried on the smallest case that could show otherwise."""

from __future__ import annotations

import re
from typing import Any

import pytest

from firstbad.playbooks.gate import judge
from firstbad.playbooks.model import Check, Layer
from firstbad.playbooks.results import CheckResult, Outcome
from firstbad.playbooks.walk import layer_outcome
from firstbad.tools.evidence import Evidence

CHECK: dict[str, Any] = {
    "id": "one",
    "asks": "?",
    "evidence": {"e": "check_rows"},
    "request": "the missing file",
    "gate": [
        {
            "strength": "direct",
            "needs": {"e.rows": ">= 10"},
            "fail_if": {"e.broken": "> 0"},
            "doubt_if": {"e.odd": "> 0"},
        },
        {"strength": "proxy", "needs": {"e.logged": ">= 1"}, "fail_if": {"e.logged_bad": "> 0"}},
    ],
}


def judged(**metrics: float | None) -> CheckResult:
    """The check judged on these numbers; what is not given could not be had."""
    seen = Evidence(
        id="E1", tool="check_rows", tool_version="0", args={}, status="measured", metrics=metrics
    )
    return judge(Check(**CHECK), {"e": seen}, playbook="p", layer="l")


@pytest.mark.parametrize(
    ("metrics", "outcome", "strength"),
    [
        ({"rows": 10, "broken": 0, "odd": 0}, "pass", "direct"),
        ({"rows": 10, "broken": 1, "odd": 0}, "fail", "direct"),
        ({"rows": 10, "broken": 1, "odd": None}, "fail", "direct"),
        ({"rows": 10, "broken": 0, "odd": 1}, "inconclusive", "direct"),
        ({"rows": 10, "broken": None, "odd": 0}, "inconclusive", "direct"),
        ({"rows": 10, "broken": 0, "odd": None}, "inconclusive", "direct"),
        ({"rows": 9, "broken": 1, "odd": 1}, "inconclusive", None),
        ({"rows": None, "broken": 1, "odd": 1}, "inconclusive", None),
        ({}, "inconclusive", None),
    ],
)
def test_an_unknown_number_neither_passes_nor_fails(
    metrics: dict[str, float | None], outcome: str, strength: str | None
) -> None:
    found = judged(**metrics)
    assert (found.outcome, found.strength) == (outcome, strength)


@pytest.mark.parametrize("logged_bad", [0, 1])
@pytest.mark.parametrize("broken", [0, 1])
def test_the_strongest_evidence_decides_alone(broken: int, logged_bad: int) -> None:
    found = judged(rows=10, broken=broken, odd=0, logged=1, logged_bad=logged_bad)
    assert (found.outcome, found.strength) == ("fail" if broken else "pass", "direct")


def test_a_weaker_one_decides_only_where_the_stronger_has_no_evidence() -> None:
    found = judged(rows=3, broken=1, odd=1, logged=1, logged_bad=0)
    assert (found.outcome, found.strength) == ("pass", "proxy")
    assert judged(rows=10, broken=0, odd=1, logged=1, logged_bad=0).outcome == "inconclusive"


def test_no_evidence_becomes_a_request() -> None:
    found = judged()
    assert found.reason == "evidence_missing"
    assert "e.rows" in found.message


def results(*outcomes: tuple[Outcome, bool]) -> list[CheckResult]:
    """Results of checks: outcome, and whether a pass of the check can pass its layer."""
    return [
        judged(rows=10, broken=0, odd=0).model_copy(update={"outcome": o, "required": required})
        for o, required in outcomes
    ]


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ([("pass", False), ("pass", False)], "inconclusive"),
        ([("pass", True), ("pass", False)], "pass"),
        ([("pass", True), ("inconclusive", False)], "pass"),
        ([("pass", True), ("fail", False)], "fail"),
        ([("inconclusive", True), ("pass", False)], "inconclusive"),
        ([("inconclusive", True), ("fail", False)], "fail"),
    ],
)
def test_a_necessary_test_can_fail_its_layer_and_not_pass_it(
    outcomes: list[tuple[Outcome, bool]], expected: str
) -> None:
    layer = Layer(id="l", number="1", asks="?", checks=(Check(**CHECK),))
    assert layer_outcome(layer, results(*outcomes), way_open=True).outcome == expected


def test_each_note_says_why_and_names_its_guard(pages: Any) -> None:
    notes = [page for name, page in pages.items() if name.startswith("docs/design/")]
    assert len(notes) >= 4
    for page in notes:
        assert all(f"**{word}" in page.text for word in ("Decision.", "Why", "Guarded by"))
        guards = re.findall(r"\]\((\.\./\.\./tests/\S+)\)", page.text.split("**Guarded by")[1])
        assert guards, page.name
        assert all((page.path.parent / guard).is_file() for guard in guards)
