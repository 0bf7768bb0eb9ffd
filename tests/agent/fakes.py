"""A small playbook over tools whose readings are set by a file, to test the walk alone.

As a script it is the command line with these tools, for tests that need a process of its own.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from firstbad.tools import registry
from firstbad.tools.errors import NoData, ToolInputError
from firstbad.tools.evidence import Dated, Source, Table
from firstbad.tools.registry import Measured
from firstbad.tools.run import Run

PLAYBOOK = """
name: fake
title: a walk over dials
window:
  - {kind: onset, when: {window.first_bad_step: ">= 0"}}
outcome_holds: {window.value: ">= 1"}
layers:
  - id: window
    number: "0"
    asks: Which step was first?
    checks:
      - id: onset
        asks: Is any signal readable?
        evidence: {window: {read_dial: {name: window}}}
        gate: [{strength: proxy, needs: {window.value: ">= 0"}}]
        request: any metrics
  - id: records
    number: "0.5"
    asks: Are the records what they claim?
    checks:
      - id: rows
        asks: Are the rows keyed?
        evidence: {rows: {read_dial: {name: rows, since: $window.first_bad_step}}}
        gate: [{strength: direct, needs: {rows.value: ">= 0"}, fail_if: {rows.value: "> 0"}}]
        points_to: [{cause: id.rows, claim: "rows are off by {rows.value}"}]
        request: completions with keys
        command: firstbad tools run read_dial RUN
        decides: whether rows lost their identity
  - id: probability
    number: "1"
    asks: Can old and new probability be compared?
    checks:
      - id: same
        asks: Do both sides agree?
        depends_on: [records]
        evidence: {same: {read_dial: {name: same}}, again: {read_dial: {name: same}}}
        gate: [{strength: direct, needs: {same.value: ">= 0"}, fail_if: {same.value: "> 0"}}]
        points_to: [{cause: prob.weight_sync, claim: "they differ by {same.value}"}]
        request: captured log-probs
        command: firstbad tools run read_dial RUN --set name=same
  - id: masks
    number: "2"
    asks: Who is trained?
    checks:
      - id: table
        asks: Are only completion tokens trained?
        evidence: {table: {read_dial: {name: table}}}
        gate: [{strength: direct, needs: {table.value: ">= 0"}, fail_if: {table.value: "> 0"}}]
        points_to: [{cause: mask.prompt, claim: "{table.value} prompt tokens are trained"}]
        request: a capture
  - id: optimizer
    number: "4"
    asks: Are steps too bold?
    checks:
      - id: tails
        asks: Are ratios bounded?
        depends_on: [probability]
        evidence: {tails: {read_dial: {name: tails}}}
        gate: [{strength: proxy, needs: {tails.value: ">= 0"}, fail_if: {tails.value: "> 0"}}]
        points_to: [{cause: opt.step_too_large, claim: "tails of {tails.value}"}]
      - id: after_tails
        asks: What does a tail of such a size do?
        depends_on: [optimizer.tails]
        passes: false
        evidence: {after_tails: {read_dial: {name: after_tails}}}
        gate: [{strength: proxy, fail_if: {after_tails.value: "> 0"}}]
        points_to: [{cause: opt.step_too_large, claim: "after tails"}]
  - id: reward
    number: "5"
    asks: Does the reward measure it?
    checks:
      - id: judged
        asks: Does an independent judge agree?
        evidence: {judged: {read_dial: {name: judged}}}
        gate: [{strength: direct, needs: {judged.value: ">= 0"}, fail_if: {judged.value: "> 0"}}]
        points_to: [{cause: reward.verifier_outage, claim: "{judged.value} are judged wrongly"}]
        request: gold answers
leads_to:
  - {cause: reward.verifier_outage, to: [probability]}
"""

HEALTHY = dict.fromkeys(("window", "rows", "same", "table", "tails", "after_tails", "judged"), 0)


class Dial(Dated):
    value: float | None


def read_dial(run: Run, *, name: str = "window", since: int | None = None) -> Measured[Dial]:
    """One dial's reading: a number, `missing`, `broken` or `unasked`."""
    if calls := os.environ.get("FAKE_CALLS"):
        with Path(calls).open("a") as file:
            file.write(f"begin {name}\n")
    time.sleep(float(os.environ.get("FAKE_SECONDS", "0")))
    dials: dict[str, Any] = json.loads((run.root / "dials.json").read_text())
    reading = dials[name]
    if reading == "missing":
        raise NoData(f"no reading of `{name}`")
    if reading == "unasked":
        raise ToolInputError(f"`{name}` has no step {since}")
    if reading == "broken":
        raise RuntimeError("the dial fell off")
    if reading == "stop":
        raise KeyboardInterrupt
    if calls:
        with Path(calls).open("a") as file:
            file.write(f"done {name}\n")
    return Measured(
        Dial(value=float(reading), first_bad_step=4 if name == "window" and reading else None),
        f"dial {name} shows {reading}",
        tables=(Table(title="dials", columns=("dial", "value"), rows=((name, float(reading)),)),),
        sources=(Source(kind="dials", ref="dials.json"),),
    )


def register() -> None:
    """Put the fake tool, and nothing else, into the tool table."""
    registry._MODULES = {}
    registry.tool(read_dial)


def make_run(folder: Path, **dials: object) -> Path:
    """A run of five steps with its dials."""
    folder.mkdir(parents=True, exist_ok=True)
    history = [{"step": s, "epoch": s / 5, "reward": 0.5, "loss": 0.1} for s in range(1, 6)]
    (folder / "trainer_state.json").write_text(
        json.dumps({"log_history": history, "global_step": 5, "logging_steps": 1})
    )
    (folder / "dials.json").write_text(json.dumps(HEALTHY | dials))
    return folder


if __name__ == "__main__":
    register()
    from firstbad.agent.cli import main

    sys.exit(main())
