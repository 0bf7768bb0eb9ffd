"""Score firstbad on recorded runs with known cause.

    python -m firstbad.evals.score RUNS TRUTH [--json]

TRUTH is a JSON-lines file kept apart from the runs: `name`, `cause`, `onset_step` (null for no
fault), `kind` (fault, healthy, lookalike). Printed per run and per cause, never pooled: whether the
true cause was named, whether it led, how far off the first bad step was, and false alarms on the
runs without a fault.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path

from firstbad.agent.investigate import Finished, investigate


@dataclass(frozen=True)
class Score:
    """How one run was judged."""

    name: str
    kind: str
    true_cause: str
    outcome: str
    led_by: str
    named: bool
    """The true cause is among the findings (or the run is rightly called healthy)."""
    leads: bool
    step_error: int | None
    """First bad step found less the true one; None where either is missing."""


def score_run(folder: Path, truth: dict[str, object], scratch: Path) -> Score:
    """Investigate one run and compare."""
    done = investigate(str(folder), out=scratch)
    assert isinstance(done, Finished)
    verdict = done.verdict
    true_cause = str(truth["cause"])
    causes = [f.cause for f in verdict.findings] if verdict.outcome == "incident" else []
    led_by = causes[0] if causes else f"none.{verdict.outcome}"
    onset = truth.get("onset_step")
    found = verdict.first_bad.first_bad
    error = found - int(str(onset)) if onset is not None and found is not None and causes else None
    return Score(
        name=folder.name,
        kind=str(truth["kind"]),
        true_cause=true_cause,
        outcome=verdict.outcome,
        led_by=led_by,
        named=true_cause in [*causes, led_by],
        leads=true_cause == led_by,
        step_error=error,
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", 1)[0])
    parser.add_argument("runs", type=Path)
    parser.add_argument("truth", type=Path)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    truths = [json.loads(line) for line in arguments.truth.read_text().splitlines() if line.strip()]
    with tempfile.TemporaryDirectory() as scratch:
        scores = [
            score_run(folder, truth, Path(scratch))
            for truth in truths
            if (folder := arguments.runs / str(truth["name"])).is_dir()
        ]
    if arguments.json:
        print(json.dumps([asdict(s) for s in scores], indent=1))
        return
    by_cause: dict[tuple[str, str], list[Score]] = defaultdict(list)
    for score in scores:
        by_cause[score.kind, score.true_cause].append(score)
    print(f"{'kind':10s} {'true cause':28s} runs named leads  step errors; misses")
    for (kind, cause), group in sorted(by_cause.items()):
        errors = [s.step_error for s in group if s.step_error is not None]
        misses = [f"{s.name}: {s.led_by}" for s in group if not s.leads]
        print(
            f"{kind:10s} {cause:28s} {len(group):4d} {sum(s.named for s in group):5d} "
            f"{sum(s.leads for s in group):5d}  {errors}; {', '.join(misses) or '-'}"
        )


if __name__ == "__main__":
    main()
