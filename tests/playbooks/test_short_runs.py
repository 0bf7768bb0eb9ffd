"""Runs of a few steps: what they hold in each of them is not asked for; what is gone is."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from firstbad.agent.investigate import Finished, investigate
from firstbad.playbooks.results import Verdict
from plurals_in import false_plurals


@pytest.fixture
def run(repo: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(repo / "tests" / "runs" / "siskin", tmp_path / "run"))


def keep_first(run: Path, steps: int) -> None:
    """The run as it lay there after so many steps."""
    for file in [*run.glob("completions/*"), *run.glob("batch_dumps/*")]:
        (named,) = re.findall(r"_0*([0-9]+)[.]", file.name)
        if int(named) > steps:
            file.unlink()
    state = run / "trainer_state.json"
    read = json.loads(state.read_text())
    read["log_history"] = [row for row in read["log_history"] if row["step"] <= steps]
    state.write_text(json.dumps({**read, "global_step": steps, "max_steps": steps}))
    shutil.rmtree(run / "checkpoint-60")
    (run / "train.log").unlink()


def told(run: Path) -> Verdict:
    done = investigate(str(run), out=run.parent / "incidents")
    assert isinstance(done, Finished)
    assert not false_plurals(done.incident.markdown_file.read_text(encoding="utf-8"))
    return done.verdict


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_nothing_is_asked_for_that_is_there(run: Path, steps: int) -> None:
    keep_first(run, steps)
    found = told(run)
    assert found.outcome == "undetermined"
    assert {request.need.partition(":")[0] for request in found.requests} == {"more steps"}
    assert all(f"length so far: {steps}" in request.need for request in found.requests)


def test_what_a_short_run_lacks_is_asked_for(run: Path) -> None:
    keep_first(run, 5)
    (run / "completions" / "completions_00003.parquet").unlink()
    asked = " ".join(request.need for request in told(run).requests)
    assert "completions/ in the run folder" in asked
