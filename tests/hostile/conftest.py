"""A small good run, into which hostile files are put, and a process that reads it for the test."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import firstbad

CHILD = Path(__file__).with_name("child.py")
GOOD = Path(__file__).parent.parent / "runs" / "dunlin"
STEPS, DUMPS = 8, (1, 2)
MOST_MB = 1_300
"""A file may unpack to a gigabyte; what this holds without any is a tenth of it."""
MOST_SECONDS = 20


@dataclass(frozen=True)
class Answer:
    """What became of a run."""

    code: int
    mb: int
    seconds: float
    out: str
    err: str

    @property
    def told(self) -> dict[str, Any]:
        """What was read."""
        found: dict[str, Any] = json.loads(self.out)
        return found


Survive = Callable[..., Answer]


@pytest.fixture(scope="session")
def _child(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str]]:
    home = tmp_path_factory.mktemp("home")
    packages = [Path(firstbad.__file__).parents[1], GOOD.parents[2] / "recorder" / "src"]
    env = {
        **os.environ,
        "FIRSTBAD_HOME": str(home),
        "PYTHONPATH": os.pathsep.join(map(str, packages)),
    }
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, str(CHILD)], stdin=pipe, stdout=pipe, text=True, env=env
    ) as child:
        yield child
        assert child.stdin is not None
        child.stdin.close()


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """What a file would make if anything in it were carried out."""
    return tmp_path / "carried-out"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The first steps of a recorded run."""
    folder = tmp_path / "run"
    for name in ("data", "tokenizer", "checkpoint-60"):
        shutil.copytree(GOOD / name, folder / name)
    for name in ("args.json", "model_config.json", "trainer_state.json", "train.log"):
        shutil.copy(GOOD / name, folder)
    (folder / "completions").mkdir()
    (folder / "batch_dumps").mkdir()
    for step in range(1, STEPS + 1):
        shutil.copy(GOOD / f"completions/completions_{step:05d}.parquet", folder / "completions")
    for step in DUMPS:
        shutil.copy(GOOD / f"batch_dumps/step_{step:05d}.npz", folder / "batch_dumps")
    return folder


@pytest.fixture
def survive(_child: subprocess.Popen[str], mark: Path) -> Survive:
    """Read a run in a process of its own; whatever is in it, this holds of the process."""

    def ask(ref: Path | str, *, by_command: bool = False) -> Answer:
        assert _child.stdin is not None
        assert _child.stdout is not None
        print(json.dumps([str(ref), by_command]), file=_child.stdin, flush=True)
        answer = Answer(**json.loads(_child.stdout.readline()))
        assert answer.code in (0, 1, 2, 3), answer.err
        assert not mark.exists(), "something was carried out"
        assert answer.mb < MOST_MB
        assert answer.seconds < MOST_SECONDS
        assert "Traceback" not in answer.out + answer.err
        assert answer.err.count("\n") <= 1
        assert "\x1b" not in answer.out + answer.err
        return answer

    return ask


@pytest.fixture
def left_out(run: Path, survive: Survive) -> Callable[..., list[str]]:
    """Read the run with what was put into it: the rest is read, and no tool breaks.

    The notes come back, each one line. `captures`, `rollouts`: how many steps of them are found.
    """

    def read(*, rollouts: int = STEPS, captures: int = len(DUMPS)) -> list[str]:
        answer = survive(run)
        assert answer.code == 0, answer.err
        assert answer.told["errors"] == []
        assert answer.told["steps"] == [120, rollouts, captures]
        assert {"check_masks", "sum_groups", "date_window"} & set(answer.told["measured"])
        notes: list[str] = answer.told["notes"]
        assert not [note for note in notes if "\n" in note or len(note) > 1_100]
        return notes

    return read
