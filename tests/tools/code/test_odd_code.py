"""Odd expressions in files that nobody vouches for: the other findings stay."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstbad.tools.code import look as looking
from firstbad.tools.code.files import Code, CodeFile
from firstbad.tools.code.finding import Found, Pattern
from firstbad.tools.code.look import look
from firstbad.tools.code.syntax import Module

KNOWN = """
ratio = torch.exp(logp_new - logp_old)
p = torch.log(torch.softmax(x, -1) + 1e-8)
filled = logps.masked_fill(~mask, -1e9).sum()
adv = (rewards - rewards.mean()) / rewards.std()
"""
PATTERNS_IN_IT = {"exp_before_clamp", "log_of_softmax", "sentinel", "bare_std"}
NUMBERS = [
    "1e999", "-1e999", "1e999j", "9" * 400, "-" + "9" * 400, "0.5", "1e308", "5e-324", "1e-999",
    "True", "None", "...", "b''", "'inf'", "float('inf')", "float('nan')", "float('-inf')",
    "float('1_0')", "float('x')", "torch.inf", "-math.inf", "math.nan", "torch.finfo(x).min",
    "np.iinfo(int).max", "~5", "not 1", "(1,)", "[]", "{}", "*z", "lambda: 0", "(y := 3)",
    "f'{1}'", "-'a'", "a[1e999]", "x.y.inf", "self", "1 if a else 1e999", "0x" + "f" * 300,
]  # fmt: skip
PLACES = [
    "rewards.std({})", "rewards.std(dim={})", "(rewards - rewards.mean({})) / rewards.std({})",
    "(r - r.mean(1)) / (r.view(-1, {}).std({}) + {})", "torch.exp((logp - logp_old).clamp({}, {}))",
    "torch.exp(torch.clamp(log_ratio, max={}))", "torch.log(torch.softmax(x, -1) + {})",
    "torch.log(softmax(x).clamp(min={}))", "logps.masked_fill(mask, {}).sum({})",
    "torch.where(mask, logp, {}).mean({})", "logp - logp_old.masked_fill(m, {})",
    "x * mask + (1 - mask) * {}", "torch.log(torch.where(m, p, {})).sum()", "loss.mean() / {}",
    "a / torch.std(rewards, {}, {})", "rewards.reshape({}, {}).std(0)", "logp.to({}) - logp.to({})",
    "torch.log(torch.sum(torch.exp({})))", "per_token_loss.mean({}) / accum_steps",
]  # fmt: skip


def looked(text: str) -> looking.Looked:
    code = Code(Path("loss.py"))
    code.__dict__["files"] = (CodeFile("loss.py", text.encode()),)
    return look(code)


def patterns_of(found: looking.Looked) -> set[str]:
    return {place.pattern for place in found.places}


@pytest.mark.parametrize("axis", ["1e999", "-1e999", "float('inf')", "torch.inf", "0.5", "9" * 400])
def test_an_axis_that_is_none_costs_nothing_else(axis: str) -> None:
    text = KNOWN + f"a = (rewards - rewards.mean(1)) / (rewards.std({axis}) + 1e-6)\n"
    found = looked(text)
    assert patterns_of(found) == PATTERNS_IN_IT
    assert not found.unread
    assert found.n_files == 1


@settings(max_examples=200)
@given(st.data())
def test_no_constant_costs_a_finding(data: st.DataObject) -> None:
    lines = []
    for place in data.draw(st.lists(st.sampled_from(PLACES), min_size=1, max_size=4)):
        numbers = [data.draw(st.sampled_from(NUMBERS)) for _ in range(place.count("{}"))]
        named = [data.draw(st.booleans()) for _ in numbers]
        for i, (number, apart) in enumerate(zip(numbers, named, strict=True)):
            if apart and number != "*z":
                lines.append(f"n{i} = {number}")
                numbers[i] = f"n{i}"
        lines.append("v = " + place.format(*numbers))
    for line in lines:
        try:
            compile(line, "loss.py", "exec")
        except SyntaxError:
            return
        except ValueError:  # more digits than int() takes
            return
    found = looked(KNOWN + "\n".join(lines))
    assert patterns_of(found) >= PATTERNS_IN_IT
    assert not found.unread


def test_an_expression_that_nothing_can_follow_costs_itself_alone() -> None:
    deep = "x" + ".a()" * 990
    for odd in (f"v = {deep} - logp", f"w = torch.exp({deep} - logp)", f"u = r / {deep}.std()"):
        found = looked(f"{odd}\n{KNOWN}")
        assert patterns_of(found) >= PATTERNS_IN_IT


def test_what_breaks_in_a_pattern_is_skipped_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(module: Module) -> Iterator[Found]:
        for op, _ in module.ops("exp"):
            list(module.nodes(ast.BinOp))
            if "odd" in module.written(op.node):
                raise OverflowError("cannot convert float infinity to integer")
            yield Found(op.node, "num.exp_overflow", "why", "shown")

    monkeypatch.setattr(looking, "PATTERNS", (Pattern("own", find),))
    text = "a = torch.exp(x - y)\nb = torch.exp(odd)\nc = torch.exp(z)\nd = torch.exp(odd)\n"
    found = looked(text)
    assert [place.line for place in found.places] == [1, 3]
    assert [(each.name, each.why) for each in found.unread] == [
        ("loss.py", "an expression in line 2 can't be followed (OverflowError)"),
        ("loss.py", "an expression in line 4 can't be followed (OverflowError)"),
    ]
    many = looked("\n".join(["a = torch.exp(x)"] + ["b = torch.exp(odd)"] * 50))
    assert [place.line for place in many.places] == [1]
    assert len(many.unread) == looking.MOST_ODD


def test_a_pattern_that_breaks_before_it_looks_at_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(module: Module) -> Iterator[Found]:
        raise OverflowError
        yield

    monkeypatch.setattr(looking, "PATTERNS", (Pattern("own", find), *looking.PATTERNS))
    found = looked(KNOWN)
    assert patterns_of(found) == PATTERNS_IN_IT
    assert [each.why for each in found.unread] == ["`own` can't be looked for (OverflowError)"]
