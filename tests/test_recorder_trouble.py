"""Training goes on whatever goes wrong, and the record says what happened."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from firstbad_recorder import Recorder
from firstbad_recorder.folder import Folder


def events(folder: Path) -> list[tuple[str, int | None, str]]:
    file = folder / "events.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return [(e["kind"], e["step"], e["text"]) for e in map(json.loads, lines)]


def reasons(folder: Path) -> dict[str, int]:
    found: dict[str, int] = json.loads((folder / "run.json").read_text())["dropped_by_reason"]
    return found


def steps(folder: Path, place: str) -> list[int]:
    return sorted(int(p.name) for p in (folder / place).glob("*"))


def hold(recorder: Recorder, step: int) -> None:
    recorder.hold(step, rollouts=[{"sample": str(step), "completion": "x" * 500}])


class Disk:
    """A disk with room for so many steps in all."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
        self.room = room
        put = Folder.put

        def limited(folder: Folder, place: str, files: Any) -> bool:
            lie = sum(1 for p in ("steps", "ring") for _ in (Path(folder.path) / p).glob("*"))
            if lie >= self.room:
                raise OSError(errno.ENOSPC, "No space left on device")
            return put(folder, place, files)

        monkeypatch.setattr(Folder, "put", limited)


def test_a_full_disk_keeps_the_newest_steps_in_the_ring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Disk(monkeypatch, room=3)
    recorder = Recorder(tmp_path, baseline_every=0, process_ends=False)
    for step in range(1, 10):
        hold(recorder, step)
    assert steps(tmp_path, "ring") == [7, 8, 9]
    assert recorder.dropped == 0


def test_a_full_disk_without_anything_to_delete_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch, room=0)
    recorder = Recorder(tmp_path, baseline_every=0, process_ends=False)
    for step in range(1, 4):
        recorder.scalars(step, loss=0.1)
        hold(recorder, step)
    disk.room = 9
    hold(recorder, 4)
    recorder.close()
    assert reasons(tmp_path) == {"OSError: No space left on device": 3}
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3


def test_the_limit_of_the_record_makes_room_in_the_ring_first(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, max_bytes=6000, baseline_every=0, process_ends=False)
    for step in range(1, 30):
        hold(recorder, step)
    assert steps(tmp_path, "ring")[-1] == 29
    assert recorder.dropped == 0
    used = sum(f.stat().st_size for f in tmp_path.rglob("*") if f.is_file())
    assert used <= 6000 + 500  # run.json is not counted


def test_a_folder_that_may_only_be_read_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(tmp_path, baseline_every=0, process_ends=False)
    hold(recorder, 1)

    def refuse(*args: object, **more: object) -> None:  # a mode bit would not stop root
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patch:
        for name in ("makedirs", "open", "rename", "replace"):
            patch.setattr(os, name, refuse)
        patch.setattr(shutil, "rmtree", refuse)
        recorder.scalars(2, loss=0.1)
        hold(recorder, 2)
        recorder.keep("now")
        recorder.event("phase", 2, "second")
    hold(recorder, 3)
    recorder.close()
    assert recorder.dropped >= 4
    assert set(reasons(tmp_path)) == {"PermissionError: Permission denied"}


@pytest.mark.parametrize("trouble", ["limit", "folder", "closed", "value"])
def test_a_sample_that_could_not_be_kept_is_due_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    if trouble == "folder":
        (tmp_path / "record").write_text("a file")
    recorder = Recorder(tmp_path / "record", max_bytes=20_000, baseline_every=10)
    if trouble == "closed":
        recorder.close()
    due = []
    for step in range(1, 41):
        if recorder.is_sample(step):
            due.append(step)
        row = {"completion": "x" * 20_000 if trouble == "limit" else "x"}
        rows: Any = 7 if trouble == "value" else [row]
        recorder.hold(step, rollouts=rows)
        recorder.hold(step, rollouts=rows)
    assert due == [1, 11, 21, 31]
    assert recorder.dropped >= 80


def test_what_is_waited_for_is_bounded_and_counted(tmp_path: Path) -> None:
    with Recorder(tmp_path, baseline_every=0, process_ends=False) as recorder:
        for _ in range(40):
            recorder.keep("before the first step")
        assert recorder.dropped == 8
        hold(recorder, 1)
    assert steps(tmp_path, "steps") == [1]
    assert reasons(tmp_path) == {"more steps are waited for than can be": 8}


def test_a_folder_that_comes_late_is_continued(tmp_path: Path) -> None:
    folder = tmp_path / "record"
    with Recorder(folder) as first:
        first.scalars(1, loss=0.1)
    aside = tmp_path / "aside"
    folder.rename(aside)
    folder.write_text("not mounted yet")
    second = Recorder(folder)
    second.scalars(2, loss=0.1)
    assert second.dropped == 2
    folder.unlink()
    aside.rename(folder)
    second.scalars(3, loss=0.1)
    second.close()
    assert [e[:2] for e in events(folder)] == [("resume", 3)]


def test_a_clock_that_goes_back_is_said_a_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([2e9, 2e9 + 1, 2e9 + 0.5, 1.9e9, *[2e9, 1.9e9] * 20])
    with monkeypatch.context() as patch, Recorder(tmp_path) as recorder:
        for step in range(1, 30):
            now = next(clock)
            patch.setattr(time, "time", lambda now=now: now)
            recorder.scalars(step, loss=0.1)
    said = events(tmp_path)
    assert said[0] == ("warning", 4, "the clock went back by 100000000 seconds")
    assert len(said) == 5
    assert recorder.dropped == 0


def test_the_same_step_twice_is_nothing_to_say(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        for step in (1, 1, 2, 2):
            recorder.scalars(step, loss=0.1)
            hold(recorder, step)
    assert events(tmp_path) == []


class Raises:
    """A value on which everything raises."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("no")

    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__

    def __iter__(self) -> Any:
        raise RuntimeError("no")

    def __float__(self) -> float:
        raise RuntimeError("no")


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


class Bad:
    dtype = "float32"

    @property
    def shape(self) -> Any:
        raise Speechless


def test_a_value_on_which_everything_raises_costs_only_itself(tmp_path: Path) -> None:
    value: Any = Raises()
    recorder = Recorder(tmp_path, config={"a": value}, device=value, baseline_every=1)
    recorder.scalars(1, {"x": value}, loss=0.5)
    recorder.event("phase", 1, value)
    recorder.sync(1, version=value)
    recorder.hold(
        1,
        rollouts=[{"sample": "a", "reward": value}],
        tokens={"token_id": [[1, 2]], "logp_new": value, "logp_old": Bad()},
        microbatches=[{"loss": value}],
        numerics={"trail": value},
        why=value,
    )
    recorder.hold(2, rollouts=value)
    recorder.keep(value)
    recorder.failed(Speechless())
    recorder.close()
    assert json.loads((tmp_path / "metrics.jsonl").read_text())["loss"] == 0.5
    assert steps(tmp_path, "steps") == [1]
    assert (tmp_path / "steps/00000001/tokens.safetensors").exists()
    assert recorder.dropped == 4, reasons(tmp_path)
