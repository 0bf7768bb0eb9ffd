from __future__ import annotations

import json
import logging
import math
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstbad.tools.readers import open_run
from firstbad_recorder import SCHEMA_VERSION, Recorder


def not_json(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def lines(file: Path) -> list[dict[str, Any]]:
    """Parsed lines without their time."""
    found = []
    for line in file.read_text(encoding="utf-8").splitlines():
        record = json.loads(line, parse_constant=not_json)
        assert record.pop("time") > 1.7e9
        found.append(record)
    return found


def run_file(folder: Path) -> dict[str, Any]:
    run: dict[str, Any] = json.loads(
        (folder / "run.json").read_text(encoding="utf-8"), parse_constant=not_json
    )
    return run


@pytest.fixture
def disk_is_full(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def full(handle: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        yield


def test_scalars_of_a_step_are_one_line(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        recorder.scalars(1, {"loss/policy": 0.25, "done": False}, reward=1, missing=None)
        recorder.scalars(2, reward=np.float32(0.5), tokens=np.int64(7), flag=np.bool_(True))
    assert lines(tmp_path / "metrics.jsonl") == [
        {"step": 1, "loss/policy": 0.25, "done": False, "reward": 1, "missing": None},
        {"step": 2, "reward": 0.5, "tokens": 7, "flag": True},
    ]
    assert recorder.dropped == 0


def test_run_file_tells_version_start_and_config(tmp_path: Path) -> None:
    config = {"lr": 1e-6, "betas": (0.9, 0.95), "path": Path("x"), "top_p": math.inf}
    recorder = Recorder(tmp_path, config={**config, "model": {1: None}})
    assert run_file(tmp_path)["finished"] is None
    recorder.close()
    recorder.close()
    run = run_file(tmp_path)
    assert run.pop("started").endswith("+00:00")
    assert run.pop("finished").endswith("+00:00")
    assert run == {
        "schema_version": SCHEMA_VERSION,
        "python": ".".join(map(str, sys.version_info[:3])),
        "config": {
            "lr": 1e-6,
            "betas": [0.9, 0.95],
            "path": "x",
            "top_p": "Infinity",
            "model": {"1": None},
        },
        "restarts": [],
        "dropped": 0,
        "dropped_by_reason": {},
    }


@given(st.floats() | st.integers() | st.booleans() | st.none())
def test_any_number_comes_back_or_is_counted(
    tmp_path_factory: pytest.TempPathFactory, value: float | None
) -> None:
    folder = tmp_path_factory.mktemp("record")
    recorder = Recorder(folder)
    recorder.scalars(1, {"x": value})
    (line,) = lines(folder / "metrics.jsonl")
    if recorder.dropped:
        assert isinstance(value, int)
        assert abs(value) >= 2**63
    elif isinstance(value, float) and not math.isfinite(value):
        assert line["x"] == {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
    else:
        assert line["x"] == value


@pytest.mark.parametrize(
    "value",
    [
        "NaN",
        object(),
        [1.0],
        {},
        1j,
        np.zeros(2),
        Fraction(1, 2),
        float,
        pytest.param(10**6000, id="huge"),
    ],
)
def test_value_that_is_no_number_is_counted_and_the_rest_kept(
    tmp_path: Path, value: object
) -> None:
    recorder = Recorder(tmp_path)
    recorder.scalars(3, x=value, reward=0.5)
    assert lines(tmp_path / "metrics.jsonl") == [{"step": 3, "reward": 0.5}]
    assert recorder.dropped == 1
    assert run_file(tmp_path)["dropped_by_reason"] == {"value of `x` is not a number": 1}


@pytest.mark.parametrize("step", [None, "3", 3.0, pytest.param(10**6000, id="huge")])
def test_step_that_is_no_step_is_counted(tmp_path: Path, step: Any) -> None:
    recorder = Recorder(tmp_path)
    recorder.scalars(step, reward=0.5)
    assert recorder.dropped == 1
    assert not (tmp_path / "metrics.jsonl").exists()


def test_misuse_never_raises(tmp_path: Path) -> None:
    class Hostile(dict[str, object]):
        def __str__(self) -> str:
            raise RuntimeError

        def items(self) -> Any:
            raise RuntimeError

    recorder = Recorder(tmp_path, config=Hostile(lr=1.0))
    recorder.scalars(1, 0.5)  # type: ignore[arg-type]
    recorder.scalars(1, {"time": 1.0})
    recorder.event("warning", 1, Hostile())  # type: ignore[arg-type]
    recorder.event("warning", "x", "text")  # type: ignore[arg-type]
    recorder.close()
    recorder.scalars(2, reward=0.5)
    assert recorder.dropped == 5
    assert lines(tmp_path / "metrics.jsonl") == [{"step": 1}]


def test_large_or_deep_config_leaves_the_record_usable(tmp_path: Path) -> None:
    cyclic: dict[str, object] = {}
    cyclic["self"] = cyclic
    Recorder(tmp_path / "cyclic", config=cyclic).close()
    Recorder(tmp_path / "large", config={str(i): "x" * 1000 for i in range(1000)}).close()
    assert run_file(tmp_path / "cyclic")["config"]["self"]
    assert run_file(tmp_path / "large")["config"] == {}
    assert run_file(tmp_path / "large")["dropped_by_reason"] == {"config is too large": 1}


def test_events_and_the_exception_that_ends_a_block(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Recorder(tmp_path) as recorder:  # noqa: PT012
        recorder.scalars(4, reward=0.5)
        recorder.event("phase", None, "Übergang \ud800 \x1b[31m" + "x" * 20_000)
        raise ZeroDivisionError("division by zero")
    phase, error = lines(tmp_path / "events.jsonl")
    assert phase["kind"] == "phase"
    assert phase["step"] is None
    assert len(phase["text"]) == 10_000
    assert error == {
        "kind": "error",
        "step": 4,
        "text": "ZeroDivisionError: division by zero",
        "ends": True,
    }
    assert run_file(tmp_path)["finished"]


def test_an_exception_names_the_step_that_was_being_made_and_what_raised_it(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.scalars(4, reward=0.5)
    recorder.failed(TimeoutError("no answer"), 5, "reward function judge")
    assert lines(tmp_path / "events.jsonl") == [
        {
            "kind": "error",
            "step": 5,
            "text": "TimeoutError: no answer (in reward function judge)",
            "ends": True,
        }
    ]


def test_leaving_in_order_is_no_error(tmp_path: Path) -> None:
    with pytest.raises(SystemExit), Recorder(tmp_path):
        sys.exit(0)
    assert not (tmp_path / "events.jsonl").exists()
    assert run_file(tmp_path)["finished"]


def test_killed_process_leaves_every_finished_step(tmp_path: Path) -> None:
    code = """
import sys
from firstbad_recorder import Recorder
recorder = Recorder(sys.argv[1])
step = 0
while True:
    step += 1
    recorder.scalars(step, reward=0.5)
    if step % 100 == 0:
        print(step, flush=True)
"""
    training = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert training.stdout is not None
    told = [int(training.stdout.readline()) for _ in range(3)][-1]
    training.send_signal(signal.SIGKILL)
    rest, _ = training.communicate(timeout=30)
    told = max([told, *map(int, rest.split())])
    text = (tmp_path / "metrics.jsonl").read_text()
    steps = [json.loads(line)["step"] for line in text.splitlines()]
    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) >= told
    assert run_file(tmp_path)["finished"] is None


def test_restart_continues_and_says_so(tmp_path: Path) -> None:
    first = Recorder(tmp_path, config={"lr": 1.0})
    first.scalars(1, reward=0.1)
    first.scalars(2, text="no number")
    with (tmp_path / "metrics.jsonl").open("a") as stream:
        stream.write('{"step":3,"rew')  # the machine died here
    second = Recorder(tmp_path, config={"lr": 2.0})
    second.scalars(3, reward=0.3)
    second.scalars(4, text="no number")
    second.close()
    written = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert written[2] == '{"step":3,"rew'
    assert [json.loads(line)["step"] for line in written[:2] + written[3:]] == [1, 2, 3, 4]
    assert [(e["kind"], e["step"]) for e in lines(tmp_path / "events.jsonl")] == [("resume", 3)]
    run = run_file(tmp_path)
    assert run["config"] == {"lr": 1.0}
    assert [start["config"] for start in run["restarts"]] == [{"lr": 2.0}]
    assert run["dropped"] == 2
    assert run["dropped_by_reason"] == {"value of `text` is not a number": 2}


@pytest.mark.parametrize("text", ["{", "[]", '{"schema_version": 2}', '{"schema_version": 1}'])
def test_run_file_that_cannot_be_used_is_moved_aside(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    recorder = Recorder(tmp_path)
    assert (tmp_path / "run.json.unreadable").read_text() == text
    assert recorder.dropped == 1
    recorder.close()
    assert run_file(tmp_path)["dropped"] == 1


def test_folder_that_cannot_be_used_is_counted_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "record"
    folder.write_text("a file is in the way; unlike a mode bit, it stops root too")
    with caplog.at_level(logging.WARNING, "firstbad_recorder"):
        recorder = Recorder(folder)
        for step in range(1, 6):
            recorder.scalars(step, reward=0.5)
    assert recorder.dropped == 6
    assert len(caplog.records) == 1
    folder.unlink()
    recorder.scalars(6, reward=0.5)
    recorder.close()
    assert lines(folder / "metrics.jsonl") == [{"step": 6, "reward": 0.5}]
    assert run_file(folder)["dropped"] == 6


def test_folder_without_write_permission_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> int:  # a mode bit would not stop root
        raise PermissionError(13, "Permission denied")

    recorder = Recorder(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        recorder.scalars(1, reward=0.5)
        recorder.event("phase", 1, "second")
    recorder.close()
    assert run_file(tmp_path)["dropped_by_reason"] == {"PermissionError: Permission denied": 2}


def test_folder_removed_while_training_is_made_again(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "record")
    for file in (tmp_path / "record").iterdir():
        file.unlink()
    (tmp_path / "record").rmdir()
    recorder.scalars(2, reward=0.5)
    recorder.close()
    assert lines(tmp_path / "record" / "metrics.jsonl") == [{"step": 2, "reward": 0.5}]
    assert run_file(tmp_path / "record")["schema_version"] == SCHEMA_VERSION


@pytest.mark.usefixtures("disk_is_full")
def test_full_disk_is_counted(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    for step in range(1, 10):
        recorder.scalars(step, reward=0.5)
    assert recorder.dropped == 9
    assert run_file(tmp_path)["dropped"] == 8  # saved at 1, 2, 4 and 8


def test_line_cut_off_by_a_full_disk_is_counted_and_stays_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(tmp_path)
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda handle, data: write(handle, data[:5]))
        recorder.scalars(1, reward=0.5)
    recorder.scalars(2, reward=0.5)
    assert recorder.dropped == 1
    cut, whole = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert cut == '{"ste'
    assert json.loads(whole)["step"] == 2


def test_disk_is_bounded_over_restarts_and_events_have_the_last_word(tmp_path: Path) -> None:
    for start in range(3):
        recorder = Recorder(tmp_path, max_bytes=4000)
        for step in range(100):
            recorder.scalars(start * 100 + step, reward=0.5)
        recorder.event("error", 99, "loss is NaN")
        recorder.close()
    size = sum((tmp_path / name).stat().st_size for name in ("metrics.jsonl", "events.jsonl"))
    assert size <= 4000
    assert lines(tmp_path / "events.jsonl")[0]["text"] == "loss is NaN"
    kept = len(lines(tmp_path / "metrics.jsonl")) + len(lines(tmp_path / "events.jsonl"))
    assert run_file(tmp_path)["dropped"] == 3 * 101 + 2 - kept  # two resume events


def test_reasons_and_restarts_are_bounded(tmp_path: Path) -> None:
    for _ in range(60):
        recorder = Recorder(tmp_path)
    for i in range(100):
        recorder.scalars(1, {f"x{i}": "text"})
    recorder.close()
    recorder = Recorder(tmp_path)
    recorder.scalars(2, {"y": "text"})
    recorder.close()
    run = run_file(tmp_path)
    assert len(run["restarts"]) == 50
    assert len(run["dropped_by_reason"]) == 51
    assert run["dropped_by_reason"]["other reasons"] == 51


def test_threads_write_whole_lines(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)

    def work(first: int) -> None:
        for step in range(first, first + 200):
            recorder.scalars(step, {f"signal/{i}": 0.1 * i for i in range(20)})

    threads = [threading.Thread(target=work, args=(1000 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({record["step"] for record in lines(tmp_path / "metrics.jsonl")}) == 800
    assert recorder.dropped == 0


def test_readme_examples_run_in_order_and_its_table_names_every_key(
    repo: Path, tmp_path: Path
) -> None:
    readme = (repo / "recorder" / "README.md").read_text(encoding="utf-8")
    examples = re.findall(r"```python\n(.*?)```", readme, re.S)
    assert len(examples) == 3
    subprocess.run([sys.executable, "-c", "\n".join(examples)], cwd=tmp_path, check=True)
    record = tmp_path / "runs" / "7" / "record"
    metrics = lines(record / "metrics.jsonl")
    assert [line["step"] for line in metrics] == [*range(1, 20)]
    (event,) = lines(record / "events.jsonl")
    assert (len(lines(record / "syncs.jsonl")), len(lines(record / "probes.jsonl"))) == (1, 1)
    kept = {int(folder.name) for folder in (record / "steps").iterdir()}
    assert {3, 16, 17, 18, 19} <= kept
    run = run_file(record)
    assert run["dropped"] == 0
    assert run["finished"]
    pages = readme + (repo / "recorder" / "FORMAT.md").read_text(encoding="utf-8")
    assert not [key for key in [*run, *event, "time"] if f"`{key}`" not in pages]
    signals = open_run(f"rec:{record}").signals
    assert not signals.unknown


def test_the_format_names_every_field_of_a_trainers_ledger(repo: Path) -> None:
    source = (repo / "recorder/src/firstbad_recorder/trl/figures.py").read_text(encoding="utf-8")
    ledger = source[source.index("def ledger_of(") : source.index("def _divided(")]
    written = set(re.findall(r'^ +"(\w+)": |\w\["(\w+)"\]|\{"(\w+)": ', ledger, re.M))
    names = {name for pair in written for name in pair if name}
    assert {"denominator_counts", "scale", "reduction"} <= names
    page = (repo / "recorder" / "FORMAT.md").read_text(encoding="utf-8")
    assert not [name for name in names if f"`{name}`" not in page]
