"""Several processes: ranks of one training, and two trainings that share a folder by mistake."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from firstbad_recorder import Recorder
from firstbad_recorder.ranks import Ranks


def kept(folder: Path) -> dict[int, str]:
    files = sorted((folder / "steps").glob("*/step.json"))
    return {(said := json.loads(f.read_text()))["step"]: said.get("kept") for f in files}


def ranks_of(folder: Path, n: int) -> list[Recorder]:
    return [Recorder(folder, rank=rank, baseline_every=0, process_ends=False) for rank in range(n)]


def step_of(recorders: list[Recorder], step: int, bad: int | None = None) -> None:
    """One step on all ranks in turn; the loss of one of them may be NaN."""
    for rank, recorder in enumerate(recorders):
        recorder.hold(step, rollouts=[{"sample": f"{step}-{rank}"}])
        recorder.scalars(step, loss=float("nan") if rank == bad else 0.1)


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_what_makes_one_rank_keep_a_step_makes_all_keep_it(tmp_path: Path, bad: int) -> None:
    recorders = ranks_of(tmp_path, 3)
    for step in range(1, 12):
        step_of(recorders, step, bad if step == 7 else None)
    for recorder in recorders:
        recorder.close()
    folders = [tmp_path, tmp_path / "ranks/0001", tmp_path / "ranks/0002"]
    for folder in folders:
        assert kept(folder) == {6: "last_good", 7: "first_bad", 8: "after"}
        assert not list((folder / "ring").iterdir())
    other = folders[(bad + 1) % 3] / "steps/00000007"
    assert json.loads((other / "step.json").read_text())["why"] == f"rank {bad}: not finite: `loss`"
    assert json.loads((other / "rollouts.jsonl").read_text())["sample"].endswith(
        f"-{(bad + 1) % 3}"
    )


def test_an_alarm_in_the_last_step_reaches_the_others_when_they_close(tmp_path: Path) -> None:
    recorders = ranks_of(tmp_path, 2)
    step_of(recorders, 1)
    step_of(recorders, 2, bad=1)
    for recorder in recorders:
        recorder.close()
    assert kept(tmp_path) == kept(tmp_path / "ranks/0001") == {1: "last_good", 2: "first_bad"}


def test_a_call_on_one_rank_keeps_the_step_on_all(tmp_path: Path) -> None:
    recorders = ranks_of(tmp_path, 2)
    for step in range(1, 6):
        step_of(recorders, step)
        if step == 3:
            recorders[1].keep("a look")
    recorders[0].close()
    recorders[1].close()
    assert kept(tmp_path) == kept(tmp_path / "ranks/0001") == {3: "call"}


def test_what_was_asked_for_before_a_restart_is_not_kept_again(tmp_path: Path) -> None:
    first = ranks_of(tmp_path, 2)
    step_of(first, 1)
    step_of(first, 2, bad=1)
    for recorder in first:
        recorder.close()
    second = ranks_of(tmp_path, 2)
    for step in range(3, 6):
        step_of(second, step)
    for recorder in second:
        recorder.close()
    assert kept(tmp_path) == kept(tmp_path / "ranks/0001") == {1: "last_good", 2: "first_bad"}


OTHER = """
import sys
import time
from firstbad_recorder import Recorder
from firstbad_recorder.ranks import Ranks
recorder = Recorder(sys.argv[1], ring_steps=3, baseline_every=0, process_ends=False)
for step in range(1, 6):
    recorder.scalars(step, loss=0.1)
    recorder.hold(step, rollouts=[{"sample": "first"}])
print("ready", flush=True)
sys.stdin.readline()
recorder.keep("after the other one came")
recorder.close()
print(recorder.dropped)
"""


def test_two_processes_on_one_folder_say_so_and_train_on(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    first = subprocess.Popen(
        [sys.executable, "-c", OTHER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert first.stdout is not None
    assert first.stdout.readline() == "ready\n"
    with Recorder(tmp_path, baseline_every=0, process_ends=False) as second:
        held = {p.name for p in (tmp_path / "ring").iterdir()}
        assert held == {"00000003", "00000004", "00000005"}  # not taken from a living process
        second.scalars(1, loss=0.2)
        second.hold(101, rollouts=[{"sample": "second"}])
        told, _ = first.communicate("\n", timeout=30)
    assert int(told) == second.dropped == 0
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    (warning,) = [event["text"] for event in events if event["kind"] == "warning"]
    assert warning.startswith("another process records in this folder at the same time")
    assert kept(tmp_path) == {5: "call"}
    with Recorder(tmp_path) as third:  # nobody else is there any longer
        third.scalars(6, loss=0.1)
    assert (tmp_path / "events.jsonl").read_text().count("another process records") == 1


def looks_in(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one at each look at the other ranks."""
    looks: list[int] = []
    others = Ranks._others

    def counted(ranks: Ranks) -> list[str]:
        looks.append(ranks.rank)
        return others(ranks)

    monkeypatch.setattr(Ranks, "_others", counted)
    return looks


@pytest.mark.parametrize(("seconds", "most"), [(0.0, 16), (1.0, 12), (10.0, 42)])
def test_other_ranks_are_not_looked_at_in_every_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, most: int
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    recorder = Recorder(tmp_path, rank=1, ring_steps=8 if seconds == 0 else 64, baseline_every=0)
    looks = looks_in(monkeypatch)
    for step in range(1, 41):
        recorder.hold(step, rollouts=[{"sample": str(step)}])
        clock[0] += seconds
    before = len(looks)
    recorder.scalars(40, loss=0.1)
    recorder.scalars(41, loss=float("nan"))
    recorder.close()
    assert len(looks) == before + 2  # at its own alarm, and when it closes
    assert len(looks) <= most


def test_steps_that_are_quick_are_kept_before_they_leave_the_ring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    recorders = ranks_of(tmp_path, 3)
    for step in range(1, 100):
        step_of(recorders, step, step % 3 if step in (20, 51, 82) else None)
    for recorder in recorders:
        recorder.close()
    wanted = {n + d: mark for n in (20, 51, 82) for d, mark in enumerate(MARKS, -1)}
    assert kept(tmp_path) == kept(tmp_path / "ranks/0001") == kept(tmp_path / "ranks/0002")
    assert kept(tmp_path) == wanted


MARKS = ("last_good", "first_bad", "after")
