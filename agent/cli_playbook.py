"""`firstbad playbook`: what is asked, in which order, with which bounds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from firstbad.agent.cli_base import Json, group, say, say_json

if TYPE_CHECKING:
    from firstbad.playbooks.loader import Loaded

app = group("The playbooks.")


@app.command("ls")
def list_playbooks(json: Json = False) -> None:
    """List the shipped playbooks."""
    from firstbad.agent.console import table
    from firstbad.playbooks.loader import load, shipped

    books = [load(name) for name in shipped()]
    if json:
        say_json({"schema": 1, "playbooks": [_summary(loaded) for loaded in books]})
    else:
        rows = []
        for loaded in books:
            layers = loaded.playbook.layers
            size = f"{len(layers)} layers, {sum(len(layer.checks) for layer in layers)} checks"
            rows.append((loaded.playbook.name, size, loaded.playbook.title))
        say("\n".join(table(rows)))


@app.command("lint")
def lint_playbook(
    path: Annotated[str, typer.Argument(help="Shipped name or file.")] = "crash",
    json: Json = False,
) -> None:
    """Check a playbook against the tools, measures and causes that exist."""
    from firstbad.playbooks.loader import load

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
    """Print a playbook's YAML."""
    from firstbad.agent.plain import plain
    from firstbad.playbooks.loader import load

    loaded = load(name)
    if json:
        say_json({"schema": 1, "playbook": loaded.playbook.model_dump(mode="json")})
    else:
        say(plain(Path(loaded.path).read_text(encoding="utf-8")).rstrip("\n"))


@app.command("schema")
def show_schema(
    json: Annotated[bool, typer.Option("--json", help="As without it: it is JSON.")] = False,
) -> None:
    """Print the JSON Schema of playbook files, for editors."""
    from firstbad.playbooks.loader import json_schema

    print(json_schema(), end="")


def _summary(loaded: Loaded) -> dict[str, Any]:
    book = loaded.playbook
    return {
        "name": book.name,
        "title": book.title,
        "digest": loaded.ref.digest,
        "layers": [layer.id for layer in book.layers],
        "checks": sum(len(layer.checks) for layer in book.layers),
    }
