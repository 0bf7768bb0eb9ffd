"""`firstbad tools`: the measurements, one at a time."""

from __future__ import annotations

import json as jsons
from typing import TYPE_CHECKING, Annotated, Any

import typer

from firstbad.agent.cli_base import Json, group, say, say_json

if TYPE_CHECKING:
    from firstbad.tools.evidence import Evidence, Scalar

app = group("The measurements.")
FILES = 12
"""Files that are listed."""
EXIT_CODES = {"measured": 0, "no_data": 3, "error": 70}


@app.command("ls")
def list_tools(json: Json = False) -> None:
    """List the tools with what each measures."""
    from firstbad.agent.console import table
    from firstbad.tools.registry import tools

    found = tools()
    if json:
        say_json({"schema": 1, "tools": [_tool(name) for name in found]})
    else:
        say("\n".join(table([(name, each.summary) for name, each in found.items()])))


@app.command("run")
def run_one(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A tool of `tools ls`.")],
    run: Annotated[str, typer.Argument(metavar="RUN", help="A folder, file or URI.")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of the tool.")
    ] = None,
    code: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Loss code, a file or folder, for `read_loss_code`."),
    ] = None,
    json: Json = False,
) -> None:
    """Run one tool on a run and print what it measured.

    Exit codes: 0 measured, 2 something you can fix, 3 the run lacks what it needs, 70 a bug.
    """
    from firstbad.agent.runs import open_ref
    from firstbad.tools.code.files import open_code
    from firstbad.tools.registry import run_tool

    args = read_settings(settings or [])
    given = None if code is None else open_code(code)
    opened = open_ref(run)
    opened.code = given
    evidence = run_tool(name, opened, args, evidence_id="E1")
    if json:
        say_json({"schema": 1, "evidence": evidence.model_dump(mode="json")})
    else:
        _print(evidence)
    raise typer.Exit(EXIT_CODES[evidence.status])


def read_settings(texts: list[str]) -> dict[str, Scalar]:
    """Settings from `KEY=VALUE`: numbers, true, false, null, else text.

    Raises:
        UserError: no `=` in it.
    """
    from firstbad.tools.errors import UserError

    found: dict[str, Scalar] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UserError(f"`--set {text}`: expected KEY=VALUE")
        try:
            read = jsons.loads(value)
        except ValueError:
            read = value
        found[key] = read if read is None or isinstance(read, (bool, int, float, str)) else value
    return found


def _tool(name: str) -> dict[str, Any]:
    from firstbad.tools.registry import find_tool

    found = find_tool(name)
    return {
        "name": name,
        "summary": found.summary,
        "description": found.description,
        "settings": found.settings.model_json_schema().get("properties", {}),
        "metrics": list(found.metrics.model_fields),
    }


def _print(evidence: Evidence) -> None:
    from firstbad.agent.console import paint, table
    from firstbad.agent.plain import plain

    def clean(value: object) -> str:
        if isinstance(value, float):
            return f"{value:.6g}"
        return "" if value is None else plain(str(value), one_line=True)

    say(f"{paint(evidence.status, 'bold')}  {clean(evidence.error or evidence.summary)}")
    if evidence.window:
        say(f"steps {evidence.window.first} to {evidence.window.last}, {evidence.seconds:.3f} s")
    if evidence.metrics:
        say()
        rows = [
            (name, "not known" if v is None else clean(v)) for name, v in evidence.metrics.items()
        ]
        say("\n".join(table(rows)))
    for each in evidence.tables:
        say(f"\n{paint(clean(each.title), 'bold')}")
        say("\n".join(table([tuple(map(clean, row)) for row in (each.columns, *each.rows)])))
        if each.cut_rows:
            say(f"({each.cut_rows} more rows)")
    if evidence.sources:
        say()
        files = [(s.kind, s.digest or "", clean(s.ref)) for s in evidence.sources[:FILES]]
        say("\n".join(table(files)))
        if (more := len(evidence.sources) - FILES) > 0:
            say(f"({more} more files; --json lists them all)")
