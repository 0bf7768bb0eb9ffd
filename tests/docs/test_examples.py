"""The code of the `adding-a-*` pages works: it is put where the page says, and its tests pass."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import yaml

from firstbad.playbooks.loader import builtin, load
from firstbad.tools import readers, registry
from firstbad.tools.errors import UserError
from firstbad.tools.readers import aliases, open_run

CONFTEST = Path(__file__).parents[1] / "tools" / "conftest.py"


def block(pages: Any, page: str, file: str, language: str) -> str:
    """The block of a page that belongs to a file."""
    found = [b.text for b in pages[page].blocks if b.file == file and b.language == language]
    assert found, f"{page} shows no {file}"
    return str(found[0])


def as_module(code: str, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Code as a module of that name, for the time of a test."""
    path = folder / f"{name.rpartition('.')[2]}.py"
    path.write_text(code, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


def run_tests(code: str, pytester_folder: Path, plugin: Any = None) -> None:
    """Run a page's own tests by pytest, in this process."""
    path = pytester_folder / "test_of_the_page.py"
    path.write_text(code, encoding="utf-8")
    plugins = [] if plugin is None else [plugin]
    arguments = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:cov"]
    arguments += ["--import-mode=importlib", "-c", str(pytester_folder / "pytest.ini"), str(path)]
    (pytester_folder / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    assert pytest.main(arguments, plugins=plugins) == 0


@pytest.fixture
def free_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tools that are added in a test are gone after it."""
    registry.tools()
    monkeypatch.setattr(registry, "_TABLE", dict(registry._TABLE))


@pytest.fixture
def fixtures_of_tools() -> ModuleType:
    """The fixtures that the tests of tools have."""
    spec = importlib.util.spec_from_file_location("conftest_of_tools", CONFTEST)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.usefixtures("free_registry")
def test_adding_a_tool(
    pages: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fixtures_of_tools: ModuleType
) -> None:
    page = "docs/adding-a-tool.md"
    name = "firstbad.tools.empty_completions"
    as_module(
        block(pages, page, "tools/empty_completions.py", "python"), name, tmp_path, monkeypatch
    )
    found = registry.find_tool("count_empty_completions")
    assert found.summary == "Share of completions without any text, step by step."
    assert list(found.settings.model_fields) == ["least_share"]
    assert '"empty_completions",' in pages[page].text
    tests = block(pages, page, "tests/tools/test_empty_completions.py", "python")
    run_tests(tests, tmp_path, fixtures_of_tools)
    run = open_run(str(Path(__file__).parents[2] / "agent" / "demo_runs" / "otter"))
    evidence = registry.run_tool("count_empty_completions", run, {}, evidence_id="E1")
    assert evidence.status == "measured"


def test_adding_a_layer(pages: Any, tmp_path: Path) -> None:
    page = "docs/adding-a-layer.md"
    added = block(pages, page, "playbooks/crash.yaml", "yaml").split("\n", 1)[1]
    original = Path(builtin("crash")).read_text(encoding="utf-8")
    head, rest = original.split("\nleads_to:", 1)
    copy = tmp_path / "mine.yaml"
    copy.write_text(f"{head.rstrip()}\n\n{added}\nleads_to:{rest}", encoding="utf-8")
    layers = [layer.id for layer in load(str(copy)).playbook.layers]
    assert layers == [*(layer.id for layer in load("crash").playbook.layers), "shaping"]
    tests = block(pages, page, "tests/playbooks/test_shaping.py", "python")
    fixture = f"@pytest.fixture\ndef playbook() -> Path:\n    return Path({str(copy)!r})\n"
    run_tests(f"{tests}\n\n{fixture}", tmp_path)


@pytest.mark.parametrize(
    ("right", "wrong", "told"),
    [
        ("measure_length_pay", "measure_lenght_pay", "no tool `measure_lenght_pay`"),
        ("grown.growth_wrong:", "grown.growth_worng:", "does not measure `growth_worng`"),
        ("collapse.length_normalisation", "collapse.lengths", "no cause `collapse.lengths`"),
        ("[reward.judging]", "[reward.judge]", "depends on `reward.judge`"),
        ('"> 1.5"', '"> 1.5 or so"', "expected an operator and a number"),
        ("request:", "requests:", "Extra inputs are not permitted"),
        ("evidence: {grown:", "evidence: {judge:", "alias `judge` already names `rejudge`"),
    ],
)
def test_what_the_page_says_lint_refuses(
    pages: Any, tmp_path: Path, right: str, wrong: str, told: str
) -> None:
    added = block(pages, "docs/adding-a-layer.md", "playbooks/crash.yaml", "yaml")
    assert right in added
    head, rest = Path(builtin("crash")).read_text(encoding="utf-8").split("\nleads_to:", 1)
    copy = tmp_path / "mine.yaml"
    copy.write_text(
        f"{head.rstrip()}\n\n{added.replace(right, wrong, 1)}\nleads_to:{rest}", encoding="utf-8"
    )
    with pytest.raises(UserError) as refused:
        load(str(copy))
    assert told in str(refused.value)


def test_adding_a_reader(pages: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = "docs/adding-a-reader.md"
    name = "firstbad.tools.readers.npy"
    module = as_module(
        block(pages, page, "tools/readers/npy.py", "python"), name, tmp_path, monkeypatch
    )
    line = block(pages, page, "tools/readers/__init__.py", "python")
    made = eval(line, {"Reader": readers.Reader, "npy": module})
    monkeypatch.setattr(readers, "READERS", (made, *readers.READERS))
    run_tests(block(pages, page, "tests/tools/readers/test_npy.py", "python"), tmp_path)


def test_aliases_of_another_framework(
    pages: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fresh_aliases: Callable[[Path], None],
) -> None:
    added = block(pages, "docs/adding-a-reader.md", "tools/readers/aliases.yaml", "yaml")
    table = yaml.safe_load(Path(aliases.__file__).with_name("aliases.yaml").read_text("utf-8"))
    table["frameworks"].update(yaml.safe_load(added)["frameworks"])
    (tmp_path / "aliases.yaml").write_text(yaml.safe_dump(table), encoding="utf-8")
    fresh_aliases(tmp_path)
    head = "step,my/own_key,my/kl_to_init,my/sec,my/nll,my/len_ln\n"
    rows = [f"{i},0.5,0.01,2,1,30\n" for i in range(1, 9)]
    (tmp_path / "metrics.csv").write_text(head + "".join(rows))
    run = open_run(str(tmp_path / "metrics.csv"))
    assert run.framework == "my-trainer"
    assert set(run.signals.known) == {
        "reward_mean",
        "kl_ref",
        "step_time",
        "completion_length_mean",
    }
    assert set(run.signals.unknown) == {"my/nll"}
    assert any("geometric mean" in note.text for note in run.notes)


@pytest.fixture
def fresh_aliases(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let the alias table be read from another folder, for one test."""

    def use(folder: Path) -> None:
        monkeypatch.setattr(aliases, "files", lambda package: folder)
        aliases._table.cache_clear()

    yield use
    aliases._table.cache_clear()


def test_names_of_a_users_own_dumps(pages: Any, tmp_path: Path) -> None:
    text = block(pages, "docs/formats.md", "firstbad.yaml", "yaml")
    (tmp_path / "firstbad.yaml").write_text(text)
    (tmp_path / "dumps").mkdir()
    ids = np.arange(6).reshape(2, 3)
    np.savez(
        tmp_path / "dumps" / "step_7.npz",
        sampled_ids=ids,
        keep=ids > 0,
        lp_train=-ids / 3,
        H=ids / 3,
    )
    rows = "".join(f"{i},0.5\n" for i in range(1, 9))
    (tmp_path / "metrics.csv").write_text("step,reward\n" + rows)
    capture = open_run(str(tmp_path)).captures.at(7)
    assert set(capture.arrays) == {"token_id", "loss_mask", "logp_new", "entropy"}
    assert not capture.unmapped


def test_python_blocks_belong_to_a_file(page: Any) -> None:
    """So that none is shown which no test has seen."""
    if not re.match(r"docs/adding-", page.name):
        pytest.skip("no page of code")
    for block_ in page.blocks:
        assert block_.language in ("bash", "python", "yaml")
        if block_.language != "bash":
            assert block_.file, block_.text[:60]
