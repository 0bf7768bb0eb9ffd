"""Which steps the recorder keeps, and what is left on disk however the process ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from firstbad_recorder import Recorder
from firstbad_recorder.ring import MOST_BASELINES

QUIET: dict[str, Any] = {"baseline_every": 0, "process_ends": False}


def held(folder: Path) -> list[int]:
    return sorted(int(p.name) for p in (folder / "ring").glob("*")) if folder.exists() else []


def kept(folder: Path) -> dict[int, str]:
    """How each kept step is marked."""
    files = sorted((folder / "steps").glob("*/step.json"))
    said = [json.loads(file.read_text()) for file in files]
    assert [f"{about['step']:08d}" for about in said] == [file.parent.name for file in files]
    return {about["step"]: about.get("kept") for about in said}


def events(folder: Path) -> list[tuple[str, int | None]]:
    file = folder / "events.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return [(event["kind"], event["step"]) for event in map(json.loads, lines)]


def hold(recorder: Recorder, step: int) -> None:
    recorder.hold(step, rollouts=[{"sample": str(step), "completion": "x" * 100}])


@pytest.mark.parametrize("before", [True, False])
def test_the_third_breach_keeps_the_first_and_its_neighbours(tmp_path: Path, before: bool) -> None:
    with Recorder(tmp_path, ring_steps=5, **QUIET) as recorder:
        for step in range(1, 31):
            if before:
                hold(recorder, step)
            recorder.scalars(step, kl=0.9 if step >= 20 else 0.01)
            if not before:
                hold(recorder, step)
    assert kept(tmp_path) == {19: "last_good", 20: "first_bad", 21: "after"}
    assert events(tmp_path) == [("alarm", 22)]
    about = json.loads((tmp_path / "steps/00000020/step.json").read_text())
    assert about["why"] == "KL above 0.5 since step 20"
    rows = (tmp_path / "steps/00000020/rollouts.jsonl").read_text()
    assert json.loads(rows)["sample"] == "20"


def test_an_alarm_at_the_step_itself_waits_for_the_steps_to_come(tmp_path: Path) -> None:
    with Recorder(tmp_path, **QUIET) as recorder:
        for step in range(10, 60, 10):  # held after its alarm, and not at every step
            recorder.scalars(step, loss=float("nan") if step == 30 else 0.1)
            hold(recorder, step + 2)
    assert kept(tmp_path) == {22: "last_good", 32: "first_bad", 42: "after"}


def test_nothing_is_kept_of_a_quiet_run_and_the_ring_is_empty_at_its_end(tmp_path: Path) -> None:
    with Recorder(tmp_path, ring_steps=3, **QUIET) as recorder:
        for step in range(1, 20):
            recorder.scalars(step, kl=0.01, reward=0.1 * step)
            hold(recorder, step)
            assert held(tmp_path) == list(range(max(1, step - 2), step + 1))
    assert held(tmp_path) == []
    assert kept(tmp_path) == {}
    assert events(tmp_path) == []


def test_the_ring_is_bounded_in_bytes_too(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, ring_bytes=1000, **QUIET)
    for step in range(1, 20):
        hold(recorder, step)
        files = [f for f in (tmp_path / "ring").rglob("*") if f.is_file()]
        assert sum(f.stat().st_size for f in files) <= 1000
    assert 2 <= len(held(tmp_path)) < 8
    assert recorder.dropped == 0
    recorder.hold(20, rollouts=[{"completion": "x" * 2000}])
    recorder.close()
    reasons = json.loads((tmp_path / "run.json").read_text())["dropped_by_reason"]
    assert reasons == {"a step is larger than the ring": 1}


def test_baselines_grow_rarer_and_stay_bounded(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, baseline_every=2, ring_steps=2, process_ends=False)
    for step in range(1, 201):
        hold(recorder, step)
        assert len(kept(tmp_path)) <= MOST_BASELINES
    recorder.close()
    found = kept(tmp_path)
    assert set(found.values()) == {"baseline"}
    steps = list(found)
    assert steps[0] == 1
    gaps = {b - a for a, b in zip(steps, steps[1:], strict=False)}
    assert min(gaps) >= 8
    assert len(steps) > MOST_BASELINES // 2


def test_baselines_stay_bounded_over_restarts(tmp_path: Path) -> None:
    for start in range(4):
        recorder = Recorder(tmp_path, baseline_every=4, ring_steps=1, process_ends=False)
        for step in range(40 * start, 40 * start + 40):
            hold(recorder, step)
        recorder.close()
        assert len(kept(tmp_path)) <= MOST_BASELINES


def test_a_kept_step_that_was_alarmed_about_outlives_the_baselines(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, baseline_every=1, ring_steps=2)
    for step in range(1, 100):
        hold(recorder, step)
        recorder.scalars(step, grad_norm="x" if step == 5 else 1.0, loss=0.1)
        if step == 6:
            recorder.scalars(step, loss=float("inf"))
    assert kept(tmp_path)[6] == "first_bad"
    assert kept(tmp_path)[7] == "after"


def test_an_exception_keeps_all_that_is_held(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), Recorder(tmp_path, ring_steps=3, **QUIET) as recorder:  # noqa: PT012
        for step in range(1, 9):
            recorder.scalars(step, loss=0.1)
            hold(recorder, step)
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    assert kept(tmp_path) == {6: "ring", 7: "ring", 8: "ring"}
    assert events(tmp_path) == [("error", 8)]
    assert held(tmp_path) == []


def test_a_call_keeps_the_step_that_was_held_last_or_the_next_one(tmp_path: Path) -> None:
    with Recorder(tmp_path, **QUIET) as recorder:
        recorder.keep("before the first step")
        for step in range(1, 10):
            hold(recorder, step)
            if step == 5:
                recorder.keep("a look")
    assert kept(tmp_path) == {1: "call", 5: "call"}
    assert json.loads((tmp_path / "steps/00000005/step.json").read_text())["why"] == "a look"


@pytest.fixture
def free_signal() -> Iterator[int]:
    """SIGUSR1 as a fresh process has it, and afterwards as it was."""
    before = signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    yield signal.SIGUSR1
    signal.signal(signal.SIGUSR1, before)


def test_a_signal_keeps_the_next_held_step(tmp_path: Path, free_signal: int) -> None:
    recorder = Recorder(tmp_path, **QUIET)
    assert recorder.keep_on_signal()
    for step in range(1, 6):
        if step == 3:
            os.kill(os.getpid(), free_signal)
        hold(recorder, step)
    os.kill(os.getpid(), free_signal)
    recorder.close()
    assert kept(tmp_path) == {3: "call", 5: "call"}
    os.kill(os.getpid(), free_signal)  # a late one does no harm


def test_all_recorders_of_a_process_hear_a_signal(tmp_path: Path, free_signal: int) -> None:
    gone = Recorder(tmp_path / "gone", **QUIET)
    assert gone.keep_on_signal()
    gone.close()
    del gone
    recorders = [Recorder(tmp_path / name, **QUIET) for name in "ab"]
    assert all(recorder.keep_on_signal() for recorder in recorders * 2)
    os.kill(os.getpid(), free_signal)
    for recorder in recorders:
        hold(recorder, 1)
        recorder.close()
    assert kept(tmp_path / "a") == kept(tmp_path / "b") == {1: "call"}


def test_a_signal_that_somebody_has_is_left_alone(tmp_path: Path, free_signal: int) -> None:
    for theirs in (signal.SIG_IGN, lambda number, frame: None):
        signal.signal(free_signal, theirs)
        assert not Recorder(tmp_path, **QUIET).keep_on_signal()
        assert signal.getsignal(free_signal) is theirs


KILLED = """
import os, signal, sys
from firstbad_recorder import Recorder
recorder = Recorder(sys.argv[1], ring_steps=4, baseline_every=0, process_ends=False)
for step in range(1, 8):
    recorder.scalars(step, kl=0.01)
    recorder.hold(step, rollouts=[{"sample": "a"}], tokens={"token_id": [[1, 2]]})
