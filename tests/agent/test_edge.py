"""The edge of the program: no room, no output, Ctrl-C, damaged incidents, ids cut short."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from firstbad.agent import cli, cli_investigate, incident, investigate, verify
from firstbad.agent.investigate import Finished
from firstbad.tools.errors import UserError

Look = Callable[..., Finished]
MakeRun = Callable[..., Path]
Start = Callable[..., subprocess.Popen[str]]
Fb = Callable[..., tuple[int, str, str]]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("command", [["--version"], ["incidents", "ls"]])
def test_an_output_without_room_is_one_line(command: list[str], firstbad_process: Start) -> None:
    process = firstbad_process("--version")
    process.communicate()
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            process.args, stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=_env()
        )
    assert done.returncode == cli.USER_CAN_FIX
    assert done.stderr == "firstbad: the output can't be written: no space left on device\n"


def _env() -> dict[str, str]:
    package = Path(cli.__file__).resolve().parents[1] / "src"
    return {**os.environ, "PYTHONPATH": str(package)}


@pytest.mark.parametrize(
    ("error", "advice"),
    [("database or disk is full", "make room"), ("file is not a database", "remove it")],
)
def test_a_graph_file_that_fails_is_named(
    look: Look, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, error: str, advice: str
) -> None:
    def fail(*args: Any, **how: Any) -> None:
        raise sqlite3.OperationalError(error)

    monkeypatch.setattr(investigate, "build", fail)
    with pytest.raises(UserError, match=rf"graph.sqlite` can't be used: {error}; {advice}") as told:
        look(make_run())
    (left,) = incident.listing()
    assert left.id in str(told.value)
    monkeypatch.undo()


def test_after_room_was_made_it_goes_on(
    look: Look, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as full:
        full.setattr(investigate, "build", _full)
        with pytest.raises(UserError):
            look(make_run(judged=3))
    (left,) = incident.listing()
    assert look(resume=left.id).verdict.outcome == "incident"


def _full(*args: Any) -> None:
    raise sqlite3.OperationalError("database or disk is full")


def test_ctrl_c_says_how_to_go_on(fb: Fb, make_run: MakeRun, book: str) -> None:
    code, out, err = fb("investigate", make_run(after_tails="stop"), "--playbook", book)
    (left,) = incident.listing()
    assert (code, out) == (cli.STOPPED, "")
    assert err.strip().endswith(f"firstbad investigate --resume {left.id}")
    assert err.count("\n") == 1


def test_ctrl_c_before_there_is_an_incident(
    fb: Fb, make_run: MakeRun, book: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*args: object, **how: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(investigate, "open_ref", stop)
    assert fb("investigate", make_run(), "--playbook", book) == (130, "", "firstbad: stopped\n")
    assert not incident.listing()


def test_a_signal_from_outside_ends_with_130(
    firstbad_process: Start, make_run: MakeRun, book: str, home: Path
) -> None:
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        pytest.skip("started in the background of a shell, where Ctrl-C is ignored")
    run = make_run()
    process = firstbad_process("investigate", str(run), "--playbook", book, FAKE_SECONDS="0.3")
    end = time.monotonic() + 60
    while not any(home.glob("incidents/*/evidence/E1.json")) and time.monotonic() < end:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "--resume" in err.splitlines()[-1]
    assert "Traceback" not in err


def test_four_processes_on_one_incident(
    firstbad_process: Start, look: Look, make_run: MakeRun, book: str
) -> None:
    run = make_run(after_tails="stop", judged=3)
    with pytest.raises(BaseException, match="resume"):
        look(run)
    (left,) = incident.listing()
    make_run(after_tails=0, judged=3)
    several = [
        firstbad_process("investigate", "--resume", left.id, "--json", FAKE_SECONDS="0.5")
        for _ in range(4)
    ]
    told = [process.communicate(timeout=120) for process in several]
    codes = sorted(process.returncode for process in several)
    # One that starts when another has finished finds the verdict ready.
    assert codes[0] == 1
    assert set(codes) <= {1, 2}
    for process, (out, err) in zip(several, told, strict=True):
        if process.returncode == 2:
            assert "is being worked on by process" in err
            assert err.count("\n") == 1
        else:
            assert json.loads(out)["cause"]
    assert not verify.verify(left.id).differences


Damage = Callable[[Path], object]


def edit(**changes: Any) -> Damage:
    def change(folder: Path) -> None:
        file = folder / "incident.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    return change


def folder_instead(name: str) -> Damage:
    def change(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).mkdir()

    return change


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (edit(waivers=5), "waivers"),
        (edit(waivers=[{"layer": "records"}]), "waivers"),
        (edit(waivers=[{"layer": "nope", "reason": "x"}]), "nope"),
        (edit(playbook={}), "playbook"),
        (edit(playbook="x"), "playbook"),
        (edit(versions=3), "versions"),
        (edit(symptoms=None), "symptoms"),
        (edit(refusals=[5]), "refusals"),
        (folder_instead("graph.sqlite"), "graph.sqlite"),
        (folder_instead("events.jsonl"), "events.jsonl"),
        (folder_instead("evidence/E3.json"), "E3.json"),
        (lambda f: (f / "graph.sqlite").write_bytes(b"junk junk junk"), "graph.sqlite"),
    ],
)
def test_a_damaged_incident_is_one_line_that_names_the_place(
    fb: Fb, look: Look, make_run: MakeRun, damage: Damage, named: str
) -> None:
    found = look(make_run(same=1)).incident
    shutil.copytree(found.folder, found.folder.with_name("damaged"))
    damage(found.folder.with_name("damaged"))
    code, out, err = fb("investigate", "--resume", "damaged")
    assert (code, out) == (2, "")
    assert named in err
    assert err.count("\n") == 1
    assert fb("verify", "damaged")[0] in (0, 2), "verify reads neither graph nor events"
    code, out, _ = fb("incidents", "ls")
    assert code == 0
    assert found.id in out


def test_a_damaged_incident_does_not_hide_the_others(fb: Fb, look: Look, make_run: MakeRun) -> None:
    found = look(make_run(same=1)).incident
    broken = found.folder.with_name("zzz")
    shutil.copytree(found.folder, broken)
    (broken / "incident.json").write_text("{")
    _, out, _ = fb("incidents", "ls", "--json")
    listed = json.loads(out)["incidents"]
    assert [(i["incident"], i["outcome"]) for i in listed] == [
        (found.id, "incident"),
        ("zzz", "damaged"),
    ]
    assert set(listed[0]) == set(listed[1])


def test_an_id_may_be_cut_short(fb: Fb, look: Look, make_run: MakeRun) -> None:
    first = look(make_run(same=1)).incident
    short = first.id[:-2]
    assert incident.find(short) == first
    assert fb("memo", "show", short)[0] == 0
    assert fb("incidents", "show", short)[0] == 0
    assert fb("verify", short)[0] == 0
    shutil.copytree(first.folder, first.folder.with_name(first.id[:-1] + "#"))
    code, _, err = fb("incidents", "show", short)
    assert code == 2
    assert f"2 incidents begin with `{short}`" in err
    assert first.id in err
    assert incident.find(first.id) == first, "a whole id is never ambiguous"
    with pytest.raises(UserError, match="no incident ``"):
        incident.find("")


def test_verify_says_that_versions_differ(fb: Fb, look: Look, make_run: MakeRun) -> None:
    found = look(make_run(same=1)).incident
    record = found.record()
    same = fb("verify", found.id, "--json")
    assert (same[0], json.loads(same[1])["versions"]) == (0, {})
    found.change(versions={**record.versions, "firstbad": "0.0.1"})
    code, out, _ = fb("verify", found.id)
    assert "firstbad 0.0.1 when it was measured, " in out.splitlines()[0]
    assert code == 4, "the verdict and the memo state the versions"
    found.change(playbook={**record.playbook, "digest": "sha256:0"})
    code, _, err = fb("investigate", "--resume", found.id)
    assert code == 2
    assert "it began with firstbad 0.0.1" in err


@pytest.mark.parametrize("value", ["", "--json", "-x"])
def test_an_out_that_is_no_folder(fb: Fb, make_run: MakeRun, book: str, value: str) -> None:
    code, _, err = fb("investigate", make_run(), "--playbook", book, "--out", value)
    assert code == 2
    assert "--out" in err


def test_a_tilde_in_out_is_the_home(
    fb: Fb, make_run: MakeRun, book: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    fb("investigate", make_run(), "--playbook", book, "--out=~/kept")
    assert len(list((tmp_path / "me" / "kept").iterdir())) == 1


def test_a_person_reads_a_line_at_once(
    fb: Fb, make_run: MakeRun, book: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run()
    monkeypatch.setattr("firstbad.agent.console.is_terminal", lambda stream: True)
    with monkeypatch.context() as first:

        def stop(*args: object) -> None:
            raise KeyboardInterrupt

        first.setattr(cli_investigate, "split_arguments", stop)
        assert fb("investigate", run, "--playbook", book)[2].startswith(f"reading {run} ...\n")
    monkeypatch.undo()
