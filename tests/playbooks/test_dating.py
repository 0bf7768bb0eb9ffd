"""What dates a finding: the evidence that its claim speaks of, and names a step of."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from firstbad.playbooks.findings import build_finding
from firstbad.playbooks.gate import judge
from firstbad.playbooks.loader import load
from firstbad.playbooks.model import Check, Pointer
from firstbad.tools.evidence import Evidence


def pointers() -> Iterator[tuple[str, Check, Pointer]]:
    """Every pointer of the crash playbook by its place."""
    for layer in load("crash").playbook.layers:
        for check in layer.checks:
            for i, pointer in enumerate(check.points_to):
                yield f"{layer.id}.{check.id}[{i}] {pointer.cause}", check, pointer


@pytest.mark.parametrize(
    ("check", "pointer"), [pytest.param(c, p, id=name) for name, c, p in pointers()]
)
def test_a_step_in_the_claim_is_that_of_the_onset(check: Check, pointer: Pointer) -> None:
    named = set(re.findall(r"\{(\w+)\.first_bad_step", pointer.claim))
    if named:
        assert pointer.dated_by(tuple(check.evidence))[0] in named


@pytest.mark.parametrize(
    ("onset", "claim", "when", "dated_by"),
    [
        ((), "Since {b.first_bad_step}, {a.size:2} large.", {}, ("b", "a")),
        ((), "It is {c.size:%}.", {"b.size": "> 1"}, ("b", "c")),
        ((), "It is so.", {}, ()),
        ("a", "Since {b.first_bad_step}.", {}, ("a",)),
        (("c", "a"), "It is {b.size}.", {}, ("c", "a")),
    ],
)
def test_the_default(
    onset: str | tuple[str, ...], claim: str, when: dict[str, str], dated_by: tuple[str, ...]
) -> None:
    pointer = Pointer.model_validate(
        {"cause": "other.unlisted", "claim": claim, "when": when, "onset": onset}
    )
    assert pointer.dated_by(("a", "b", "c")) == dated_by


def dated(alias: str, **metrics: float | bool | None) -> Evidence:
    made = {"first_bad_step": None, "last_good_step": None, **metrics}
    return Evidence(
        id=alias, tool=alias, tool_version="test", args={}, status="measured", metrics=made,
        summary=alias,
    )  # fmt: skip


CHECK = {
    "id": "made_up",
    "asks": "Is it so?",
    "evidence": {"a": "find_first_bad", "b": "find_first_bad"},
    "gate": [{"strength": "direct", "fail_if": {"b.size": "> 1"}}],
}


@pytest.mark.parametrize(
    ("pointer", "first_bad"),
    [
        ({"when": {"b.size": "> 1"}}, 31),  # not 60, though `a` comes first
        ({"when": {"a.size": "> 1"}}, 60),
        ({"when": {"a.size": "> 1", "b.size": "> 1"}}, 60),
        ({}, 60),  # speaks of neither: the first of the check that has an onset
        ({"when": {"b.size": "> 1"}, "onset": ["a", "b"]}, 60),
        # What it speaks of has no onset: another's is not its date.
        ({"when": {"c.size": "> 1"}}, None),
        ({"when": {"b.size": "> 1"}, "onset": ["c", "b"]}, 31),
    ],
)
def test_the_first_bad_step_is_that_of_what_is_spoken_of(
    pointer: dict[str, object], first_bad: int | None
) -> None:
    check = Check.model_validate(
        CHECK
        | {"evidence": {"a": "find_first_bad", "b": "find_first_bad", "c": "find_first_bad"}}
        | {"points_to": [{"cause": "other.unlisted", "claim": "It is so.", **pointer}]}
    )
    seen = {
        "a": dated("a", size=2, first_bad_step=60, last_good_step=59),
        "b": dated("b", size=2, first_bad_step=31, last_good_step=30),
        "c": dated("c", size=2),
    }
    result = judge(check, seen, playbook="crash", layer="records")
    assert build_finding(check, result, seen).first_bad.first_bad == first_bad
