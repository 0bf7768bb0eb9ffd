"""`--judge CMD`: a process of its own, bounded, asked once; its answers are evidence."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from firstbad.agent import cli
from firstbad.agent.incident import Incident, listing
from firstbad.agent.investigate import Finished, investigate
from firstbad.agent.judge import JudgeOrder, chosen, file_of, read_answers, to_ask_again
from firstbad.agent.judge_process import ask, words_of
from firstbad.agent.reading import verdict_of
from firstbad.agent.verify import verify
from firstbad.tools.errors import UserError
from firstbad.tools.readers import open_run

HEAD = """
import json, os, sys, time
rows = [json.loads(line) for line in sys.stdin]
def say(**answer): print(json.dumps(answer), flush=True)
"""
SOUND = """
import re
for row in rows:
    said = re.findall(r"<answer>(.*?)</answer>", row["completion"], re.S)
    wanted = sorted(re.findall(r"[0-9]", row["prompt"]))
    say(id=row["id"], score=float(bool(said) and said[-1].split() == wanted))
"""


@pytest.fixture
def judge(tmp_path: Path) -> Callable[[str], str]:
    """A command that runs some Python after it has read its rows as `rows`."""

    def make(code: str) -> str:
        path = tmp_path / "judge.py"
        path.write_text(HEAD + code)
        return shlex.join([sys.executable, str(path)])

    return make


@pytest.fixture
def run(repo: Path, tmp_path: Path) -> str:
    """Twenty steps of a recorded run, in which the verifier dies at step 66."""
    whole, folder = repo / "agent" / "demo_runs" / "heron", tmp_path / "run"
    shutil.copytree(whole, folder, ignore=lambda _, names: {n for n in names if "batch_d" in n})
    kept = {f"completions_{step:05d}.parquet" for step in range(56, 76)}
    for file in (folder / "completions").iterdir():
        if file.name not in kept:
            file.unlink()
    return str(folder)


def judged(run: str, command: str, **limits: float) -> Incident:
    done = investigate(run, judge=JudgeOrder(command, **limits))
    assert isinstance(done, Finished)
    return done.incident


def evidence(incident: Incident, tool: str) -> dict[str, Any]:
    texts = [json.loads(incident.evidence_text(i)) for i in incident.evidence_ids()]
    found: dict[str, Any] = next(e for e in texts if e["tool"] == tool)
    return found


def test_its_scores_are_evidence_and_used(run: str, judge: Callable[[str], str]) -> None:
    incident = judged(run, judge(SOUND))
    said = evidence(incident, "read_judge")
    assert said["origin"] == "probe"
    own = [source for source in said["sources"] if source["kind"] == "judge"]
    assert [source["ref"] for source in own] == ["judge.jsonl"]
    rejudged = evidence(incident, "rejudge")
    assert rejudged["metrics"]["by_command"] is True
    assert rejudged["metrics"]["first_bad_step"] == 66
    assert own[0] in rejudged["sources"]
    memo = incident.markdown_file.read_text()
    assert "tools run rejudge" not in memo, "without the judge it measures something else"
    assert f"`firstbad verify {incident.id}`" in memo


def test_it_is_asked_once(run: str, judge: Callable[[str], str], tmp_path: Path) -> None:
    count = tmp_path / "asked"
    command = judge(f"open({str(count)!r}, 'a').write('x')" + SOUND)
    incident = judged(run, command)
    asked = count.read_text()
    investigate(resume=incident.id)
    assert verify(incident.id).differences == ()
    assert count.read_text() == asked
    shutil.copytree(incident.folder, tmp_path / "copy")
    assert verify(str(tmp_path / "copy")).differences == ()


def test_a_changed_answer_is_found(run: str, judge: Callable[[str], str]) -> None:
    incident = judged(run, judge(SOUND))
    text = file_of(incident).read_text()
    file_of(incident).write_text(text.replace('"score": 1.0', '"score": 0.0', 1))
    places = {(d.place, d.field) for d in verify(incident.id).differences}
    said = evidence(incident, "read_judge")
    assert (str(said["id"]), "sources[0].digest") in places


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda path: path.unlink(), "is gone"),
        (lambda path: path.write_text("{}\n"), "can't be read"),
        (lambda path: path.write_text(path.read_text()[:-20]), "can't be read"),
        (lambda path: path.write_text("[" * 100_000), "can't be read"),
    ],
    ids=["gone", "empty", "cut", "deep"],
)
def test_answers_that_are_damaged(
    run: str, judge: Callable[[str], str], damage: Callable[[Path], object], says: str
) -> None:
    incident = judged(run, judge(SOUND))
    damage(file_of(incident))
    with pytest.raises(UserError, match=says):
        verify(incident.id)


NAN = 'print(\'{"id": "%s", "score": NaN}\' % rows.pop()[\'id\'])'
HUGE = "print('{\"id\": \"%s\", \"score\": 1%s}' % (rows.pop()['id'], '0' * 400))"
FAULTS: dict[str, tuple[str, dict[str, int]]] = {
    "an unknown id": ("say(id='9999:0', score=1.0)\nsay(id=7, score=1.0)", {"unknown": 2}),
    "a second answer": ("say(id=keep, score=0.5)", {"twice": 1}),
    "no JSON": ("print('loading model ...')\nprint('{')", {"unreadable": 2}),
    "a text for a score": (
        "say(id=rows.pop()['id'], score='high')\nsay(id=rows.pop()['id'])",
        {"unreadable": 2},
    ),
    "not finite": (NAN, {"not_finite": 1}),
    "a huge number": (HUGE, {"unreadable": 1}),
    "deep JSON": ("print('[' * 100000)", {"unreadable": 1}),
    "a missing row": ("rows.pop()", {}),
    "an error": ("say(id=rows.pop()['id'], error='\\x1b[31mbad\\nrow')", {}),
    "a crash": ("import atexit; atexit.register(lambda: os._exit(3))", {"crashes": 1}),
}
"""What a judge does wrong in each batch of rows, and how often it is counted."""


@pytest.mark.parametrize("what", FAULTS)
def test_answers_that_are_wrong_are_counted(
    run: str, judge: Callable[[str], str], what: str
) -> None:
    """Two batches: each has the fault, and the other rows are scored."""
    code, counts = FAULTS[what]
    before = "keep = rows.pop(0)['id']\nsay(id=keep, score=0.0)\n"
    answers = read_answers(file_of(judged(run, judge(f"{before}{code}\n{SOUND}"))))
    assert answers.counts["batches"] == 2
    told = ("not_finite", "unknown", "twice", "unreadable", "timeouts", "crashes", "too_long")
    found = {n: answers.counts[n] for n in told if answers.counts[n]}
    assert found == {name: 2 * n for name, n in counts.items()}
    lost = {"a text for a score": 4, "not finite": 2, "a huge number": 2, "a missing row": 2}
    errors = 2 if what == "an error" else 0
    assert len(answers.errors) == errors
    assert len(answers.scores) == answers.counts["asked"] - lost.get(what, 0) - errors
    assert all("\x1b" not in text and "\n" not in text for text in answers.errors.values())


def test_what_it_said_before_it_was_stopped_counts(run: str, judge: Callable[[str], str]) -> None:
    code = "for row in rows[:300]: say(id=row['id'], score=0.0)\n"
    incident = judged(run, judge(code + "sys.stdout.write('{\"id\"'); sys.stdout.flush()\n"
                                 "time.sleep(60)"), batch_seconds=2.0)  # fmt: skip
    answers = read_answers(file_of(incident))
    assert answers.counts["timeouts"] == answers.counts["batches"] == 2
    assert len(answers.scores) == 600
    assert answers.counts["unreadable"] == 2
    metrics = evidence(incident, "read_judge")["metrics"]
    assert metrics["n_missing"] == answers.counts["asked"] - 600
    assert "stopped at the time limit" in str(evidence(incident, "read_judge")["summary"])


def test_the_limit_in_all(run: str, judge: Callable[[str], str]) -> None:
    code = "say(id=rows[0]['id'], score=0.0); time.sleep(60)"
    began = time.monotonic()
    incident = judged(run, judge(code), seconds=1.5)
    assert time.monotonic() - began < 30
    answers = read_answers(file_of(incident))
    assert (answers.counts["batches"], answers.counts["asked"]) == (1, 960)


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("raise SystemExit('no model at \\x1b[31mhome')", "exit code 1; it said `no model at"),
        ("pass", "exit code 0"),
        ("say(id=rows[0]['id'], error='out of memory')", "2 errors such as `out of memory`"),
        ("time.sleep(60)", "stopped at its time limit"),
        ("while True: print('x' * 100000)", "stopped for writing too much"),
        ("os.close(1); time.sleep(60)", "stopped at its time limit"),
    ],
)
def test_a_judge_that_says_nothing_is_a_line(
    run: str, judge: Callable[[str], str], capsys: pytest.CaptureFixture[str], code: str, says: str
) -> None:
    command = judge(code)
    args = ["investigate", run, "--judge", command, "--judge-batch-seconds", "2"]
    assert cli.main(args) == 2
    told = capsys.readouterr().err
    assert says in told
    assert "\x1b" not in told
    assert len(told.strip().splitlines()) == 1
    (incident,) = listing()
    assert not file_of(incident).exists()
    assert f"--resume {incident.id}" in told
    judge(SOUND)  # mended, it goes on
    assert cli.main(["investigate", "--resume", incident.id]) == 1


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--judge", ""], "found nothing"),
        (["--judge", "'x"], "no closing quotation"),
        (["--judge", "no-such-program-at-all"], "no program"),
        (["--judge", "true", "--judge-seconds", "0"], "above 0 s"),
        (["--judge", "true", "--judge-seconds", "nan"], "above 0 s"),
    ],
)
def test_an_order_that_can_not_work(
    run: str, capsys: pytest.CaptureFixture[str], args: list[str], says: str
) -> None:
    assert cli.main(["investigate", run, *args]) == 2
    assert says in capsys.readouterr().err
    assert not listing()


def test_there_must_be_rollouts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.csv"
    path.write_text("step,reward\n" + "".join(f"{i},0.5\n" for i in range(30)))
    assert cli.main(["investigate", str(path), "--judge", "true"]) == 2
    assert "no rollouts to be judged" in capsys.readouterr().err


def test_an_incident_keeps_its_judge(run: str, judge: Callable[[str], str]) -> None:
    incident = judged(run, judge(SOUND))
    with pytest.raises(UserError, match="keeps the judge"):
        investigate(resume=incident.id, judge=JudgeOrder("true"))


def test_a_folder_from_elsewhere_starts_no_judge(
    run: str, judge: Callable[[str], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may come from anyone: the command it names runs only where the user repeats it."""
    mark = tmp_path / "mark"
    command = judge(f"open({str(mark)!r}, 'w')\nraise SystemExit(3)")
    with pytest.raises(UserError, match="mend it, then go on with: .* --judge "):
        investigate(run, judge=JudgeOrder(command), out=tmp_path / "elsewhere")
    (folder,) = (tmp_path / "elsewhere").iterdir()
    mark.unlink()
    with pytest.raises(UserError, match="where the command is yours, repeat it: --judge"):
        investigate(resume=str(folder))
    with pytest.raises(UserError, match="keeps the judge"):
        investigate(resume=str(folder), judge=JudgeOrder("true"))
    assert not mark.exists()
    assert cli.main(["investigate", "--resume", str(folder), "--judge", command]) == 2
    assert mark.exists()
    judge(SOUND)  # mended, under the same name
    assert cli.main(["investigate", "--resume", str(folder), "--judge", command]) == 1
    capsys.readouterr()


