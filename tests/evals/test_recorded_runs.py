"""The page about the recorded runs says what the catalog says, and no tool can see either."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from firstbad.evals.trl_runs.catalog import RUNS
from firstbad.playbooks.causes import causes

WATCHED = """
import os, sys
from pathlib import Path

runs, name, seen = sys.argv[1], sys.argv[2], set()

def watch(event, args):
    if event in ("open", "os.listdir", "os.scandir") and isinstance(args[0], (str, os.PathLike)):
        seen.add(os.path.abspath(os.fspath(args[0])))

from firstbad.agent.investigate import investigate
sys.addaudithook(watch)
investigate(os.path.join(runs, name), out=Path(sys.argv[3]))
inside = [path for path in seen if path.startswith(runs)]
assert len(inside) > 10, inside
print("\\n".join(p for p in inside if not (p + os.sep).startswith(os.path.join(runs, name, ""))))
"""
BY_NAME = {run.name: run for run in RUNS}


@pytest.fixture
def runs(repo: Path) -> Path:
    return repo / "tests" / "runs"


@pytest.fixture
def folders(runs: Path) -> list[Path]:
    return sorted(path for path in runs.iterdir() if path.is_dir())


def test_the_page_says_what_the_catalog_says(runs: Path, folders: list[Path]) -> None:
    table = re.findall(
        r"^\| (\w+) \| (\S+) \| `(\S+)` \| (.*) \|$", (runs / "README.md").read_text(), re.M
    )
    assert sorted(name for name, *_ in table) == [folder.name for folder in folders]
    for name, *told in table:
        run = BY_NAME[name]
        assert told == [str(run.onset or "-"), run.cause, run.what]


def test_an_investigation_sees_nothing_beyond_its_run(runs: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, str(runs), "kestrel", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stdout.strip()


def test_no_file_of_a_run_tells(folders: list[Path]) -> None:
    labels = {run.cause for run in RUNS} | {run.trainer for run in RUNS if run.trainer}
    labels |= {"README", "truth", "onset", "lookalike"}
    pattern = re.compile("|".join(map(re.escape, sorted(labels))))
    for folder in folders:
        assert not any(pattern.search(path.name) for path in folder.rglob("*"))
        for name in ("args.json", "model_config.json", "trainer_state.json", "train.log"):
            assert not pattern.search((folder / name).read_text()), f"{folder.name}/{name}"


def test_each_run_of_the_catalog_is_whole(repo: Path) -> None:
    made = "\n".join(p.read_text() for p in (repo / "evals" / "trl_runs" / "faults").glob("*.py"))
    trainers = set(re.findall(r"^class (\w+)", made, re.M))
    assert len(BY_NAME) == len(RUNS)
    for run in RUNS:
        names = {run.trainer, *(segment.trainer for segment in run.segments)} - {None}
        assert names <= trainers, run.name
        assert run.cause in causes(), run.name
        assert (run.onset is None) == (run.kind != "fault"), run.name


def test_the_catalog_needs_no_torch() -> None:
    code = "import sys, firstbad.evals.trl_runs.__main__; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "False", done.stderr
