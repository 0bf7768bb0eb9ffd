"""One training, written down in another order or in other files: every tool measures the same."""

from __future__ import annotations

import csv
import json
import math
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from firstbad.tools.readers import open_run
from firstbad.tools.registry import run_tool, tools
from synthetic.cases_groups import taken
from synthetic.saving import Saving
from synthetic.trainer import Batch, Trainer

Metrics = dict[str, Mapping[str, bool | int | float | None]]


class Mixed(Trainer):
    """Samples stand in another order inside their group in each step, all through the pipeline."""

    def generate(self, step: int) -> Batch:
        """See the class."""
        batch = super().generate(step)
        order = np.random.default_rng(step).permutation(self.s.group)
        starts = range(0, len(batch.group), self.s.group)
        return taken(batch, np.concatenate([start + order for start in starts]))


class SavingMixed(Mixed, Saving):
    """... with checkpoints and a resume."""


OF_ORDER = r"check_microbatch_weights\.loss_|rejudge\.shift_agreement|read_(fit|accumulation)_probe"
"""Figures of the rows that stand first, or of rows moved against their scores."""


def metrics_of(run: Path) -> Metrics:
    opened = open_run(str(run))
    found = {name: run_tool(name, opened, {}, evidence_id="E1") for name in tools()}
    assert not [e.error for e in found.values() if e.status == "error"]
    return {name: e.metrics or {} for name, e in found.items()}


def differences(old: Metrics, new: Metrics) -> list[str]:
    """`tool.metric: both values`, where they differ by more than rounding."""

    def same(a: object, b: object) -> bool:
        if isinstance(a, float) and isinstance(b, float):
            return math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-5)
        return a == b

    return [
        f"{tool}.{name}: {old[tool].get(name)}, {new[tool].get(name)}"
        for tool in old
        for name in old[tool].keys() | new[tool].keys()
        if not same(old[tool].get(name), new[tool].get(name))
    ]


@pytest.mark.parametrize(
    ("plain", "mixed", "settings", "measured"),
    [
        (Saving, SavingMixed, {}, 80),
        (Trainer, Mixed, {"tools": True, "cap": 16, "updates": 2, "steps": 30, "probes": (2,)}, 80),
    ],
)
def test_samples_in_another_order_inside_their_group(
    tmp_path: Path,
    plain: type[Trainer],
    mixed: type[Trainer],
    settings: dict[str, Any],
    measured: int,
) -> None:
    before, after = (
        metrics_of(kind(seed=7, **settings).run(tmp_path / name))
        for kind, name in ((plain, "a"), (mixed, "b"))
    )
    assert sum(map(bool, before.values())) >= measured
    assert not [d for d in differences(before, after) if not re.match(OF_ORDER, d)]


HERON = Path(__file__).parents[2] / "agent" / "demo_runs" / "heron"


@pytest.fixture(scope="module")
def trl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty steps of a recorded run."""
    run = tmp_path_factory.mktemp("whole") / "run"
    late = {f"completions_{s:05d}.parquet" for s in range(41, 121)}
    return Path(shutil.copytree(HERON, run, ignore=lambda _, names: late & set(names)))


@pytest.fixture(scope="module")
def whole(trl: Path) -> Metrics:
    return metrics_of(trl)


def joined(run: Path, each: int) -> None:
    """Rollouts of so many steps in one file."""
    files = sorted((run / "completions").iterdir())
    tables = [pq.read_table(file) for file in files]
    shutil.rmtree(run / "completions")
    for first in range(0, len(tables), each):
        part = pa.concat_tables(tables[first : first + each])
        pq.write_table(part, run / f"rollouts-{first // each}.parquet")


@pytest.mark.parametrize("each", [40, 7])
def test_rollouts_in_other_files(trl: Path, whole: Metrics, tmp_path: Path, each: int) -> None:
    run = Path(shutil.copytree(trl, tmp_path / "run"))
    joined(run, each)
    assert sum(map(bool, whole.values())) >= 50
    assert not differences(whole, metrics_of(run))


def as_csv(rows: list[dict[str, Any]], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, sorted({key for row in rows for key in row}))
        writer.writeheader()
        writer.writerows(rows)


def as_lines(rows: list[dict[str, Any]], path: Path) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.mark.parametrize(("write", "ending"), [(as_csv, "csv"), (as_lines, "jsonl")])
def test_metrics_in_two_files(
    trl: Path,
    tmp_path: Path,
    write: Callable[[list[dict[str, Any]], Path], None],
    ending: str,
) -> None:
    state = json.loads((trl / "trainer_state.json").read_text(encoding="utf-8"))
    rows = [row for row in state["log_history"] if "reward" in row]
    for name, parts in {"one": [rows], "two": [rows[:50], rows[50:]]}.items():
        (tmp_path / name).mkdir()
        for i, part in enumerate(parts):
            write(part, tmp_path / name / f"metrics-{i}.{ending}")
    one, two = metrics_of(tmp_path / "one"), metrics_of(tmp_path / "two")
    assert sum(map(bool, one.values())) >= 10
    assert not differences(one, two)