WITH_STATE = "count = {path!r}\nasked = len(open(count).read()) if os.path.exists(count) else 0\n"
BREAKS: dict[str, str] = {
    "from a row of its input on": """
open(count, 'a').write('x' * len(rows))
for row in rows[:max(0, 700 - asked)]: row['id_'] = row['id']
for row in rows:
    if 'id_' not in row: say(id=row['id'], score=0.0); row['completion'] = ''
""",
    "for a while": """
open(count, 'a').write('x' * len(rows))
for i, row in enumerate(rows):
    if 300 <= asked + i < 800: say(id=row['id'], score=0.0)
""",
    "from a row of each batch on": "for row in rows[150:]: say(id=row['id'], score=0.0)\n",
    "from one start on": """
open(count, 'a').write('x' * len(rows))
if asked: rows = [say(id=row['id'], score=0.0) for row in rows] and []
""",
}
"""How a judge breaks on the way; the first answer for a row counts."""


@pytest.mark.parametrize("how", BREAKS)
def test_a_judge_that_broke_on_the_way_is_set_aside(
    run: str, judge: Callable[[str], str], tmp_path: Path, how: str
) -> None:
    """Believed, it would tell of a verifier that passes wrong answers long before step 66."""
    code = WITH_STATE.format(path=str(tmp_path / "count")) + BREAKS[how] + SOUND
    incident = judged(run, judge(code))
    own = evidence(incident, "read_judge")["metrics"]
    assert own["broke"]
    assert own["n_again_other"] >= 6
    rejudged = evidence(incident, "rejudge")["metrics"]
    assert (rejudged["by_command"], rejudged["command_set_aside"]) == (False, True)
    assert rejudged["first_bad_step"] == 66
    assert not evidence(incident, "compare_judges")["metrics"]["by_command"]
    memo = incident.markdown_file.read_text()
    assert "was set aside: asked again in the end about" in memo
    assert verify(incident.id).differences == ()


