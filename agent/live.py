"""Progress for a person at a terminal: one line a layer; nothing where nobody looks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from firstbad.agent.console import is_terminal
from firstbad.agent.plain import plain
from firstbad.agent.progress import OnProgress, Progress

STYLES = {"pass": "green", "fail": "bold red", "inconclusive": "yellow", "waived": "yellow"}


@contextmanager
def watching() -> Iterator[OnProgress]:
    """Where progress may be told; it goes away when the work is done, and the result stays."""
    if not is_terminal(sys.stderr):
        yield _only_repairs
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    done: list[Text] = []
    with Live(console=Console(stderr=True, highlight=False), transient=True) as live:

        def show(progress: Progress) -> None:
            text = plain(progress.text, one_line=True)
            now = Text()
            if progress.kind == "repaired":
                live.console.print(Text(text))
            elif progress.kind == "started":
                done.append(Text(f"incident {text}", style="dim"))
            elif progress.kind == "asked":
                now = Text(text, style="dim")
            elif progress.kind == "layer":
                now = Text(f"{progress.number:>4}  {progress.layer:<14}{text}")
            elif progress.kind == "facts":
                now = Text(f"layer {progress.layer} closes the way; reading {text}")
            elif progress.kind == "judged" and progress.outcome != "not_reached":
                line = Text(f"{progress.number:>4}  {progress.layer:<14}")
                line.append(f"{progress.outcome:<14}", style=STYLES.get(progress.outcome or "", ""))
                line.append(progress.strength or "", style="dim")
                done.append(line)
            if progress.kind != "tool":
                live.update(Text("\n").join([*done, now]))

        yield show


@contextmanager
def waiting(text: str) -> Iterator[None]:
    """A line at a terminal while something long is done; it goes away afterwards."""
    if not is_terminal(sys.stderr):
        yield
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True, highlight=False).status(Text(plain(text, one_line=True))):
        yield


def _only_repairs(progress: Progress) -> None:
    """What a log should hold as well."""
    if progress.kind == "repaired":
        print(plain(progress.text, one_line=True), file=sys.stderr)
