from __future__ import annotations

import json
import re
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from firstbad.agent.investigate import Finished, Waiting, investigate
from firstbad.agent.progress import Progress
from firstbad.playbooks.results import Waiver
from firstbad.tools.errors import UserError

Look = Callable[..., Finished]
MakeRun = Callable[..., Path]
Calls = Callable[[], list[str]]


def outcomes(found: Finished) -> dict[str, str]:
    return {layer.id: layer.outcome for layer in found.verdict.layers}


def check(found: Finished, name: str) -> tuple[str, tuple[str, ...]]:
    (result,) = (c for c in found.verdict.checks if f"{c.layer}.{c.check}" == name)
    return result.outcome, result.blocked_by


def test_open_way_is_walked_to_the_end(look: Look, make_run: MakeRun, calls: Calls) -> None:
    found = look(make_run())
    assert set(outcomes(found).values()) == {"pass"}
    assert found.verdict.outcome == "healthy"
    assert calls() == ["window", "rows", "same", "table", "tails", "after_tails", "judged"]
    assert found.incident.record().refusals == ()


def test_the_same_measurement_is_made_once_and_has_one_id(look: Look, make_run: MakeRun) -> None:
    found = look(make_run())
    assert found.incident.evidence_ids() == tuple(f"E{i}" for i in range(1, 8))
    result = next(c for c in found.verdict.checks if c.check == "same")
    assert result.evidence == ("E3", "E3")


@pytest.mark.parametrize(("same", "outcome"), [(1, "fail"), ("missing", "inconclusive")])
def test_a_closed_way_leaves_only_facts(
    look: Look, make_run: MakeRun, calls: Calls, same: object, outcome: str
) -> None:
    found = look(make_run(same=same, judged=3))
    assert outcomes(found) == {
        "window": "pass",
        "records": "pass",
        "probability": outcome,
        "masks": "not_reached",
        "optimizer": "not_reached",
        "reward": "not_reached",
    }
    assert check(found, "masks.table") == ("pass", ())
    assert check(found, "reward.judged") == ("fail", ())
    assert check(found, "optimizer.tails") == ("not_reached", ("probability",))
    assert check(found, "optimizer.after_tails") == ("not_reached", ("optimizer.tails",))
    assert not {"tails", "after_tails"} & set(calls())


