"""What was noticed while a run was opened: told in the memo, judged by nobody."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from firstbad.tools.run import Run

BESIDE, LONE = "beside", "lone_file"
LEFT_OUT = (BESIDE, "file_cut", "rows_cut", "line_cut", "events_cut", "file_skipped")
"""Codes of remarks on what could not be read: the first page tells them, the memo tells all."""
_PARTS = (
    "args.json",
    "config.yaml",
    "config.json",
    "completions",
    "rollouts",
    "rollouts.jsonl",
    "data",
    "batch_dumps",
)
"""What lies beside the metrics of a run."""
_LONE = (
    "RUN is one file, read alone; rollouts, settings and data that are put beside it, in a "
    "folder of its own, are read where the folder is named: "
)


@dataclass(frozen=True)
class Remark:
    """One remark."""

    code: str
    text: str


def remarks(run: Run, ref: str, shown: str) -> tuple[Remark, ...]:
    """What the readers noticed on opening, and what lies beside a single file and was not read.

    Args:
        run: the run, just opened.
        ref: where it lies.
        shown: the place that the memo names, where the run has been moved since.
    """
    told = [Remark(note.code, note.text) for note in run.notes]
    if _path(ref).is_file():
        text = _beside(ref, shown)
        told.insert(
            0, Remark(BESIDE, text) if text else Remark(LONE, f"{_LONE}{folder_command(shown)}")
        )
    elif text := _around_record(_path(ref), shown):
        told.insert(0, Remark(BESIDE, text))
    return tuple(told)


def _beside(ref: str, shown: str) -> str:
    path = _path(ref)
    folder = path.resolve().parent
    parts = [folder / name for name in _PARTS if (folder / name).exists() and name != path.name]
    parts += sorted(folder.glob("checkpoint-*"))[:1]
    if not parts:
        return ""
    names = ", ".join(f"`{p.name}/`" if p.is_dir() else f"`{p.name}`" for p in parts)
    return (
        f"RUN is one file, read alone as a folder may hold other runs; beside it: {names}. To read "
        f"them too, name the folder: {folder_command(shown)}"
    )


def _around_record(folder: Path, shown: str) -> str:
    """What a run left beside its record; empty where nothing, or where other records lie there."""
    if not (folder / "run.json").is_file():
        return ""
    parent = folder.resolve().parent
    saved = sorted(parent.glob("checkpoint-*"))
    state = parent / "trainer_state.json"
    if not (saved or state.is_file()) or len(list(parent.glob("*/run.json"))) > 1:
        return ""
    parts = [f"`{state.name}`"] if state.is_file() else []
    if saved:
        more = f" and {len(saved) - 1} more" if saved[1:] else ""
        parts.append(f"`{saved[0].name}/`{more}")
    return (
        f"RUN is a record, read alone; beside it lie {', '.join(parts)}, so that no checkpoint is "
        f"known here. To read them too, name the run's folder: {folder_command(shown)}"
    )


def folder_command(shown: str) -> str:
    """The command that reads the folder of a file or a record, and with it what lies there."""
    return f"firstbad investigate {shlex.quote(str(_path(shown).parent))}"


def _path(ref: str) -> Path:
    return Path(ref if Path(ref).exists() else ref.partition(":")[2] or ref).expanduser()
