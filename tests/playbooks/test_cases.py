"""Every case named in a playbook is a recorded run with an expected outcome, and is run here."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from firstbad.agent.investigate import Finished, investigate
from firstbad.playbooks.loader import load, shipped
from firstbad.playbooks.results import Verdict

RUNS = Path(__file__).parent.parent / "runs"
CASES = [
    (name, f"{layer.id}.{check.id}", run, expected)
    for name in shipped()
    for layer in load(name).playbook.layers
    for check in layer.checks
    for run, expected in check.cases.items()
]
BOUNDED = [
    (name, f"{layer.id}.{check.id}", frozenset(check.cases.values()))
    for name in shipped()
    for layer in load(name).playbook.layers
    for check in layer.checks
    if any(alternative.fail_if for alternative in check.gate)
]
# No recorded run breaks these bounds yet; tests of their tools do, on runs made in memory.
WITHOUT_A_FAILING_RUN = {
    "accumulation.gradient_arrives",
    "records.groups",
    "records.logged_means",
    "reward.form_pay",
}


@pytest.fixture(scope="module")
def verdict_of(tmp_path_factory: pytest.TempPathFactory) -> object:
    folder = tmp_path_factory.mktemp("incidents")

    @cache
    def verdict(run: str) -> Verdict:
        done = investigate(str(RUNS / run), out=folder)
        assert isinstance(done, Finished)
        return done.verdict

    return verdict


@pytest.mark.parametrize(("playbook", "check", "run", "expected"), CASES)
def test_case(playbook: str, check: str, run: str, expected: str, verdict_of: object) -> None:
    assert callable(verdict_of)
    outcomes = {f"{c.layer}.{c.check}": c.outcome for c in verdict_of(run).checks}
    assert outcomes[check] == expected


@pytest.mark.parametrize(("playbook", "check", "outcomes"), BOUNDED)
def test_a_bound_has_a_case_on_each_side(
    playbook: str, check: str, outcomes: frozenset[str]
) -> None:
    assert "pass" in outcomes
    assert ("fail" in outcomes) != (check in WITHOUT_A_FAILING_RUN)
