"""`firstbad verify`."""

from __future__ import annotations

import json as jsons
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from firstbad.agent.cli_base import Json, Out, say, say_json

if TYPE_CHECKING:
    from firstbad.agent.verify import Difference, Verification

DIFFERS = 4
FILES, VALUES, SHOWN = 5, 20, 160
"""Files of a kind that are named, values that are shown, and characters of each."""
MEMOS = ("memo.md", "memo.html")
"""Files whose text follows from the evidence: where they differ is told, not how."""


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
    from firstbad.agent.verify import verify as recompute

    found = recompute(incident, out=out, run=run)
    if json:
        say_json(found.as_json())
    else:
        for line in told(found):
            say(line)
    raise typer.Exit(DIFFERS if found.differences else 0)


def told(found: Verification) -> Iterator[str]:
    """What verifying found, for a person: files first, then a few values, then the count."""
    from firstbad.agent.plain import plain

    for name, (then, now) in found.versions.items():
        yield plain(f"{name} {then} when it was measured, {now} now", one_line=True)
    if found.files:
        yield plain(_files(found.files), one_line=True)
    values = [d for d in found.differences if d.place not in MEMOS and not _of_file(d)]
    values.sort(key=lambda d: "[" in d.field)  # the conclusion and single figures before rows
    for each in values[:VALUES]:
        yield plain(f"{each.place}  {each.field}")
        yield f"    stored      {_value(each.stored)}"
        yield f"    recomputed  {_value(each.recomputed)}"
    if values[VALUES:]:
        yield f"... and {len(values) - VALUES:,} more values (--json lists them)"
    for name in MEMOS:
        lines = [d.field.removeprefix("line ") for d in found.differences if d.place == name]
        if lines:
            where = f"line {lines[0]}" if len(lines) == 1 else f"{len(lines)} places from line"
            yield f"{name}  differs in {where}" + (f" {lines[0]} on" if lines[1:] else "")
    counted = f"{found.evidence} pieces of evidence, {found.numbers} numbers"
    verdict = f"{len(found.differences):,} different" if found.differences else "all equal"
    yield f"{verdict}: {counted}, the verdict and the memo recomputed"


def _of_file(difference: Difference) -> bool:
    """Whether it only says that a file of the run is another, which is told by name."""
    return difference.field.startswith("sources")


def _files(files: Mapping[str, str]) -> str:
    """Which files of the run are not what was measured, a few of each kind by name."""
    parts = []
    for word in ("changed", "gone", "new"):
        names = [name for name, what in files.items() if what == word]
        more = f" and {len(names) - FILES:,} more" if names[FILES:] else ""
        if names:
            parts.append(f"{', '.join(f'`{name}`' for name in names[:FILES])}{more} {word}")
    return f"the run's files have changed since: {'; '.join(parts)}"


def _value(value: Any) -> str:
    """A value on one line, in short."""
    from firstbad.agent.plain import plain

    text = plain(jsons.dumps(value, ensure_ascii=False), one_line=True)
    return text if len(text) <= SHOWN else text[:SHOWN] + "…"
