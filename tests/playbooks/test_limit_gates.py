"""Gates on floors, clamps, retokenised rows and rows that miss the loss, with their look-alikes."""

from __future__ import annotations

from typing import Any

import pytest

from firstbad.playbooks.findings import build_finding
from firstbad.playbooks.gate import judge
from firstbad.playbooks.loader import load
from firstbad.playbooks.results import Finding
from firstbad.tools.evidence import Evidence


def found(name: str, **figures: dict[str, Any]) -> tuple[str, Finding | None]:
    """Outcome of a check of the crash playbook on these figures, and its finding."""
    layer, _, check_id = name.partition(".")
    (check,) = (
        c
        for each in load("crash").playbook.layers
        for c in each.checks
        if (each.id, c.id) == (layer, check_id)
    )
    seen = {
        alias: Evidence(
            id=f"E{i}",
            tool=alias,
            tool_version="test",
            args={},
            status="measured",
            metrics=metrics,
            summary=alias,
        )
        for i, (alias, metrics) in enumerate(figures.items(), 1)
    }
    result = judge(check, seen, playbook="crash", layer=layer)
    return result.outcome, build_finding(check, result, seen) if result.outcome == "fail" else None


FLOOR = {
    "n_tokens": 3000,
    "n_captures_at_floor": 4,
    "floor": -1.0,
    "floor_share": 0.3,
    "floor_is_power_of_ten": False,
    "floor_is_sentinel": False,
    "first_bad_step": 30,
    "last_good_step": 20,
}


@pytest.mark.parametrize(
    ("figures", "cause"),
    [
        ({}, "num.clamp_in_objective"),
        ({"floor": -9.21034, "floor_is_power_of_ten": True}, "num.log_softmax_eps"),
        ({"floor": -10000.0, "floor_is_sentinel": True}, "num.inf_sentinel"),
        ({"n_captures_at_floor": 0, "floor": None, "floor_share": 0.0}, None),
    ],
)
def test_floor(figures: dict[str, Any], cause: str | None) -> None:
    outcome, finding = found("probability.floor", floor={**FLOOR, **figures})
    assert outcome == ("pass" if cause is None else "fail")
    assert (finding.cause if finding else None) == cause


LIMIT = {
    "n_steps": 60,
    "limit": 1.2214,
    "log_limit": 0.2,
    "share_at_limit": 0.6,
    "is_clip": False,
    "first_bad_step": 5,
}


@pytest.mark.parametrize(
    ("figures", "outcome"),
    [
        ({}, "fail"),
        ({"share_at_limit": 0.05}, "pass"),
        ({"is_clip": True, "limit": 1.2}, "inconclusive"),  # logged after the clip: says nothing
        ({"n_steps": 0, "limit": None, "share_at_limit": 0.0}, "inconclusive"),
    ],
)
def test_clamp(figures: dict[str, Any], outcome: str) -> None:
    assert found("numerics.clamp", limit={**LIMIT, **figures})[0] == outcome


WRITTEN = {
    "n_rows": 240,
    "share_other": 0.95,
    "share_other_before": 0.0,
    "edit_share": 0.06,
    "first_bad_step": 30,
}


@pytest.mark.parametrize(
    ("figures", "outcome", "cause"),
    [
        ({}, "fail", "prob.tokenization"),
        ({"edit_share": 0.8}, "fail", "id.rows"),
        # Never alike: text may be logged without a part of it.
        (
            {"share_other_before": None, "first_bad_step": None, "share_other": 1.0},
            "inconclusive",
            None,
        ),
        (
            {
                "share_other_before": None,
                "first_bad_step": None,
                "share_other": 0.01,
                "edit_share": 0.2,
            },
            "pass",
            None,
        ),
    ],
)
def test_retokenised(figures: dict[str, Any], outcome: str, cause: str | None) -> None:
    told, finding = found("probability.retokenised", written={**WRITTEN, **figures})
    assert told == outcome
    assert (finding.cause if finding else None) == cause


SCATTER = {
    "n_steps": 60,
    "correlation": 0.4,
    "slope": 0.7,
    "flat": False,
    "distance": 0.18,
    "rows_missing": 0.25,
    "accumulation_steps": 4.0,
    "token_agreement": 0.999,
    "from_start": False,
    "first_bad_step": 31,
}


@pytest.mark.parametrize(
    ("figures", "outcome"),
    [
        ({}, "fail"),
        ({"slope": -2.0}, "inconclusive"),  # the loss of something else
        ({"token_agreement": 0.9}, "inconclusive"),
        # Where the recomputed loss hardly varies, only steps that agreed before speak.
        ({"flat": True, "slope": -2.0, "correlation": 0.0}, "fail"),
        ({"flat": True, "slope": -2.0, "correlation": 0.0, "from_start": True}, "inconclusive"),
        ({"flat": True, "correlation": 0.0, "rows_missing": None, "distance": 1e-6}, "pass"),
    ],
)
def test_all_rows(figures: dict[str, Any], outcome: str) -> None:
    told, finding = found("accumulation.all_rows", scatter={**SCATTER, **figures})
    assert told == outcome
    assert finding is None or finding.cause == "grad.missing_microbatch"
