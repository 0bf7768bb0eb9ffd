"""`firstbad`: the command line, and what each kind of error becomes at its edge."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, TextIO

import typer
from typer.core import TyperGroup

from firstbad import __version__
from firstbad.agent import (
    cli_demo,
    cli_incidents,
    cli_investigate,
    cli_playbook,
    cli_probes,
    cli_runs,
    cli_tools,
    cli_verify,
)
from firstbad.agent.cli_base import group, tell
from firstbad.agent.complaint_offer import OFFERED
from firstbad.agent.files import reason_of
from firstbad.agent.home import home
from firstbad.agent.plain import plain
from firstbad.tools.errors import FirstbadError, Stopped

USER_CAN_FIX = 2
BUG = 70
STOPPED = 130
"""By Ctrl-C or a polite kill, as a shell counts it."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.EPIPE)


class _Group(TyperGroup):
    """Ends on Ctrl-C as every version of typer should: some say "Aborted!" and exit with 1."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was named."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            raise Stopped("stopped") from stop


app = group("Find the first bad step of an RL post-training run, and say why.", _Group)
app.command("investigate", epilog=f"COMPLAINT can name {OFFERED}.")(cli_investigate.investigate)
app.command("demo")(cli_demo.demo)
app.command("verify")(cli_verify.verify)
app.command("preflight")(cli_probes.preflight)
app.command("replay")(cli_probes.replay)
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
    # Numbers that overflow stand in the evidence; the terminal is no place for numpy's remarks.
    warnings.filterwarnings("ignore", category=RuntimeWarning)
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except Stopped as stopped:
        tell(f"firstbad: {plain(str(stopped))}")
        return STOPPED
    except FirstbadError as error:
        tell(f"firstbad: {plain(str(error))}")
        return USER_CAN_FIX
    except OSError as error:
        if error.errno not in NO_ROOM:
            return _bug(error)
        _leave_output()
        where = f"`{plain(str(error.filename))}`" if error.filename else "the output"
        tell(f"firstbad: {where} can't be written: {reason_of(error)}")
        return USER_CAN_FIX
    except Exception as bug:  # the edge: whatever is left is our fault
        return _bug(bug)
    return code


def _run(arguments: Sequence[str] | None) -> int:
    given = None if arguments is None else list(arguments)
    try:
        code = app(args=given, prog_name="firstbad", standalone_mode=False)
    except SystemExit as done:
        code = done.code
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        return _misused(error)
    return code if isinstance(code, int) else 0 if code is None else 1


def _misused(error: Any) -> int:
    """A command line that was not understood, in one line; a bare group shows its help.

    Errors are told by what they can do: some versions of typer bring their own click.
    """
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return USER_CAN_FIX
    said = plain(str(error.format_message()), one_line=True).strip().rstrip(".")
    asked = getattr(error, "ctx", None)
    command = asked.command_path if asked is not None else "firstbad"
    tell(f"firstbad: {said[:1].lower()}{said[1:]}; see: {command} --help")
    return USER_CAN_FIX


def _bug(error: Exception) -> int:
    tell(f"firstbad: {_keep(error)}")
    return BUG


def _leave_output() -> None:
    """Write nothing more to the output: Python would try again at its end, and fail again."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
