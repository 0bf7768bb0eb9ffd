"""What all commands share: how a group is made, and how JSON is printed.

Only typer and the standard library are imported here and in the `cli_*` files' heads; everything
else is imported in the command that needs it, so that `--help` is quick.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def _folder(text: str) -> Path:
    """A folder as a shell would name it.

    Raises:
        BadParameter: nothing, or what reads like another option.
    """
    if not text.strip() or text.startswith("-"):
        raise typer.BadParameter(f"expected a folder, found `{text}` (./-x names a folder -x)")
    return Path(text).expanduser()


Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="DIR",
        parser=_folder,
        help="Folder of incident folders; default: the home.",
    ),
]


def group(help_text: str, kind: type[TyperGroup] = TyperGroup) -> typer.Typer:
    """A group of commands that helps when it is called bare, and needs no rich."""
    return typer.Typer(
        help=help_text,
        cls=kind,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )


def say(text: str = "") -> None:
    """Print for a person."""
    print(text)


def say_json(value: Any) -> None:
    """Print one JSON object; all but ASCII is escaped, so nothing in it steers a terminal."""
    print(json.dumps(value, indent=1, ensure_ascii=True, allow_nan=False))


def tell(text: str) -> None:
    """Print beside the output: on standard error."""
    print(text, file=sys.stderr, flush=True)
