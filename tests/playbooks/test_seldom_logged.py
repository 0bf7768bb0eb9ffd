"""Recorded runs as TRL leaves them with `logging_steps` above 1: means over steps, and the rollouts
of each stretch's last step alone."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from firstbad.agent.investigate import Finished, investigate
from firstbad.playbooks.results import Verdict

OF_THE_LAST_STEP = {"step", "epoch", "grad_norm", "learning_rate", "num_tokens"}


def averaged(log: list[dict[str, Any]], every: int) -> list[dict[str, Any]]:
    """Rows of training as means over so many steps; other rows as they are."""
    found, stretch = [], []
    for row in log:
        if "loss" not in row:
            found.append(row)
            continue
        stretch.append(row)
        if row["step"] % every == 0:
            means = {k: sum(r[k] for r in stretch) / len(stretch) for k in row}
            found.append(means | {k: row[k] for k in row if k in OF_THE_LAST_STEP})
            stretch = []
    return found


def logged_every(repo: Path, folder: Path, name: str, every: int) -> Verdict:
    """The verdict on a recorded run, had it been logged every so many steps."""
    run = Path(shutil.copytree(repo / "tests" / "runs" / name, folder / "run"))
    (run / "train.log").unlink()
    for file in run.rglob("trainer_state.json"):
        state = json.loads(file.read_text())
        state |= {"log_history": averaged(state["log_history"], every), "logging_steps": every}
        file.write_text(json.dumps(state))
    settings = json.loads((run / "args.json").read_text())
    (run / "args.json").write_text(json.dumps({**settings, "logging_steps": every}))
    for file in (run / "completions").iterdir():
        step = re.search(r"(\d+)\.parquet", file.name)
        if step is not None and int(step[1]) % every:
            file.unlink()
    done = investigate(str(run), out=folder / "incidents")
    assert isinstance(done, Finished)
    return done.verdict


@pytest.mark.parametrize("every", [5, 10])
@pytest.mark.parametrize("name", ["siskin", "robin"])
def test_a_sound_run_that_is_seldom_logged_fails_no_check(
    repo: Path, tmp_path: Path, name: str, every: int
) -> None:
    verdict = logged_every(repo, tmp_path, name, every)
    assert [f.claim for f in verdict.findings] == []
    means = next(c for c in verdict.checks if c.check == "logged_means")
    assert means.outcome == "inconclusive"
    assert f"metrics are averaged over {every} steps (`logging_steps`)" in means.message


@pytest.mark.parametrize(
    ("name", "cause", "onset"),
    [
        ("badger", "opt.lr_jump", 61),
        ("wombat", "data.wrong_gold", 61),
        ("dunlin", "prob.processed_logprobs", 60),
        ("stoat", "grad.accumulation_scale", 60),
    ],
)
def test_the_bracket_of_a_fault_holds_its_onset(
    repo: Path, tmp_path: Path, name: str, cause: str, onset: int
) -> None:
    verdict = logged_every(repo, tmp_path, name, 5)
    assert verdict.leading is not None
    assert verdict.leading.cause == cause
    found = verdict.first_bad
    assert found.first_bad is not None
    assert found.earliest <= onset <= found.first_bad
    assert found.last_good is None or found.last_good % 5 == 0
