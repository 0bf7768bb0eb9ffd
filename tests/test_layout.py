"""The folders at the top are the packages, and they have one name only."""

from __future__ import annotations

import importlib
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

FOLDERS = ("agent", "evals", "playbooks", "tools")


def ruff(repo: Path, code: str) -> str:
    """What ruff says about a snippet that would lie in `agent/`."""
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--stdin-filename", "agent/snippet.py", "-"],
        input=code,
        cwd=repo,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout


@pytest.mark.parametrize("name", FOLDERS)
def test_package_is_the_top_folder(repo: Path, name: str) -> None:
    package = importlib.import_module(f"firstbad.{name}")
    assert package.__file__ is not None, f"{name}/ has no __init__.py"
    assert Path(package.__file__).resolve().parent == repo / name


@pytest.mark.parametrize("name", FOLDERS)
def test_link_is_relative_and_leads_to_the_top_folder(repo: Path, name: str) -> None:
    link = repo / "src" / "firstbad" / name
    assert link.is_symlink()
    assert link.readlink() == Path("..", "..", name)


def test_every_link_is_known_to_the_build(repo: Path) -> None:
    links = {path.name for path in (repo / "src" / "firstbad").iterdir() if path.is_symlink()}
    hatch = tomllib.loads((repo / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]
    targets = hatch["build"]["targets"]
    assert links == set(FOLDERS)
    assert links <= set(targets["wheel"]["only-include"])
    assert links <= set(targets["sdist"]["only-include"])
    assert links <= set(targets["wheel"]["sources"])


@pytest.mark.parametrize("name", [*FOLDERS, "tests"])
@pytest.mark.parametrize("form", ["import {}.window", "from {}.window import find", "import {}"])
def test_short_name_is_refused(repo: Path, name: str, form: str) -> None:
    assert "TID251" in ruff(repo, form.format(name) + "\n")


@pytest.mark.parametrize("name", FOLDERS)
def test_full_name_is_accepted(repo: Path, name: str) -> None:
    assert "TID251" not in ruff(repo, f"import firstbad.{name}\n")
