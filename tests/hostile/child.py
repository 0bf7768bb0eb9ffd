"""Reads hostile runs, each in a process of its own, and tells what became of it.

A line in is a JSON list: a name, a run, and whether to go through the command line. A line out is
a JSON object: `code`, the exit code (negative: killed by that signal), `mb`, the most memory that
was resident, `seconds` of processor time, and what the process wrote.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

import pyarrow.compute
import pyarrow.parquet  # noqa: F401  # loaded once, not in every process

from firstbad.agent import cli
from firstbad.tools.errors import UserError
from firstbad.tools.readers import open_run
from firstbad.tools.registry import run_tool, tools

LIMIT_BYTES = 6 * 2**30
"""Of address space: what asks for more fails instead of taking the machine down."""
LIMIT_SECONDS = 40


def measure(ref: str) -> int:
    """Open a run, apply every tool, and print what was read; 2 where it is refused."""
    warnings.filterwarnings("ignore", category=RuntimeWarning)
    try:
        run = open_run(ref)
    except UserError as error:
        print(str(error), file=sys.stderr)
        return cli.USER_CAN_FIX
    found = [run_tool(name, run, {}, evidence_id="E1") for name in tools()]
    for evidence in found:
        evidence.model_dump_json()
    told = {
        "notes": [f"{note.code}: {note.text}" for note in run.notes],
        "errors": [f"{e.tool}: {e.error}" for e in found if e.status == "error"],
        "measured": sorted(e.tool for e in found if e.status == "measured"),
        "steps": [len(part.steps) for part in (run.signals, run.rollouts, run.captures)],
    }
    print(json.dumps(told))
    return 0


def main() -> None:
    """Answer line by line."""
    tools()
    for line in sys.stdin:
        ref, by_command = json.loads(line)
        with tempfile.TemporaryDirectory() as folder:
            out, err = Path(folder, "out"), Path(folder, "err")
            if (child := os.fork()) == 0:
                _be_the_child(ref, by_command, folder, out, err)
            _, status, used = os.wait4(child, 0)
            answer = {
                "code": os.waitstatus_to_exitcode(status),
                "mb": used.ru_maxrss // 1024,
                "seconds": used.ru_utime + used.ru_stime,
                "out": out.read_text(errors="replace"),
                "err": err.read_text(errors="replace"),
            }
        print(json.dumps(answer), flush=True)


def _be_the_child(ref: str, by_command: bool, folder: str, out: Path, err: Path) -> None:
    code = 70
    try:
        resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_SECONDS, LIMIT_SECONDS))
        signal.alarm(2 * LIMIT_SECONDS)  # of the clock: it may wait for something
        for path, number in ((out, 1), (err, 2)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
        command = ["investigate", ref, "--json", "--out", f"{folder}/incidents"]
        code = cli.main(command) if by_command else measure(ref)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


main()