def test_what_was_refused_is_in_the_record(look: Look, make_run: MakeRun) -> None:
    found = look(make_run(same=1))
    refusal = {
        "layer": "optimizer",
        "blocked_by": "probability",
        "not_read": ["tails", "after_tails"],
        "read_as_facts": [],
    }
    assert refusal in found.incident.record().refusals
    lines = (found.incident.folder / "events.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    assert [e["kind"] for e in events] == ["started", *["refusal"] * 3, "finished"]
    assert refusal.items() <= events[2].items()


def test_an_independent_fact_leads_where_the_way_closed_for_want_of_evidence(
    look: Look, make_run: MakeRun
) -> None:
    verdict = look(make_run(same="missing", judged=3)).verdict
    assert verdict.leading is not None
    assert verdict.leading.cause == "reward.verifier_outage"
    assert verdict.conditional_on == ("probability",)
    assert [r.layer for r in verdict.requests] == ["probability"]


def test_a_check_inside_an_open_layer_waits_for_the_one_it_depends_on(
    look: Look, make_run: MakeRun, calls: Calls
) -> None:
    found = look(make_run(tails="missing"))
    assert check(found, "optimizer.after_tails") == ("not_reached", ("optimizer.tails",))
    assert "after_tails" not in calls()


def test_a_tool_that_breaks_closes_the_way_and_loses_nothing(look: Look, make_run: MakeRun) -> None:
    found = look(make_run(same="broken", judged=3))
    (result,) = (c for c in found.verdict.checks if c.check == "same")
    assert (result.outcome, result.reason) == ("inconclusive", "tool_error")
    assert outcomes(found)["probability"] == "inconclusive"
    assert found.verdict.leading is not None
    saved = json.loads(found.incident.evidence_text("E3"))
    assert saved["status"] == "error"
    assert "the dial fell off" in saved["error"]


def test_settings_that_the_run_has_no_value_for_are_missing_data(
    look: Look, make_run: MakeRun
) -> None:
    found = look(make_run(rows="unasked"))
    saved = json.loads(found.incident.evidence_text("E2"))
    assert (saved["status"], saved["summary"]) == ("no_data", "`rows` has no step None")
    assert outcomes(found)["records"] == "inconclusive"


def test_measured_numbers_become_settings_of_later_tools(look: Look, make_run: MakeRun) -> None:
    found = look(make_run(window=1))
    assert json.loads(found.incident.evidence_text("E2"))["args"] == {"name": "rows", "since": 4}


@pytest.mark.parametrize("same", [1, "missing"])
def test_a_waived_layer_opens_the_way_and_is_named(
    look: Look, make_run: MakeRun, same: object
) -> None:
    waiver = Waiver(layer="probability", reason="compared by hand")
    verdict = look(make_run(same=same, tails=2), waivers=[waiver]).verdict
    layers = {layer.id: layer for layer in verdict.layers}
    assert layers["probability"].outcome == "waived"
    assert layers["optimizer"].outcome == "fail"
    assert verdict.conditional_on == ("probability (waived)",)
    assert verdict.waivers == (waiver,)


def test_a_waiver_of_a_layer_that_passes_changes_nothing(look: Look, make_run: MakeRun) -> None:
    verdict = look(make_run(), waivers=[Waiver(layer="masks", reason="in a hurry")]).verdict
    assert verdict.waivers == ()
    assert {layer.outcome for layer in verdict.layers} == {"pass"}


def test_waivers_given_later_walk_again_over_the_same_evidence(
    look: Look, make_run: MakeRun, calls: Calls
) -> None:
    first = look(make_run(same="missing"))
    before = calls()
    waiver = Waiver(layer="probability", reason="compared by hand")
    second = look(resume=first.incident.id, waivers=[waiver])
    assert second.verdict.outcome == "healthy"
    assert second.incident == first.incident
    assert calls()[len(before) :] == ["tails", "after_tails"]
    assert second.incident.record().refusals == ()


def test_a_passed_layer_of_a_finished_incident_cannot_be_waived(
    look: Look, make_run: MakeRun
) -> None:
    first = look(make_run(same="missing"))
    with pytest.raises(UserError, match="layer `records` passed"):
        look(resume=first.incident.id, waivers=[Waiver(layer="records", reason="no")])
    assert first.incident.record().waivers == ()


def test_waivers_that_cannot_be_meant_are_refused_before_anything_is_written(
    look: Look, make_run: MakeRun, home: Path
) -> None:
    run = make_run()
    with pytest.raises(UserError, match="there are: window, records, probability"):
        look(run, waivers=[Waiver(layer="probabilty", reason="typo")])
    with pytest.raises(UserError, match="needs a reason"):
        look(run, waivers=[Waiver(layer="masks", reason=" ")])
    with pytest.raises(UserError, match="twice"):
        look(run, waivers=[Waiver(layer="masks", reason=r) for r in ("a", "b")])
    assert not home.exists()


def test_a_person_is_asked_where_the_way_would_close(
    book: str, make_run: MakeRun, calls: Calls
) -> None:
    run = str(make_run(same="missing"))
    waiting = investigate(run, playbook=book, interactive=True)
    assert isinstance(waiting, Waiting)
    assert waiting.question["layer"] == "probability"
    (request,) = waiting.question["requests"]
    assert request["need"] == "captured log-probs"
    assert request["command"].startswith("firstbad tools run read_dial trl:")
    assert not waiting.incident.verdict_file.exists()
    again = investigate(resume=waiting.incident.id, interactive=True)
    assert isinstance(again, Waiting)
    before = calls()
    found = investigate(resume=waiting.incident.id, answer={"waive": "I compared them"})
    assert not isinstance(found, Waiting)
    assert found.verdict.waivers == (Waiver(layer="probability", reason="I compared them"),)
    assert found.verdict.outcome == "healthy"
    assert calls() == [*before, "table", "tails", "after_tails", "judged"]


@pytest.mark.parametrize("answer", [{"continue": True}, {"waive": " "}, None])
def test_without_a_reason_the_way_stays_closed(
    book: str, make_run: MakeRun, answer: dict[str, object] | None
) -> None:
    waiting = investigate(str(make_run(same="missing")), playbook=book, interactive=True)
    found = investigate(resume=waiting.incident.id, answer=answer)
    assert not isinstance(found, Waiting)
    assert found.verdict.outcome == "undetermined"
    assert found.verdict.waivers == ()


def test_a_failed_layer_is_not_asked_about(book: str, make_run: MakeRun) -> None:
    found = investigate(str(make_run(same=1)), playbook=book, interactive=True)
    assert not isinstance(found, Waiting)


def test_progress_tells_each_layer(book: str, make_run: MakeRun) -> None:
    told: list[Progress] = []
    investigate(str(make_run(same=1)), playbook=book, on_progress=told.append)
    judged = [(p.layer, p.outcome) for p in told if p.kind == "judged"]
    assert judged == [("window", "pass"), ("records", "pass"), ("probability", "fail")]
    assert [p.kind for p in told if p.kind not in ("tool", "layer", "judged")] == [
        "started",
        "facts",
        "concluded",
    ]


def test_commands_of_a_memo_do_not_depend_on_where_they_are_typed(
    book: str, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run("heron")
    monkeypatch.chdir(run.parent)
    found = investigate("heron", playbook=book)
    assert not isinstance(found, Waiting)
    assert found.verdict.run == f"trl:{run}"
    text = found.incident.markdown_file.read_text()
    commands = re.findall(r"firstbad tools run \S+ (\S+?)[ `]", text)
    assert set(commands) == {f"trl:{run}"}
    assert found.incident.record().run_at == str(run)


def test_nothing_is_sent_to_a_tracing_service_of_the_user(
    firstbad_process: Callable[..., subprocess.Popen[str]], book: str, make_run: MakeRun
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as service:
        service.settimeout(0.5)
        process = firstbad_process(
            "investigate",
            str(make_run()),
            "--playbook",
            book,
            LANGSMITH_TRACING="true",
            LANGSMITH_ENDPOINT=f"http://127.0.0.1:{service.getsockname()[1]}",
            LANGSMITH_API_KEY="key",
        )
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 0, stderr
        with pytest.raises(TimeoutError):
            service.accept()
