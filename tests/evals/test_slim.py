"""A run copied in small form reads the same, and what nobody may read is left behind."""

from __future__ import annotations

import json
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from firstbad.evals import slim
from firstbad.tools.readers import open_run

ROW = {"prompt": [{"role": "user", "content": "sort : never drawn"}], "answer": "x"}
LEFT_OUT = ("README.md", "model.safetensors", "optimizer.pt", "tb", "notes.txt")


@pytest.fixture
def source(repo: Path, tmp_path: Path) -> Path:
    """A recorded run with what a training folder holds besides."""
    folder = tmp_path / "source"
    shutil.copytree(repo / "tests" / "runs" / "kestrel", folder)
    for place in (folder, folder / "checkpoint-10"):
        place.mkdir(exist_ok=True)
        for name in LEFT_OUT:
            (place / name).write_text("the fault is here")
    state = json.loads((folder / "trainer_state.json").read_text())
    (folder / "checkpoint-10" / "trainer_state.json").write_text(json.dumps(state))
    (folder / "checkpoint-10" / "config.json").write_text("{}")
    with (folder / "data" / "train.jsonl").open("a") as data:
        data.write(json.dumps(ROW) + "\n")
    (folder / "data" / "eval.jsonl").write_text(json.dumps(ROW) + "\n")
    return folder


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_leaves_out_weights_notes_and_event_files(source: Path, tmp_path: Path) -> None:
    slim.slim(source, tmp_path / "target")
    left = names(source) - names(tmp_path / "target")
    assert left == {f"{place}{name}" for place in ("", "checkpoint-10/") for name in LEFT_OUT}
    assert names(tmp_path / "target") <= names(source)


def test_an_optimizer_state_keeps_its_counts_without_moments(source: Path, tmp_path: Path) -> None:
    count, moments = b"\0\0\x70\x42", bytes(range(256)) * 16
    with zipfile.ZipFile(source / "checkpoint-10" / "optimizer.pt", "w") as state:
        for name, content in (("data.pkl", b"x" * 99), ("data/0", count), ("data/1", moments)):
            state.writestr(f"optimizer/{name}", content)
    slim.slim(source, tmp_path / "target")
    with zipfile.ZipFile(tmp_path / "target" / "checkpoint-10" / "optimizer.pt") as small:
        assert small.namelist() == ["optimizer/data.pkl", "optimizer/data/0"]
        assert small.read("optimizer/data/0") == count


def test_the_copy_reads_the_same(source: Path, tmp_path: Path) -> None:
    slim.slim(source, tmp_path / "target")
    before, after = open_run(str(source)), open_run(str(tmp_path / "target"))
    for one, other in zip(before.rollouts.batches(), after.rollouts.batches(), strict=True):
        assert list(one.prompts) == list(other.prompts)
        assert list(one.completions) == list(other.completions)
    for name in ("trainer_state.json", "args.json", "train.log", "data/train.jsonl"):
        assert (tmp_path / "target" / name).read_bytes() == (source / name).read_bytes()


def test_thin_keeps_only_the_prompts_drawn(source: Path, tmp_path: Path) -> None:
    slim.slim(source, tmp_path / "target", thin=True)
    kept = lines(tmp_path / "target" / "data" / "train.jsonl")
    assert kept == lines(source / "data" / "train.jsonl")[:-1]
    assert json.dumps(ROW) not in lines(tmp_path / "target" / "data" / "eval.jsonl")
    whole = json.loads((source / "trainer_state.json").read_text())
    state = json.loads((tmp_path / "target" / "checkpoint-10" / "trainer_state.json").read_text())
    assert state == {"global_step": whole["global_step"], "log_history": []}


def test_thin_leaves_no_line_where_no_prompt_was_drawn(source: Path, tmp_path: Path) -> None:
    slim.slim(source, tmp_path / "target", thin=True)
    assert (tmp_path / "target" / "data" / "eval.jsonl").read_bytes() == b""


@pytest.mark.parametrize("blank", ["", "\n", " \n\n"])
def test_what_is_thin_stays_the_same(source: Path, tmp_path: Path, blank: str) -> None:
    once, twice = tmp_path / "once", tmp_path / "twice"
    slim.slim(source, once, thin=True)
    (once / "data" / "eval.jsonl").write_text(blank)
    slim.slim(once, twice, thin=True)
    assert names(twice) == names(once)
    assert lines(twice / "data" / "train.jsonl") == lines(once / "data" / "train.jsonl")
    assert not lines(twice / "data" / "eval.jsonl")
    assert len(list(open_run(str(twice)).rollouts.batches())) > 10


def test_thin_does_not_touch_the_source(source: Path, tmp_path: Path) -> None:
    before = {name: (source / name).read_bytes() for name in names(source)}
    slim.slim(source, tmp_path / "target", thin=True)
    assert {name: (source / name).read_bytes() for name in names(source)} == before


def test_command_line(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "target"
    monkeypatch.setattr(sys, "argv", ["slim", str(source), str(target), "--thin"])
    slim.main()
    assert json.dumps(ROW) not in lines(target / "data" / "train.jsonl")
