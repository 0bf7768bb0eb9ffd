"""What every test gets: its own home, no settings from outside, no network, no model."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

import firstbad_recorder

# No time limit for one example, since machines differ; in CI the same examples each time.
settings.register_profile("repo", deadline=None, database=None, derandomize="CI" in os.environ)
settings.load_profile("repo")

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def repo() -> Path:
    """The top folder of the repo."""
    return ROOT


@pytest.fixture
def environment() -> dict[str, str]:
    """For a process of its own that records with the recorder that is tested here."""
    return {**os.environ, "PYTHONPATH": str(Path(firstbad_recorder.__file__).parents[1])}


@pytest.fixture(autouse=True)
def isolated(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every test empty user folders, and no setting of the person who runs it."""
    home = tmp_path_factory.mktemp("home")
    for name in list(os.environ):
        if name.startswith(("FIRSTBAD_", "OPENAI_", "LANGSMITH_", "LANGCHAIN_", "XDG_")):
            monkeypatch.delenv(name)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("FIRSTBAD_HOME", str(home / "firstbad"))
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse connections that leave this machine."""
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: Any) -> None:
        if self.family != socket.AF_UNIX and address[0] not in ("127.0.0.1", "::1", "localhost"):
            raise AssertionError(f"a test connects to {address}")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", guarded)


@pytest.fixture
def chromium() -> str:
    """Path of a Chromium or Chrome; the test is skipped where there is none."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("no Chromium on the path")
    return found
