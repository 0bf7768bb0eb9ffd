from __future__ import annotations

import json
import random
import signal
import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from firstbad.agent import cli, state
from firstbad.agent import incident as incidents
from firstbad.agent import investigate as work
from firstbad.agent.investigate import Finished
from firstbad.agent.verify import verify
from firstbad.tools.errors import Stopped, UserError

Look = Callable[..., Finished]
MakeRun = Callable[..., Path]
Calls = Callable[[], list[str]]
Start = Callable[..., subprocess.Popen[str]]
DIALS = ["window", "rows", "same", "table", "tails", "after_tails", "judged"]


def wait_for(holds: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.005)


def resumed(incident: incidents.Incident) -> int:
    return (incident.folder / "events.jsonl").read_text().count('"resumed"')


def killed_again(
    process: subprocess.Popen[str], start: Start, chance: random.Random
) -> tuple[bool, incidents.Incident, subprocess.Popen[str]]:
    """Kill it after a moment and go on; whether it was still at work."""
    time.sleep(chance.uniform(0.0, 0.5))
    at_work = process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.communicate()
    (incident,) = incidents.listing()
    before = resumed(incident)
    then = start("investigate", "--resume", incident.id, "--json", FAKE_SECONDS="0.1")
    # Imports take most of the time: wait until the work goes on, or is over.
    wait_for(lambda: resumed(incident) > before or then.poll() is not None)
    return at_work, incident, then


@pytest.mark.parametrize("seed", range(3))
def test_killed_at_any_moment_it_goes_on_without_doing_anything_twice(
    firstbad_process: Start,
    make_run: MakeRun,
    book: str,
    calls: Calls,
    home: Path,
    seed: int,
) -> None:
    run = make_run(same=1 if seed % 2 else 0, judged=3)
    chance = random.Random(seed)
    process = firstbad_process("investigate", str(run), "--playbook", book, FAKE_SECONDS="0.1")
    wait_for(lambda: any(home.glob("incidents/*/incident.json")))
    kills = 0
    for _ in range(4):
        at_work, incident, process = killed_again(process, firstbad_process, chance)
        kills += at_work
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 1, stderr
    assert kills >= 1
    done = json.loads(stdout)
    expected = [d for d in DIALS if seed % 2 == 0 or d not in ("tails", "after_tails")]
    # A result that was saved is never measured again. A tool that was killed between its end and
    # the saving of its result is begun again: at most one for each kill.
    again = Counter(calls()) - Counter(expected)
    assert set(calls()) == set(expected)
    assert sum(again.values()) <= kills
    saved = sorted(
        (json.loads(incident.evidence_text(i)) for i in incident.evidence_ids()),
        key=lambda e: int(e["id"][1:]),
    )
    assert [e["args"]["name"] for e in saved] == expected
    fresh = work.investigate(str(run), playbook=book)
    assert isinstance(fresh, Finished)
    assert done["findings"] == [f.model_dump(mode="json") for f in fresh.verdict.findings]
    assert done["layers"] == [
        {k: getattr(r, k) for k in ("id", "outcome", "strength", "reason")}
        for r in fresh.verdict.layers
    ]


def test_finished_tools_of_the_same_layer_are_kept(
    look: Look, make_run: MakeRun, calls: Calls, book: str
) -> None:
    run = make_run(after_tails="stop")
    with pytest.raises(Stopped, match="firstbad investigate --resume "):
        work.investigate(str(run), playbook=book)
    (incident,) = incidents.listing()
    assert incident.evidence_ids() == ("E1", "E2", "E3", "E4", "E5")
    make_run(after_tails=0)
    found = look(resume=incident.id)
    assert found.verdict.outcome == "healthy"
    assert calls() == DIALS


@pytest.mark.parametrize("unfinished", [True, False])
def test_evidence_that_a_power_failure_took_is_measured_again(
    look: Look, make_run: MakeRun, calls: Calls, book: str, unfinished: bool
) -> None:
    run = make_run(after_tails="stop" if unfinished else 0)
    if unfinished:
        with pytest.raises(Stopped):
            work.investigate(str(run), playbook=book)
    else:
        look(run)
    (incident,) = incidents.listing()
    (incident.evidence_folder / "E2.json").write_bytes(b"")
    (incident.evidence_folder / "E3.json").unlink()
    make_run(after_tails=0)
    found = look(resume=incident.id)
    assert found.verdict.outcome == "healthy"
    assert Counter(calls()) == Counter([*DIALS, "rows", "same"])


