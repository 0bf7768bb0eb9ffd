"""A run that an exception ended: told on the first screen, in the memo and in JSON."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from firstbad.agent.investigate import Finished, investigate
from firstbad.agent.report import report
from firstbad.agent.runs import demo_folder
from firstbad.agent.screen import first_screen
from firstbad_recorder import Recorder

TRACE = """Traceback (most recent call last):
  File "train.py", line 43, in correct
    raise TimeoutError("no answer")
TimeoutError: no answer
"""
DIED = "after step 120 of 120 with `TimeoutError: no answer (File "


def seen(run: Path | str, complaint: str = "") -> tuple[Finished, str]:
    """The investigation and its first screen, on one line."""
    found = investigate(str(run), complaint)
    assert isinstance(found, Finished)
    return found, " ".join(first_screen(found.incident, found.verdict).split())


@pytest.fixture
def died(tmp_path: Path) -> Path:
    """A healthy run whose log ends with an exception."""
    run = tmp_path / "otter"
    shutil.copytree(demo_folder("otter"), run)
    log = run / "train.log"
    text = log.read_text()
    log.write_text(text[: text.rindex("\n", 0, text.rindex("training finished"))] + "\n" + TRACE)
    return run


def test_a_healthy_run_that_died_is_not_plainly_healthy(died: Path) -> None:
    found, screen = seen(died, "training crashed")
    assert found.verdict.outcome == "healthy"
    assert screen.startswith(f"HEALTHY. No layer failed, but the run ended {DIED}")
    assert f"run ended {DIED}" in screen
    assert f"The complaint says that the run ended before its time. It ended {DIED}" in screen
    assert DIED in report(found.incident, found.verdict)["ended"]
    memo = found.incident.markdown_file.read_text()
    assert "run ended" in memo
    assert "TimeoutError: no answer" in memo


def test_a_run_that_ended_in_order_says_nothing_of_it(tmp_path: Path) -> None:
    found, screen = seen("demo:otter", "it crashed")
    assert found.verdict.ended == ""
    assert screen.startswith("HEALTHY. Every layer passed and no check failed.")
    assert "It is not so: no exception is recorded" in screen


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """A record whose loss is not finite from its last step on, which an exception ended."""
    recorder = Recorder(tmp_path / "record", config={"max_steps": 40}, framework="trl")
    for step in range(1, 31):
        recorder.scalars(step, loss=0.1 if step < 30 else float("nan"), reward=0.5, grad_norm=1.0)
    recorder.failed(RuntimeError("probability tensor contains nan"), 31)
    return tmp_path / "record"


def test_nobody_is_told_to_stop_a_run_that_has_ended(record: Path) -> None:
    found, screen = seen(record)
    assert found.verdict.outcome == "incident"
    assert "if it still trains" not in screen
    assert "training has ended at step 30" in screen
    assert "run ended in step 31 of 40 with `RuntimeError: probability tensor" in screen


def test_a_step_behind_the_last_one_is_the_one_after_which_it_ended(record: Path) -> None:
    _, screen = seen(record, "crashed at step 31")
    assert (
        "Step 31 lies outside what is recorded, steps 1 to 30, after which the run ended." in screen
    )


@pytest.mark.parametrize(
    ("complaint", "answer"),
    [
        ("it exploded", "The complaint says that the run blew up."),
        ("it exploded", "not finite are logged in 1 step, the first of them 30."),
        ("the job hung", "It did not stand still, it ended in step 31 of 40 with `RuntimeError"),
    ],
)
def test_what_is_said_of_the_run_is_answered(record: Path, complaint: str, answer: str) -> None:
    _, screen = seen(record, complaint)
    assert answer in screen


def test_a_process_that_was_killed_leaves_a_record_that_is_not_closed(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "record", config={"max_steps": 40})
    for step in range(1, 31):
        recorder.scalars(step, reward=0.5)
    _, screen = seen(tmp_path / "record", "it died")
    assert "No exception is recorded, and the record was not closed" in screen
    assert "Its last step is 30." in screen


def test_a_process_that_another_continued_did_end(tmp_path: Path) -> None:
    for steps in (range(1, 21), range(21, 41)):
        recorder = Recorder(tmp_path / "record", config={"max_steps": 40})
        for step in steps:
            recorder.scalars(step, reward=0.5)
    recorder.close()
    _, screen = seen(tmp_path / "record", "it died around step 20")
    assert "It is not so" not in screen.split("If a fall")[0].split("ended before its time.")[1]
    assert "another went on, the last time at step 21." in screen
    assert "That one ended in order with its last step, 40 of 40." in screen
