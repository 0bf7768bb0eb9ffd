"""What loads what: the command line starts light, and the recorder loads nothing of others."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import firstbad_recorder

HEAVY = {
    "duckdb",
    "jinja2",
    "langchain_core",
    "langgraph",
    "numpy",
    "openai",
    "pandas",
    "plotly",
    "pyarrow",
    "rapidfuzz",
    "rich",
    "safetensors",
    "torch",
    "transformers",
}

RUN_CLI = """
import sys
from firstbad.agent.cli import main
sys.argv = ["firstbad", *{args!r}]
try:
    code = main()
except SystemExit as stop:
    code = stop.code
assert not code, code
"""


def loaded(code: str, cwd: Path) -> set[str]:
    """Top-level modules that a new interpreter holds after running `code`."""
    tell = "\nimport json, sys; print('\\n' + json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code + tell],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    names: list[str] = json.loads(done.stdout.splitlines()[-1])
    return {name.partition(".")[0] for name in names}


@pytest.mark.parametrize("args", [["--help"], ["--version"], ["investigate", "--help"]])
def test_command_line_starts_without_heavy_libraries(tmp_path: Path, args: list[str]) -> None:
    assert not loaded(RUN_CLI.format(args=args), tmp_path) & HEAVY


def test_recorder_loads_only_the_standard_library(tmp_path: Path) -> None:
    package = str(Path(firstbad_recorder.__file__).parents[1])
    before = loaded("", tmp_path)
    new = loaded(f"import sys; sys.path[:0] = [{package!r}]; import firstbad_recorder", tmp_path)
    new -= before
    assert new - set(sys.stdlib_module_names) == {"firstbad_recorder"}


def test_layers_hold(repo: Path) -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [linter, "--no-cache"], cwd=repo, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