os.makedirs(os.path.join(sys.argv[1], "ring", "00000008.unfinished-1"))
open(os.path.join(sys.argv[1], "run.json.1.tmp"), "w").close()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_leaves_its_steps_and_the_next_one_adopts_them(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)], env=environment, check=False
    )
    assert done.returncode == -signal.SIGKILL
    for step in (4, 5, 6, 7):
        folder = tmp_path / f"ring/{step:08d}"
        assert {p.name for p in folder.iterdir()} == {
            "rollouts.jsonl",
            "step.json",
            "tokens.safetensors",
        }
        assert json.loads((folder / "step.json").read_text())["step"] == step
    assert kept(tmp_path) == {}

    with Recorder(tmp_path, **QUIET) as recorder:  # goes on from a checkpoint at step 5
        assert held(tmp_path) == []
        assert not list(tmp_path.glob("*/*.unfinished*"))
        assert not list(tmp_path.glob("*.tmp"))
        for step in range(6, 10):
            recorder.scalars(step, loss=float("nan") if step == 8 else 0.1)
            hold(recorder, step)
    assert kept(tmp_path) == {
        4: "ring", 5: "ring", 6: "ring", 7: "last_good", 8: "first_bad", 9: "after",
    }  # fmt: skip
    assert events(tmp_path) == [("resume", 6), ("alarm", 8)]
    about = json.loads((tmp_path / "steps/00000007/rollouts.jsonl").read_text())
    assert about["sample"] == "7"  # of the second process: it is what came before the alarm


