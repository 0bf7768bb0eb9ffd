"""`firstbad playbook`: what is asked, in which order, with which bounds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from firstbad.agent.cli_base import Json, group, say, say_json

if TYPE_CHECKING:
    from firstbad.playbooks.known_good import LoadedFacts
    from firstbad.playbooks.loader import Loaded

app = group("The playbooks.")


@app.command("ls")
def list_playbooks(json: Json = False) -> None:
    """List the shipped playbooks, and the facts about versions that go with them."""
    from firstbad.agent.console import table
    from firstbad.playbooks.known_good import load_known_good
    from firstbad.playbooks.loader import load, shipped

    books = [load(name) for name in shipped()]
    facts = load_known_good()
    if json:
        summaries = [_summary(loaded) for loaded in books]
        say_json({"schema": 1, "playbooks": summaries, "known_good": _counts(facts)})
    else:
        rows = []
        for loaded in books:
            layers = loaded.playbook.layers
            size = f"{len(layers)} layers, {sum(len(layer.checks) for layer in layers)} checks"
            rows.append((loaded.playbook.name, size, loaded.playbook.title))
        rows.append((facts.facts.name, _counted(facts), facts.facts.title))
        say("\n".join(table(rows)))


@app.command("lint")
def lint_playbook(
    path: Annotated[str, typer.Argument(help="Shipped name or file.")] = "crash",
    json: Json = False,
) -> None:
    """Check a playbook, or `known_good`, against the tools, measures and causes that exist."""
    from firstbad.playbooks.known_good import is_known_good, load_known_good
    from firstbad.playbooks.loader import load

    if is_known_good(path):
        facts = load_known_good(path)
        if json:
            say_json({"schema": 1, **_counts(facts)})
        else:
            say(f"{facts.facts.name}: {_counted(facts)}, in order")
        return
    found = _summary(load(path))
    if json:
        say_json({"schema": 1, **found})
    else:
        say(f"{found['name']}: {len(found['layers'])} layers, {found['checks']} checks, in order")


@app.command("show")
def show_playbook(
    name: Annotated[str, typer.Argument(help="Shipped name or file.")] = "crash",
    json: Json = False,
) -> None:
    """Print a playbook's YAML, or that of `known_good`."""
    from firstbad.agent.plain import plain
    from firstbad.playbooks.known_good import is_known_good, load_known_good
    from firstbad.playbooks.loader import load

    facts = load_known_good(name) if is_known_good(name) else None
    loaded = load(name) if facts is None else None
    if json and loaded is not None:
        say_json({"schema": 1, "playbook": loaded.playbook.model_dump(mode="json")})
    elif json and facts is not None:
        say_json({"schema": 1, "known_good": facts.facts.model_dump(mode="json")})
    elif (found := loaded or facts) is not None:
        say(plain(Path(found.path).read_text(encoding="utf-8")).rstrip("\n"))


@app.command("schema")
def show_schema(
    name: Annotated[str, typer.Argument(help="`playbook` or `known_good`.")] = "playbook",
    json: Annotated[bool, typer.Option("--json", help="As without it: it is JSON.")] = False,
) -> None:
    """Print the JSON Schema of playbook files, or of `known_good`, for editors."""
    from firstbad.playbooks.known_good import NAME, known_good_schema
    from firstbad.playbooks.loader import json_schema
    from firstbad.tools.errors import UserError

    schemas = {"playbook": json_schema, NAME: known_good_schema}
    if name not in schemas:
        raise UserError(f"no schema `{name}`: expected one of {', '.join(schemas)}")
    print(schemas[name](), end="")


def _counts(loaded: LoadedFacts) -> dict[str, Any]:
    facts = loaded.facts
    return {
        "name": facts.name,
        "title": facts.title,
        "digest": loaded.digest,
        "faults": len(facts.faults),
        "statements": len(facts.statements),
        "meanings": len(facts.meanings),
    }


def _counted(loaded: LoadedFacts) -> str:
    facts = loaded.facts
    return (
        f"{len(facts.faults)} faults, {len(facts.statements)} statements, "
        f"{len(facts.meanings)} meanings"
    )


def _summary(loaded: Loaded) -> dict[str, Any]:
    book = loaded.playbook
    return {
        "name": book.name,
        "title": book.title,
        "digest": loaded.ref.digest,
        "layers": [layer.id for layer in book.layers],
        "checks": sum(len(layer.checks) for layer in book.layers),
    }
