"""The look at loss code as a tool: counts, places, what was left out, and what it names as read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from firstbad.playbooks.causes import causes
from firstbad.tools.code.files import ALL_BYTES, FILE_BYTES, MAX_DEPTH, open_code
from firstbad.tools.code.look import PATTERNS, look
from firstbad.tools.errors import UserError
from firstbad.tools.evidence import Evidence
from firstbad.tools.registry import run_tool
from firstbad.tools.run import Run

TOOL = "read_loss_code"
MakeRun = Callable[..., Run]
BAD = """\
import torch
import torch.nn.functional as F

def policy_loss(logits, actions, old_logp, adv, mask, accum_steps):
    logp = torch.log(F.softmax(logits, -1).gather(-1, actions) + 1e-8)
    ratio = torch.exp(logp.bfloat16() - old_logp)
    ratio = torch.clamp(ratio, max=10)
    filled = logp.masked_fill(~mask, float("-inf"))
    bonus = (filled * mask).max()
    loss = -(ratio * adv * mask).sum() / mask.sum()
    return loss / accum_steps + bonus

def advantages(rewards, G):
    g = rewards.view(-1, G)
    return (g - g.mean(dim=1, keepdim=True)) / g.std()
"""
GOOD = """\
import torch
import torch.nn.functional as F

def policy_loss(logits, actions, old_logp, adv, mask, n_tokens):
    logp = F.log_softmax(logits.float(), -1).gather(-1, actions).squeeze(-1)
    log_ratio = torch.clamp(logp - old_logp, -20, 20)
    ratio = torch.exp(log_ratio)
    clipped = torch.clamp(ratio, 1 - 0.2, 1 + 0.2)
    loss = -torch.min(ratio * adv, clipped * adv)
    return torch.where(mask, loss, 0.0).sum() / n_tokens

def advantages(rewards, G):
    g = rewards.view(-1, G)
    return (g - g.mean(dim=1, keepdim=True)) / (g.std(dim=1, keepdim=True) + 1e-4)
