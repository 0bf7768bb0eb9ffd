"""Steps that a saved optimizer has counted, against its schedule, without unpickling."""

from __future__ import annotations

import math
import pickletools
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from firstbad.tools.run import Checkpoint, Run
from firstbad.tools.torch_state import optimizer_steps, scheduler_steps

TOOL = "check_optimizer_state"

MakeRun = Callable[..., Run]
Measure = Callable[..., dict[str, Any]]


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def tensor(key: int, named: bytes) -> bytes:
    """A tensor of one number as torch writes it: rebuild((storage, type, key, cpu, 1), ...)."""
    storage = b"((" + text("storage") + named + text(str(key)) + text("cpu") + b"K\x01tQ"
    rest = b"K\x00))\x89ccollections\nOrderedDict\n)RtR"
    return b"ctorch._utils\n_rebuild_tensor_v2\n" + storage + rest


def write_optimizer(path: Path, *steps: float, kind: str = "float") -> None:
    """`{"state": {0: {"step": ...}, ...}}`; from the second on, names come from the memo."""
    layout, named = {"float": ("<f", "FloatStorage"), "long": ("<q", "LongStorage")}[kind]
    body = b"\x80\x02}(" + text("state") + b"}("
    for i in range(len(steps)):
        name = text("step") + b"q\x07" if i == 0 else b"h\x07"
        body += b"K" + bytes([i]) + b"}(" + name + tensor(i, f"ctorch\n{named}\n".encode()) + b"u"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("optimizer/data.pkl", body + b"uu.")
        for i, step in enumerate(steps):
            number = int(step) if kind == "long" else step
            archive.writestr(f"optimizer/data/{i}", struct.pack(layout, number))


def write_scheduler(path: Path, last_epoch: int) -> None:
    body = b"\x80\x02}(" + text("base_lrs") + b"]" + text("last_epoch")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("scheduler/data.pkl", body + b"M" + struct.pack("<H", last_epoch) + b"u.")


@pytest.fixture(name="saved")
def _saved(tmp_path: Path) -> Callable[..., Checkpoint]:
    """A checkpoint folder: `saved(120, counted=60, planned=120)`."""

    def build(step: int, counted: float | None, planned: int | None) -> Checkpoint:
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        if counted is not None:
            write_optimizer(folder / "optimizer.pt", counted, counted)
        if planned is not None:
            write_scheduler(folder / "scheduler.pt", planned)
        names = tuple(sorted(p.name for p in folder.iterdir()))
        return Checkpoint(step=step, path=folder, files=names, state_step=step)

    return build


@pytest.mark.parametrize("kind", ["float", "long"])
def test_steps_are_read_off_the_listed_operations(tmp_path: Path, kind: str) -> None:
    write_optimizer(tmp_path / "optimizer.pt", 3, 120, 7, kind=kind)  # some parameters lag
    write_scheduler(tmp_path / "scheduler.pt", 300)
    assert optimizer_steps(tmp_path / "optimizer.pt") == 120
    assert scheduler_steps(tmp_path / "scheduler.pt") == 300


def test_what_a_pickle_would_do_is_not_done(tmp_path: Path) -> None:
    """A pickle that would write a file is listed and does nothing."""
    victim = tmp_path / "written"
    call = b"cpathlib\nPath\n(" + text(str(victim)) + b"tRctouch\n"
    body = b"\x80\x02}(" + text("step") + b"cos\nsystem\n(" + text(f"touch {victim}") + b"tRu."
    for payload in (body, call):
        with zipfile.ZipFile(tmp_path / "optimizer.pt", "w") as archive:
            archive.writestr("optimizer/data.pkl", payload)
        assert optimizer_steps(tmp_path / "optimizer.pt") is None
        assert not victim.exists()


@pytest.mark.parametrize("content", [b"", b"PK junk", b"\x80\x02}."])
def test_a_damaged_file_has_no_steps(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "optimizer.pt").write_bytes(content)
    assert optimizer_steps(tmp_path / "optimizer.pt") is None
    with zipfile.ZipFile(tmp_path / "optimizer.pt", "w") as archive:
        archive.writestr("optimizer/data.pkl", content)
    assert optimizer_steps(tmp_path / "optimizer.pt") is None


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
def test_a_number_that_is_no_step(tmp_path: Path, number: float) -> None:
    write_optimizer(tmp_path / "optimizer.pt", number)
    assert optimizer_steps(tmp_path / "optimizer.pt") is None
    write_optimizer(tmp_path / "optimizer.pt", number, 7)
    assert optimizer_steps(tmp_path / "optimizer.pt") == 7


