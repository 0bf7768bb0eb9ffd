"""One damaged dump must lose nothing of what the others show."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from firstbad.tools.readers import open_run
from firstbad.tools.registry import run_tool

RUNS = Path(__file__).parent.parent / "runs"
READ = ("check_masks", "check_numbers", "check_precision", "check_loss_identity", "test_surprise")


@pytest.mark.parametrize("tool", READ)
def test_the_other_captures_are_still_measured(tmp_path: Path, tool: str) -> None:
    folder = tmp_path / "run"
    shutil.copytree(RUNS / "dunlin", folder)
    damaged = folder / "batch_dumps" / "step_00030.npz"
    data = bytearray(damaged.read_bytes())
    data[80:900] = bytes(820)  # the directory at the end stays whole: found out only when read
    damaged.write_bytes(bytes(data))
    run = open_run(str(folder))
    found = run_tool(tool, run, {}, evidence_id="E1")
    assert found.status == "measured", found.error
    assert found.metrics is not None
    if "n_captures" in found.metrics:
        assert found.metrics["n_captures"] == 13
    if tool == "check_numbers":
        assert found.metrics["n_unreadable"] == 1
    if tool == "test_surprise":
        surprise = found.metrics["surprise_late"]
        assert surprise is not None
        assert surprise > 0.5
