from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from firstbad import __version__
from firstbad.agent import cli_investigate, cli_runs, incident, runs
from firstbad.agent.complaint import told_back
from firstbad.agent.reading import verdict_of
from firstbad.agent.report import report
from firstbad.playbooks.results import LeastBad, Verdict
from firstbad_recorder import Recorder

MakeRun = Callable[..., Path]
Fb = Callable[..., tuple[int, str, str]]

KEYS = {
    "schema", "incident", "outcome", "window", "first_bad", "noticed_step", "layers", "cause",
    "findings", "conditional_on", "waivers", "not_checked", "requests", "usage", "memo",
    "do_now", "resume_from", "passed_over", "reading", "headline", "complaint",
    "ended", "answers",
    "least_bad",
}  # fmt: skip


def test_version(fb: Fb) -> None:
    assert fb("--version") == (0, f"firstbad {__version__}\n", "")


@pytest.mark.parametrize(
    ("dials", "code", "outcome"),
    [
        ({}, 0, "healthy"),
        ({"judged": 3}, 1, "incident"),
        ({"same": 1}, 1, "incident"),
        ({"same": "missing"}, 3, "undetermined"),
        ({"same": "broken"}, 3, "undetermined"),
    ],
)
def test_json_object_and_exit_code(
    fb: Fb, make_run: MakeRun, book: str, dials: dict[str, object], code: int, outcome: str
) -> None:
    run = make_run(**dials)
    got, out, err = fb("investigate", run, "reward fell at step 4", "--playbook", book, "--json")
    found = json.loads(out)
    assert (got, err) == (code, "")
    assert set(found) == KEYS
    assert (found["schema"], found["outcome"], found["noticed_step"]) == (1, outcome, 4)
    assert set(found["first_bad"]) == {"last_good", "first_bad", "from_start", "signal"}
    assert [layer["id"] for layer in found["layers"]] == [
        "window", "records", "probability", "masks", "optimizer", "reward",
    ]  # fmt: skip
    assert all(set(e) == {"id", "outcome", "strength", "reason"} for e in found["layers"])
    assert (found["cause"] is None) == (outcome != "incident")
    if found["cause"]:
        assert set(found["cause"]) == {"id", "layer", "confidence"}
        assert found["findings"][0]["cause"] == found["cause"]["id"]
    assert all(set(r) == {"layer", "need", "command", "decides"} for r in found["requests"])
    assert set(found["memo"]) == {"md", "html"}
    assert all(Path(p).is_file() for p in found["memo"].values())


def test_first_screen_is_enough_to_act_on(fb: Fb, make_run: MakeRun, book: str) -> None:
    run = make_run(same="missing", judged=3, window=1)
    code, out, err = fb("investigate", run, "it broke at 4", "--playbook", book)
    assert (code, err) == (1, "")
    head, facts, do_now, before, walk, rest = out.split("\n\n")
    assert head.startswith("INCIDENT. 3 are judged wrongly")
    assert "reward.verifier_outage (layer reward)" in facts
    assert [line.split("  ")[0] for line in facts.splitlines() if line[0] != " "] == [
        "cause", "first bad step", "last good", "you noticed", "confidence",
        "playbook", "conditional on",
    ]  # fmt: skip
    for label in ("stop", "fix", "resume", "verify", "only dilutes", "probability needs"):
        assert f"\n{label}  " in do_now
    assert "would refute it  This would be refuted by " in before
    (name,) = (i.id for i in incident.listing())
    verdict = json.loads((incident.find(name).verdict_file).read_text())
    for unread in verdict["not_checked"]:
        assert unread["layer"] in before
    for request in verdict["requests"]:
        assert " ".join(request["need"].split()) in " ".join(do_now.split())
    assert [line.split()[1] for line in walk.splitlines()[1:]] == [
        "pass", "pass", "inconclusive", "not", "reached:",
    ]  # fmt: skip
    assert "independent fact: " in walk
    assert f"{name}/memo.md" in rest
    assert f"{name}/memo.html" in rest
    assert f"firstbad verify {name}" in rest
    assert "\x1b" not in out