def test_a_storage_larger_than_its_number_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_optimizer(tmp_path / "optimizer.pt", 7, 8)
    with zipfile.ZipFile(tmp_path / "optimizer.pt") as archive:
        kept = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(tmp_path / "optimizer.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in kept.items():
            archive.writestr(name, data + bytes(2**20) if name.endswith("data/1") else data)
    read: list[str] = []
    real = zipfile.ZipFile.read

    def noted(self: zipfile.ZipFile, name: Any, pwd: bytes | None = None) -> bytes:
        read.append(name.filename)
        return real(self, name, pwd)

    monkeypatch.setattr(zipfile.ZipFile, "read", noted)
    assert optimizer_steps(tmp_path / "optimizer.pt") == 7
    assert read == ["optimizer/data.pkl", "optimizer/data/0"]


def test_the_operations_of_a_pickle_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_optimizer(tmp_path / "optimizer.pt", 7)
    done = sum(1 for _ in pickletools.genops(_pickle(tmp_path / "optimizer.pt")))
    monkeypatch.setattr("firstbad.tools.torch_state.MAX_OPERATIONS", done)
    assert optimizer_steps(tmp_path / "optimizer.pt") == 7
    monkeypatch.setattr("firstbad.tools.torch_state.MAX_OPERATIONS", done - 1)
    assert optimizer_steps(tmp_path / "optimizer.pt") is None


def _pickle(path: Path) -> bytes:
    with zipfile.ZipFile(path) as archive:
        return archive.read("optimizer/data.pkl")


def test_a_state_that_was_dropped_at_the_resume(
    make_run: MakeRun, measure: Measure, saved: Callable[..., Checkpoint]
) -> None:
    # At checkpoint 120 Adam has counted 60: it began anew after step 60.
    run = make_run(
        signals={"loss": [0.1] * 120},
        events=[("resume", 61, "resumed")],
        checkpoints=(saved(60, 60, 60), saved(120, 60, 120)),
    )
    found = measure(TOOL, run)
    assert (found["n_states"], found["behind_steps"], found["behind_share"]) == (2, 60, 0.5)
    assert found["state_dropped"]
    assert (found["last_good_step"], found["first_bad_step"]) == (60, 61)


@pytest.mark.parametrize(
    ("counted", "planned"),
    [(120, 120), (117, 120), (120, 480), (120, None)],
    ids=["equal", "steps that a loss scaler skipped", "a schedule per process", "no schedule"],
)
def test_states_that_belong_to_their_checkpoints(
    make_run: MakeRun,
    measure: Measure,
    saved: Callable[..., Checkpoint],
    counted: int,
    planned: int | None,
) -> None:
    run = make_run(
        signals={"loss": [0.1] * 120},
        events=[("resume", 61, "resumed")],
        checkpoints=(saved(120, counted, planned),),
    )
    found = measure(TOOL, run)
    assert found["settled"]
    assert not found["state_dropped"]
    assert found["first_bad_step"] is None


@pytest.mark.parametrize(
    ("resumes", "states", "settled"),
    [([], [], True), ([61], [], False), ([61], [60], False), ([61], [120], True)],
)
def test_a_resume_is_settled_by_a_state_saved_after_it(
    make_run: MakeRun,
    measure: Measure,
    saved: Callable[..., Checkpoint],
    resumes: list[int],
    states: list[int],
    settled: bool,
) -> None:
    run = make_run(
        signals={"loss": [0.1] * 120},
        events=[("resume", step, "resumed") for step in resumes],
        checkpoints=tuple(saved(s, s, s) for s in states),
    )
    assert measure(TOOL, run)["settled"] is settled


def test_without_data(make_run: MakeRun, missing: Callable[..., str]) -> None:
    assert "checkpoints" in missing(TOOL, make_run())
