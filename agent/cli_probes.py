"""`firstbad replay` and `firstbad preflight`: probes that need torch."""

from __future__ import annotations

from typing import Annotated

import typer

from firstbad.agent.cli_base import Json, say, say_json

FAILED = 4


def replay(
    capture: Annotated[
        str, typer.Argument(metavar="CAPTURE", help="A run, or the folder of a captured step.")
    ],
    model: Annotated[
        str, typer.Option(metavar="PATH", help="Folder of the model, in safetensors.")
    ],
    step: Annotated[int | None, typer.Option(metavar="N", help="The captured step.")] = None,
    rows: Annotated[int, typer.Option(min=1, max=256, help="Rows that are passed.")] = 8,
    json: Json = False,
) -> None:
    """Pass a captured step through a model: are these its weights, and is all finite?

    A capture of step N has the weights before that step's update: give it checkpoint N-1.
    Exit codes: 0 the weights give what the trainer recorded, 2 something you can fix, 4 they do
    not.
    """
    from firstbad.agent.live import waiting
    from firstbad.agent.replay import nothing_fits, report
    from firstbad.agent.replay import replay as run

    with waiting(f"passing rows through {model}"):
        found = run(capture, model, step=step, rows=rows)
    if json:
        say_json(found)
    else:
        say("\n".join(report(found)))
    raise typer.Exit(FAILED if nothing_fits(found) else 0)


def preflight(
    loss: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FUNCTION",
            help="Your loss: takes a firstbad_recorder.probes.loss_input.LossInput, "
            "gives the scalar to call backward() on. It is imported from here.",
        ),
    ],
    out: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Folder of the record: certificate.json is written."),
    ] = None,
    json: Json = False,
) -> None:
    """Probe a loss function with made-up input: numerics, clip, KL, denominators.

    For all checks on a real batch call `preflight` in the training script (docs/preflight.md).
    What your code prints goes to standard error.
    Exit codes: 0 no check failed, 2 something you can fix, also a loss that raises or gives no
    scalar, 4 a check failed.
    """
    from firstbad.agent.preflight import checked
    from firstbad.agent.preflight import report as shown

    found = checked(loss, out)
    if json:
        say_json({"schema": 1, "checks": found.described(), "failed": found.failed})
    else:
        say(shown(found))
    raise typer.Exit(FAILED if found.failed else 0)
