"""Captures that cannot be read cost the steps they are of, and break no tool."""

from __future__ import annotations

import pytest

from firstbad.tools.readers import open_run
from firstbad.tools.registry import run_tool, tools
from synthetic.trainer import Trainer


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A record of which the first, a middle and the last token file broke off."""
    folder = Trainer(steps=16, captures=6).run(tmp_path_factory.mktemp("damaged"))
    files = sorted(folder.glob("steps/*/tokens.safetensors"))
    for file in (files[0], files[3], files[-1]):
        file.write_bytes(file.read_bytes()[:700])
    return str(folder)


@pytest.mark.parametrize("name", sorted(tools()))
def test_a_file_that_broke_off_breaks_no_tool(damaged: str, name: str) -> None:
    steps = {"before": 1, "after": 16} if name == "compare_states" else {}
    found = run_tool(name, open_run(damaged), steps, evidence_id="e1")
    assert found.status in ("measured", "no_data"), found.summary
