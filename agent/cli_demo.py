"""`firstbad demo`: a shipped run of a real training, investigated."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from firstbad.agent.cli_base import Json, Out, say, say_json


def demo(
    name: Annotated[str, typer.Argument(help="Which shipped run.")] = "heron",
    out: Out = None,
    json: Json = False,
) -> None:
    """Investigate a shipped run: no key, no network. Exit code 0 whatever is found."""
    from firstbad.agent import investigate as work
    from firstbad.agent.live import watching
    from firstbad.agent.report import report
    from firstbad.agent.runs import DEMO, demo_folder
    from firstbad.agent.screen import first_screen

    complaint = demo_folder(name) / "complaint.txt"
    said = complaint.read_text(encoding="utf-8").strip() if complaint.is_file() else ""
    with watching() as on_progress:
        found = work.investigate(
            f"{DEMO}:{name}", said, out=out or _writable_out(), on_progress=on_progress
        )
    assert isinstance(found, work.Finished)
    if json:
        say_json(report(found.incident, found.verdict))
        return
    say(f"$ firstbad investigate {DEMO}:{name}" + (f' "{said}"' if said else ""))
    say()
    say(first_screen(found.incident, found.verdict))


def _writable_out() -> Path | None:
    """None for the home folder; a temporary folder where that can't be written to."""
    import tempfile

    from firstbad.agent.home import incidents_folder

    try:
        incidents_folder().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=incidents_folder()):
            return None
    except OSError:
        return Path(tempfile.mkdtemp(prefix="firstbad-demo-"))
