"""Command line: make recorded runs and write the truth about them beside, never into them."""

from __future__ import annotations

import argparse
import json
import time
import traceback
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

from firstbad.evals.trl_runs.catalog import RUNS
from firstbad.evals.trl_runs.plan import Run


def truth_of(run: Run, effect: dict[str, Any]) -> dict[str, Any]:
    """The label of a run, with the figures that show whether its fault acted."""
    return {
        "name": run.name,
        "cause": run.cause,
        "layer": run.layer,
        "onset_step": run.onset,
        "bad_from_start": run.from_start,
        "kind": run.kind,
        "what": run.what,
        "complaint": run.complaint,
        "seed": run.seed,
        "model_seed": run.start.seed,
        "effect": effect,
    }


def write_truth(path: Path, label: dict[str, Any]) -> None:
    """Add a label, replacing an older one of the same run."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    kept = [line for line in lines if json.loads(line)["name"] != label["name"]]
    path.write_text("\n".join([*kept, json.dumps(label)]) + "\n", encoding="utf-8")


def arguments_of() -> argparse.Namespace:
    """Arguments of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m firstbad.evals.trl_runs",
        description="Make small TRL GRPO runs, with and without a fault. A run takes about a "
        "minute on one CPU core. Runs go to DIR/runs, the truth about them to DIR/truth.jsonl; "
        "warm starts are kept in DIR/warm.",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="runs to make (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="added to the seed of every run")
    parser.add_argument("--skip-done", action="store_true", help="leave finished runs alone")
    parser.add_argument("--record", action="store_true", help="attach firstbad-recorder")
    arguments = parser.parse_args()
    if unknown := set(arguments.only or []) - {run.name for run in RUNS}:
        names = ", ".join(run.name for run in RUNS)
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are: {names}")
    return arguments


def main() -> int:
    """Make the runs; returns 1 where one could not be made."""
    arguments = arguments_of()
    try:
        from firstbad.evals.trl_runs.make import make_run, quiet
        from firstbad.evals.trl_runs.measure import measure
    except ModuleNotFoundError as missing:
        print(f"`{missing.name}` is not installed: pip install 'firstbad[lab]'")
        return 1
    warnings.filterwarnings("ignore")
    quiet()
    out, failed = arguments.out, False
    for run in RUNS:
        done = (out / "runs" / run.name / "trainer_state.json").exists()
        if (arguments.only and run.name not in arguments.only) or (arguments.skip_done and done):
            continue
        begun = time.monotonic()
        seeded = replace(run, seed=run.seed + arguments.seed)
        try:
            folder = make_run(seeded, out / "runs", out / "warm", record=arguments.record)
            write_truth(out / "truth.jsonl", truth_of(seeded, measure(folder, seeded.onset)))
            print(f"{run.name}: {time.monotonic() - begun:.0f} s", flush=True)
        except Exception:  # one run that fails must not stop the others
            traceback.print_exc()
            failed = True
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
