"""Hugging Face `trainer_state.json`, of the root and of every checkpoint, as one history."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np

from firstbad.tools.evidence import Source
from firstbad.tools.paths import File, Root
from firstbad.tools.readers.jsonish import decode, loads, salvage_rows
from firstbad.tools.readers.log import Log, number, step_number
from firstbad.tools.readers.steps import note_gaps
from firstbad.tools.run import Event

_NAME = r"(?:.*/)?trainer_state\.json"
_STEP = frozenset({"step"})
_END_KEYS = _STEP | {
    "train_runtime",
    "train_samples_per_second",
    "train_steps_per_second",
    "train_tokens_per_second",
    "train_loss",
    "total_flos",
}
_SETTINGS = ("logging_steps", "save_steps", "max_steps", "num_train_epochs", "train_batch_size")
Row = dict[str, object]


@dataclass
class History:
    """What the state files say."""

    log: Log = field(default_factory=Log)
    events: list[Event] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    global_steps: dict[str, int] = field(default_factory=dict)
    """`global_step` by folder."""
    settings: dict[str, object] = field(default_factory=dict)
    """What the newest state repeats of the settings."""


@dataclass(frozen=True)
class _State:
    file: File
    data: bytes
    global_step: int

    @property
    def rank(self) -> tuple[bool, int]:
        """The state in the root is the newest; of checkpoints the one of the highest step."""
        return self.file.folder == "", self.global_step

    def body(self) -> bytes:
        """The text of the rows, without the end of the list."""
        start = self.data.find(b'"log_history"')
        end = self.data.rfind(b"]", start) if start >= 0 else -1
        return self.data[start : max(start, self.data.rfind(b"}", start, end) + 1)]


def read_history(root: Root) -> History:
    """Merge all state files: the newest wins where two hold the same step."""
    history = History()
    states = _states(root, history)
    rows: list[Row] = []
    while states and not rows:
        newest = states.pop()
        rows = _rows(root, newest, history.settings)
    if not rows:
        return history
    for state in states:
        # A checkpoint of the same segment holds the beginning of the newest text: nothing new.
        if not newest.body().startswith(state.body()):
            older = _rows(root, state, {})
            _add(history.log, older)
            _compare(history, state.file, older, newest.file, rows)
    _add(history.log, rows)
    _inside(history, newest.file, rows)
    if history.log:
        fullest = max(history.log.series.values(), key=lambda series: len(series.steps))
        note_gaps(root, newest.file.name, np.unique(np.array(fullest.steps, np.int64)))
    return history


def _states(root: Root, history: History) -> list[_State]:
    states: list[_State] = []
    for file in root.matching(_NAME):
        if file.folder and not re.search(r"(^|/)checkpoint-\d+$", file.folder):
            continue
        data = root.try_read(file)
        if data is None:
            continue
        found = re.findall(rb'"global_step"\s*:\s*(\d{1,15})\b', data)
        step = int(found[-1]) if found else -1
        if step >= 0:
            history.global_steps[file.folder] = step
        states.append(_State(file, data, step))
        history.sources.append(root.source(file, "metrics", data))
    return sorted(states, key=lambda state: state.rank)


def _rows(root: Root, state: _State, settings: Row) -> list[Row]:
    text, _ = decode(state.data)
    try:
        value = loads(text)
    except (ValueError, RecursionError):
        rows = salvage_rows(text, "log_history")
        root.note("file_cut", f"`{state.file.name}` is cut off: {len(rows)} rows could be read")
        return rows
    history = value.get("log_history") if isinstance(value, dict) else None
    if not isinstance(history, list):
        root.note("file_skipped", f"`{state.file.name}` has no list `log_history`")
        return []
    settings.update({name: value[name] for name in _SETTINGS if value.get(name) is not None})
    return [row for row in history if isinstance(row, dict)]


def _add(log: Log, rows: Sequence[Row]) -> None:
    found = [(step, row) for row in rows if (step := step_number(row.get("step"))) is not None]
    for ended, part in groupby(found, key=lambda item: _is_end(item[1])):
        steps, own = zip(*part, strict=True)
        log.add_rows(steps, own, _END_KEYS if ended else _STEP)


def _is_end(row: Row) -> bool:
    """`train_runtime` alone may stand in any row; the mean loss is logged once, at the end."""
    return "train_loss" in row and "train_runtime" in row


def _inside(history: History, file: File, rows: Sequence[Row]) -> None:
    """Events that one file shows by itself: the end of training, and steps or epochs going back."""
    step_before, epoch_before, ended_at = -1, -1.0, None
    for row in rows:
        step, epoch = step_number(row.get("step")), number(row.get("epoch"))
        if step is None:
            continue
        if ended_at is not None and step > ended_at:
            _resume(history, step, f"rows go on after the end of training at {ended_at}", file)
            ended_at = None
        elif step < step_before:
            _resume(history, step, f"step goes back from {step_before} to {step}", file)
        elif epoch is not None and step > step_before and epoch < epoch_before:
            _resume(history, step, f"epoch goes back from {epoch_before:g} to {epoch:g}", file)
        if _is_end(row):
            ended_at = step
            told = ", ".join(f"{key}={row[key]}" for key in sorted(_END_KEYS & row.keys() - _STEP))
            history.events.append(Event("end", step, f"training ended: {told}", file.name))
        step_before = step
        epoch_before = epoch_before if epoch is None else epoch


def _compare(
    history: History, old_file: File, old: Sequence[Row], new_file: File, new: Sequence[Row]
) -> None:
    """A resume shows where two files give other values for one step, or one starts late."""
    cells = {(step_number(r.get("step")), k): v for r in new for k, v in r.items()}
    new_steps = sorted({step for step, _ in cells if step is not None})
    old_steps = sorted(s for r in old if (s := step_number(r.get("step"))) is not None)
    if not new_steps or not old_steps:
        return
    differing = sorted(
        step
        for row in old
        if (step := step_number(row.get("step"))) is not None
        and any((step, k) in cells and not _same(cells[step, k], v) for k, v in row.items())
    )
    names = f"{old_file.name} and {new_file.name}"
    if differing:
        text = f"{names} give other values for {len(differing)} of the same steps"
        _resume(history, differing[0], text, new_file)
    elif old_steps[0] < new_steps[0]:
        _resume(history, new_steps[0], f"the rows of {new_file.name} start here", new_file)


def _same(a: object, b: object) -> bool:
    return a == b or (a != a and b != b)


def _resume(history: History, step: int, text: str, file: File) -> None:
    history.events.append(Event("resume", step, text, file.name))
