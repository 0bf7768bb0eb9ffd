"""`firstbad runs`: what a reader finds in a run."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from firstbad.agent.cli_base import Json, group, say, say_json

if TYPE_CHECKING:
    from firstbad.tools.run import Run, Signal

app = group("The runs that can be read.")
SPANS = 6
"""Stretches of steps that are told one by one."""
UNRECOGNISED = 30
"""Unrecognised keys shown to a person; JSON has them all."""


@app.command("show")
def show_run(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A folder, file or URI.")],
    json: Json = False,
) -> None:
    """Show what a run's files hold, in canonical names, and what was not recognised."""
    from firstbad.agent.runs import open_ref

    found = describe(open_ref(run))
    if json:
        say_json(found)
    else:
        _print(found)


def describe(run: Run) -> dict[str, Any]:
    """A run in plain data."""
    from firstbad.tools.readers.naming import given_otherwise

    signals = run.signals.known.values()
    known = given_otherwise(run.signals, run.framework)
    return {
        "schema": 1,
        "run": run.ref,
        "framework": run.framework,
        "version": run.version,
        "device": run.flight.device,
        "environment": dict(run.flight.environment),
        "last_step": run.last_step,
        "steps": len(run.signals.steps),
        "signals": [_signal(s) for s in signals],
        "unrecognised": sorted(
            s.source_key for name, s in run.signals.unknown.items() if name not in known
        ),
        "rollouts": _steps(run.rollouts.steps),
        "captures": _steps(run.captures.steps),
        "checkpoints": [
            {"step": c.step, "state_step": c.state_step, "files": list(c.files)}
            for c in run.checkpoints
        ],
        "events": [
            {"kind": e.kind, "step": e.step, "text": e.text, "source": e.source} for e in run.events
        ],
        "notes": [{"code": n.code, "text": n.text} for n in run.notes],
        "config": {
            "settings": len(run.config.values),
            "files": [s.ref for s in run.config.sources],
        },
    }


def _signal(signal: Signal) -> dict[str, Any]:
    values = signal.values
    return {
        "name": signal.name,
        "key": signal.source_key,
        "unit": signal.unit,
        "steps": len(signal.steps),
        "first": float(values[0]) if len(values) else None,
        "last": float(values[-1]) if len(values) else None,
        "nonfinite_steps": len(signal.nonfinite_steps),
    }


def _steps(steps: Iterable[Any]) -> dict[str, Any]:
    listed = [int(s) for s in steps]
    return {
        "steps": len(listed),
        "first": listed[0] if listed else None,
        "last": listed[-1] if listed else None,
        "spans": _spans(listed),
    }


def _spans(steps: list[int]) -> list[list[int]]:
    """First and last of each stretch of steps without a gap; empty where they are many."""
    spans: list[list[int]] = []
    for step in steps:
        if spans and step == spans[-1][1] + 1:
            spans[-1][1] = step
        else:
            spans.append([step, step])
    return spans if len(spans) <= SPANS else []


def repeated(events: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """Steps, kind and text; events that differ in their numbers alone become one line."""
    alike: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for event in events:
        key = (event["kind"], re.sub(r"\d+", "0", event["text"]))
        alike.setdefault(key, []).append(event)
    rows = []
    for (kind, _), same in alike.items():
        steps = [e["step"] for e in same if e["step"] is not None]
        when = "-" if not steps else str(steps[0])
        if len(set(steps)) > 1:
            when = f"{min(steps)} to {max(steps)}"
        times = f" ({len(same)} times alike)" if len(same) > 1 else ""
        rows.append((when, kind, same[0]["text"] + times))
    return rows


def _print(found: dict[str, Any]) -> None:
    from firstbad.agent.console import paint, table
    from firstbad.agent.plain import plain

    def clean(value: object) -> str:
        return plain("" if value is None else str(value), one_line=True)

    def span(part: dict[str, Any]) -> str:
        if not part["steps"]:
            return "none"
        noun = "step" if part["steps"] == 1 else "steps"
        spans = part["spans"] or [[part["first"], part["last"]]]
        told = (
            f"{a}" if a == b else f"{a}, {b}" if b == a + 1 else f"{a} to {b}" for a, b in spans
        )
        return f"{part['steps']} {noun}: {', '.join(told)}"

    version = f" {found['version']}" if found["version"] else ""
    last = f"last {found['last_step']}" if found["last_step"] is not None else "none"
    points = ", ".join(str(c["step"]) for c in found["checkpoints"]) or "none"
    config = found["config"]
    head = [
        ("run", clean(found["run"])),
        ("framework", clean(found["framework"] + version)),
        ("steps", f"{found['steps']} logged, {last}"),
        ("rollouts", span(found["rollouts"])),
        ("captures", span(found["captures"])),
        ("checkpoints", points),
        (
            "config",
            clean(f"{config['settings']} settings from {', '.join(config['files']) or 'no file'}"),
        ),
    ]
    if found["device"]:
        head.append(("device", clean(found["device"])))
    if found["environment"]:
        told = ", ".join(f"{name}={value}" for name, value in found["environment"].items())
        head.append(("environment", clean(told)))
    say("\n".join(table(head)))
    rows = [("signal", "first", "last", "unit", "key")]
    for s in found["signals"]:
        bad = f"  ({s['nonfinite_steps']} non-finite)" if s["nonfinite_steps"] else ""
        rows.append(
            (
                clean(s["name"]),
                _number(s["first"]),
                _number(s["last"]),
                clean(s["unit"]),
                clean(s["key"]) + bad,
            )
        )
    _section("Signals", table(rows), paint)
    _section(
        "Events",
        table([(when, kind, clean(text)) for when, kind, text in repeated(found["events"])]),
        paint,
    )
    _section("Notes", table([(n["code"], clean(n["text"])) for n in found["notes"]]), paint)
    keys = [clean(k) for k in found["unrecognised"]]
    more = len(keys) - UNRECOGNISED
    text = ", ".join(keys[:UNRECOGNISED]) + (
        f" and {more} more (--json lists them)" if more > 0 else ""
    )
    _section("Keys that were not recognised", table([(text,)]) if keys else [], paint)


def _section(title: str, lines: list[str], paint: Any) -> None:
    if lines:
        say(f"\n{paint(title, 'bold')}")
        say("\n".join(lines))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