def test_what_was_asked_wrongly_is_one_line_and_exit_code_2(
    fb: Fb, make_run: MakeRun, book: str, tmp_path: Path
) -> None:
    run = make_run()
    for args in (
        ["investigate"],
        ["investigate", tmp_path / "nothing", "--playbook", book],
        ["investigate", run, "--playbook", "nothing"],
        ["investigate", run, "--playbook", book, "--waive", "masks"],
        ["investigate", run, "--playbook", book, "--waive", "masks= "],
        ["investigate", run, "--playbook", book, "--waive", "mask=why"],
        ["investigate", run, run],
        ["investigate", run, "two", "texts"],
        ["investigate", "--resume", "20200101-000000-aaaa"],
        ["incidents", "show", "nothing"],
        ["memo", "show", "nothing"],
        ["verify", "nothing"],
        ["demo", "nothing"],
        ["runs", "show", tmp_path],
        ["tools", "run", "nothing", run],
        ["tools", "run", "read_dial", run, "--set", "nme=x"],
        ["tools", "run", "read_dial", run, "--set", "name"],
        ["playbook", "lint", tmp_path / "nothing.yaml"],
        ["investigate", run, "--bogus"],
        ["investigate", run, "--step", "two"],
        ["runs", "show"],
        ["bogus"],
    ):
        code, out, err = fb(*args)
        assert (code, out) == (2, ""), args
        assert err.startswith("firstbad: "), args
        assert err.count("\n") == 1, err
    assert not list(incident.listing())


def test_an_empty_complaint_is_none(fb: Fb, make_run: MakeRun, book: str) -> None:
    run = make_run()
    assert fb("investigate", run, "", "--playbook", book)[0] == 0


def test_what_is_to_be_done_is_in_the_json_object(fb: Fb, make_run: MakeRun, book: str) -> None:
    out = fb("investigate", make_run(judged=3, window=1), "--playbook", book, "--json")[1]
    found = json.loads(out)
    assert [row["label"] for row in found["do_now"]][:2] == ["stop", "fix"]
    assert set(found) >= {"resume_from", "reading"}


def test_answers_and_the_least_bad_checkpoint_are_in_the_json_object(
    fb: Fb, make_run: MakeRun, book: str
) -> None:
    out = fb("investigate", make_run(), "it fell", "--playbook", book, "--json")[1]
    found = json.loads(out)
    assert (found["complaint"], found["least_bad"]) == ("it fell", None)
    assert found["answers"] == [told_back(["it fell"])]
    kept = incident.find(found["incident"])
    verdict = verdict_of(kept)
    assert verdict is not None
    assert found["headline"] == verdict.headline
    told = {"answers": ("it did not",), "least_bad": LeastBad(checkpoint="checkpoint-9", updates=2)}
    found = report(kept, verdict.model_copy(update=told))
    assert found["answers"] == ["it did not"]
    assert found["least_bad"] == {
        "checkpoint": "checkpoint-9",
        "updates": 2,
        "updates_most": None,
    }


def test_a_moved_run_is_told_with_the_way_on(fb: Fb, make_run: MakeRun, book: str) -> None:
    run = make_run()
    fb("investigate", run, "--playbook", book)
    (made,) = incident.listing()
    moved = run.rename(run.with_name("moved"))
    code, _, err = fb("verify", made.id)
    assert code == 2
    assert err.endswith(f"if the run was moved: firstbad verify {made.id} --run RUN\n")
    assert fb("verify", made.id, "--run", moved)[0] == 0


def test_a_bug_is_a_line_with_the_place_of_its_traceback(
    fb: Fb, make_run: MakeRun, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object, **kwargs: object) -> None:
        raise RuntimeError("no\x1b[2Jsuch luck")

    monkeypatch.setattr(runs, "open_ref", broken)
    code, out, err = fb("runs", "show", make_run())
    assert (code, out, err.count("\n")) == (70, "", 1)
    assert "\x1b" not in err
    (log,) = (home / "logs").iterdir()
    assert str(log) in err
    assert "Traceback" in log.read_text()
    monkeypatch.setenv("FIRSTBAD_DEBUG", "1")
    code, out, err = fb("runs", "show", "x")
    assert code == 70
    assert "Traceback" in err


