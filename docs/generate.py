"""Write the generated parts of README.md and docs/: `python docs/generate.py`.

A part stands between `<!-- generated: NAME -->` and `<!-- end -->`; what stands there is replaced
by what the code says now. `--check` writes nothing and exits with 1 where something is stale.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import inspect
import io
import os
import re
import sys
import tempfile
import textwrap
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cache
from inspect import getdoc, getsource
from pathlib import Path
from typing import Any
from unittest import mock

from pydantic import BaseModel
from pydantic_core import PydanticUndefined
from typer import Typer
from typer.models import ArgumentInfo, OptionInfo

from firstbad.agent import cli
from firstbad.playbooks import model
from firstbad.playbooks.bound import Bound
from firstbad.playbooks.causes import causes
from firstbad.playbooks.loader import call_parts, load
from firstbad.tools.evidence import Dated, Metrics
from firstbad.tools.known_good import (
    Arrival,
    Conditions,
    Fault,
    Meaning,
    Statement,
    Versions,
    known_good,
)
from firstbad.tools.readers import READERS
from firstbad.tools.readers.aliases import canonical_names, unit_of
from firstbad.tools.readers.captures import FIELDS
from firstbad.tools.registry import tools

ROOT = Path(__file__).resolve().parent.parent
PART = re.compile(r"(<!-- generated: (\S+) -->\n)(.*?)(<!-- end -->)", re.S)
REQUIRED = inspect.Parameter.empty
METRICS = ("metric", "form", "meaning")
COMPLAINT = "reward dropped to a quarter at step 66"
EXAMPLE_ID = "20260601-101500-k7vq"

# Fields of a playbook whose name says all that a docstring would say.
PLAIN_FIELDS = {
    "Playbook.name": "short name, printed in memos",
    "Playbook.title": "one line for people",
    "Playbook.window": "how the window is read, first rule that holds",
    "Playbook.layers": "the layers, in the order in which they are walked",
    "Playbook.leads_to": "earlier facts that explain a failed layer",
    "Playbook.symptoms": "the symptom table",
    "Playbook.inapplicable": "checks that a setting or a fact of the run rules out",
    "Playbook.decisions": "the decision table",
    "Layer.id": "word used in JSON, YAML, waivers and memos",
    "Layer.number": "number for people, quoted text",
    "Layer.asks": "the layer's question",
    "Layer.checks": "the checks, in order",
    "Check.id": "name inside its layer; `layer.check` everywhere else",
    "Check.asks": "the check's question",
    "Check.evidence": "alias -> tool, or tool with settings",
    "Check.gate": "alternatives, strongest first; the first whose needs hold decides",
    "Check.points_to": "causes that a failure names, first one whose bounds hold",
    "Check.notes": "what looks odd here and is normal",
    "Check.decides": "what the requested evidence would decide",
    "Check.command": "how to get it: a command (`RUN` and `INCIDENT` are filled in) or advice",
    "Alternative.strength": "how strong evidence of this kind is",
    "Pointer.cause": "id from the closed list",
    "Pointer.when": "bounds that must all hold for this cause",
    "Pointer.confidence": "`low`, `medium` or `high`; lowered one step for weaker strengths",
    "Note.when": "bounds that must all hold",
    "Note.say": "the sentence, with `{alias.field}` places",
    "Link.cause": "cause of the earlier fact",
    "Symptom.seen": "what is seen",
    "Symptom.when": "bounds that must all hold",
    "Symptom.suspects": "layers to look at closely",
    "Claim.answers": "notes said when the complaint makes the claim and their bounds hold",
    "Claim.whole_called": "the whole in words",
    "Claim.partly": "what is said then",
    "Comparison.alias": "name of the comparison",
    "Comparison.call": "tool with settings; `$finding_step` is where the leading finding begins",
    "Otherwise.need": "what it is",
    "Otherwise.command": "what to check it with",
    "Otherwise.decides": "what it would decide",
    "Unexplained.need": "what it is",
    "Unexplained.command": "what to check it with",
    "Unexplained.decides": "what it would decide",
    "Unexplained.when": "bounds that must all hold",
    "Unexplained.say": "what the verdict says then",
    "Unbuilt.layer": "layer of the walk that would take the measure",
    "Unbuilt.check": "name of the measure",
    "Unbuilt.why": "why it is not taken, and what stays unknown",
    "Inapplicable.checks": "checks as `layer.check`; one that could be decided is never ruled out",
    "Inapplicable.when": "bounds that must all hold",
    "Inapplicable.because": "the setting or fact, as the memo says it",
    "Decision.result": "what was found",
    "Decision.causes": "causes to which the row belongs",
    "Decision.found_by": "`layer.check`s whose failure is that result",
    "Decision.conclusion": "what that means",
    "Decision.do": "the next step",
    "WindowRule.kind": "`onset`, `steady` or `bad_from_start`",
    "WindowRule.when": "bounds that must all hold",
}

KNOWN_FIELDS = {
    "id": "name of the entry",
    "versions": "range of versions, or those that a report names",
    "says": "one sentence without its final stop",
    "source": "thread on GitHub, or the released source that was read",
    "when": "settings under which it holds; all must",
    "states": "`engine_logprobs_unused`, `old_logprobs_recomputed` or `ratio_one_by_construction`",
    "means": "what the key means then",
    "package": "name under which the package is installed, which is that of the framework",
    "wraps": "the framework, where the package is one around it",
    "setting": "name of the setting",
}


# ------------------------------------------------------------------------------------- the parts


def command_reference() -> str:
    """Every command with its arguments and options, from what `--help` is made of."""
    parts = []
    for words, command in commands(cli.app):
        asked = list(_parameters(command))
        usage = ["firstbad", *words]
        usage += [
            name if default is REQUIRED else f"[{name}]"
            for name, info, default in asked
            if isinstance(info, ArgumentInfo)
        ]
        usage += ["[OPTIONS]"] if any(isinstance(i, OptionInfo) for _, i, _ in asked) else []
        parts.append(f"## firstbad {' '.join(words)}\n\n```text\n{' '.join(usage)}\n```")
        parts.append(_prose(getdoc(command) or ""))
        rows = [(f"`{_cell(n)}`", _cell(str(i.help or "")), _default(d)) for n, i, d in asked]
        parts.append(table(("argument or option", "meaning", "default"), rows))
    return "\n\n".join(parts)


def tool_reference() -> str:
    """Every tool with its docstring, settings and metrics."""
    used = _users()
    parts = []
    for name, tool in tools().items():
        first, _, rest = tool.description.partition("\n")
        file = tool.function.__module__.removeprefix("firstbad.").replace(".", "/") + ".py"
        parts.append(f"## {name}\n\n{first}")
        if rest.strip():
            parts.append(_prose(rest))
        asked = ", ".join(f"`{place}`" for place in used.get(name, ())) or "no check"
        dated = " Dates what it measures." if issubclass(tool.metrics, Dated) else ""
        parts.append(f"In [`{file}`](../{file}); read by {asked}.{dated}")
        settings = [
            (f"`{key}`", _form(field.annotation), f"`{field.default!r}`")
            for key, field in tool.settings.model_fields.items()
        ]
        if settings:
            parts.append(table(("setting", "form", "default"), settings))
        parts.append(table(METRICS, _metrics(tool.metrics, Dated.model_fields)))
    return "\n\n".join(parts)


def dated_metrics() -> str:
    """The metrics that all tools have which date what they measure."""
    return table(METRICS, _metrics(Dated))


def cause_reference() -> str:
    """Every cause, by layer, with the checks that can name it."""
    book = load("crash").playbook
    numbers = {layer.id: f"{layer.id} ({layer.number})" for layer in book.layers}
    named = _namers()
    order = [layer.id for layer in book.layers]
    listed = causes().values()
    groups = sorted({c.layer for c in listed}, key=lambda n: (n not in order, *_place(order, n)))
    parts = [f"The list holds {len(listed)} causes; checks of `crash` name {len(named)} of them."]
    for group in groups:
        title = "No layer" if group == "-" else numbers.get(group, f"{group} (no layer yet)")
        parts.append(f"## {title[0].upper()}{title[1:]}")
        for cause in (c for c in listed if c.layer == group):
            where = ", ".join(f"`{place}`" for place in named.get(cause.id, ()))
            rows = [
                ("wrong", cause.wrong),
                ("shows in", cause.tells),
                (f"remedy ({cause.remedy_kind})", cause.remedy),
                ("only dilutes", cause.dilutes),
                ("verify", cause.verify),
                ("refuted by", cause.refuted_by),
                ("experiment", cause.experiment.told() if cause.experiment else ""),
                (f"weights ({cause.weights})", cause.rollback),
                ("log next time", cause.log_next),
                ("named by", where or "no check yet"),
            ]
            told = "\n".join(f"- {label}: {_text(text)}" for label, text in rows if text)
            parts.append(f"### {cause.id}\n\n{told}")
    return "\n\n".join(parts)


def layer_table() -> str:
    """The layers of `crash` for the README: number, id, question, how many checks."""
    rows = [
        (layer.number, f"`{layer.id}`", _cell(layer.asks), str(len(layer.checks)))
        for layer in load("crash").playbook.layers
    ]
    return table(("no.", "id", "asks", "checks"), rows)


def check_table() -> str:
    """The checks of `crash`, layer by layer."""
    parts = []
    for layer in load("crash").playbook.layers:
        rows = [
            (
                f"`{check.id}`",
                _cell(check.asks),
                ", ".join(f"`{call_parts(c)[0]}`" for c in check.evidence.values()),
                ", ".join(dict.fromkeys(a.strength for a in check.gate)),
                _role(check),
            )
            for check in layer.checks
        ]
        head = ("check", "asks", "tools", "strengths", "role")
        parts.append(f"**{layer.number} {layer.id}**: {layer.asks}\n\n{table(head, rows)}")
    return "\n\n".join(parts)


def playbook_fields() -> str:
    """Every field of a playbook file."""
    parts = []
    for kind, where in (
        (model.Playbook, "top of the file"),
        (model.WindowRule, "item of `window`"),
        (model.Layer, "item of `layers`"),
        (model.Check, "item of `checks`"),
        (model.Alternative, "item of `gate`"),
        (model.Pointer, "item of `points_to`"),
        (model.Ask, "item of `request`"),
        (model.Note, "item of `notes`"),
        (model.Link, "item of `leads_to`"),
        (model.Symptom, "item of `symptoms`"),
        (model.Claim, "item of `complaints`"),
        (model.Comparison, "item of `compared`"),
        (model.Otherwise, "`otherwise`"),
        (model.Unexplained, "item of `unexplained`"),
        (model.Ended, "item of `ended`"),
        (model.Unbuilt, "item of `unbuilt`"),
        (model.Inapplicable, "item of `inapplicable`"),
        (model.Decision, "item of `decisions`"),
    ):
        told = field_texts(kind)
        rows = []
        for name, field in kind.model_fields.items():
            meaning = PLAIN_FIELDS.get(f"{kind.__name__}.{name}") or told[name]
            form, default = _form(field.annotation), _default(field.default)
            rows.append((f"`{name}`", form, default, _cell(meaning)))
        head = ("field", "form", "default", "meaning")
        parts.append(f"**{kind.__name__}**, {where}\n\n{table(head, rows)}")
    return "\n\n".join(parts)


def known_fields() -> str:
    """Every field of `known_good.yaml`."""
    parts = []
    for kind, where in (
        (Fault, "item of `faults`"),
        (Statement, "item of `statements`"),
        (Meaning, "item of `meanings`"),
        (Arrival, "item of `arrivals`"),
        (Versions, "`versions` of each"),
    ):
        told = field_texts(kind)
        rows = [
            (
                f"`{name}`",
                _default(field.default),
                _cell(KNOWN_FIELDS.get(name) or told[name]),
            )
            for name, field in kind.model_fields.items()
        ]
        head = ("field", "default", "meaning")
        parts.append(f"**{kind.__name__}**, {where}\n\n{table(head, rows)}")
    return "\n\n".join(parts)


def known_facts() -> str:
    """What is on record for versions."""
    facts = known_good()
    faults = [
        (
            f"`{f.id}`",
            f.package,
            _versions(f.versions),
            f"`{f.cause}`",
            _cell(f"{f.says}, with {_conditions(f.bites_if)}"),
            _link(f.source),
        )
        for f in facts.faults
    ]
    statements = [
        (
            f"`{s.id}`",
            s.package,
            _versions(s.versions),
            f"`{s.states}`",
            _cell(f"{s.says}{', with ' + _conditions(s.when) if s.when else ''}"),
            _link(s.source),
        )
        for s in facts.statements
    ]
    meanings = [
        (
            f"`{m.key}`",
            m.package,
            _versions(m.versions) + (f", with {_conditions(m.when)}" if m.when else ""),
            _cell(m.means),
            _link(m.source),
        )
        for m in facts.meanings
    ]
    return "\n\n".join(
        (
            "**Faults**",
            table(("id", "package", "versions", "cause", "what happened", "source"), faults),
            "**Statements**",
            table(("id", "package", "versions", "states", "why", "source"), statements),
            "**Meanings**",
            table(("key", "package", "versions", "means", "source"), meanings),
        )
    )


def _versions(versions: Versions) -> str:
    if versions.reported_in:
        return "reported in " + ", ".join(versions.reported_in)
    since = f"{versions.since} and later" if versions.since else ""
    before = f"before {versions.before}" if versions.before else ""
    return ", ".join(filter(None, (since, before)))


def _conditions(conditions: Conditions) -> str:
    return " and ".join(
        f"`{name}` `{' or '.join(v) if isinstance(v, tuple) else str(v).lower()}`"
        for name, v in conditions.items()
    )


def _link(source: str) -> str:
    """A source as it stands: the pages of this repository link to nothing outside it."""
    return f"`{source}`" if source.startswith("https:") else source


def reader_table() -> str:
    """The readers."""
    rows = [(f"`{r.prefix}:`", f"`{r.prefix}:PATH`", _cell(r.looks_for)) for r in READERS]
    return table(("reader", "forced with", "recognised by"), rows)


def signal_table() -> str:
    """Canonical names of signals."""
    rows = [(f"`{name}`", unit_of(name.replace("<f>", "f")) or "-") for name in canonical_names()]
    return table(("canonical name", "unit"), rows)


def dump_table() -> str:
    """Canonical names of the fields of a token dump."""
    rows = [(f"`{name}`", ", ".join(f"`{s}`" for s in names)) for name, names in FIELDS.items()]
    return table(("canonical name", "field names that are known"), rows)


def first_screen() -> str:
    """What the README's command prints, shortened."""
    words = ["investigate", "demo:heron", COMPLAINT]
    with tempfile.TemporaryDirectory() as home:
        settings = {"FIRSTBAD_HOME": home, "COLUMNS": "96", "NO_COLOR": "1"}
        printed = io.StringIO()
        with mock.patch.dict(os.environ, settings), contextlib.redirect_stdout(printed):
            code = cli.main(words)
        (folder,) = Path(home, "incidents").iterdir()
        text = printed.getvalue().replace(home, "~/.local/share/firstbad")
        text = text.replace(folder.name, EXAMPLE_ID)
    if code != 1 or "broke:" in text:
        raise SystemExit(f"firstbad {' '.join(words)}: exit code {code}\n{text}")
    return f"```text\n{shortened(text)}\n```"


