"""`firstbad`: the command line, and what each kind of error becomes at its edge."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, TextIO

import typer

from firstbad import __version__
from firstbad.agent import (
    cli_demo,
    cli_incidents,
    cli_investigate,
    cli_playbook,
    cli_runs,
    cli_tools,
    cli_verify,
)
from firstbad.agent.cli_base import group, tell
from firstbad.agent.home import home
from firstbad.agent.plain import plain
from firstbad.tools.errors import FirstbadError

USER_CAN_FIX = 2
BUG = 70

app = group("Find the first bad step of an RL post-training run, and say why.")
app.command("investigate")(cli_investigate.investigate)
app.command("demo")(cli_demo.demo)
app.command("verify")(cli_verify.verify)
app.add_typer(cli_runs.app, name="runs")
app.add_typer(cli_tools.app, name="tools")
app.add_typer(cli_playbook.app, name="playbook")
app.add_typer(cli_incidents.app, name="incidents")
app.add_typer(cli_incidents.memo_app, name="memo")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"firstbad {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    """Find the first bad step of an RL post-training run, and say why."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code."""
    for stream in (sys.stdout, sys.stderr):
        _never_fail_to_print(stream)
    try:
        app(args=None if arguments is None else list(arguments), prog_name="firstbad")
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else 0 if done.code is None else 1
    except FirstbadError as error:
        tell(f"firstbad: {plain(str(error))}")
        return USER_CAN_FIX
    except Exception as bug:  # the edge: whatever is left is our fault
        tell(f"firstbad: {_keep(bug)}")
        return BUG
    return 0


def _keep(bug: Exception) -> str:
    """Write the traceback down; one line that says where."""
    text = "".join(traceback.format_exception(bug))
    line = f"a bug: {type(bug).__name__}: {plain(str(bug), one_line=True)[:200]}"
    if os.environ.get("FIRSTBAD_DEBUG"):
        return f"{line}\n{plain(text)}"
    path = home() / "logs" / f"bug-{datetime.now(UTC):%Y%m%d-%H%M%S}-{os.getpid()}.log"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"firstbad {__version__}\n{text}", encoding="utf-8", errors="replace")
    except OSError:
        return f"{line}\n{plain(text)}"
    return f"{line} (traceback in {plain(str(path))}; FIRSTBAD_DEBUG=1 shows it)"


def _never_fail_to_print(stream: TextIO) -> None:
    """A terminal of another encoding shows escapes rather than ending the program."""
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    sys.exit(main())
