"""`firstbad verify`."""

from __future__ import annotations

import json as jsons
from typing import Annotated

import typer

from firstbad.agent.cli_base import Json, Out, say, say_json

DIFFERS = 4


def verify(
    incident: Annotated[str, typer.Argument(metavar="ID|DIR", help="An incident.")],
    run: Annotated[
        str | None, typer.Option(metavar="RUN", help="Where the run lies now, if it was moved.")
    ] = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """Recompute every number of a memo from the run's files.

    Exit codes: 0 all equal, 4 something differs, 2 the run or the incident is not there.
    """
    from firstbad.agent.plain import plain
    from firstbad.agent.verify import verify as recompute

    found = recompute(incident, out=out, run=run)
    if json:
        say_json(found.as_json())
    else:
        for name, (then, now) in found.versions.items():
            say(plain(f"{name} {then} when it was measured, {now} now", one_line=True))
        for each in found.differences:
            say(plain(f"{each.place}  {each.field}"))
            say(plain(f"    stored      {jsons.dumps(each.stored, ensure_ascii=False)}"))
            say(plain(f"    recomputed  {jsons.dumps(each.recomputed, ensure_ascii=False)}"))
        counted = f"{found.evidence} pieces of evidence, {found.numbers} numbers"
        verdict = f"{len(found.differences)} different" if found.differences else "all equal"
        say(f"{verdict}: {counted}, the verdict and the memo recomputed")
    raise typer.Exit(DIFFERS if found.differences else 0)
