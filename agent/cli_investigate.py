"""`firstbad investigate`."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from firstbad.agent.cli_base import Json, Out, say, say_json, tell

if TYPE_CHECKING:
    from firstbad.agent.investigate import Finished, Waiting

MOST_RUNS = 10
"""Of one job: each is read in whole."""


def investigate(
    args: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN... [COMPLAINT]",
            help="A run, reruns of it if there are, and what was noticed, in quotes.",
        ),
    ] = None,
    step: Annotated[int | None, typer.Option(min=0, help="Step at which it was noticed.")] = None,
    waive: Annotated[
        list[str] | None,
        typer.Option(metavar="LAYER=REASON", help="Go past a layer that has not passed."),
    ] = None,
    resume: Annotated[
        str | None, typer.Option(metavar="ID", help="Go on with an incident, or walk it again.")
    ] = None,
    ask: Annotated[
        bool, typer.Option("--ask", help="Ask where evidence is missing, before going on.")
    ] = False,
    judge: Annotated[
        str | None,
        typer.Option(metavar="CMD", help="A command that scores rollouts: JSON lines in and out."),
    ] = None,
    judge_batch_seconds: Annotated[
        float, typer.Option(help="Time limit of the judge for up to 500 rows.")
    ] = 120,
    judge_seconds: Annotated[float, typer.Option(help="Time limit of the judge in all.")] = 600,
    code: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Loss code, a file or folder: read, never executed."),
    ] = None,
    playbook: Annotated[
        str | None, typer.Option(help="Shipped name or file; without it, `crash`.")
    ] = None,
    no_llm: Annotated[bool, typer.Option("--no-llm", help="Use no language model.")] = False,
    out: Out = None,
    json: Json = False,
) -> None:
    """Find the first bad step of a run and its cause, and write a memo.

    Exit codes: 0 healthy, 1 incident, 2 something you can fix, 3 undetermined, 70 a bug,
    130 stopped.
    """
    _say_at_once(args or [], resume)
    from firstbad.agent import investigate as work
    from firstbad.agent.judge import JudgeOrder
    from firstbad.agent.live import watching
    from firstbad.agent.report import EXIT_CODES, report
    from firstbad.agent.screen import first_screen
    from firstbad.agent.waive import read_waivers

    runs, complaint = split_arguments(args or [])
    waivers = read_waivers(waive or [])
    order = None if judge is None else JudgeOrder(judge, judge_batch_seconds, judge_seconds)
    with _sigterm_stops():
        with watching() as on_progress:
            found: Finished | Waiting = work.investigate(
                runs[0] if runs else None,
                complaint,
                replays=runs[1:],
                step=step,
                waivers=waivers,
                out=out,
                resume=resume,
                playbook=playbook,
                interactive=ask,
                judge=order,
                code=code,
                on_progress=on_progress,
            )
        while isinstance(found, work.Waiting):
            with work.stoppable(found.incident):
                answer = _put(found.question)
            with watching() as on_progress:
                found = work.investigate(
                    resume=str(found.incident.folder),
                    interactive=ask,
                    answer=answer,
                    on_progress=on_progress,
                )
    if json:
        say_json(report(found.incident, found.verdict))
    else:
        say(first_screen(found.incident, found.verdict))
    raise typer.Exit(EXIT_CODES[found.verdict.outcome])


def _say_at_once(args: Sequence[str], resume: str | None) -> None:
    """A first line for a person, before the imports and the reading take their time."""
    from firstbad.agent.console import is_terminal
    from firstbad.agent.plain import plain

    if is_terminal(sys.stderr) and (args or resume):
        tell(
            plain(
                f"going on with {resume} ..." if resume else f"reading {args[0]} ...", one_line=True
            )
        )


def split_arguments(args: Sequence[str]) -> tuple[list[str], str]:
    """The runs and the complaint: what names a run comes first, one text may follow.

    Raises:
        UserError: several texts, or a run named twice, or more runs than are compared.
    """
    from firstbad.agent.runs import looks_like_run
    from firstbad.tools.errors import UserError

    if not args:
        return [], ""
    runs = [args[0]]
    for text in args[1:]:
        if not text.strip() or not looks_like_run(text):
            break
        runs.append(text)
    texts = args[len(runs) :]
    if twice := next((run for run in runs if runs.count(run) > 1), None):
        raise UserError(f"`{twice}` is named twice: name each run once")
    if len(runs) > MOST_RUNS:
        raise UserError(f"expected at most {MOST_RUNS} runs of one job, found {len(runs)}")
    if len(texts) > 1:
        raise UserError(f"put the complaint in quotes; found {len(texts)} texts after `{runs[0]}`")
    return runs, texts[0] if texts else ""


ANSWERS = (
    "`waive REASON`: go past this layer all the same; the reason stands in the memo, and what is "
    "concluded from there on is conditional on it",
    "Enter: read only independent facts from here on, and conclude",
    "`help`: say this again",
    "Ctrl-C: stop; what was measured is kept, and the evidence can be fetched first",
)


def _put(question: Any) -> dict[str, Any]:
    """Ask a person, on standard error, until an answer is understood; no input reads facts."""
    from firstbad.agent.plain import plain

    _tell_wrapped(f"\nLayer `{question['layer']}` is undecided: {question['reason']}")
    for request in question["requests"]:
        _tell_wrapped(f"needed: {request['need']} (decides: {request['decides']})", 2)
        if request["command"]:
            tell(f"  by:     {plain(request['command'], one_line=True)}")  # never wrapped: copied
    ask = "To go past it all the same, write `waive` and the reason; Enter reads only facts:"
    while True:
        _tell_wrapped(ask)
        line = sys.stdin.readline()
        word, _, reason = line.strip().partition(" ")
        word = word.strip(":=,?").lower()
        if not line.strip():
            return {"continue": True}
        if word == "waive" and reason.strip():
            return {"waive": reason.strip()}
        if word in ("help", "h", ""):
            for text in ANSWERS:
                _tell_wrapped(text, 2)
        elif word == "waive":
            _tell_wrapped("A waiver needs a reason: write `waive REASON`.")
        else:
            _tell_wrapped(f"`{line.strip()}` is no answer here (`help` tells what is).")


def _tell_wrapped(text: str, indent: int = 0) -> None:
    """Tell a text in lines that end between words, those that go on further in."""
    from firstbad.agent.console import wrap
    from firstbad.agent.plain import plain

    if text.startswith("\n"):
        tell("")
    first, *more = wrap(plain(text.strip(), one_line=True), _columns() - indent - 4)
    tell(" " * indent + first)
    for line in more:
        tell(" " * (indent + 4) + line)


def _columns() -> int:
    """Columns of the terminal that the question is read on."""
    import shutil

    return max(40, min(120, shutil.get_terminal_size((100, 24)).columns))


@contextmanager
def _sigterm_stops() -> Iterator[None]:
    """A polite kill stops the work as Ctrl-C does: what was measured is kept."""

    def stop(signum: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