PARTS: dict[str, Callable[[], str]] = {
    "causes": cause_reference,
    "checks": check_table,
    "commands": command_reference,
    "dated": dated_metrics,
    "dumps": dump_table,
    "known-facts": known_facts,
    "known-fields": known_fields,
    "layers": layer_table,
    "playbook-fields": playbook_fields,
    "readers": reader_table,
    "screen": first_screen,
    "signals": signal_table,
    "tools": tool_reference,
}


# ----------------------------------------------------------------------------------------- pages


def pages() -> list[Path]:
    """The README and every page of the docs."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def parts_of(text: str) -> Iterator[tuple[str, str]]:
    """Name and content of each generated part of a page."""
    for _, name, content, _ in PART.findall(text):
        yield name, content


@cache
def part(name: str) -> str:
    """A part as it should be now, with the line ends that a page needs around it."""
    return f"\n{PARTS[name]().strip()}\n\n"


def renewed(text: str) -> str:
    """A page with its generated parts made anew."""
    return PART.sub(lambda m: m[1] + part(m[2]) + m[4], text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_KeepLines)
    parser.add_argument("--check", action="store_true", help="Write nothing; 1 where stale.")
    check = parser.parse_args(arguments).check
    stale = 0
    for page in pages():
        old = page.read_text(encoding="utf-8")
        new = renewed(old)
        if new == old:
            continue
        stale += 1
        print(f"{'stale' if check else 'written'}: {page.relative_to(ROOT)}")
        if not check:
            page.write_text(new, encoding="utf-8")
    return 1 if check and stale else 0


class _KeepLines(argparse.RawDescriptionHelpFormatter):
    """Keeps the lines of the description."""


# --------------------------------------------------------------------------------------- helpers


def commands(app: Typer, before: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Words and function of each command, in the order of `--help`."""
    for one in app.registered_commands:
        function: Any = one.callback
        yield (*before, one.name or function.__name__.replace("_", "-")), function
    for each in app.registered_groups:
        assert each.typer_instance is not None
        yield from commands(each.typer_instance, (*before, str(each.name)))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def shortened(screen: str) -> str:
    """The first screen without the notes on what is normal, and with one line a layer."""
    sections = screen.rstrip("\n").split("\n\n")
    kept = []
    for section in sections:
        lines = section.split("\n")
        if lines[0] == "The walk":
            lines = [_one_line(lines, i) for i in range(len(lines)) if lines[i][0] != " "]
        if lines[0] != "Looks odd and is normal":
            kept.append("\n".join(lines))
    return "\n\n".join(kept)


