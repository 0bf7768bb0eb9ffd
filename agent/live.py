"""Progress for a person at a terminal: one line a layer; nothing where nobody looks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from firstbad.agent.console import is_terminal
from firstbad.agent.plain import plain
from firstbad.agent.progress import OnProgress, Progress, silent

STYLES = {"pass": "green", "fail": "bold red", "inconclusive": "yellow", "waived": "yellow"}


@contextmanager
def watching() -> Iterator[OnProgress]:
    """Where progress may be told; standard output stays free for the result."""
    if not is_terminal(sys.stderr):
        yield silent
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True, highlight=False)
    with console.status(Text("reading the run")) as status:

        def show(progress: Progress) -> None:
            text = plain(progress.text, one_line=True)
            if progress.kind == "started":
                console.print(Text(f"incident {text}", style="dim"))
            elif progress.kind == "layer":
                status.update(Text(f"{progress.number:>4}  {progress.layer}: {text}"))
            elif progress.kind == "facts":
                status.update(Text(f"`{progress.layer}` closes the way; reading {text}"))
            elif progress.kind == "judged" and progress.outcome != "not_reached":
                line = Text(f"{progress.number:>4}  {progress.layer:<14}")
                line.append(f"{progress.outcome:<13}", style=STYLES.get(progress.outcome or "", ""))
                line.append(progress.strength or "", style="dim")
                console.print(line)

        yield show
