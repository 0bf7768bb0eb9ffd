"""Nothing that a person can name is missing from the docs, and every link leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from firstbad.agent import cli
from firstbad.playbooks import model
from firstbad.playbooks.causes import causes
from firstbad.playbooks.loader import load, shipped
from firstbad.playbooks.results import STRENGTHS
from firstbad.tools.known_good import (
    Arrival,
    Fault,
    Meaning,
    Statement,
    Versions,
    known_good,
)
from firstbad.tools.readers import READERS
from firstbad.tools.readers.captures import FIELDS
from firstbad.tools.registry import tools
from firstbad.tools.strict_yaml import Strict

_LINK = re.compile(r"\]\(([^)\s]+)\)")
# A path in backticks: a folder or a file name, and no placeholder in it.
_PATH = re.compile(
    r"(?:agent|docs|evals|playbooks|recorder|src|tests|tools)/[\w./-]+|\.ci/\w+|[A-Z]+\.md|\w+\.toml"
)
# Files that a page tells the reader to make.
_TO_BE_MADE = re.compile(r".*empty_completions.*|.*npy.*|.*shaping.*|tokenizer/.*|mine\.yaml")


def test_every_tool_and_metric(pages: Any) -> None:
    text = pages["docs/tools.md"].text
    sections = dict(zip(*[iter(re.split(r"^## (\w+)$", text, flags=re.M)[1:])] * 2, strict=True))
    assert list(sections) == list(tools())
    head = text.split("\n## ", 1)[0]
    for name, tool in tools().items():
        assert tool.summary in sections[name]
        for metric in tool.metrics.model_fields:
            assert f"`{metric}`" in sections[name] or f"`{metric}`" in head
        for setting in tool.settings.model_fields:
            assert f"`{setting}`" in sections[name]


def test_every_cause(pages: Any) -> None:
    ids = re.findall(r"^### (\S+)$", pages["docs/causes.md"].text, re.M)
    assert sorted(ids) == sorted(causes())
    for cause in causes().values():
        assert " ".join(cause.wrong.split()) in pages["docs/causes.md"].text


def test_every_field_of_a_playbook(pages: Any) -> None:
    text = pages["docs/playbook.md"].text
    records = [k for k in vars(model).values() if isinstance(k, type) and issubclass(k, Strict)]
    for record in records:
        if record in (Strict, model.Cause, model.Form):  # of causes.yaml
            continue
        section = text.split(f"**{record.__name__}**", 1)[1].split("\n**", 1)[0]
        assert re.findall(r"^\| `(\w+)` \|", section, re.M) == list(record.model_fields)


def test_every_fact_about_versions(pages: Any) -> None:
    text = pages["docs/known-good.md"].text
    facts = known_good()
    for name, source in (
        *((fault.id, fault.source) for fault in facts.faults),
        *((statement.id, statement.source) for statement in facts.statements),
    ):
        assert f"`{name}`" in text
        assert source in text
    for meaning in facts.meanings:
        assert f"`{meaning.key}`" in text
    for record in (Fault, Statement, Meaning, Arrival, Versions):
        section = text.split(f"**{record.__name__}**", 1)[1].split("\n**", 1)[0]
        assert re.findall(r"^\| `(\w+)` \|", section, re.M) == list(record.model_fields)


def test_every_layer_and_check(pages: Any) -> None:
    for name in shipped():
        for layer in load(name).playbook.layers:
            assert f"`{layer.id}`" in pages["README.md"].text
            for check in layer.checks:
                assert f"`{check.id}`" in pages["docs/playbook.md"].text


def test_every_command_and_option(pages: Any, generate: Any) -> None:
    import typer

    text = pages["docs/cli.md"].text
    for words, _ in generate.commands(cli.app):
        section = text.split(f"\n## firstbad {' '.join(words)}\n", 1)[1].split("\n## ", 1)[0]
        command: Any = typer.main.get_command(cli.app)
        for word in words:
            command = command.commands[word]
        for parameter in command.params:
            if parameter.param_type_name == "option":
                for spelling in parameter.opts:
                    assert re.search(rf"`{spelling}[ `]", section), f"{words}: {spelling}"
            else:
                assert str(parameter.metavar or parameter.name.upper()) in section
    assert "--version" in text


def test_every_reader_and_field_of_dumps(pages: Any) -> None:
    text = pages["docs/formats.md"].text
    assert all(f"`{reader.prefix}:`" in text for reader in READERS)
    assert all(f"`{name}`" in text for name in FIELDS)


def test_every_word_of_outcomes_and_strengths(pages: Any) -> None:
    text = pages["docs/reading-a-memo.md"].text
    for word in (*STRENGTHS, "pass", "fail", "inconclusive", "waived", "not reached"):
        assert f"\n| {word} |" in text
    for word in ("INCIDENT", "HEALTHY", "UNDETERMINED"):
        assert f"\n| {word} |" in text


def test_every_label_of_a_memos_first_screen(pages: Any, repo: Path) -> None:
    text = pages["docs/reading-a-memo.md"].text
    code = (repo / "agent" / "memo" / "head.py").read_text(encoding="utf-8")
    labels = set(re.findall(r'Row\(\s*"([^"]+)"', code)) | {"fix", "only dilutes", "experiment"}
    assert len(labels) > 10
    assert not [label for label in labels if not re.search(rf"[*`]{label}[*`]", text)]


def anchors(path: Path) -> set[str]:
    """The anchors of a page, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_links_lead_somewhere(page: Any) -> None:
    for link in _LINK.findall(page.prose):
        target, _, anchor = link.partition("#")
        assert "://" not in link, f"{page.name}: {link} is not in this repository"
        path = page.path.parent / target if target else page.path
        assert path.exists(), f"{page.name}: {link}"
        if anchor:
            assert anchor in anchors(path), f"{page.name}: {link}"


def test_paths_in_backticks_exist(page: Any, repo: Path) -> None:
    for span in page.spans:
        if _PATH.fullmatch(span) and not _TO_BE_MADE.fullmatch(span):
            places = (repo / span, page.path.parent / span)
            assert any(place.exists() for place in places), f"{page.name}: {span}"


def test_every_page_is_linked_from_the_readme(pages: Any, repo: Path) -> None:
    seen, todo = set(), [repo / "README.md"]
    while todo:
        path = todo.pop().resolve()
        if path in seen or path.suffix != ".md":
            continue
        seen.add(path)
        for link in _LINK.findall(path.read_text(encoding="utf-8")):
            target = path.parent / link.partition("#")[0]
            todo += sorted(target.glob("*.md")) if target.is_dir() else [target]
    missing = [n for n in pages if (repo / n).resolve() not in seen and n.startswith("docs/")]
    assert not missing


def test_the_picture_is_small(repo: Path) -> None:
    picture = repo / "docs" / "images" / "memo.png"
    data = picture.read_bytes()
    assert data.startswith(b"\x89PNG")
    assert len(data) < 300_000


@pytest.mark.parametrize("name", ["heron", "otter"])
def test_what_happened_in_a_demo_run_stands_in_data_md_alone(
    name: str, pages: Any, repo: Path
) -> None:
    assert f"**{name}: " in pages["docs/data.md"].text
    for other, page in pages.items():
        told = re.search(
            rf"{name}\W+(?:is |was |: )?(?:a |an |the )?(?:healthy|no fault|verifier)", page.text
        )
        assert other == "docs/data.md" or told is None, other
    folder = repo / "agent" / "demo_runs" / name
    for file in folder.rglob("*"):
        assert not re.search(r"outage|fault|healthy|readme", file.name, re.I), file
