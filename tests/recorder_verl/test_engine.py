"""What a worker records of verl's own FSDP engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("verl")
pytest.importorskip("torchdata")
pytest.importorskip("cachetools")
pytest.importorskip("uvicorn")
pytest.importorskip("fastapi")


def test_the_ledger_is_that_of_the_engine(tmp_path: Path, tensors_in: Any) -> None:
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("engine_run.py")), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "VERL_USE_EXTERNAL_MODULES": "firstbad_recorder.verl",
            "FIRSTBAD_RECORD": str(tmp_path / "record"),
        },
    )
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["engine"] == "FSDPEngineWithLMHead"
    rank = tmp_path / "record" / "ranks" / "0001"
    assert json.loads((rank / "run.json").read_text())["dropped_by_reason"] == {}
    folder = rank / "steps" / "00000007"
    ledger = [json.loads(line) for line in (folder / "microbatches.jsonl").read_text().splitlines()]
    assert [(row["update"], row["n_samples"]) for row in ledger] == [(0, 2), (0, 2), (1, 2), (1, 2)]
    n_tokens = np.array(said["tokens"]).reshape(4, 2).sum(1)
    assert [row["n_tokens"] for row in ledger] == n_tokens.tolist()
    for update in (0, 1):
        rows = ledger[2 * update : 2 * update + 2]
        assert sum(row["loss"] for row in rows) == pytest.approx(said["loss"][update], abs=1e-6)
        assert {row["denominator"] for row in rows} == {sum(row["n_tokens"] for row in rows)}
    norms = json.loads((folder / "numerics.json").read_text())["norms"]
    assert [norm["before_clip"] for norm in norms] == pytest.approx(said["grad_norm"])
    assert all(norm["after_clip"] <= norm["clip_value"] == 1.0 for norm in norms)
    assert [row["ratio_max"] for row in ledger[:2]] == pytest.approx([1.0, 1.0], abs=1e-6)
    assert all(row["ratio_max"] > 1.01 for row in ledger[2:])
    found = tensors_in(folder / "tokens.safetensors")
    assert np.diff(found["offsets"]).tolist() == [9, 8, 10, 10]
    made = found["source"] == 3
    assert made.sum() == n_tokens[:2].sum()
    assert np.array_equal(np.isfinite(found["logp_new"]), made)
    assert np.array_equal(found["logp_new"][made], found["logp_old"][made])
    assert (np.abs(found["entropy"][made] - np.log(64)) < 0.1).all()
