"""`firstbad incidents` and `firstbad memo`."""

from __future__ import annotations

import json as jsons
from typing import TYPE_CHECKING, Annotated, Any

import typer

from firstbad.agent.cli_base import Json, Out, group, say, say_json

if TYPE_CHECKING:
    from firstbad.agent.incident import Incident

app = group("What has been investigated.")
memo_app = group("The memos.")
Id = Annotated[str, typer.Argument(metavar="ID|DIR", help="An incident.")]


@app.command("ls")
def list_incidents(out: Out = None, json: Json = False) -> None:
    """List incidents, oldest first."""
    from firstbad.agent.console import table
    from firstbad.agent.incident import listing
    from firstbad.agent.plain import plain

    rows = [_row(incident) for incident in listing(out)]
    if json:
        say_json({"schema": 1, "incidents": rows})
    elif not rows:
        say("no incidents yet; begin with: firstbad investigate RUN")
    else:
        shown = [
            (
                row["incident"],
                row["outcome"] or "unfinished",
                row["cause"] or "",
                plain(f"{row['run'] or ''}  {row['complaint'] or ''}".strip(), one_line=True),
            )
            for row in rows
        ]
        say("\n".join(table(shown)))


@app.command("show")
def show_incident(incident: Id, out: Out = None, json: Json = False) -> None:
    """Show the result of an incident again."""
    from firstbad.agent.incident import find
    from firstbad.agent.reading import verdict_of
    from firstbad.agent.report import report
    from firstbad.agent.screen import first_screen
    from firstbad.tools.errors import UserError

    found = find(incident, out)
    verdict = verdict_of(found)
    if verdict is None:
        raise UserError(
            f"incident `{found.id}` is unfinished; go on with: "
            f"firstbad investigate --resume {found.handle}"
        )
    if json:
        say_json(report(found, verdict))
    else:
        say(first_screen(found, verdict))


@memo_app.command("show")
def show_memo(
    incident: Id,
    html: Annotated[bool, typer.Option("--html", help="Print the path of the page.")] = False,
    md: Annotated[bool, typer.Option("--md", help="Print the Markdown (as without it).")] = False,
    out: Out = None,
    json: Json = False,
) -> None:
    """Print a memo, or where its page lies.

    On a terminal a long one is shown by your pager (`PAGER`, else `less`); `PAGER=cat` prints it.
    """
    from firstbad.agent.console import page
    from firstbad.agent.incident import find
    from firstbad.agent.plain import plain
    from firstbad.tools.errors import UserError

    found = find(incident, out)
    if not found.markdown_file.is_file():
        raise UserError(
            f"incident `{found.id}` has no memo yet; go on with: "
            f"firstbad investigate --resume {found.handle}"
        )
    paths = {"md": str(found.markdown_file), "html": str(found.html_file)}
    if json:
        say_json({"schema": 1, "incident": found.id, "memo": paths})
    elif html and not md:
        say(plain(paths["html"], one_line=True))
    else:
        page(plain(found.markdown_file.read_text(encoding="utf-8")).rstrip("\n"))


def _row(incident: Incident) -> dict[str, Any]:
    """One incident in a list; read as plain JSON, so that a list is quick.

    A damaged one is listed as such: it must not hide the others.
    """
    from firstbad.tools.errors import UserError

    verdict: dict[str, Any] = {}
    try:
        record = incident.record()
        if incident.verdict_file.is_file():
            verdict = dict(jsons.loads(incident.verdict_file.read_bytes()))
        findings = verdict.get("findings") or []
    except (UserError, OSError, ValueError, TypeError):
        unknown = dict.fromkeys(("created", "run", "complaint", "cause", "first_bad"))
        return {"incident": incident.id, "outcome": "damaged", **unknown}
    onset = verdict.get("first_bad") or {}
    return {
        "incident": incident.id,
        "created": record.created,
        "run": record.run,
        "complaint": record.complaint,
        "outcome": verdict.get("outcome"),
        "cause": findings[0]["cause"] if findings else None,
        "first_bad": None if onset.get("from_start") else onset.get("first_bad"),
    }
