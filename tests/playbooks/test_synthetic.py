"""Synthetic runs with one real fault each, and their look-alikes: what the whole walk says."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from firstbad.playbooks.results import Verdict
from synthetic.cases import all_cases


@pytest.mark.no_cover  # counted line by line, whole walks take twice as long
@pytest.mark.parametrize("name", all_cases())
def test_case_ends_as_it_must(name: str, verdict_of: Callable[..., Verdict]) -> None:
    case = all_cases()[name]
    verdict = verdict_of(f"synthetic/{name}")
    cause = verdict.leading.cause if verdict.leading else None
    found = {f"{c.layer}.{c.check}": c.outcome for c in verdict.checks}
    reasons = [f"{c.layer}.{c.check}: {c.outcome}" for c in verdict.checks if c.outcome != "pass"]
    assert (verdict.outcome, cause) == (case.outcome, case.cause), reasons
    assert {name: found.get(name) for name in case.checks} == dict(case.checks)
    assert case.says in verdict.headline
    claims = [finding.claim for finding in verdict.findings]
    assert [claim for claim in claims if "unknown" in claim] == [], "a number that is not there"
    assert case.twin_of not in {finding.cause for finding in verdict.findings}
    if case.first_bad is not None:
        first, last = case.first_bad
        assert verdict.first_bad.first_bad is not None
        assert first <= verdict.first_bad.first_bad <= last
