"""The pages, their code blocks, and the generator of their generated parts."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "recorder" / "README.md"]
)
_BLOCK = re.compile(r"^```(\w*)([^\n`]*)\n(.*?)^```$", re.S | re.M)
_SPAN = re.compile(r"`([^`\n]+)`")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    language: str
    words: tuple[str, ...]
    """What stands after the language: `run`, `exit=1`."""
    text: str

    @property
    def is_run(self) -> bool:
        return self.language == "bash" and "run" in self.words

    @property
    def exit_code(self) -> int:
        found = [word.removeprefix("exit=") for word in self.words if word.startswith("exit=")]
        return int(found[0]) if found else 0

    @property
    def file(self) -> str:
        """The file that a first line such as `# tools/x.py` says the block belongs to."""
        first = self.text.split("\n", 1)[0]
        return first.removeprefix("# ") if re.fullmatch(r"# [\w./]+\.(py|yaml)", first) else ""


@dataclass(frozen=True)
class Page:
    """A page of the docs."""

    path: Path
    text: str

    @property
    def name(self) -> str:
        return self.path.relative_to(ROOT).as_posix()

    @property
    def blocks(self) -> tuple[Block, ...]:
        return tuple(
            Block(self.name, language, tuple(words.split()), text)
            for language, words, text in _BLOCK.findall(self.text)
        )

    @property
    def prose(self) -> str:
        """The page without its fenced blocks."""
        return _BLOCK.sub("", self.text)

    @property
    def spans(self) -> tuple[str, ...]:
        """Text in backticks, outside fenced blocks."""
        return tuple(_SPAN.findall(" ".join(self.prose.split())))


def read(path: Path) -> Page:
    return Page(path, path.read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def pages() -> dict[str, Page]:
    """Every page, by its path from the top of the repo."""
    return {page.name: page for page in map(read, PAGES)}


@pytest.fixture(params=PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def page(request: pytest.FixtureRequest) -> Page:
    """Each page in turn."""
    return read(request.param)


@pytest.fixture(scope="session")
def generate() -> Any:
    """The script `docs/generate.py` as a module."""
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
