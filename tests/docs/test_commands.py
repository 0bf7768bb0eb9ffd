"""Every command that a page shows: those marked `run` are run, the others name what exists."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from firstbad.agent import cli
from firstbad.agent.incident import listing

METRICS = ("step", "reward", "kl", "entropy", "grad_norm", "learning_rate", "loss")


@dataclass
class Shell:
    """Runs commands once each, in one home; `ID` is the incident made last."""

    folder: Path
    capsys: pytest.CaptureFixture[str] | None = None
    newest: str = ""
    done: dict[str, tuple[int, str, str]] = field(default_factory=dict)
    """Command -> exit code, output, incident."""

    def run(self, line: str) -> tuple[int, str]:
        line, _, file = line.partition(" > ")
        code, text = self._run(line)
        if file:
            Path(file).write_text(text, encoding="utf-8")
        return code, text

    def _run(self, line: str) -> tuple[int, str]:
        words = shlex.split(line)
        assert words[0] == "firstbad", f"not a command of this program: {line}"
        if "ID" in words:
            words = [self.newest if word == "ID" else word for word in words]
            line = shlex.join(words)
        if line not in self.done:
            assert self.capsys is not None
            code = cli.main(words[1:])
            told = self.capsys.readouterr()
            made = [incident.id for incident in listing()]
            newest = max(made, key=lambda i: os.stat(_folder(i)).st_mtime_ns) if made else ""
            self.done[line] = (code, told.out + told.err, newest)
        code, text, self.newest = self.done[line]
        return code, text


def _folder(incident: str) -> Path:
    return Path(os.environ["FIRSTBAD_HOME"]) / "incidents" / incident


@pytest.fixture(scope="module")
def one_shell(tmp_path_factory: pytest.TempPathFactory, repo_runs: Path) -> Shell:
    folder = tmp_path_factory.mktemp("shell")
    history = json.loads((repo_runs / "heron" / "trainer_state.json").read_text())["log_history"]
    with (folder / "metrics.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, METRICS, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(row for row in history if "reward" in row)
    return Shell(folder)


@pytest.fixture(scope="module")
def repo_runs() -> Path:
    return Path(__file__).resolve().parents[2] / "agent" / "demo_runs"


@pytest.fixture
def shell(
    one_shell: Shell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Shell:
    monkeypatch.setenv("FIRSTBAD_HOME", str(one_shell.folder / "home"))
    monkeypatch.chdir(one_shell.folder)
    one_shell.capsys = capsys
    return one_shell


def test_commands_that_are_marked_run(page: Any, shell: Shell) -> None:
    for block in page.blocks:
        if not block.is_run:
            continue
        for line in block.text.splitlines():
            code, text = shell.run(line)
            assert code == block.exit_code, f"{page.name}: {line}\n{text}"
            assert text.strip(), line


def test_the_readme_begins_with_a_command_that_is_run(pages: Any) -> None:
    blocks = pages["README.md"].blocks
    assert blocks[0].is_run
    assert "investigate" in blocks[0].text
    assert pages["docs/quickstart.md"].blocks[0].is_run


def test_each_page_of_the_docs_that_shows_use_runs_a_command(pages: Any) -> None:
    still = [
        name
        for name in ("README.md", "docs/quickstart.md", "docs/formats.md", "docs/scripting.md")
        if not any(block.is_run for block in pages[name].blocks)
    ]
    assert not still


@pytest.fixture
def known(generate: Any) -> dict[tuple[str, ...], set[str]]:
    """Commands with their options."""
    return {words: set(options_of(words)) for words, _ in generate.commands(cli.app)}


def options_of(words: tuple[str, ...]) -> Iterator[str]:
    """The options that the program itself says a command has."""
    import typer

    found: Any = typer.main.get_command(cli.app)
    for word in words:
        found = found.commands[word]
    yield "--help"
    for parameter in found.params:
        if parameter.param_type_name == "option":
            yield from parameter.opts


def shown_commands(page: Any) -> Iterator[str]:
    """Commands in blocks and in backticks."""
    for block in page.blocks:
        if block.language == "bash":
            yield from block.text.splitlines()
    yield from (span for span in page.spans if span.startswith("firstbad "))


def test_commands_name_what_exists(page: Any, known: dict[tuple[str, ...], set[str]]) -> None:
    groups = {words[0] for words in known}
    for line in shown_commands(page):
        words = shlex.split(line.partition(" > ")[0])
        if words[:1] != ["firstbad"] or len(words) == 1 or words[1] == "--version":
            continue
        assert words[1] in groups, f"{page.name}: {line}"
        command = next((c for n in (2, 1) if (c := tuple(words[1 : 1 + n])) in known), None)
        if command is None:  # a group by itself, as in `firstbad tools`
            assert len(words) == 2, f"{page.name}: {line}"
            continue
        flags = {word for word in words if word.startswith("--")}
        assert flags <= known[command], f"{page.name}: {line}"


def test_make_targets_exist(page: Any, repo: Path) -> None:
    rules = re.findall(r"^([\w-]+):(?!=)", (repo / "Makefile").read_text(), re.M)
    for line in [*shown_commands(page), *page.spans]:
        if match := re.fullmatch(r"make ([\w-]+)", line.strip()):
            assert match[1] in rules, f"{page.name}: {line}"


def test_other_shell_commands_are_few_and_known(page: Any) -> None:
    for block in page.blocks:
        if block.language == "bash" and not block.is_run:
            for line in block.text.splitlines():
                assert re.match(r"(make|firstbad|pip install|python docs/generate\.py)\b", line)


@pytest.fixture
def report(shell: Shell) -> Callable[[str], Any]:
    """The JSON object that a command prints."""

    def read(line: str) -> Any:
        return json.loads(shell.run(line)[1])

    return read


def table_keys(page: Any, title: str) -> set[str]:
    """Names in backticks in the first column of the table under a head line."""
    rows = page.text.split(f"\n| {title} |", 1)[1].split("\n\n")[0].splitlines()[2:]
    return {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}


def test_the_json_object_is_described_key_by_key(pages: Any, report: Callable[[str], Any]) -> None:
    page = pages["docs/scripting.md"]
    (line,) = (b.text.strip() for b in page.blocks if b.is_run)
    found = report(line)
    assert table_keys(page, "key") == set(found)
    assert table_keys(page, "key of a finding") == set(found["findings"][0])
    (row,) = (r for r in page.text.splitlines() if r.startswith("| `first_bad` | its own onset"))
    assert set(re.findall(r"`(\w+)`", row.split("|")[2])) == set(found["findings"][0]["first_bad"])


@pytest.mark.parametrize(
    "line",
    [
        "runs show demo:otter", "tools ls", "tools run check_rows demo:otter", "incidents ls",
        "playbook ls", "playbook lint",
    ],
)  # fmt: skip
def test_other_objects_are_described(pages: Any, report: Callable[[str], Any], line: str) -> None:
    name = " ".join(line.split()[:2])
    (row,) = (
        r for r in pages["docs/scripting.md"].text.splitlines() if r.startswith(f"| `{name}`")
    )
    told = set(re.findall(r"`(\w+)`", row.split("|")[2]))
    found = report(f"firstbad {line} --json")
    assert set(found) - {"schema"} <= told
    for value in found.values():
        if isinstance(value, list) and name.endswith(" ls"):
            assert all(set(each) <= told for each in value)


def test_exit_codes_are_described(pages: Any) -> None:
    from firstbad.agent import cli_tools, cli_verify, report

    rows = re.findall(r"^\| (\d+) \| (.+?) \| (.+?) \|$", pages["docs/scripting.md"].text, re.M)
    for outcome, code in report.EXIT_CODES.items():
        assert any(int(n) == code and m.startswith(outcome) for n, _, m in rows), outcome
    codes = {int(n) for n, _, _ in rows}
    assert codes == {
        *report.EXIT_CODES.values(), *cli_tools.EXIT_CODES.values(),
        cli_verify.DIFFERS, cli.USER_CAN_FIX, cli.BUG, cli.STOPPED,
    }  # fmt: skip
    short = re.findall(r"^\| (\d+) \|", pages["README.md"].text.split("## Exit codes")[1], re.M)
    assert {int(n) for n in short} == codes
