"""Name a run: as it was typed, and so that a process started elsewhere finds it again."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from firstbad.tools.errors import UserError

if TYPE_CHECKING:
    from firstbad.tools.run import Run

DEMO = "demo"
_PREFIX = re.compile(r"^([a-z][a-z0-9_]*):(?!//)(.+)$", re.DOTALL)


def demo_folder(name: str) -> Path:
    """Folder of a shipped run.

    Raises:
        UserError: there is none of that name.
    """
    if name not in demo_names():
        raise UserError(f"no demo `{name}`; there are: {', '.join(demo_names()) or 'none'}")
    return Path(str(files("firstbad.agent") / "demo_runs" / name))


def demo_names() -> tuple[str, ...]:
    """Names of the shipped runs."""
    folder = files("firstbad.agent") / "demo_runs"
    if not folder.is_dir():
        return ()
    return tuple(sorted(p.name for p in folder.iterdir() if p.is_dir() and p.name[0] not in "._"))


def looks_like_run(text: str) -> bool:
    """Whether an argument names a run rather than complaining about one ("NaN/Inf")."""
    from firstbad.tools.readers import READERS

    prefix, _ = _parts(text)
    known = {DEMO, *(reader.prefix for reader in READERS)}
    return _exists(text) or prefix in known or text.startswith(("/", "./", "../", "~"))


def absolute(ref: str) -> str:
    """The same run for a process in another folder: paths absolute, other names kept."""
    prefix, rest = _parts(ref)
    if prefix == DEMO or not _exists(rest):
        return ref
    place = Path(rest).expanduser()
    return f"{prefix}:{place.resolve()}" if prefix else str(place.resolve())


def open_ref(ref: str, *, shown: str | None = None, replays: Sequence[str] = ()) -> Run:
    """Open a run; `shown` is what memos call it, `replays` are further runs of the same job.

    Raises:
        UserError: there is none, or no reader knows it.
    """
    from firstbad.tools.readers import open_run

    if not ref.strip():
        raise UserError("no RUN was given: expected a path, or a prefix and a path")
    prefix, rest = _parts(ref)
    run = open_run(str(demo_folder(rest)) if prefix == DEMO else ref)
    if shown is None and prefix == DEMO:
        shown = ref
    if shown is not None:
        run.ref = shown
    run.replays = tuple(open_ref(other) for other in replays)
    return run


def _parts(ref: str) -> tuple[str | None, str]:
    match = None if _exists(ref) else _PREFIX.match(ref)
    return (match[1], match[2]) if match else (None, ref)


def _exists(text: str) -> bool:
    try:
        return Path(text).expanduser().exists()
    except (OSError, ValueError):
        return False