SAMPLES = """
import hashlib
for row in rows:
    said = re.findall(r"<answer>(.*?)</answer>", row["completion"], re.S)
    wanted = sorted(re.findall(r"[0-9]", row["prompt"]))
    lucky = hashlib.sha256(f"{row['id']}{len(rows)}".encode()).digest()[0] < 0.05 * 256
    say(id=row["id"], score=float((bool(said) and said[-1].split() == wanted) ^ lucky))
"""


@pytest.mark.parametrize("code", [SOUND, "import re" + SAMPLES], ids=["sound", "samples"])
def test_a_judge_that_agrees_with_itself_is_not(
    run: str, judge: Callable[[str], str], code: str
) -> None:
    own = evidence(judged(run, judge(code)), "read_judge")["metrics"]
    assert own["n_again"] >= 30
    assert (own["broke"], own["silent_share"]) == (False, 0)
    assert (own["n_again_other"] > 0) == (code != SOUND)


def test_a_judge_that_falls_silent_passes_no_reward(run: str, judge: Callable[[str], str]) -> None:
    """It has no score for the steps from 64 on, and the verifier dies at 66."""
    incident = judged(run, judge("rows = [row for row in rows if row['step'] < 64]\n" + SOUND))
    own = evidence(incident, "read_judge")["metrics"]
    assert (own["broke"], own["silent_after"], own["silent_share"]) == (False, 63, 0.6)
    verdict = verdict_of(incident)
    assert verdict is not None
    (outcome,) = (c.outcome for c in verdict.checks if (c.layer, c.check) == ("reward", "judging"))
    assert outcome == "inconclusive"


