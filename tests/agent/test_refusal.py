from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from firstbad.agent.investigate import Finished
from firstbad.agent.refusal import Refusal, refuse
from firstbad.agent.trail import Trail
from firstbad.playbooks.loader import load
from firstbad.playbooks.results import Verdict
from firstbad.tools.errors import UserError

Look = Callable[..., Finished]
MakeRun = Callable[..., Path]


def trail(verdict: Verdict) -> Trail:
    return Trail(layers={r.id: r for r in verdict.layers}, checks=list(verdict.checks))


def test_a_tool_of_a_locked_layer_is_refused_and_the_refusal_kept(
    look: Look, make_run: MakeRun, book: str
) -> None:
    found = look(make_run(same=1))
    so_far = trail(found.verdict)
    before = found.incident.record().refusals
    for _ in range(2):
        refusal = refuse(
            load(book), so_far, found.incident, layer="optimizer", tool="compare_norms"
        )
        assert refusal is not None
        assert refusal == Refusal("optimizer", "probability", "compare_norms")
        assert "`probability` has not passed" in refusal.text
    kept = {"layer": "optimizer", "blocked_by": "probability", "tool": "compare_norms"}
    assert found.incident.record().refusals == (*before, kept)


def test_a_layer_that_the_walk_has_not_come_to_is_locked(
    look: Look, make_run: MakeRun, book: str
) -> None:
    found = look(make_run())
    so_far = trail(found.verdict)
    so_far.layers = {k: v for k, v in so_far.layers.items() if k in ("window", "records")}
    loaded, incident = load(book), found.incident
    assert refuse(loaded, so_far, incident, layer="records", tool="any") is None
    assert refuse(loaded, so_far, incident, layer="probability", tool="any") is None
    refusal = refuse(loaded, so_far, incident, layer="optimizer", tool="any")
    assert refusal is not None
    assert refusal.blocked_by == "probability"


def test_a_fact_may_be_measured_behind_a_closed_layer(
    look: Look, make_run: MakeRun, book: str
) -> None:
    found = look(make_run(same=1))
    so_far = trail(found.verdict)
    assert refuse(load(book), so_far, found.incident, layer="reward", tool="read_dial") is None


def test_a_waiver_opens_the_lock(look: Look, make_run: MakeRun, book: str) -> None:
    from firstbad.playbooks.results import Waiver

    found = look(make_run(same=1), waivers=[Waiver(layer="probability", reason="r")])
    so_far = trail(found.verdict)
    assert refuse(load(book), so_far, found.incident, layer="optimizer", tool="any") is None


def test_an_unknown_layer_is_said(look: Look, make_run: MakeRun, book: str) -> None:
    found = look(make_run())
    with pytest.raises(UserError, match="there are: window"):
        refuse(load(book), trail(found.verdict), found.incident, layer="mask", tool="any")
