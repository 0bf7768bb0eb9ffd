"""Budgets: start-up, time, memory and bytes read of an investigation against the size of the run.

    python benchmarks/budgets.py [--steps 1000] [--long 50000] [--json]

The long runs are synthetic: the shipped demo run with its steps repeated and renumbered, with
rollouts at every step, and once with as many as TRL keeps by default, those of every tenth step.
Each figure is taken in a fresh process; times are given beside what the machine needs in the same
run to import numpy, pyarrow and langgraph, and to read the same parquet files with pyarrow alone:
in the quickest way that it offers for many small files, and as `read_table` does.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

DEMO = Path(__file__).resolve().parent.parent / "agent" / "demo_runs"

INVESTIGATE = """
import resource, sys, time
import numpy, langgraph.graph, langgraph.checkpoint.sqlite, pyarrow.parquet
from firstbad.agent.investigate import investigate
from pathlib import Path
start = time.perf_counter()
investigate(sys.argv[1], out=Path(sys.argv[2]))
print(time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""
IMPORTS = """
import resource, time
start = time.perf_counter()
import numpy, langgraph.graph, langgraph.checkpoint.sqlite, pyarrow.parquet
print(time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""
READ = """
import pathlib, resource, sys, time
import pyarrow as pa, pyarrow.parquet as pq
def quickest(path):
    file = pq.ParquetFile(pa.BufferReader(path.read_bytes()), pre_buffer=False)
    return file.read(use_threads=False)
read = {"quickest": quickest, "read_table": pq.read_table}[sys.argv[2]]
start = time.perf_counter()
for path in sorted(pathlib.Path(sys.argv[1]).glob("completions/*.parquet")):
    read(path)
print(time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def stretch(source: Path, target: Path, steps: int, rollouts: int) -> None:
    """Write a synthetic run of `steps` steps with completions for the first `rollouts` steps."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    state = json.loads((source / "trainer_state.json").read_text())
    rows = [row for row in state["log_history"] if "loss" in row]
    state["log_history"] = [dict(rows[i % len(rows)], step=i + 1) for i in range(steps)]
    state["global_step"] = state["max_steps"] = steps
    (target / "completions").mkdir(parents=True)
    (target / "trainer_state.json").write_text(json.dumps(state))
    config = json.loads((source / "args.json").read_text())
    (target / "args.json").write_text(json.dumps(dict(config, max_steps=steps)))
    shutil.copytree(source / "data", target / "data")
    tables = [pq.read_table(p) for p in sorted(source.glob("completions/*.parquet"))]
    for i in range(rollouts):
        table = tables[i % len(tables)]
        column = pa.array([i + 1] * len(table), pa.int64())
        table = table.set_column(table.schema.get_field_index("step"), "step", column)
        pq.write_table(table, target / f"completions/completions_{i + 1:05d}.parquet")


TRL_LOGGING_STEPS = 10
"""TRL's default of `logging_steps`; it writes completions where it logs."""
REPEATS = 3
"""Processes that a figure is taken in; the quickest counts, as the others were disturbed."""


def measure(code: str, *arguments: str) -> tuple[float, float]:
    """Seconds and peak memory in MB that the code reports, in a fresh process."""
    runs = [_once(code, *arguments) for _ in range(REPEATS)]
    return min(seconds for seconds, _ in runs), max(memory for _, memory in runs)


def _once(code: str, *arguments: str) -> tuple[float, float]:
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    seconds, memory = done.stdout.split()[-2:]
    return float(seconds), float(memory)


def command(*arguments: str) -> float:
    """Wall seconds of a firstbad command, the best of five."""
    import time

    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "firstbad.agent.cli", *arguments],
            capture_output=True,
            check=True,
        )
        best = min(best, time.perf_counter() - start)
    return best


def bytes_read(run: Path) -> float:
    """Bytes that an investigation reads of a run, over those that its files hold."""
    script = Path(__file__).with_name("bytes_read.py")
    done = subprocess.run(
        [sys.executable, str(script), str(run), "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    kinds = json.loads(done.stdout).values()
    return float(sum(k["read"] for k in kinds) / sum(k["held"] for k in kinds))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--long", type=int, default=50_000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        os.environ["FIRSTBAD_HOME"] = str(folder / "home")
        # As installed: modules are compiled once, not in every process.
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = str(folder / "compiled")
        found["start_help_seconds"] = command("--help")
        found["imports_seconds"], found["imports_mb"] = measure(IMPORTS)
        source = DEMO / sorted(p.name for p in DEMO.iterdir() if p.is_dir())[0]
        sizes = (arguments.steps // 2, arguments.steps, 2 * arguments.steps)
        for steps in sizes:
            run = folder / f"run-{steps}"
            stretch(source, run, steps, steps)
            found[f"read_{steps}_seconds"], _ = measure(READ, str(run), "quickest")
            if steps == arguments.steps:
                found[f"read_table_{steps}_seconds"], _ = measure(READ, str(run), "read_table")
            seconds, memory = measure(INVESTIGATE, str(run), str(folder / f"out-{steps}"))
            found[f"investigate_{steps}_seconds"] = seconds
            found[f"investigate_{steps}_mb"] = memory
        run = folder / "run-by-default"
        stretch(source, run, arguments.steps, arguments.steps // TRL_LOGGING_STEPS)
        seconds, memory = measure(INVESTIGATE, str(run), str(folder / "out-by-default"))
        found["investigate_by_default_seconds"] = seconds
        found["investigate_by_default_mb"] = memory
        found["bytes_read_over_held"] = bytes_read(source)
        run = folder / "run-long"
        stretch(source, run, arguments.long, 100)
        seconds, memory = measure(INVESTIGATE, str(run), str(folder / "out-long"))
        found["long_metrics_seconds"], found["long_metrics_mb"] = seconds, memory
        found["by_default_over_imports"] = (
            found["investigate_by_default_seconds"] / found["imports_seconds"]
        )
        found["over_imports"] = found[f"investigate_{sizes[1]}_seconds"] / found["imports_seconds"]
        found["over_reading"] = (
            found[f"investigate_{sizes[1]}_seconds"] / found[f"read_{sizes[1]}_seconds"]
        )
        found["growth_of_doubling"] = (
            found[f"investigate_{sizes[2]}_seconds"] / found[f"investigate_{sizes[1]}_seconds"]
        )
    if arguments.json:
        print(json.dumps({k: round(v, 4) for k, v in found.items()}, indent=1))
    else:
        for name, value in found.items():
            print(f"{name:28s} {value:10.3f}")


if __name__ == "__main__":
    main()
