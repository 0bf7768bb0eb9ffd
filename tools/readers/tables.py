"""The table files of a folder: which hold metrics, which rollouts, and the metrics' log."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from firstbad.tools.errors import UserError
from firstbad.tools.evidence import Source
from firstbad.tools.paths import File, Root
from firstbad.tools.readers.log import Log, number, step_number
from firstbad.tools.readers.rollout_rows import holds_rollouts
from firstbad.tools.readers.rows import ALL_SUFFIXES, NOT_TABLES, Row, first_rows, flat, read_rows
from firstbad.tools.readers.steps import STEP_KEYS, note_folders, note_gaps, step_key
from firstbad.tools.run import Event

_DATA = re.compile(r"(^|/)(data|datasets?)/", re.I)
_EVALUATION = re.compile(
    r"(^|/)(eval|evaluation|val|valid|validation|test)([_\d][^/]*)?(/|\.[a-z]+$)", re.I
)
_MAX_RESUMES = 10
_LONG = ("key", "metric", "name", "tag")
_BESIDE = {*STEP_KEYS, "time", "timestamp", "_timestamp", "_runtime", "wall_time", "epoch"}
"""Columns that every row of a step may have."""
_MISSING = ("", "none", "null", "n/a", "na", "-")


@dataclass
class Tables:
    """Table files by what they hold."""

    metrics: list[File] = field(default_factory=list)
    rollouts: list[File] = field(default_factory=list)

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self.metrics or self.rollouts)


def find_tables(
    root: Root,
    suffixes: Sequence[str] = ALL_SUFFIXES,
    skip: Sequence[str] = (),
    leave: Collection[str] = (),
) -> Tables:
    """Metrics and rollout files of a folder; data sets are left out.

    `skip` names folders of captures: their files may have a step, but hold no metrics. `leave`
    names files that are read elsewhere.
    """
    found = Tables()
    kinds: dict[tuple[str, str], str] = {}
    for file in root.files:
        if file.suffix not in suffixes or NOT_TABLES.search(file.name) or file.name in leave:
            continue
        if not file.size:
            root.note("file_skipped", f"`{file.name}` is empty")
            continue
        if _DATA.search(file.name):
            continue
        alike = (file.folder, re.sub(r"\d+", "#", file.path.name))
        if alike not in kinds:  # one of the files whose names differ in numbers stands for all
            kinds[alike] = _kind(first_rows(root, file))
        if kinds[alike] == "rollouts" and _EVALUATION.search(file.name):
            root.note("folder_left", f"`{file.folder or file.name}`: rollouts of an evaluation")
        elif kinds[alike] == "rollouts":
            found.rollouts.append(file)
        elif kinds[alike] == "metrics" and file.folder not in skip:
            found.metrics.append(file)
    return found


def _kind(head: Sequence[Row]) -> str:
    if holds_rollouts(head):
        return "rollouts"
    return "metrics" if step_key([flat(row) for row in head]) else ""


@dataclass
class Metrics:
    """What metrics files say."""

    log: Log = field(default_factory=Log)
    events: list[Event] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    clock: dict[int, float] = field(default_factory=dict)
    """When a step was logged, the last time; seconds since 1970."""


def read_metrics(root: Root, files: Iterable[File], clocks: Collection[str] = ()) -> Metrics:
    """The metrics of these files in one log; the later file counts where two hold one step.

    `clocks` names files whose `time` is the time of day, not a metric.
    """
    found = Metrics()
    for file in files:
        try:
            own = metrics_of(root, file)
        except UserError as error:
            root.note("file_skipped", str(error))
            continue
        if file.name in clocks:
            time = own.log.series.pop("time", None)
            found.clock |= {} if time is None else dict(zip(time.steps, time.values, strict=True))
        before = "eval_" if _EVALUATION.search(file.name) else ""
        for key, series in own.log.series.items():
            name = key if key.startswith(("eval_", "eval/")) else before + key
            found.log.add_series(name, series.steps, series.values)
        found.events += own.events
        found.sources.append(root.source(file, "metrics"))
    trained = [s.ref for s in found.sources if not _EVALUATION.search(s.ref)]
    note_folders(root, "metrics files", trained)
    return found


def metrics_of(root: Root, file: File) -> Metrics:
    """The metrics of one file.

    Raises:
        UserError: not readable, or without a row that has numbers.
    """
    rows = [flat(row) for row in read_rows(root, file)]
    if not rows:
        raise UserError(f"`{file.name}` has no rows")
    key = step_key(rows)
    steps = [step_number(row.get(key)) for row in rows] if key else list(range(1, len(rows) + 1))
    if key is None:
        root.note("step_unknown", f"`{file.name}` has no step column: rows are numbered from 1")
    log = Log()
    stepped = [(s, _long(row)) for s, row in zip(steps, rows, strict=True) if s is not None]
    log.add_rows([step for step, _ in stepped], [row for _, row in stepped])
    if without := len(rows) - len(stepped):
        root.note("rows_without_step", f"`{file.name}`: {without} rows without a step left out")
    events = _in_order(root, file, stepped)
    for name in STEP_KEYS:
        log.series.pop(name, None)
        log.not_numbers.discard(name)
    _plain_export(root, file, log)
    _note_texts(root, file, log, rows)
    if not log:
        raise UserError(f"`{file.name}` has no column of numbers besides its step")
    return Metrics(log, events)


def _long(row: Row) -> Row:
    """One metric a row (`key`, `value`, `step`) as a row of that metric."""
    if "value" in row:
        for name in _LONG:
            key = row.get(name)
            if isinstance(key, str) and number(key) is None:
                return {key: row["value"]}
    return row


def _plain_export(root: Root, file: File, log: Log) -> None:
    """W&B's page exports `<run> - <key>` with `__MIN` and `__MAX` beside it, sampled."""
    exported = [key for key in log.series if f"{key}__MIN" in log.series]
    for key in exported:
        for end in ("__MIN", "__MAX"):
            log.series.pop(key + end, None)
        log.series[key.rpartition(" - ")[2]] = log.series.pop(key)
    if exported:
        root.note("sampled", f"`{file.name}` is an export of W&B's page, which samples the steps")