def test_steps_that_go_back_are_said_and_their_successors_come_again(tmp_path: Path) -> None:
    with Recorder(tmp_path, **QUIET) as recorder:
        for step in (1, 2, 3, 4, 5, 6, 3, 4, 5):
            first = step == 3 and recorder._last_step == 6
            recorder.scalars(step, loss=float("nan") if first else 0.1)
            hold(recorder, step)
    assert events(tmp_path) == [("warning", 3), ("alarm", 3)]
    assert kept(tmp_path) == {2: "last_good", 3: "first_bad", 4: "after"}


def test_a_stronger_mark_of_an_earlier_process_stays(tmp_path: Path) -> None:
    first = Recorder(tmp_path, **QUIET)
    for step in range(1, 6):
        first.scalars(step, loss=float("inf") if step == 3 else 0.1)
        first.hold(step, rollouts=[{"sample": "first"}])
    first.close()
    second = Recorder(tmp_path, baseline_every=1)
    for step in range(3, 6):
        second.hold(step, rollouts=[{"sample": "second"}])
    second.close()
    third = Recorder(tmp_path, **QUIET)
    third.hold(3, rollouts=[{"sample": "third"}])  # and is killed
    Recorder(tmp_path).close()
    row = json.loads((tmp_path / "steps/00000003/rollouts.jsonl").read_text())
    assert row["sample"] == "first"
    assert kept(tmp_path)[3] == "first_bad"
    assert held(tmp_path) == []


def test_both_sides_of_a_resume_are_kept(tmp_path: Path) -> None:
    with Recorder(tmp_path, baseline_every=0) as first:
        for step in range(1, 11):
            hold(first, step)
    with Recorder(tmp_path, baseline_every=0) as second:
        for step in range(11, 31):
            hold(second, step)
            if step == 13:
                assert kept(tmp_path) == {
                    **dict.fromkeys((7, 8, 9, 10), "ring"),
                    **dict.fromkeys((11, 12), "after"),
                }
    assert list(kept(tmp_path)) == [7, 8, 9, 10, 11, 12, 27, 28, 29, 30]
    assert held(tmp_path) == []
