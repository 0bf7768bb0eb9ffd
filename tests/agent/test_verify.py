from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from firstbad.agent import cli
from firstbad.agent.incident import Incident
from firstbad.agent.investigate import Finished, Waiting, investigate
from firstbad.agent.runs import demo_folder
from firstbad.agent.verify import verify
from firstbad.playbooks.loader import load
from firstbad.playbooks.results import Waiver
from firstbad.tools.errors import UserError

Look = Callable[..., Finished]
MakeRun = Callable[..., Path]
Fb = Callable[..., tuple[int, str, str]]


@pytest.fixture
def incident(look: Look, make_run: MakeRun) -> Incident:
    """An incident whose way closed, with a fact behind it."""
    return look(make_run(same=0.25, judged=3, window=1), complaint="fell at 4").incident


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def places(incident: Incident) -> list[tuple[str, str]]:
    return [(d.place, d.field) for d in verify(incident.id).differences]


def test_an_untouched_incident_is_equal(incident: Incident) -> None:
    found = verify(incident.id)
    assert found.differences == ()
    assert found.evidence == 5
    assert found.numbers > 10
    assert verify(str(incident.folder)) == found


def test_waived_and_rewalked_incidents_are_equal(look: Look, make_run: MakeRun, book: str) -> None:
    first = look(make_run(same="missing", tails=2))
    look(resume=first.incident.id, waivers=[Waiver(layer="probability", reason="by hand")])
    assert verify(first.incident.id).differences == ()
    asked = investigate(str(make_run(same="missing")), playbook=book, interactive=True)
    assert isinstance(asked, Waiting)
    answered = investigate(resume=asked.incident.id, answer={"waive": "by hand"})
    assert isinstance(answered, Finished)
    assert verify(answered.incident.id).differences == ()


def test_a_broken_tool_breaks_in_the_same_way_again(look: Look, make_run: MakeRun) -> None:
    assert verify(look(make_run(same="broken", rows="unasked")).incident.id).differences == ()


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ('"value": 0.25', '"value": 0.26', "metrics.value"),
        ("shows 0.25", "shows 0.35", "summary"),
        ("0.25\n    ]", "0.24\n    ]", "tables[0].rows[0][1]"),
        ('"name": "same"', '"name": "rows"', "metrics.value"),
        ('"from_start": false', '"from_start": true', "metrics.from_start"),
        ('"from_start": false', '"from_start": 0', "metrics.from_start"),
        ('"status": "measured"', '"status": "measured", "extra": 1', "file"),
    ],
)
def test_a_changed_number_of_evidence_is_found(
    incident: Incident, old: str, new: str, field: str
) -> None:
    path = incident.evidence_folder / "E3.json"
    text = re.sub(r"\n\s+0\.25\n\s+\]", "\n    0.25\n    ]", path.read_text())
    path.write_text(text)
    replace(path, old, new)
    found = places(incident)
    assert ("E3", field) in found


def test_evidence_that_was_taken_away_or_added_is_found(incident: Incident) -> None:
    text = (incident.evidence_folder / "E3.json").read_text()
    (incident.evidence_folder / "E3.json").unlink()
    assert any("read_dial" in field for _, field in places(incident))
    (incident.evidence_folder / "E3.json").write_text("{}")
    assert ("E3", "file") in places(incident)
    (incident.evidence_folder / "E3.json").write_text(text)
    assert places(incident) == []


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ('"noticed_step": 4', '"noticed_step": 5', "noticed_step"),
        ('"observed": 3.0', '"observed": 2.0', "observed"),
        ('"confidence": "high"', '"confidence": "low"', "confidence"),
        ('"outcome": "incident"', '"outcome": "healthy"', "outcome"),
        ('"tool_calls": 5', '"tool_calls": 6', "usage.tool_calls"),
    ],
)
def test_a_changed_verdict_is_found(incident: Incident, old: str, new: str, field: str) -> None:
    replace(incident.verdict_file, old, new)
    ((place, found),) = places(incident)
    assert place == "verdict.json"
    assert found.endswith(field)


