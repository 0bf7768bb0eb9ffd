"""A sound recorded run, written down in another way, must not fail the check that reads it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from firstbad.agent.investigate import Finished, investigate

Rewrite = Callable[[Any], Any]
PARTS = ("correctness_reward", "format_reward", "brevity_reward")


@pytest.fixture
def run(repo: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(repo / "tests" / "runs" / "siskin", tmp_path / "run"))


def rewrite(run: Path, change: Rewrite) -> None:
    for file in (run / "completions").iterdir():
        pq.write_table(change(pq.read_table(file)), file)


def outcome(run: Path, check: str) -> str:
    done = investigate(str(run), out=run.parent / "incidents")
    assert isinstance(done, Finished)
    assert not {"id.rows", "metric.misleading"} & {f.cause for f in done.verdict.findings}
    return {f"{c.layer}.{c.check}": c.outcome for c in done.verdict.checks}[check]


def test_a_dump_that_was_filtered_has_uneven_groups(run: Path) -> None:
    rng = np.random.default_rng(0)
    rewrite(run, lambda table: table.filter(pa.array(rng.random(len(table)) < 0.8)))
    assert outcome(run, "records.groups") == "pass"


def test_a_dump_in_another_order_than_training_used(run: Path) -> None:
    rewrite(run, lambda table: table.take([g * 8 + i for i in range(8) for g in range(6)]))
    assert outcome(run, "records.groups") == "pass"


def test_means_over_the_rows_that_train(run: Path) -> None:
    """Groups without contrast are written and neither trained nor logged."""
    state = json.loads((run / "trainer_state.json").read_text())
    for row in state["log_history"]:
        file = run / "completions" / f"completions_{row['step']:05d}.parquet"
        if "reward" in row and file.exists():
            table: Any = pq.read_table(file)
            kept = np.abs(table["advantage"].to_numpy()) > 1e-6
            means = [float(table[part].to_numpy()[kept].mean()) for part in PARTS]
            row |= {f"rewards/{part}/mean": m for part, m in zip(PARTS, means, strict=True)}
            row["reward"] = means[0] + 0.3 * means[1] + 0.2 * means[2]
    (run / "trainer_state.json").write_text(json.dumps(state))
    assert outcome(run, "records.logged_means") == "pass"


@pytest.mark.parametrize(
    ("first", "last", "expected"), [(1, 60, "pass"), (61, 120, "fail"), (1, 120, "fail")]
)
def test_logged_rewards_of_other_weights_before_the_resume(
    repo: Path, tmp_path: Path, first: int, last: int, expected: str
) -> None:
    run = Path(shutil.copytree(repo / "tests" / "runs" / "robin", tmp_path / "run"))
    state = json.loads((run / "trainer_state.json").read_text())
    for row in state["log_history"]:
        if "reward" in row and first <= row["step"] <= last:
            row["reward"] += 0.4 * row["rewards/format_reward/mean"]
    (run / "trainer_state.json").write_text(json.dumps(state))
    shutil.rmtree(run / "checkpoint-60", ignore_errors=True)  # its state has the old values
    done = investigate(str(run), out=tmp_path / "incidents")
    assert isinstance(done, Finished)
    found = {f"{c.layer}.{c.check}": c.outcome for c in done.verdict.checks}
    assert found["records.logged_means"] == expected
    told = [
        n for n in done.verdict.notes if n.startswith("Before the resume at step 61 the logged")
    ]
    assert len(told) == (expected == "pass")
    assert (done.verdict.outcome == "incident") == (expected == "fail")
