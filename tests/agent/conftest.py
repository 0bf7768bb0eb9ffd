from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import firstbad
from firstbad.agent import cli
from firstbad.agent.investigate import Finished, Waiting, investigate
from firstbad.tools import registry

FAKES = Path(__file__).with_name("fakes.py")


@pytest.fixture
def home() -> Path:
    """Where incidents go."""
    return Path(os.environ["FIRSTBAD_HOME"])


@pytest.fixture
def fb(
    capsys: pytest.CaptureFixture[str], fakes: ModuleType
) -> Callable[..., tuple[int, str, str]]:
    """Run the command line in this process: exit code, output, errors."""

    def call(*args: object) -> tuple[int, str, str]:
        code = cli.main([str(a) for a in args])
        told = capsys.readouterr()
        return code, told.out, told.err

    return call


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The fake tool in the tool table, alone."""
    spec = importlib.util.spec_from_file_location("agent_fakes", FAKES)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    registry.tools()  # imported once a process: now, or never after this test
    monkeypatch.setattr(registry, "_TABLE", {})
    monkeypatch.setattr(registry, "_MODULES", {})
    module.register()
    return module


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Which dials were read to the end, in order."""
    path = tmp_path / "calls"
    monkeypatch.setenv("FAKE_CALLS", str(path))

    def read() -> list[str]:
        lines = path.read_text().splitlines() if path.exists() else []
        return [line.removeprefix("done ") for line in lines if line.startswith("done ")]

    return read


@pytest.fixture
def book(fakes: ModuleType, tmp_path: Path) -> str:
    """Path of the fake playbook."""
    path = tmp_path / "fake.yaml"
    path.write_text(fakes.PLAYBOOK)
    return str(path)


@pytest.fixture
def make_run(fakes: ModuleType, tmp_path: Path) -> Callable[..., Path]:
    """Make a run with some dials set."""

    def make(name: str = "heron", **dials: object) -> Path:
        made: Path = fakes.make_run(tmp_path / name, **dials)
        return made

    return make


@pytest.fixture
def look(book: str) -> Callable[..., Finished]:
    """Investigate by the fake playbook, to the end."""

    def run_it(run: Path | None = None, **how: object) -> Finished:
        if run is not None:
            how["playbook"] = book
        found = investigate(None if run is None else str(run), **how)  # type: ignore[arg-type]
        assert not isinstance(found, Waiting)
        return found

    return run_it


@pytest.fixture
def firstbad_process() -> Callable[..., subprocess.Popen[str]]:
    """Start the command line with the fake tools in a process of its own."""

    def start(*args: str, **env: str) -> subprocess.Popen[str]:
        package = Path(firstbad.__file__).parents[1]
        return subprocess.Popen(
            [sys.executable, str(FAKES), *args],
            env={**os.environ, "PYTHONPATH": str(package), **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start