def _one_line(lines: Sequence[str], place: int) -> str:
    """The first line of a row, with a mark where it went on."""
    goes_on = lines[place + 1 : place + 2] and lines[place + 1].startswith(" ")
    marked = lines[place].endswith("…") or not goes_on
    return lines[place] + ("" if marked else " …")


@cache
def field_texts(kind: type[BaseModel | Metrics]) -> dict[str, str]:
    """The string that stands under each field of a record, from the class and those above it."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        if each in (BaseModel, Metrics) or not issubclass(each, (BaseModel, Metrics)):
            continue
        (body,) = ast.parse(textwrap.dedent(getsource(each))).body
        assert isinstance(body, ast.ClassDef)
        for field, below in zip(body.body, body.body[1:], strict=False):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(below, ast.Expr)
                and isinstance(below.value, ast.Constant)
                and isinstance(below.value.value, str)
            ):
                found[field.target.id] = " ".join(below.value.value.split())
    return found


def _parameters(function: Any) -> Iterator[tuple[str, Any, object]]:
    """Name as typed, what typer knows of it, and default of each parameter of a command."""
    hints = typing.get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        kind, info = typing.get_args(hints[name])[:2]
        if isinstance(info, OptionInfo):
            # In Annotated form typer keeps the first spelling where a default would stand.
            spelled = [s for s in (info.default, *(info.param_decls or ())) if s not in (..., None)]
            shown = str(next(iter(spelled), "--" + name.replace("_", "-")))
            kinds = {kind, *typing.get_args(kind)}
            if bool not in kinds:
                shown += f" {info.metavar or ('N' if int in kinds else name.upper())}"
        else:
            shown = str(info.metavar or name.upper())
        yield shown, info, parameter.default


def _metrics(kind: Any, leave: Collection[str] = ()) -> Iterator[tuple[str, str, str]]:
    told = field_texts(kind)
    for name, field in kind.model_fields.items():
        if name not in leave:
            yield f"`{name}`", _form(field.annotation), _cell(told.get(name, "")) or "-"


@cache
def _users() -> dict[str, list[str]]:
    """The checks that read each tool."""
    found: dict[str, list[str]] = {}
    for layer in load("crash").playbook.layers:
        for check in layer.checks:
            for call in check.evidence.values():
                places = found.setdefault(call_parts(call)[0], [])
                if f"{layer.id}.{check.id}" not in places:
                    places.append(f"{layer.id}.{check.id}")
    return found


@cache
def _namers() -> dict[str, list[str]]:
    """The checks that can name each cause."""
    found: dict[str, list[str]] = {}
    for layer in load("crash").playbook.layers:
        for check in layer.checks:
            for cause in dict.fromkeys(pointer.cause for pointer in check.points_to):
                found.setdefault(cause, []).append(f"{layer.id}.{check.id}")
    return found


def _role(check: model.Check) -> str:
    role = "can pass its layer" if check.passes else "can only fail its layer, or inform"
    if check.depends_on:
        role += "; read once " + ", ".join(f"`{d}`" for d in check.depends_on) + " passed"
    return role


def _place(order: Sequence[str], name: str) -> tuple[int, str]:
    return (order.index(name) if name in order else len(order) + (name == "-"), name)


def _form(annotation: Any) -> str:
    """A type as people write it."""
    if annotation == model.Bounds:
        return "bounds"
    if annotation == model.Call:
        return "tool or {tool: {setting: value}}"
    if typing.get_origin(annotation) is typing.Annotated:
        annotation = typing.get_args(annotation)[0]
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return " or ".join(f"`{value}`" for value in inner)
    if origin is tuple:
        return f"list of {_form(inner[0])}"
    if origin is dict:
        return f"{_form(inner[0])} -> {_form(inner[1])}"
    if inner:
        return " or ".join(dict.fromkeys(_form(part) for part in inner))
    names = {str: "text", type(None): "none", bool: "yes/no", int: "whole number"}
    names |= {float: "number", Bound: "bound"}
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _default(value: object) -> str:
    if value is REQUIRED or value is PydanticUndefined:
        return "required"
    return "-" if value in (None, False, "", (), {}) else f"`{value}`"


def _prose(text: str) -> str:
    """A docstring as Markdown."""
    return textwrap.dedent(text).strip()


def _text(text: str) -> str:
    return " ".join(text.split())


def _cell(text: str) -> str:
    return _text(text).replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())