def test_rows_that_are_asked_about_again() -> None:
    """Of the longest stretch with one score, then the earliest with another."""
    scores = {str(i): float(i % 3 == 0) for i in range(300)} | {
        str(i): 0.0 for i in range(300, 400)
    }
    again = to_ask_again(scores)
    assert again[:20] == [str(i) for i in range(298, 398, 6)][:17] + again[17:20]
    assert again[17:] == [str(i) for i in range(0, 60, 3)]
    assert to_ask_again({"a": 1.0}) == ["a"]


def test_its_whole_group_is_ended(tmp_path: Path) -> None:
    """What it started in the background goes with it, and does not hold its end up."""
    pid = tmp_path / "pid"
    code = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
open({str(pid)!r}, "w").write(str(child.pid))
print("done")
"""
    began = time.monotonic()
    reply = ask([sys.executable, "-c", code], b"", seconds=30, most_bytes=100)
    assert (reply.out, reply.code, reply.stopped) == (b"done\n", 0, "")
    assert time.monotonic() - began < 20
    child = int(pid.read_text())
    end = time.monotonic() + 10
    while time.monotonic() < end and _alive(child):
        time.sleep(0.02)
    assert not _alive(child)


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_input_larger_than_a_pipe_and_output_in_between() -> None:
    """No side waits for the other: it writes before it has read all."""
    code = "import sys\nprint('x' * 200000, flush=True)\nprint(len(sys.stdin.read()))"
    reply = ask([sys.executable, "-c", code], b"y" * 500_000, seconds=30, most_bytes=1_000_000)
    assert reply.out == b"x" * 200_000 + b"\n500000\n"


def test_no_shell_expands_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "s3cret")
    words = words_of("echo '$SECRET' $SECRET ; rm -rf x | cat")
    reply = ask(words, b"", seconds=10, most_bytes=1000)
    assert reply.out == b"$SECRET $SECRET ; rm -rf x | cat\n"
    assert os.environ["SECRET"] == "s3cret"


def test_rows_hold_what_a_judge_needs_and_not_the_reward(
    run: str, judge: Callable[[str], str], tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    judged(run, judge(f"open({str(seen)!r}, 'a').write(json.dumps(rows[0]) + '\\n')" + SOUND))
    row = json.loads(seen.read_text().splitlines()[0])
    assert list(row) == ["id", "step", "prompt", "completion", "gold"]
    assert (row["id"], row["step"]) == ("56:0", 56)


def test_rows_are_spread_over_a_long_run(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("firstbad.agent.judge.ROWS", 500)
    rows = chosen(open_run(str(repo / "agent" / "demo_runs" / "heron")))
    steps = [batch.step for batch, _ in rows]
    assert 450 <= len(rows) <= 500
    assert steps == sorted(steps)
    assert sum(step <= 7 for step in steps) >= 300
    assert len({step for step in steps if step > 7}) > 50