"""


@pytest.fixture
def read(make_run: MakeRun) -> Callable[[Path], Evidence]:
    """Evidence of the tool over some code."""

    def read_it(path: Path) -> Evidence:
        run = make_run()
        run.code = open_code(path)
        return run_tool(TOOL, run, {}, evidence_id="E1")

    return read_it


def test_each_pattern_once(read: Callable[[Path], Evidence], tmp_path: Path) -> None:
    (tmp_path / "loss.py").write_text(BAD)
    found = read(tmp_path)
    assert found.metrics is not None
    expected = {"exp_before_clamp", "log_of_softmax", "low_precision", "sentinel"}
    expected |= {"mean_of_means", "std_axis", "bare_std"}
    counted = {p.name: found.metrics[p.name] for p in PATTERNS}
    assert counted == {p.name: int(p.name in expected) for p in PATTERNS}
    assert found.metrics["n_places"] == 7
    places = {row[1]: row for row in found.tables[0].rows}
    assert places["loss.py:6"][2] in (
        "torch.exp(logp.bfloat16() - old_logp)",
        "logp.bfloat16() - old_logp",
    )
    assert [(s.kind, s.ref) for s in found.sources] == [("code", "loss.py")]


def test_sound_code(read: Callable[[Path], Evidence], tmp_path: Path) -> None:
    (tmp_path / "loss.py").write_text(GOOD)
    found = read(tmp_path / "loss.py")
    assert found.metrics is not None
    assert (found.metrics["n_files"], found.metrics["n_places"]) == (1, 0)
    assert found.tables == ()


def test_causes_are_on_the_list(tmp_path: Path) -> None:
    (tmp_path / "loss.py").write_text(BAD)
    assert {place.cause for place in look(open_code(tmp_path)).places} <= set(causes())


def test_without_code(make_run: MakeRun) -> None:
    found = run_tool(TOOL, make_run(), {}, evidence_id="E1")
    assert (found.status, found.summary) == ("no_data", "no code was given (`--code`)")


def test_the_same_code_gives_the_same_evidence(
    read: Callable[[Path], Evidence], tmp_path: Path
) -> None:
    for name in ("b.py", "a.py", "c/d.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(BAD)
    first, second = (read(tmp_path).model_copy(update={"seconds": 0}) for _ in range(2))
    assert first == second
    assert [s.ref for s in first.sources] == ["a.py", "b.py", "c/d.py"]


def test_many_places_are_cut_by_pattern(read: Callable[[Path], Evidence], tmp_path: Path) -> None:
    lines = [f"r{i} = torch.exp(logp - old_logp)" for i in range(100)]
    (tmp_path / "loss.py").write_text("\n".join([*lines, "p = torch.softmax(x, -1).log()"]))
    (table,) = read(tmp_path).tables
    assert len(table.rows) + table.cut_rows == 101
    assert {row[0] for row in table.rows} == {"num.exp_overflow", "num.log_softmax_eps"}


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("bad.py", b"def broken(:\n", "no Python that can be parsed, line 1"),
        ("null.py", b"x = 1\x00\n", "no Python that can be parsed"),
        ("latin.py", b"# \xe9\nx = '\xff'\n", "no Python that can be parsed"),
        ("large.py", b"#" * (FILE_BYTES + 1), "more than 512 KiB"),
        ("deep.py", b"x = " + b"(" * 5000 + b")" * 5000, "no Python that can be parsed"),
        ("minus.py", b"x = " + b"-" * 50_000 + b"1", "no Python that can be parsed"),
    ],
)
def test_what_cannot_be_read_is_a_note(
    read: Callable[[Path], Evidence], tmp_path: Path, name: str, content: bytes, why: str
) -> None:
    (tmp_path / name).write_bytes(content)
    (tmp_path / "loss.py").write_text("r = torch.exp(logp - old_logp)")
    found = read(tmp_path)
    assert found.metrics is not None
    assert (found.metrics["n_files"], found.metrics["n_unread"]) == (1, 1)
    assert found.metrics["n_places"] == 1
    (row,) = found.tables[1].rows
    assert row[0] == name
    assert str(row[1]).startswith(why)


def test_other_encodings_are_read(read: Callable[[Path], Evidence], tmp_path: Path) -> None:
    code = "# -*- coding: latin-1 -*-\nname = 'é'\nr = torch.exp(logp - old_logp)\n"
    (tmp_path / "loss.py").write_bytes(code.encode("latin-1"))
    found = read(tmp_path)
    assert found.tables[0].rows[0][1:3] == ("loss.py:3", "torch.exp(logp - old_logp)")


def test_folders_that_hold_no_loss_code(tmp_path: Path) -> None:
    for name in ("__pycache__", ".git", "site-packages", "venv"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.py").write_text(BAD)
    (tmp_path / "venv" / "pyvenv.cfg").write_text("")
    (tmp_path / "loss.py").write_text(GOOD)
    assert [file.name for file in open_code(tmp_path).files] == ["loss.py"]


def test_limits_are_told(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*"abcdefghijk")
    deep.mkdir(parents=True)
    (deep / "x.py").write_text("")
    for i in range(12):
        (tmp_path / f"f{i:02}.py").write_text("#" * (FILE_BYTES - 10))
    code = open_code(tmp_path)
    assert sum(len(f.data) for f in code.files) <= ALL_BYTES
    said = {each.why for each in code.unread}
    assert said == {f"more than {MAX_DEPTH} folders deep", "after 4 MiB no more are read"}


def test_a_path_without_code(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    for path, said in (
        (tmp_path / "nowhere", "there is no file or folder"),
        (tmp_path / "notes.txt", "neither a Python file nor a folder"),
        (tmp_path, "no Python file in"),
    ):
        with pytest.raises(UserError, match=said):
            open_code(path)


def test_a_change_to_the_code_changes_the_digest(
    read: Callable[[Path], Evidence], tmp_path: Path
) -> None:
    path = tmp_path / "loss.py"
    digests: set[Any] = set()
    for text in (BAD, GOOD):
        path.write_text(text)
        digests.add(read(path).sources[0].digest)
    assert len(digests) == 2