def _in_order(root: Root, file: File, stepped: Sequence[tuple[int, Row]]) -> list[Event]:
    """Notes on the order of steps; going back and going on from there is a resume."""
    steps = [step for step, _ in stepped]
    unique = np.unique(np.array(steps, np.int64))
    backwards = [i for i in range(1, len(steps)) if steps[i] < steps[i - 1]]
    resumed = [i for i in backwards if steps[i] < min(steps[i + 1 : i + 2], default=0)]
    resumed = [i for i in resumed if steps[i + 1] <= steps[i - 1]]
    events = []
    if backwards == resumed and len(resumed) <= _MAX_RESUMES:
        for i in resumed:
            text = f"step goes back from {steps[i - 1]} to {steps[i]}"
            events.append(Event("resume", steps[i], text, file.name))
    elif backwards:
        root.note("unsorted", f"`{file.name}`: the step goes back {len(backwards)} times; sorted")
    if repeated := _repeated(stepped) if len(steps) > len(unique) else 0:
        root.note("duplicates", f"`{file.name}`: {repeated} rows repeat a step; last value kept")
    note_gaps(root, file.name, unique)
    return events


def _repeated(stepped: Sequence[tuple[int, Row]]) -> int:
    """Rows that hold a metric which an earlier row of their step holds; others add to it."""
    held: dict[int, set[str]] = {}
    repeated = 0
    for step, row in stepped:
        keys = {key for key, value in row.items() if not _missing(value)} - _BESIDE
        repeated += bool(keys & held.get(step, set()))
        held.setdefault(step, set()).update(keys)
    return repeated


def _note_texts(root: Root, file: File, log: Log, rows: Sequence[Row]) -> None:
    """Columns that were left out because they hold other things than numbers."""
    texts = {name for name in log.not_numbers if any(not _missing(row.get(name)) for row in rows)}
    if texts:
        names = ", ".join(sorted(texts)[:20])
        root.note("columns_left", f"`{file.name}`: values that are no numbers in {names}")


def _missing(value: object) -> bool:
    return value is None or (isinstance(value, str) and value.strip().lower() in _MISSING)
