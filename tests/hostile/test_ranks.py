"""Records of several ranks, rings and certificates that were written to do harm."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firstbad_recorder.certificate import write_certificate
from hostile.test_records import KEPT, VALUES, read, replaced, tensors, write
from synthetic.trainer import Trainer

Survive = Callable[..., Any]


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """A short record of two ranks, with a step in the ring and a certificate."""
    folder = tmp_path / "record"
    Trainer(steps=6, captures=3, prompts=2, group=4).run(folder)
    shutil.copytree(folder, tmp_path / "copy")
    shutil.move(tmp_path / "copy", folder / "ranks/0001")
    last = max(folder.glob("steps/*/tokens.safetensors")).parent
    (folder / "ring").mkdir(exist_ok=True)
    shutil.move(last, folder / "ring" / last.name)
    config = json.loads((folder / "run.json").read_text())["config"]
    checks = [{"name": "accumulation", "outcome": "pass", "measured": {"x": 1.0}, "text": "a"}]
    write_certificate(folder, checks, config=config, versions={}, preflight_key={})
    return folder


@pytest.mark.parametrize("name", VALUES)
def test_every_field_of_every_rank_may_hold_anything(
    record: Path, survive: Survive, name: str
) -> None:
    for path in record.rglob("*.json*"):
        rows = (
            [json.loads(line) for line in path.read_text().splitlines()]
            if path.suffix == ".jsonl"
            else [json.loads(path.read_text())]
        )
        odd = [
            {k: v if k in KEPT else replaced(v, VALUES[name]) for k, v in row.items()}
            for row in rows
        ]
        path.write_text("\n".join(map(json.dumps, odd)) + "\n")
    read(survive, record)


def test_odd_names_of_ranks_and_steps(record: Path, survive: Survive) -> None:
    for name in ("0", "00001", "999999", "9999999", "-1", "1e3", "x", "0001.unfinished-1"):
        shutil.copytree(record / "ranks/0001", record / "ranks" / name, dirs_exist_ok=True)
    for name in ("0", "999999999999999", "9999999999999999", "-3", "3.unfinished-9"):
        shutil.copytree(next((record / "ring").iterdir()), record / "ring" / name)
    about = json.loads((record / "run.json").read_text())
    about["environment"] = {"WORLD_SIZE": "999999"}
    (record / "run.json").write_text(json.dumps(about))
    survive(record)  # a folder that is no rank may be a record of its own: one line says so


def test_arrays_of_ranks_need_not_fit_each_other(record: Path, survive: Survive) -> None:
    """Other dtypes, arrays that one lacks, and shapes that together are far too large."""
    paths = sorted(record.glob("ranks/0001/steps/*/tokens.safetensors"))
    arrays = tensors(paths[0])
    arrays["logp_new"] = np.zeros(len(arrays["logp_new"]), "i2")
    arrays["advantage"] = arrays["advantage"] > 0
    del arrays["logp_old"]
    write(paths[0], arrays)
    wide = {"offsets": np.array([0, 60_000]), "token_id": np.zeros(60_000, "i4")}
    write(paths[1], {**wide, "loss_mask": np.ones(60_000, "u1")})
    own = record / "steps" / paths[1].parent.name / paths[1].name
    long = {"offsets": np.arange(60_001), "token_id": np.zeros(60_000, "i4")}
    write(own, {**long, "loss_mask": np.ones(60_000, "u1")})
    read(survive, record)
