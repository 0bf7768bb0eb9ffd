"""The code of the `adding-a-*` pages works: it is put where the page says, and its tests pass."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import firstbad
from firstbad.agent.investigate import Finished, investigate
from firstbad.playbooks.loader import builtin, load
from firstbad.tools.errors import UserError
from firstbad.tools.readers import aliases, open_run

TESTS = Path(__file__).parents[1]


def block(pages: Any, page: str, file: str, language: str) -> str:
    """The block of a page that belongs to a file."""
    found = [b.text for b in pages[page].blocks if b.file == file and b.language == language]
    assert found, f"{page} shows no {file}"
    return str(found[0])


def with_layer(added: str, folder: Path) -> Path:
    """A copy of `crash` with a layer more at the end of its layers."""
    head, rest = Path(builtin("crash")).read_text(encoding="utf-8").split("\nleads_to:", 1)
    head = head.split("\n  - id: shaping\n")[0]  # where the page has been followed already
    copy = folder / "mine.yaml"
    copy.write_text(f"{head.rstrip()}\n\n{added}\nleads_to:{rest}", encoding="utf-8")
    return copy


CONFTEST = """
import importlib.util
import sys
from pathlib import Path

from firstbad.playbooks import loader
from firstbad.tools import readers
from firstbad.tools.readers import Reader


def placed(name, file):
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(file))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


placed("firstbad.tools.records.empty_completions", "empty_completions.py")
npy = placed("firstbad.tools.readers.npy", "npy.py")
readers.READERS = ({line}, *(r for r in readers.READERS if r.prefix != "npy"))
loader.builtin = lambda name: str(Path(__file__).with_name("mine.yaml"))
"""
"""Puts the code of the pages where they say it goes."""

OF_A_REAL_RUN = """

def test_a_real_run():
    from firstbad.agent.runs import open_ref
    from firstbad.tools.registry import find_tool, run_tool

    found = find_tool("count_empty_completions")
    assert found.summary == "Share of completions without any text, step by step."
    assert list(found.settings.model_fields) == ["least_share"]
    evidence = run_tool("count_empty_completions", open_ref("demo:otter"), {}, evidence_id="E1")
    assert evidence.status == "measured", evidence
"""


def test_the_code_of_the_pages_passes_their_tests(pages: Any, tmp_path: Path) -> None:
    """A tool, a layer and a reader more, in a process of their own."""
    tool, layer, reader = (f"docs/adding-a-{noun}.md" for noun in ("tool", "layer", "reader"))
    for page, file in (
        (tool, "tools/records/empty_completions.py"),
        (tool, "tests/tools/records/test_empty_completions.py"),
        (layer, "tests/playbooks/test_shaping.py"),
        (reader, "tools/readers/npy.py"),
        (reader, "tests/tools/readers/test_npy.py"),
    ):
        (tmp_path / Path(file).name).write_text(block(pages, page, file, "python"))
    with (tmp_path / "test_empty_completions.py").open("a") as tests:
        tests.write(OF_A_REAL_RUN)
    with_layer(block(pages, layer, "playbooks/crash.yaml", "yaml"), tmp_path)
    line = block(pages, reader, "tools/readers/__init__.py", "python").split("\n", 1)[1].strip()
    fixtures = (TESTS / "tools" / "conftest.py").read_text(encoding="utf-8")
    (tmp_path / "conftest.py").write_text(fixtures + CONFTEST.replace("{line}", line))
    conform(tmp_path / "readers", block(pages, reader, "tests/tools/readers/conftest.py", "python"))
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    package = Path(firstbad.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-v", "--no-header", "."],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": f"{package}{os.pathsep}{TESTS}",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for file in ("test_empty_completions", "test_shaping", "test_npy", "test_conformance"):
        assert f"{file}.py::" in done.stdout
    assert "test_rewards[npy] PASSED" in done.stdout


def conform(folder: Path, writer: str) -> None:
    """The questions that every format is asked, put to one more."""
    folder.mkdir()
    texts = {
        name: (TESTS / "tools" / "readers" / name).read_text(encoding="utf-8")
        for name in ("conftest.py", "test_conformance.py")
    }
    for name, before, after in (
        ("conftest.py", "import pytest\n", "import numpy as np\nimport pytest\n"),
        ("conftest.py", "FORMATS: dict", f"{writer}\n\nFORMATS: dict"),
        (
            "conftest.py",
            '    "parquet": _parquet,\n',
            '    "parquet": _parquet,\n    "npy": _npy,\n',
        ),
        ("test_conformance.py", 'WITHOUT_ROLLOUTS = {"tb"', 'WITHOUT_ROLLOUTS = {"npy", "tb"'),
    ):
        assert before in texts[name]
        texts[name] = texts[name].replace(before, after, 1)
    for name, text in texts.items():
        (folder / name).write_text(text)


def test_the_new_layer_comes_last(pages: Any, tmp_path: Path) -> None:
    copy = with_layer(
        block(pages, "docs/adding-a-layer.md", "playbooks/crash.yaml", "yaml"), tmp_path
    )
    layers = [layer.id for layer in load(str(copy)).playbook.layers]
    assert layers == [*(layer.id for layer in load("crash").playbook.layers), "shaping"]


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
    copy = with_layer(added.replace(right, wrong, 1), tmp_path)
    with pytest.raises(UserError) as refused:
        load(str(copy))
    assert told in str(refused.value)


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
def fresh_aliases(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], None]]:
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


def test_blocks_of_code_belong_to_a_file(pages: Any) -> None:
    """So that none is shown which no test has seen."""
    code = [b for name, p in pages.items() if name.startswith("docs/adding-") for b in p.blocks]
    assert {b.language for b in code} == {"bash", "python", "yaml"}
    assert not [b.text[:60] for b in code if b.language != "bash" and not b.file]


def test_the_loop_that_records_itself_leaves_a_run_that_is_read(pages: Any, tmp_path: Path) -> None:
    code = block(pages, "docs/recording.md", "record.py", "python")
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=60)
    run = open_run(f"rec:{tmp_path / 'record'}")
    assert run.last_step == 60
    assert len(run.captures.steps) == len(run.rollouts.steps) == 60
    assert run.flight.at(60).first_pass is True
    assert not [note for note in run.notes if note.code != "not_closed"]
    done = investigate(f"rec:{tmp_path / 'record'}", out=tmp_path / "incidents")
    assert isinstance(done, Finished)
    assert done.verdict.outcome == "healthy"
    # Its advantages cancel in the loss, so that the loss vouches for no sign and no factor.
    weaker = {layer.id: layer.strength for layer in done.verdict.layers}
    assert {id_: s for id_, s in weaker.items() if s != "direct"} == {"accumulation": "proxy"}
