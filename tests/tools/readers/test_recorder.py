"""Records, written by the recorder itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from firstbad.tools.errors import UserError
from firstbad.tools.readers import open_run
from firstbad.tools.run import Run
from firstbad_recorder import Recorder


def record(folder: Path, first: int = 1, last: int = 5, **config: object) -> Path:
    with Recorder(folder, config=config) as recorder:
        for step in range(first, last + 1):
            recorder.scalars(step, reward=0.1 * step, kl=0.01)
    return folder


def told(run: Run) -> list[tuple[str, int | None, str]]:
    return [(e.kind, e.step, e.text) for e in run.events]


def test_settings_and_events(tmp_path: Path) -> None:
    config = {"beta": 0.04, "optim": {"lr": 1e-6}}
    with Recorder(tmp_path, config=config) as recorder:
        recorder.scalars(1, reward=0.5)
        recorder.event("phase", 1, "hard problems")
        recorder.event("warning", 1, "verifier timed out")
        recorder.event("evaluation", None, "began")
    said = json.loads((tmp_path / "run.json").read_text())
    said["config"]["hub_token"] = "hf_abc"  # as others may write it
    (tmp_path / "run.json").write_text(json.dumps(said))
    run = open_run(str(tmp_path))
    assert run.ref == f"rec:{tmp_path}"
    assert run.config.number("beta") == 0.04
    assert run.config.number("optim.lr") == 1e-6
    assert run.config.text("hub_token") == "<hidden>"
    assert [s.ref for s in run.config.sources] == ["run.json"]
    assert told(run) == [
        ("phase", 1, "hard problems"),
        ("warning", 1, "verifier timed out"),
        ("phase", None, "evaluation: began"),
        ("end", None, "the recorder was closed"),
    ]
    assert set(run.signals.known) == {"reward_mean"}
    assert not run.signals.unknown, "the clock of a line is no metric"


def test_a_restart_is_a_resume_with_the_settings_of_the_later_process(tmp_path: Path) -> None:
    record(tmp_path, lr=1.0)
    record(tmp_path, first=4, last=8, lr=2.0)
    run = open_run(str(tmp_path))
    assert run.config.number("lr") == 2.0
    assert [e.step for e in run.events if e.kind == "resume"] == [4]
    assert ("config_change", 4, "lr: 1.0 -> 2.0") in told(run)
    assert run.signals.steps.tolist() == list(range(1, 9))


@pytest.mark.parametrize("silent", [False, True])
def test_other_versions_after_a_restart(tmp_path: Path, silent: bool) -> None:
    for first, torch in ((1, "2.12.0"), (4, "2.13.0")):
        with Recorder(tmp_path, config={"lr": 1.0}, versions={"torch": torch}) as recorder:
            recorder.scalars(first, reward=0.5)
    if silent:  # a process that wrote no step: which restart is which is not known
        with Recorder(tmp_path, config={"lr": 1.0}, versions={"torch": "2.13.0"}):
            pass
    change = ("config_change", None if silent else 4, "versions.torch: 2.12.0 -> 2.13.0")
    assert change in told(open_run(str(tmp_path)))


def test_device_and_environment_of_each_process(tmp_path: Path) -> None:
    for first, card in ((1, "one card"), (4, "two cards")):
        around = {"WORLD_SIZE": str(first)}
        with Recorder(tmp_path, device=card, environment=around) as recorder:
            recorder.scalars(first, reward=0.5)
    said = json.loads((tmp_path / "run.json").read_text())
    said["environment"]["HF_TOKEN"] = "hf_secret"  # as others may write it
    (tmp_path / "run.json").write_text(json.dumps(said))
    begun, restarted = open_run(str(tmp_path)).flight.processes
    assert (begun.from_step, begun.device, begun.environment) == (
        None, "one card", {"WORLD_SIZE": "1", "HF_TOKEN": "<hidden>"},
    )  # fmt: skip
    assert (restarted.from_step, restarted.device) == (4, "two cards")


def test_a_record_that_was_not_closed_says_so(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.scalars(1, reward=0.5)
    recorder.scalars(2, reward="much")
    run = open_run(str(tmp_path))
    notes = {note.code: note.text for note in run.notes}
    assert "not closed" in notes["not_closed"]
    assert "could not write 1 value (value of `reward` is not a number)" in notes["dropped"]
    assert not [e for e in run.events if e.kind == "end"]


def test_a_record_inside_a_run_adds_to_it(tmp_path: Path) -> None:
    record(tmp_path / "record", beta=0.1)
    rows = [{"step": s, "reward": 0.1 * s, "loss": 0.0} for s in range(1, 6)]
    state = {"global_step": 5, "log_history": rows}
    (tmp_path / "trainer_state.json").write_text(json.dumps(state))
    run = open_run(str(tmp_path))
    assert run.ref == f"trl:{tmp_path}"
    assert run.config.number("beta") == 0.1
    assert {"loss", "kl_ref"} <= set(run.signals.known)


def test_another_run_json_is_no_record(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"name": "heron"}')
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "time": 3.0, "reward": 0.5}\n')
    run = open_run(str(tmp_path))
    assert run.ref == f"jsonl:{tmp_path}"
    assert set(run.signals.unknown) == {"time"}
    with pytest.raises(UserError, match="no record"):
        open_run(f"rec:{tmp_path}")


def test_another_version_is_refused(tmp_path: Path) -> None:
    record(tmp_path)
    said = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps({**said, "schema_version": 2}))
    with pytest.raises(UserError, match="expected a record of version 1, found 2"):
        open_run(str(tmp_path))


@pytest.mark.parametrize("junk", ["", "{", "[]", "\0\0"])
def test_damaged_files_lose_nothing_else(tmp_path: Path, junk: str) -> None:
    record(tmp_path)
    (tmp_path / "events.jsonl").write_text(junk)
    assert open_run(str(tmp_path)).signals.steps.tolist() == [1, 2, 3, 4, 5]
    (tmp_path / "run.json").write_text(junk)
    run = open_run(str(tmp_path))
    assert run.ref == f"jsonl:{tmp_path}"
    assert run.signals.steps.tolist() == [1, 2, 3, 4, 5]


def test_rows_without_texts_are_read(tmp_path: Path) -> None:
    with Recorder(tmp_path, baseline_every=1) as recorder:
        for step in (1, 2):
            recorder.scalars(step, reward=0.5)
            recorder.hold(step, rollouts=[{"sample": f"a{step}", "reward": 0.5}])
    run = open_run(f"rec:{tmp_path}")
    assert [run.rollouts.batch(step).sample for step in (1, 2)] == [["a1"], ["a2"]]
