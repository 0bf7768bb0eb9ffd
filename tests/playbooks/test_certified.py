"""How far a certificate counts: for what a check before the first step can know, and no further."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from firstbad.playbooks.loader import load
from firstbad.playbooks.results import Verdict

MAY = {
    "probability.ratio_before_update": "trainer_repeatability",
    "accumulation.loss_identity": "accumulation",
    "masks.captured": "mask_construction",
    "numerics.log_eps": "loss_numerics",
}


def strengths(verdict: Verdict) -> dict[str, str | None]:
    return {f"{c.layer}.{c.check}": c.strength for c in verdict.checks}


@pytest.mark.parametrize(
    ("name", "checks"),
    [
        ("x1", ("accumulation.loss_identity", "masks.captured", "numerics.log_eps")),
        ("x4", ("probability.ratio_before_update",)),
    ],
)
def test_a_certificate_of_what_runs_here_counts(
    name: str, checks: tuple[str, ...], verdict_of: Callable[..., Verdict]
) -> None:
    found = strengths(verdict_of(f"synthetic/{name}"))
    assert {check for check, strength in found.items() if strength == "certified"} == {*checks}


@pytest.mark.parametrize("name", ["x2", "x3", "x5"])
def test_a_certificate_of_something_else_and_one_that_the_run_disproves_do_not(
    name: str, verdict_of: Callable[..., Verdict]
) -> None:
    assert "certified" not in strengths(verdict_of(f"synthetic/{name}")).values()


def test_only_four_static_checks_are_taken_and_each_where_it_belongs() -> None:
    taken = {}
    for layer in load("crash").playbook.layers:
        for check in layer.checks:
            for alternative in check.gate:
                said = [m for m in alternative.needs if m.startswith("preflight.")]
                assert (alternative.strength == "certified") == bool(said)
                for measure in said:
                    taken[f"{layer.id}.{check.id}"] = measure.removeprefix("preflight.")
                assert not any(
                    measure.startswith("preflight.")
                    for measure in (*alternative.fail_if, *alternative.doubt_if)
                )
    assert taken == MAY