def test_waive_and_resume(fb: Fb, make_run: MakeRun, book: str) -> None:
    assert fb("investigate", make_run(same="missing"), "--playbook", book)[0] == 3
    (name,) = (i.id for i in incident.listing())
    code, out, _ = fb("investigate", "--resume", name, "--waive", "probability=did it", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["waivers"] == [{"layer": "probability", "reason": "did it"}]
    assert found["conditional_on"] == ["probability (waived)"]


@pytest.mark.parametrize(
    ("typed", "code"),
    [
        ("waive I looked\n", 0),
        ("help\nwaive I looked\n", 0),
        ("skip\nwaive\nWAIVE: I looked\n", 0),
        ("skip\n", 3),
        ("waive\n\n", 3),
        ("?\n\n", 3),
        ("\n", 3),
        ("", 3),
    ],
)
def test_ask_puts_the_question_on_standard_error(
    fb: Fb,
    make_run: MakeRun,
    book: str,
    monkeypatch: pytest.MonkeyPatch,
    typed: str,
    code: int,
) -> None:
    import io

    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    run = make_run(same="missing")
    got, out, err = fb("investigate", run, "--playbook", book, "--ask", "--json")
    assert got == code
    assert "needed: captured log-probs" in err
    assert [w["reason"] for w in json.loads(out)["waivers"]] == (["I looked"] if code == 0 else [])


def test_an_answer_that_is_not_understood_is_asked_for_again(
    fb: Fb, make_run: MakeRun, book: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import io

    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "stdin", io.StringIO("help\nyes please\nwaive\n\n"))
    err = fb("investigate", make_run(same="missing"), "--playbook", book, "--ask")[2]
    assert err.count("To go past it all the same") == 4
    assert "`waive REASON`: go past this layer" in err
    assert "`yes please` is no answer here" in err
    assert "A waiver needs a reason" in err
    assert max(len(line) for line in err.splitlines() if "by: " not in line) <= 80


def test_ctrl_c_at_the_question_says_how_to_go_on(
    fb: Fb, make_run: MakeRun, book: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Keyboard:
        def readline(self) -> str:
            raise KeyboardInterrupt

    monkeypatch.setattr(sys, "stdin", Keyboard())
    code, out, err = fb("investigate", make_run(same="missing"), "--playbook", book, "--ask")
    (made,) = incident.listing()
    assert (code, out) == (130, "")
    assert err.endswith(f"firstbad investigate --resume {made.id}\n")


def test_out_puts_the_incident_elsewhere(
    fb: Fb, make_run: MakeRun, book: str, tmp_path: Path, home: Path
) -> None:
    out_dir = tmp_path / "there"
    code, out, _ = fb("investigate", make_run(), "--playbook", book, "--out", out_dir, "--json")
    found = json.loads(out)
    assert Path(found["memo"]["md"]).parent == out_dir / found["incident"]
    assert not home.exists()
    assert json.loads(fb("incidents", "ls", "--out", out_dir, "--json")[1])["incidents"]
    assert fb("incidents", "show", out_dir / found["incident"])[0] == 0
    assert fb("verify", found["incident"], "--out", out_dir)[0] == 0


def test_incidents_and_memo(fb: Fb, make_run: MakeRun, book: str) -> None:
    assert "no incidents yet" in fb("incidents", "ls")[1]
    _, first, _ = fb("investigate", make_run(same=1), "fell at 4", "--playbook", book, "--json")
    name = json.loads(first)["incident"]
    (row,) = json.loads(fb("incidents", "ls", "--json")[1])["incidents"]
    assert (row["incident"], row["outcome"], row["cause"], row["complaint"]) == (
        name, "incident", "prob.weight_sync", "fell at 4",
    )  # fmt: skip
    assert "prob.weight_sync" in fb("incidents", "ls")[1]
    assert json.loads(fb("incidents", "show", name, "--json")[1]) == json.loads(first)
    assert fb("incidents", "show", name)[1].startswith("INCIDENT")
    paths = json.loads(fb("memo", "show", name, "--json")[1])["memo"]
    assert fb("memo", "show", name, "--html")[1].strip() == paths["html"]
    text = Path(paths["md"]).read_text()
    assert fb("memo", "show", name)[1].strip() == text.strip()
    assert fb("memo", "show", name, "--md") == fb("memo", "show", name)


def test_tools(fb: Fb, make_run: MakeRun) -> None:
    assert fb("tools", "ls")[1].startswith("read_dial  One dial's reading")
    (tool,) = json.loads(fb("tools", "ls", "--json")[1])["tools"]
    assert (tool["name"], set(tool["settings"])) == ("read_dial", {"name", "since"})
    run = make_run(judged=3, same="missing", rows="broken")
    code, out, _ = fb("tools", "run", "read_dial", run, "--set", "name=judged", "--json")
    evidence = json.loads(out)["evidence"]
    assert (code, evidence["metrics"]["value"]) == (0, 3)
    assert "value           3" in fb("tools", "run", "read_dial", run, "--set", "name=judged")[1]
    assert fb("tools", "run", "read_dial", run, "--set", "name=same")[0] == 3
    assert fb("tools", "run", "read_dial", run, "--set", "name=rows")[0] == 70


def test_playbook(fb: Fb, book: str, tmp_path: Path) -> None:
    assert fb("playbook", "lint", book)[1] == "fake: 6 layers, 7 checks, in order\n"
    assert json.loads(fb("playbook", "lint", book, "--json")[1])["checks"] == 7
    assert fb("playbook", "show", book)[1] == Path(book).read_text().rstrip("\n") + "\n"
    assert json.loads(fb("playbook", "show", book, "--json")[1])["playbook"]["name"] == "fake"
    bad = tmp_path / "bad.yaml"
    bad.write_text(Path(book).read_text().replace("read_dial: {name: same}", "raed: {}"))
    code, _, err = fb("playbook", "lint", bad)
    assert code == 2
    assert "no tool `raed`; nearest: read_dial" in err


def test_playbook_schema(fb: Fb) -> None:
    code, out, _ = fb("playbook", "schema")
    assert code == 0
    assert json.loads(out)["title"] == "Playbook"


def test_runs_show(fb: Fb, make_run: MakeRun) -> None:
    run = make_run()
    found = json.loads(fb("runs", "show", run, "--json")[1])
    assert (found["framework"], found["steps"], found["last_step"]) == ("trl", 5, 5)
    (reward,) = (s for s in found["signals"] if s["name"] == "reward_mean")
    assert (reward["first"], reward["last"], reward["steps"]) == (0.5, 0.5, 5)
    out = fb("runs", "show", run)[1]
    assert "reward_mean" in out
    assert "checkpoints  none" in out


def test_runs_show_of_a_run_with_a_record(fb: Fb, tmp_path: Path) -> None:
    """Its own names are recognised, kept steps are told as spans, no step is none."""
    from firstbad_recorder import Recorder

    rows = [{"step": s, "reward": 0.5, "loss": 0.1, "rewards/a/mean": 0.5} for s in (1, 2, 3)]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": rows}))
    recorder = Recorder(tmp_path / "record", framework="trl")
    for step in (1, 2, 3, 4, 5):
        recorder.scalars(step, reward_mean=0.5, loss=0.1, reward=0.5, mine=1.0)
        if step in (1, 4, 5):
            recorder.capture(step, rollouts=[{"sample": "a", "prompt": "x", "completion": "y"}])
    recorder.close()
    found = json.loads(fb("runs", "show", tmp_path, "--json")[1])
    assert found["unrecognised"] == ["mine"]
    assert found["rollouts"]["spans"] == [[1, 1], [4, 5]]
    out = fb("runs", "show", tmp_path)[1]
    assert "rollouts     3 steps: 1, 4, 5\n" in out
    assert "-  end  the recorder was closed" in out
    assert "trainer_state.json: the record lacks them" in out
    assert "same_signal" not in out
    assert "?" not in out


def test_runs_show_where_a_recorder_saw_it(fb: Fb, tmp_path: Path) -> None:
    with Recorder(tmp_path, device="one\x1b[31m card", environment={"SEED": "7"}) as recorder:
        recorder.scalars(1, reward=0.5)
    found = json.loads(fb("runs", "show", tmp_path, "--json")[1])
    assert (found["device"], found["environment"]) == ("one\x1b[31m card", {"SEED": "7"})
    out = fb("runs", "show", tmp_path)[1]
    assert "\x1b[31m" not in out
    assert "SEED=7" in out


def test_events_that_say_the_same_are_one_line() -> None:
    events: list[dict[str, Any]] = [
        {"kind": "warning", "step": 66, "text": "01:30:01 verifier deadline exceeded"},
        {"kind": "end", "step": 70, "text": "done"},
        {"kind": "warning", "step": 67, "text": "01:30:02 verifier deadline exceeded"},
        {"kind": "error", "step": None, "text": "killed"},
    ]
    assert cli_runs.repeated(events) == [
        ("66 to 67", "warning", "01:30:01 verifier deadline exceeded (2 times alike)"),
        ("70", "end", "done"),
        ("-", "error", "killed"),
    ]


def test_untrusted_names_do_not_reach_the_terminal(fb: Fb, make_run: MakeRun, book: str) -> None:
    run = make_run("otter\x1b[2J", judged=3)
    for args in (
        ["investigate", run, "fell \x1b]0;x\x07 at 4", "--playbook", book],
        ["incidents", "ls"],
        ["runs", "show", run],
        ["investigate", f"{run}\x1b", "--playbook", book],
    ):
        _, out, err = fb(*args)
        assert "\x1b" not in out + err
        assert "\x07" not in out + err


def test_names_and_words_that_are_not_unicode_are_shown_escaped(
    fb: Fb, make_run: MakeRun, book: str
) -> None:
    run = make_run("ot\udcffter", judged=3)
    code, out, _ = fb("investigate", run, "fell \udcfe at 4", "--playbook", book, "--json")
    assert code == 1
    (row,) = json.loads(fb("incidents", "ls", "--json")[1])["incidents"]
    assert row["run"].endswith("ot\\udcffter")
    assert row["complaint"] == "fell ? at 4"
    assert fb("verify", json.loads(out)["incident"])[0] == 0


@pytest.mark.parametrize(
    ("args", "run", "complaint"),
    [
        ([], [], ""),
        (["runs/heron"], ["runs/heron"], ""),
        (["runs/heron", "reward fell"], ["runs/heron"], "reward fell"),
        (["heron", "collapsed"], ["heron"], "collapsed"),
        (["trl:heron", "奖励/回报下降"], ["trl:heron"], "奖励/回报下降"),
        (["mlflow:abc123"], ["mlflow:abc123"], ""),
        (["heron", "NaN/Inf"], ["heron"], "NaN/Inf"),
        (["heron", "kl:exploded"], ["heron"], "kl:exploded"),
        (["heron", "./otter", "rec:wren"], ["heron", "./otter", "rec:wren"], ""),
        (["heron", "./otter", "fell twice"], ["heron", "./otter"], "fell twice"),
    ],
)
def test_runs_and_complaint_are_told_apart(args: list[str], run: list[str], complaint: str) -> None:
    assert cli_investigate.split_arguments(args) == (run, complaint)


def test_reruns_are_kept_with_the_incident_and_read_again(
    fb: Fb, make_run: MakeRun, book: str
) -> None:
    run, other = make_run("heron", judged=3), make_run("otter", judged=3)
    code, out, _ = fb("investigate", run, other, "fell at 4", "--playbook", book, "--json")
    assert code == 1
    made = json.loads(out)["incident"]
    (found,) = [i for i in incident.listing() if i.id == made]
    assert found.record().replays == (str(other),)
    assert fb("verify", made)[0] == 0
    others = [make_run(f"run{i}") for i in range(11)]
    code, _, err = fb("investigate", *others)
    assert (code, err) == (2, "firstbad: expected at most 10 runs of one job, found 11\n")
    code, _, err = fb("investigate", run, other, run)
    assert (code, err) == (2, f"firstbad: `{run}` is named twice: name each run once\n")


def test_demo_shows_a_shipped_run_and_ends_well(
    fb: Fb, make_run: MakeRun, book: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from firstbad.agent import investigate as work

    run = make_run("heron", same=1)
    (run / "complaint.txt").write_text("reward fell at step 4\n")
    monkeypatch.setattr(runs, "demo_names", lambda: ("heron",))
    monkeypatch.setattr(runs, "files", lambda package: _Demos(run.parent))
    look = work.investigate

    def by_fake_playbook(*args: Any, **kwargs: Any) -> Any:
        return look(*args, **kwargs, playbook=book)

    monkeypatch.setattr(work, "investigate", by_fake_playbook)
    monkeypatch.chdir(run.parent)  # a folder of the same name is not meant
    code, out, _ = fb("demo")
    assert code == 0
    assert out.startswith('$ firstbad investigate demo:heron "reward fell at step 4"\n\nINCIDENT')
    (made,) = incident.listing()
    verdict = Verdict.model_validate_json(made.verdict_file.read_bytes())
    assert (verdict.run, verdict.noticed_step) == ("demo:heron", 4)
    assert fb("verify", made.id)[0] == 0
    assert json.loads(fb("demo", "--json")[1])["outcome"] == "incident"


class _Demos:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __truediv__(self, name: str) -> Path:
        return self._folder
