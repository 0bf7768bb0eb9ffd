"""Score firstbad on recorded runs with known cause.

    python -m firstbad.evals.score RUNS TRUTH [--record] [--json]

TRUTH is a JSON-lines file kept apart from the runs: `name`, `cause`, `onset_step` (null for no
fault), `kind` (fault, healthy, lookalike). Printed per cause, never pooled: in how many of its runs
it was named and led, how far off the first bad step was (0 where a bracket holds the true one), and
in which runs of another cause it was named too. With `--record` only what firstbad-recorder wrote
of each run is read, its folder `record`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from firstbad.agent.investigate import Finished, investigate
from firstbad.playbooks.results import Onset


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
    """First bad step found less the true one, 0 where it is the end of a bracket that holds the
    true one; None where either is missing."""
    others: tuple[str, ...]
    """Causes that were named and are not the true one."""


def score_run(
    folder: Path, truth: dict[str, object], scratch: Path, *, record: bool = False
) -> Score:
    """Investigate one run, or its record alone, and compare."""
    done = investigate(f"rec:{folder / 'record'}" if record else str(folder), out=scratch)
    assert isinstance(done, Finished)
    verdict = done.verdict
    true_cause = str(truth["cause"])
    causes = [f.cause for f in verdict.findings] if verdict.outcome == "incident" else []
    led_by = causes[0] if causes else f"none.{verdict.outcome}"
    onset = truth.get("onset_step")
    error = _error(verdict.first_bad, int(str(onset))) if onset is not None and causes else None
    return Score(
        name=folder.name,
        kind=str(truth["kind"]),
        true_cause=true_cause,
        outcome=verdict.outcome,
        led_by=led_by,
        named=true_cause in [*causes, led_by],
        leads=true_cause == led_by,
        step_error=error,
        others=tuple(dict.fromkeys(c for c in causes if c != true_cause)),
    )


def _error(found: Onset, onset: int) -> int | None:
    if found.first_bad is None:
        return None
    held = found.sampled and (found.bracket_start or 0) <= onset <= found.first_bad
    return 0 if held else found.first_bad - onset


def table(scores: Sequence[Score]) -> Iterator[str]:
    """A line per kind and true cause, and one per cause that was only named elsewhere."""
    groups: dict[tuple[str, str], list[Score]] = defaultdict(list)
    for score in scores:
        groups[score.kind, score.true_cause].append(score)
    true = {cause for _, cause in groups}
    for cause in {c for score in scores for c in score.others} - true:
        groups["-", cause] = []
    yield f"{'kind':10s} {'cause':28s} runs named leads  else  step errors; misses; elsewhere"
    for (kind, cause), group in sorted(groups.items()):
        errors = [s.step_error for s in group if s.step_error is not None]
        misses = [f"{s.name}: {s.led_by}" for s in group if not s.leads]
        alarms = [f"{s.name} ({s.true_cause})" for s in scores if cause in s.others]
        yield (
            f"{kind:10s} {cause:28s} {len(group):4d} {sum(s.named for s in group):5d} "
            f"{sum(s.leads for s in group):5d} {len(alarms):5d}  "
            f"{errors}; {', '.join(misses) or '-'}; {', '.join(alarms) or '-'}"
        )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", 1)[0])
    parser.add_argument("runs", type=Path)
    parser.add_argument("truth", type=Path)
    parser.add_argument("--record", action="store_true", help="read the runs' records alone")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    truths = [json.loads(line) for line in arguments.truth.read_text().splitlines() if line.strip()]
    with tempfile.TemporaryDirectory() as scratch:
        scores = [
            score_run(folder, truth, Path(scratch), record=arguments.record)
            for truth in truths
            if (folder := arguments.runs / str(truth["name"])).is_dir()
        ]
    if arguments.json:
        print(json.dumps([asdict(s) for s in scores], indent=1))
        return
    print(*table(scores), sep="\n")


if __name__ == "__main__":
    main()
