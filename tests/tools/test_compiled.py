"""What is kept of the package's own files: the same, or nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from firstbad.playbooks.loader import builtin, parse
from firstbad.tools.compiled import keep, kept
from firstbad.tools.strict_yaml import read_strict

MADE = {"a": [1, 2.5, None, True], "b": "text"}


@pytest.fixture(autouse=True)
def writing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Compiled files are kept, in a folder of the test's own."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "compiled"))


def test_what_was_kept_comes_back_for_the_same_content_alone(tmp_path: Path) -> None:
    source = tmp_path / "some.yaml"
    assert kept(source, b"one") is None
    keep(source, b"one", MADE)
    assert kept(source, b"one") == MADE
    assert kept(source, b"two") is None
    keep(source, b"two", "other")
    assert (kept(source, b"one"), kept(source, b"two")) == (None, "other")


def test_a_file_cut_short_is_as_none(tmp_path: Path) -> None:
    source = tmp_path / "some.yaml"
    keep(source, b"one", MADE)
    (file,) = (p for p in (tmp_path / "compiled").rglob("*") if p.is_file())
    whole = file.read_bytes()
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        assert kept(source, b"one") is None, length


def test_nothing_is_kept_where_python_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    keep(tmp_path / "some.yaml", b"one", MADE)
    assert not (tmp_path / "compiled").exists()


def test_a_folder_that_cannot_be_written_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "file"))
    keep(tmp_path / "some.yaml", b"one", MADE)
    assert kept(tmp_path / "some.yaml", b"one") is None


def test_a_playbook_of_the_users_is_never_kept_and_a_shipped_one_is_the_same(
    tmp_path: Path,
) -> None:
    path = builtin("crash")
    raw = Path(path).read_bytes()
    plain = parse(raw, path)
    assert not (tmp_path / "compiled").exists()
    assert parse(raw, path, shipped=True) == plain  # parsed, and kept
    assert (tmp_path / "compiled").exists()
    assert parse(raw, path, shipped=True) == plain  # as kept
    assert read_strict(raw, path, type(plain), shipped=True) == plain
