"""The generated parts of the docs say what the code says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def test_every_part_stands_on_a_page_and_every_page_names_known_parts(generate: Any) -> None:
    texts = [page.read_text(encoding="utf-8") for page in generate.pages()]
    used = [name for text in texts for name, _ in generate.parts_of(text)]
    assert sorted(used) == sorted(generate.PARTS)
    begun = sum(text.count("<!-- generated: ") for text in texts)
    ended = sum(text.count("<!-- end -->") for text in texts)
    assert begun == ended == len(used)


def test_no_part_is_stale(generate: Any) -> None:
    stale = [
        f"{page.relative_to(generate.ROOT)}: {name}"
        for page in generate.pages()
        for name, content in generate.parts_of(page.read_text(encoding="utf-8"))
        if content != generate.part(name)
    ]
    assert not stale, "run: python docs/generate.py"


def test_every_field_of_a_playbook_is_explained(generate: Any) -> None:
    for line in generate.PARTS["playbook-fields"]().splitlines():
        if line.startswith("| "):
            assert line.rstrip(" |").count(" | ") == 3, f"no meaning: {line}"


@pytest.fixture
def small_repo(generate: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A README with one generated part, in place of this repo."""
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    (tmp_path / "docs").mkdir()
    page = tmp_path / "README.md"
    page.write_text("before\n\n<!-- generated: layers -->\nWas here.\n<!-- end -->\nafter\n")
    return page


def test_check_writes_nothing_and_tells(
    generate: Any, small_repo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = small_repo.read_text()
    assert generate.main(["--check"]) == 1
    assert capsys.readouterr().out == "stale: README.md\n"
    assert small_repo.read_text() == old


def test_writing_renews_the_part_and_nothing_else(generate: Any, small_repo: Path) -> None:
    assert generate.main([]) == 0
    text = small_repo.read_text()
    assert text.startswith("before\n\n<!-- generated: layers -->\n\n| no. |")
    assert text.endswith("<!-- end -->\nafter\n")
    assert "Was here." not in text
    assert generate.main(["--check"]) == 0


def test_generator_passes_the_type_checker(repo: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "docs/generate.py"],
        cwd=repo,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