def test_every_number_of_the_memo_is_guarded(incident: Incident) -> None:
    for path in (incident.markdown_file, incident.html_file):
        text = path.read_text()
        digits = [m.start() for m in re.finditer(r"\d", text)]
        for at in digits[:: max(1, len(digits) // 12)]:
            path.write_text(text[:at] + str((int(text[at]) + 1) % 10) + text[at + 1 :])
            ((place, field),) = places(incident)
            assert (place, field) == (path.name, f"line {text[:at].count(chr(10)) + 1}")
        path.write_text(text)


def test_a_line_end_is_guarded_too(incident: Incident) -> None:
    incident.markdown_file.write_bytes(incident.markdown_file.read_bytes() + b"\n")
    assert [p for p, _ in places(incident)] == ["memo.md"]


def test_a_changed_question_or_refusal_is_found(incident: Incident) -> None:
    path = incident.folder / "incident.json"
    text = path.read_text()
    replace(path, '"noticed_step": 4', '"noticed_step": 5')
    assert ("verdict.json", "noticed_step") in places(incident)
    path.write_text(text)
    record = json.loads(text)
    record["refusals"] = record["refusals"][1:]
    path.write_text(json.dumps(record))
    assert {p for p, _ in places(incident)} == {"incident.json"}


def test_a_run_that_changed_is_found(incident: Incident, make_run: MakeRun) -> None:
    make_run(same=0.5, judged=3, window=1)
    found = places(incident)
    assert ("E3", "metrics.value") in found
    assert {p for p, _ in found} >= {"E3", "verdict.json", "memo.md"}


def test_a_run_that_was_moved_is_said_or_given(incident: Incident, tmp_path: Path) -> None:
    (tmp_path / "heron").rename(tmp_path / "otter")
    with pytest.raises(UserError, match="does not exist"):
        verify(incident.id)
    assert verify(incident.id, run=str(tmp_path / "otter")).differences == ()


def test_another_playbook_leaves_the_measurements_to_compare(incident: Incident, book: str) -> None:
    Path(book).write_text(Path(book).read_text().replace("a walk over dials", "another walk"))
    load.cache_clear()
    assert places(incident) == [("playbook", "fake: digest")]


def test_an_unfinished_incident_is_said(look: Look, make_run: MakeRun) -> None:
    incident = look(make_run()).incident
    incident.markdown_file.unlink()
    with pytest.raises(UserError, match="unfinished; go on with"):
        verify(incident.id)


def test_files_that_changed_are_named_first_and_values_are_few(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "otter"
    shutil.copytree(demo_folder("otter"), run)
    done = investigate(str(run))
    assert isinstance(done, Finished)
    state = run / "trainer_state.json"
    state.write_text(re.sub(r'"(loss|grad_norm|reward)": 0', r'"\1": 7', state.read_text()))
    assert cli.main(["verify", done.incident.id]) == 4
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "the run's files have changed since: `trainer_state.json` changed"
    assert sum(line.startswith("    stored") for line in lines) == 20
    assert any(line.endswith("more values (--json lists them)") for line in lines)
    assert len(lines) < 80
    assert max(map(len, lines)) < 200
    assert not [line for line in lines if "</" in line]
    cli.main(["verify", done.incident.id, "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told["files"] == {"trainer_state.json": "changed"}
    assert len(told["differences"]) > 100
    assert {d["stored"] for d in told["differences"] if d["place"] == "memo.html"} == {None}


def test_a_memo_that_was_edited_is_named_and_not_printed(incident: Incident, fb: Fb) -> None:
    replace(incident.html_file, "<title>", "<title>other ")
    _, out, _ = fb("verify", incident.id)
    assert re.search(r"^memo.html  differs in line \d+$", out, re.M)
    assert "<title>" not in out
    assert "files have changed" not in out