DAMAGED: dict[str, Callable[[bytes], bytes]] = {
    "cut short": lambda raw: raw[: len(raw) // 2],
    "cut by a byte or two": lambda raw: raw[:-2],
    "filled with NUL": lambda raw: bytes(len(raw)),
    "its end filled with NUL": lambda raw: raw[:100] + bytes(len(raw) - 100),
    "a block in it of NUL": lambda raw: raw[:40] + bytes(40) + raw[80:],
    "of another file": lambda raw: b"\x89PNG\r\n" + raw[:60],
}


@pytest.mark.parametrize("unfinished", [True, False])
@pytest.mark.parametrize("how", DAMAGED)
def test_evidence_that_a_crash_left_half_written_is_measured_again(
    look: Look,
    make_run: MakeRun,
    calls: Calls,
    book: str,
    capsys: pytest.CaptureFixture[str],
    how: str,
    unfinished: bool,
) -> None:
    run = make_run(after_tails="stop" if unfinished else 0)
    if unfinished:
        with pytest.raises(Stopped):
            work.investigate(str(run), playbook=book)
    else:
        look(run)
    (incident,) = incidents.listing()
    for name in ("E2", "E4"):
        path = incident.evidence_folder / f"{name}.json"
        path.write_bytes(DAMAGED[how](path.read_bytes()))
    make_run(after_tails=0)
    assert cli.main(["investigate", "--resume", incident.id]) == 0
    told = capsys.readouterr().err.strip().splitlines()
    assert told == ["evidence that a crash left half written (E2, E4) is measured again"]
    assert Counter(calls()) == Counter([*DIALS, "rows", "table"])
    assert '"damaged"' in (incident.folder / "events.jsonl").read_text()
    assert verify(incident.id).differences == ()
    assert cli.main(["investigate", "--resume", incident.id]) == 0
    assert "half written" not in capsys.readouterr().err


@pytest.mark.parametrize("field", ["tool", "status"])
def test_evidence_that_somebody_changed_is_refused_and_stays(
    look: Look, make_run: MakeRun, field: str
) -> None:
    """It is whole JSON: no crash writes that."""
    incident = look(make_run()).incident
    path = incident.evidence_folder / "E2.json"
    path.write_text(path.read_text().replace(f'"{field}"', f'"{field}s"', 1))
    incident.verdict_file.unlink()
    with pytest.raises(UserError, match="is no record of evidence"):
        look(resume=incident.id)
    assert path.is_file()


def test_damage_is_a_difference_until_it_is_measured_again(look: Look, make_run: MakeRun) -> None:
    incident = look(make_run()).incident
    path = incident.evidence_folder / "E2.json"
    path.write_bytes(path.read_bytes()[:-3])
    assert [(d.place, d.field) for d in verify(incident.id).differences][0] == ("E2", "file")
    look(resume=incident.id)
    assert verify(incident.id).differences == ()


def test_a_finished_incident_is_not_walked_again(
    look: Look, make_run: MakeRun, calls: Calls
) -> None:
    first = look(make_run(same=1))
    made = (first.incident.verdict_file.stat().st_mtime_ns, len(calls()))
    again = look(resume=first.incident.id)
    assert again.verdict == first.verdict
    assert (first.incident.verdict_file.stat().st_mtime_ns, len(calls())) == made


@pytest.mark.parametrize("lost", ["verdict.json", "memo.md", "graph.sqlite"])
def test_a_lost_file_is_made_again_from_the_evidence(
    look: Look, make_run: MakeRun, calls: Calls, lost: str
) -> None:
    first = look(make_run(same=1))
    before = {p.name: p.read_bytes() for p in first.incident.folder.glob("*.*") if p.is_file()}
    made = len(calls())
    (first.incident.folder / lost).unlink()
    look(resume=first.incident.id)
    for name in ("verdict.json", "memo.md", "memo.html"):
        assert (first.incident.folder / name).read_bytes() == before[name]
    assert len(calls()) == made


def test_terminating_it_leaves_an_incident_that_goes_on(
    firstbad_process: Start, make_run: MakeRun, book: str, look: Look, home: Path
) -> None:
    run = make_run()
    process = firstbad_process("investigate", str(run), "--playbook", book, FAKE_SECONDS="0.4")
    wait_for(lambda: any(home.glob("incidents/*/evidence/E2.json")))
    process.terminate()
    stdout, stderr = process.communicate(timeout=60)
    (incident,) = incidents.listing()
    assert process.returncode == 130
    assert stdout == ""
    assert stderr.strip().endswith(f"firstbad investigate --resume {incident.id}")
    assert "Traceback" not in stderr
    assert look(resume=incident.id).verdict.outcome == "healthy"


def test_two_processes_do_not_work_on_one_incident(
    firstbad_process: Start, make_run: MakeRun, book: str, home: Path
) -> None:
    run = make_run()
    process = firstbad_process("investigate", str(run), "--playbook", book, FAKE_SECONDS="0.6")
    wait_for(lambda: any(home.glob("incidents/*/evidence/E1.json")))
    (incident,) = incidents.listing()
    with pytest.raises(UserError, match=f"worked on by process {process.pid}"):
        work.investigate(resume=incident.id)
    process.kill()
    process.communicate()
    assert isinstance(work.investigate(resume=incident.id), Finished)


def test_another_version_of_the_graph_is_refused(
    look: Look, make_run: MakeRun, book: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Stopped):
        work.investigate(str(make_run(table="stop")), playbook=book)
    (incident,) = incidents.listing()
    monkeypatch.setattr(work, "GRAPH_VERSION", state.GRAPH_VERSION + 1)
    with pytest.raises(UserError, match="graph version 1, this firstbad .* has 2; begin anew"):
        look(resume=incident.id)


def test_another_playbook_is_refused(look: Look, make_run: MakeRun, book: str) -> None:
    first = look(make_run())
    from firstbad.playbooks import loader

    Path(book).write_text(Path(book).read_text().replace("a walk over dials", "another walk"))
    loader.load.cache_clear()
    with pytest.raises(UserError, match="has changed since incident"):
        look(resume=first.incident.id)


def test_a_run_that_was_moved_is_said_and_can_come_back(
    look: Look, make_run: MakeRun, book: str
) -> None:
    run = make_run(table="stop")
    with pytest.raises(Stopped):
        work.investigate(str(run), playbook=book)
    (incident,) = incidents.listing()
    run.rename(run.with_name("away"))
    with pytest.raises(UserError, match="does not exist"):
        look(resume=incident.id)
    run.with_name("away").rename(run)
    make_run(table=0)
    assert look(resume=incident.id).verdict.outcome == "healthy"


def test_evidence_of_another_release_is_measured_again(
    look: Look, make_run: MakeRun, calls: Calls, book: str
) -> None:
    with pytest.raises(Stopped):
        work.investigate(str(make_run(table="stop")), playbook=book)
    (incident,) = incidents.listing()
    old = incident.evidence_text("E1").replace('"tool_version": "', '"tool_version": "0.0.0-')
    incident.save_evidence("E1", old)
    with closing(sqlite3.connect(incident.graph_file)) as graph:
        graph.execute("delete from checkpoints")
        graph.execute("delete from writes")
        graph.commit()
    make_run(table=0)
    look(resume=incident.id)
    assert calls().count("window") == 2
    assert calls().count("rows") == 1


def test_a_resumed_incident_takes_no_new_question(look: Look, make_run: MakeRun) -> None:
    first = look(make_run())
    with pytest.raises(UserError, match="give no run, complaint or step"):
        work.investigate(resume=first.incident.id, complaint="it fell")
    with pytest.raises(UserError, match="keeps the playbook"):
        work.investigate(resume=first.incident.id, playbook="crash")


def test_the_saved_state_holds_plain_data_and_stays_small(look: Look, make_run: MakeRun) -> None:
    found = look(make_run())
    assert found.incident.graph_file.stat().st_size < 400_000
