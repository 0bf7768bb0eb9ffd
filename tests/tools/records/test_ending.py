"""How a run ended: by an exception, in order, or without a word."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from firstbad.tools.evidence import Evidence
from firstbad.tools.readers import open_run
from firstbad.tools.run import Event, Note, Run
from firstbad_recorder import Recorder

TOOL = "find_ending"
MakeRun = Callable[..., Run]
Measure = Callable[..., dict[str, Any]]
FindEvidence = Callable[..., Evidence]

REWARD = {"reward_mean": [0.5] * 22}
PLAN = {"max_steps": 40}


def raised(step: int | None, text: str = "TimeoutError: no answer", **more: Any) -> Event:
    return Event("error", step, text, "events.jsonl", **{"ends": True, **more})


@pytest.mark.parametrize(
    ("step", "told"),
    [
        (23, "in step 23 of 40 with `TimeoutError: no answer` (events.jsonl)"),
        (22, "after step 22 of 40 with `TimeoutError: no answer` (events.jsonl)"),
        (None, "after step 22 of 40 with `TimeoutError: no answer` (events.jsonl)"),
        (32, "after step 22 of 40 with `TimeoutError: no answer` (events.jsonl)"),
    ],
)
def test_an_exception_at_the_last_step_ended_the_run(
    make_run: MakeRun, evidence: FindEvidence, step: int | None, told: str
) -> None:
    run = make_run(signals=REWARD, config=PLAN)
    run.events = (raised(step),)
    found = evidence(TOOL, run)
    assert found.metrics is not None
    assert found.metrics["by_error"] is True
    assert (found.metrics["last_step"], found.metrics["steps_left"]) == (22, 18)
    assert found.quote == told
    assert found.summary == f"the run ended {told}"


@pytest.mark.parametrize(
    "event", [raised(20), Event("error", 22, "ERROR: a judge failed, tried again", "train.log")]
)
def test_an_error_that_the_run_went_on_after_did_not_end_it(
    make_run: MakeRun, measure: Measure, event: Event
) -> None:
    run = make_run(signals=REWARD)
    run.events = (event,)
    found = measure(TOOL, run)
    assert found["by_error"] is False
    assert found["error_step"] is None
    assert found["planned_steps"] is None


def test_whether_it_was_closed(make_run: MakeRun, measure: Measure) -> None:
    assert measure(TOOL, make_run(signals=REWARD))["closed"] is None
    assert (
        measure(TOOL, make_run(signals=REWARD, events=[("end", 22, "train_runtime")]))["closed"]
        is True
    )
    open_ = make_run(signals=REWARD, notes=(Note("not_closed", "killed, or still at work"),))
    assert measure(TOOL, open_)["closed"] is False


def test_a_long_exception_is_cut_between_words_and_cannot_close_its_quotes(
    make_run: MakeRun, evidence: FindEvidence
) -> None:
    run = make_run(signals=REWARD)
    run.events = (raised(22, "ValueError: `x`\n" + "several words " * 50),)
    quote = evidence(TOOL, run).quote
    assert quote.startswith("after step 22 with `ValueError: x several words")
    assert quote.endswith(("several …` (events.jsonl)", "words …` (events.jsonl)"))


def test_no_step_is_no_data(make_run: MakeRun, evidence: FindEvidence) -> None:
    assert evidence(TOOL, make_run()).status == "no_data"


# ------------------------------------------------------------------------------- records and logs


def recorded(folder: Path, steps: range) -> Recorder:
    recorder = Recorder(folder)
    for step in steps:
        recorder.scalars(step, reward=0.5)
    return recorder


def test_of_a_record_the_exception_of_its_last_process_counts(
    tmp_path: Path, measure: Measure
) -> None:
    recorded(tmp_path, range(1, 23)).failed(TimeoutError("no answer"), 23)
    found = measure(TOOL, open_run(f"rec:{tmp_path}"))
    assert (found["by_error"], found["error_step"], found["closed"]) == (True, 23, None)
    assert "not_closed" not in {n.code for n in open_run(f"rec:{tmp_path}").notes}
    recorded(tmp_path, range(20, 23))  # a process that went on, and was killed before step 23
    found = measure(TOOL, open_run(f"rec:{tmp_path}"))
    assert (found["by_error"], found["closed"]) == (False, False)


def test_a_record_without_the_mark_is_told_by_the_name_of_an_exception(
    tmp_path: Path, measure: Measure
) -> None:
    recorded(tmp_path, range(1, 23)).close()
    events = tmp_path / "events.jsonl"

    def ended(text: str) -> bool:
        events.write_text(json.dumps({"kind": "error", "step": 22, "time": 1, "text": text}))
        return bool(measure(TOOL, open_run(f"rec:{tmp_path}"))["by_error"])

    assert ended("torch.OutOfMemoryError: CUDA out of memory")
    assert not ended("the judge gave no answer, 0 was taken")


LOG = "".join(f"step {i}: reward=0.5 loss=0.1\n" for i in range(1, 23))
TRACE = """Traceback (most recent call last):
  File "train.py", line 43, in correct
    raise TimeoutError("no answer")
TimeoutError: no answer
"""


def test_a_console_log_that_ends_with_a_traceback(tmp_path: Path, measure: Measure) -> None:
    log = tmp_path / "train.log"

    def ended(text: str) -> bool:
        log.write_text(text)
        return bool(measure(TOOL, open_run(str(tmp_path)))["by_error"])

    assert ended(LOG + TRACE)
    assert not ended(LOG)
    assert not ended(LOG + TRACE + "step 23: reward=0.5 loss=0.1\nstep 24: reward=0.5 loss=0.1\n")
    assert not ended(LOG + "ERROR judge failed, tried again\n")
