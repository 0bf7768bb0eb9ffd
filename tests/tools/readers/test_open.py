"""What a person types, and the one line they get when it cannot be read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from firstbad.tools.errors import UserError
from firstbad.tools.readers import READERS, open_run


def error_of(ref: str) -> str:
    with pytest.raises(UserError) as caught:
        open_run(ref)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_missing_path() -> None:
    assert error_of("/no/such/run") == "`/no/such/run` does not exist"
    assert error_of("trl:/no/such/run") == "`/no/such/run` does not exist"
    assert "no name in one line" in error_of("a\0b")


def test_unknown_prefix_lists_those_that_exist() -> None:
    text = error_of("trll:/tmp")
    assert "no reader `trll`" in text
    assert all(reader.prefix in text for reader in READERS)


def test_unrecognised_folder_lists_what_was_looked_for(make: Any, tmp_path: Path) -> None:
    make.text("notes.md", "hello")
    text = error_of(str(tmp_path))
    assert "trainer_state.json" in text
    assert "events.out.tfevents" in text
    assert ".csv" in text


def test_wrong_prefix_is_a_clear_error(make: Any, tmp_path: Path, metrics: Any) -> None:
    make.csv("metrics.csv", metrics)
    assert "trainer_state.json" in error_of(f"trl:{tmp_path}")
    assert ".parquet" in error_of(f"parquet:{tmp_path}")
    assert ".jsonl" in error_of(f"jsonl:{tmp_path / 'metrics.csv'}")
    assert "events.out.tfevents" in error_of(f"tb:{tmp_path}")
    assert "is no folder" in error_of(f"trl:{tmp_path / 'metrics.csv'}")


def test_a_name_with_a_colon_is_a_path(make: Any, tmp_path: Path, metrics: Any) -> None:
    folder = tmp_path / "run:1"
    folder.mkdir()
    path = make.csv("run:1/m.csv", metrics)
    assert open_run(str(path)).ref == f"csv:{path}"


def test_home_is_expanded(make: Any, tmp_path: Path, metrics: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    make.csv("m.csv", metrics)
    assert open_run("~/m.csv").last_step == 6
    assert open_run("csv:~/m.csv").last_step == 6


def test_an_empty_run(make: Any, tmp_path: Path) -> None:
    make.state("trainer_state.json", [])
    assert "holds no run" in error_of(str(tmp_path))


def test_an_unreadable_folder(tmp_path: Path, monkeypatch: Any, make: Any) -> None:
    def refuse(*_: object) -> Any:
        raise PermissionError(13, "Permission denied")

    make.state("trainer_state.json", [])
    monkeypatch.setattr(os, "scandir", refuse)
    monkeypatch.setattr(Path, "is_file", refuse)
    assert "permission denied" in error_of(str(tmp_path)).lower()


def test_importing_readers_loads_nothing_heavy(repo: Path) -> None:
    code = (
        "import sys; from firstbad.tools.readers import open_run; "
        "print([m for m in ('pandas', 'pyarrow', 'yaml', 'torch') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(repo / "src")},
    )
    assert done.stdout.strip() == "[]"
