"""Files of one root: nothing outside it, nothing without a limit."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from firstbad.tools.errors import UserError
from firstbad.tools.paths import Root, digest, digest_file


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.txt").write_bytes(b"abc")
    (folder / "sub" / "b.txt").write_bytes(b"b")
    (tmp_path / "secret.txt").write_bytes(b"secret")
    return folder


def test_digest_is_the_start_of_sha256(root: Path) -> None:
    expected = "sha256:" + hashlib.sha256(b"abc").hexdigest()[:16]
    assert digest(b"abc") == digest_file(root / "a.txt") == expected


def test_files_are_listed_by_relative_name(root: Path) -> None:
    found = Root(root)
    assert [file.name for file in found.files] == ["a.txt", "sub/b.txt"]
    assert [file.folder for file in found.files] == ["", "sub"]
    assert [file.size for file in found.files] == [3, 1]
    assert [file.name for file in found.matching(r".*\.txt")] == ["a.txt", "sub/b.txt"]
    assert found.matching("txt") == []
    first = found.first("no", "sub/b.txt", "a.txt")
    assert first is not None
    assert first.name == "sub/b.txt"
    assert found.first("no") is None


def test_read(root: Path) -> None:
    assert Root(root).read("a.txt") == b"abc"
    with pytest.raises(UserError, match="more than"):
        Root(root).read("a.txt", limit=2)
    with pytest.raises(UserError, match=r"`nothing` cannot be read: no such file"):
        Root(root).read("nothing")


def test_a_file_that_cannot_be_read_is_a_note(root: Path) -> None:
    found = Root(root)
    assert found.try_read("nothing") is None
    assert found.try_read("nothing") is None
    assert [note.code for note in found.notes] == ["file_skipped"]


@pytest.mark.parametrize("path", ["../secret.txt", "sub/../../secret.txt", "/etc/passwd"])
def test_paths_out_of_the_root_are_refused(root: Path, path: str) -> None:
    with pytest.raises(UserError, match="leads out of"):
        Root(root).inside(path)


def test_links_out_of_the_root_are_refused(root: Path, tmp_path: Path) -> None:
    (root / "link.txt").symlink_to(tmp_path / "secret.txt")
    (root / "folder").symlink_to(tmp_path)
    (root / "loop").symlink_to("loop")
    found = Root(root)
    assert [file.name for file in found.files] == ["a.txt", "sub/b.txt"]
    assert [note.code for note in found.notes] == ["file_refused"] * 3
    with pytest.raises(UserError, match="leads out of"):
        found.read("link.txt")
    with pytest.raises(UserError):
        found.read("loop")


def test_links_inside_the_root_are_followed(root: Path) -> None:
    (root / "again.txt").symlink_to("a.txt")
    (root / "self").symlink_to(root)
    found = Root(root)
    assert [file.name for file in found.files] == ["a.txt", "again.txt", "sub/b.txt"]
    assert found.read("again.txt") == b"abc"


def test_the_root_itself_may_be_a_link(root: Path, tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to(root)
    assert Root(tmp_path / "latest").read("a.txt") == b"abc"


def test_pipes_are_not_files(root: Path) -> None:
    os.mkfifo(root / "pipe.log")
    assert [file.name for file in Root(root).files] == ["a.txt", "sub/b.txt"]


def test_a_folder_without_permission_is_a_note(root: Path, monkeypatch: Any) -> None:
    scandir = os.scandir

    def refuse(path: Any) -> Any:
        if str(path).endswith("sub"):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    found = Root(root)
    assert [file.name for file in found.files] == ["a.txt"]
    assert found.notes[0].text == "`sub` cannot be read: permission denied"


def test_deep_folders_are_left_out(root: Path) -> None:
    deep = root / "1" / "2" / "3" / "4" / "5" / "6"
    deep.mkdir(parents=True)
    (deep / "x.txt").write_bytes(b"x")
    (deep.parent / "y.txt").write_bytes(b"y")
    assert [file.name for file in Root(root).files] == ["1/2/3/4/5/y.txt", "a.txt", "sub/b.txt"]
