"""What no tracked text may hold: places of one machine, hosts of registries, who typed it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

LARGEST = 1_000_000
# Written so that this file does not match itself.
FORBIDDEN = {
    "a path of one machine": r"(?<![\w.-])/(?:work|root|farm|workspace|Users|home/\w+)/\w",
    "a host of a registry": r"pypi[.]org|pythonhosted[.]org|registry[.]npmjs|"
    r"--(?:extra-)?index[-]url|https?://[^\s)]*/simple[/]",
    "who typed it": r"(?i)\bclaude[ _-]|anthropic[.]|sub[-]?agents?\b|co-authored[-]by|"
    r"generated (?:by|with) (?:an? )?(?:AI|LLM)\b|\bas an AI\b|this coding [s]ession",
}


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    """Every text file of the repo that git knows or would take."""
    root = Path(__file__).resolve().parents[2]
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode != 0:
        pytest.skip("not a git repository: the list of files is not known")
    found = {}
    for name in filter(None, listed.stdout.split("\0")):
        path = root / name
        if not path.is_file() or path.is_symlink() or path.stat().st_size > LARGEST:
            continue
        data = path.read_bytes()
        if b"\0" not in data[:1000]:
            found[name] = data.decode("utf-8", "replace")
    return found


@pytest.mark.parametrize("what", FORBIDDEN)
def test_tracked_text_is_free_of(what: str, texts: dict[str, str]) -> None:
    assert len(texts) > 100
    pattern = re.compile(FORBIDDEN[what])
    hits = [f"{name}: {m[0]}" for name, text in texts.items() if (m := pattern.search(text))]
    assert not hits


@pytest.mark.parametrize(
    ("what", "example"),
    [
        ("a path of one machine", "see /" + "root/x"),
        ("a path of one machine", "/" + "work/main"),
        ("a host of a registry", "from https://host/api/simple" + "/"),
        ("who typed it", "a sub" + "agent wrote it"),
    ],
)
def test_the_patterns_find_what_they_are_for(what: str, example: str) -> None:
    assert re.search(FORBIDDEN[what], example)


def test_pages_are_written_plainly(texts: dict[str, str]) -> None:
    for name, text in texts.items():
        if not name.endswith(".md"):
            continue
        prose = re.sub(r"```.*?```|`[^`]*`|<!--.*?-->|!\[", "", text, flags=re.S)
        assert "!" not in prose, name
        assert not re.search("[\U0001f000-\U0001faff☀-➿]", text), name
