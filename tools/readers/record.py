"""What firstbad-recorder wrote into a folder: `run.json` and `events.jsonl` beside its metrics."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast, get_args

from firstbad.tools.errors import UserError
from firstbad.tools.evidence import Source
from firstbad.tools.paths import File, Root
from firstbad.tools.readers.aliases import framework_names
from firstbad.tools.readers.config import visible
from firstbad.tools.readers.jsonish import decode, lines, parse_object
from firstbad.tools.readers.log import step_number
from firstbad.tools.readers.log_lines import names_exception
from firstbad.tools.readers.texts import as_text
from firstbad.tools.run import Event, EventKind

NAME = r"(?:.*/)?run\.json"
_RANK = re.compile(r"((?:.*/)?)ranks/(\d{1,6})/")
CONTINUES = "a new process continues this record"
"""What the recorder says of a restart."""
_MAX_BYTES = 16 * 2**20


@dataclass
class Record:
    """Settings and events of the record in a folder; empty where there is none."""

    settings: dict[str, object] = field(default_factory=dict)
    """Those of the newest process."""
    events: list[Event] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    files: set[str] = field(default_factory=set)
    """Files read here, which are no metrics."""
    metrics: set[str] = field(default_factory=set)
    """Files of metrics, whose `time` is a clock."""
    folder: str = ""
    """Where it lies: ends in `/`, or is empty."""
    about: Mapping[str, Any] | None = None
    """Content of its `run.json`; None where there is no record."""
    framework: str = ""
    """Library whose trainer was recorded, where the record says it and its keys are known."""
    ranks: set[int] = field(default_factory=set)
    """Processes that recorded side by side."""
    resumes: list[tuple[int, float]] = field(default_factory=list)
    """First step of each later process, and when it was made."""
    processes: list[tuple[int | None, Mapping[str, Any]]] = field(default_factory=list)
    """What each process wrote of itself, with its first step: None for the first, and where that
    is not known."""


def is_record(value: object) -> bool:
    """Whether the content of a `run.json` is the recorder's."""
    return isinstance(value, dict) and {"schema_version", "started", "dropped"} <= value.keys()


def read_record(root: Root) -> Record:
    """Read what the recorder says of the run and of itself.

    Raises:
        UserError: there are several records, which are runs of their own.
    """
    record = Record()
    found: dict[str, tuple[File, bytes | None, Mapping[str, Any]]] = {}
    for file in root.matching(NAME):
        data = root.try_read(file, _MAX_BYTES)
        try:
            said = None if data is None else parse_object(data, file.name)
        except UserError as error:
            if f"{file.name[: -len('run.json')]}metrics.jsonl" in {f.name for f in root.files}:
                root.note("file_skipped", str(error))
            continue
        if said is None or not is_record(said):
            continue
        found[file.name[: -len("run.json")]] = (file, data, said)
    whole = [folder for folder in found if not (m := _RANK.fullmatch(folder)) or m[1] not in found]
    if len(whole) > 1:
        names = ", ".join(f"`{folder or '.'}`" for folder in sorted(whole)[:5])
        raise UserError(
            f"`{root.path}` holds {len(whole)} records ({names}): name one of them, since runs "
            "of their own cannot be read as one"
        )
    for folder in whole:
        file, data, about = found[folder]
        record.folder, record.about, record.ranks = folder, about, {0}
        if (framework := about.get("framework")) in framework_names():
            record.framework = cast("str", framework)
        record.files.add(file.name)
        record.metrics.add(f"{folder}metrics.jsonl")
        record.sources.append(root.source(file, "config", data))
        record.events += _events(root, record, f"{folder}events.jsonl")
        _process(root, record, file.name, about)
        _others(root, record, {name: one[2] for name, one in found.items() if name != folder})
    return record


def _others(root: Root, record: Record, others: Mapping[str, Mapping[str, Any]]) -> None:
    """What the other ranks say: their events, and whether all of them are there."""
    for folder, said in others.items():
        if (m := _RANK.fullmatch(folder)) is None or m[1] != record.folder:
            continue
        rank = int(m[2])
        record.ranks.add(rank)
        own = _events(root, record, f"{folder}events.jsonl")
        for event in own:
            if event.kind not in ("resume", "end"):  # of the job, which rank 0 tells
                text = f"rank {rank}: {event.text}"
                record.events.append(replace(event, text=text))
        _written(root, f"{folder}run.json", said, own)
    if len(record.ranks) == 1:
        return  # one process records, which is no loss
    about = record.about or {}
    around = about.get("environment")
    world = around.get("WORLD_SIZE") if isinstance(around, dict) else None
    size = int(world) if isinstance(world, str) and re.fullmatch(r"\d{1,6}", world) else 0
    size = max(size, *(rank + 1 for rank in record.ranks))
    if lost := [rank for rank in range(size) if rank not in record.ranks]:
        named = ", ".join(map(str, lost[:10])) + ("" if len(lost) <= 10 else ", ...")
        root.note("rank_lost", f"of {size:,} ranks {len(lost):,} left no record: {named}")


def _process(root: Root, record: Record, name: str, said: Mapping[str, Any]) -> None:
    """Each process that wrote into the record: what differs from the one before, and the end."""
    restarts = said.get("restarts")
    later = [one for one in restarts if isinstance(one, dict)] if isinstance(restarts, list) else []
    steps = _restarted_at(record.events, len(later))
    before: dict[str, object] = {}
    for process, step in zip((said, *later), (None, *steps), strict=True):
        record.processes.append((step, process))
        own = process.get("config")
        settings = visible(own) if isinstance(own, dict) else {}
        around = _around(process)
        for known, now in ((record.settings, settings), (before, around)):
            changed = [k for k, v in now.items() if k in known and known[k] != v]
            if process is not said and changed:
                told = ", ".join(
                    f"{k}: {as_text(known[k], 80)} -> {as_text(now[k], 80)}" for k in changed[:5]
                )
                record.events.append(Event("config_change", step, told, name))
        record.settings |= settings
        before |= around
    if said.get("finished"):
        record.events.append(Event("end", None, "the recorder was closed", name))
    _written(root, name, said, record.events)


def _written(root: Root, name: str, said: Mapping[str, Any], events: Sequence[Event]) -> None:
    """Whether a process ended in order or by an exception, and what it could not write."""
    if not (said.get("finished") or any(event.ends for event in events)):
        root.note("not_closed", f"`{name}`: the recorder was not closed: killed, or still at work")
    if dropped := said.get("dropped"):
        reasons = said.get("dropped_by_reason")
        why = ", ".join(map(str, reasons)) if isinstance(reasons, dict) else "unknown"
        root.note(
            "dropped",
            f"`{name}`: the recorder could not write {as_text(dropped, 80)} values ({why})",
        )


def _around(process: Mapping[str, Any]) -> dict[str, object]:
    """Versions of code and libraries, device and environment of a process, flat."""
    found: dict[str, object] = {k: process[k] for k in ("python", "device") if k in process}
    for kind in ("versions", "environment"):
        if isinstance(own := process.get(kind), dict):
            found |= {f"{kind}.{k}": v for k, v in visible(own).items()}
    return found


def _restarted_at(events: list[Event], n: int) -> list[int | None]:
    """Step of each restart, where every one of them wrote its own event; else all None."""
    steps = [e.step for e in events if e.kind == "resume" and e.text == CONTINUES]
    return steps if len(steps) == n else [None] * n


def _resumed(record: Record, row: Mapping[str, Any]) -> None:
    step, time = step_number(row.get("step")), row.get("time")
    if step is not None and isinstance(time, (int, float)):
        record.resumes.append((step, float(time)))


def _events(root: Root, record: Record, name: str) -> list[Event]:
    """Events of one file, in its order; of an exception that nothing follows, that it ended it."""
    found: list[Event] = []
    ending: int | None = None
    sure = False
    for event, marked in _read_events(root, record, name):
        if event.kind == "error" and (marked or names_exception(event.text)):
            ending, sure = len(found), marked
        elif event.kind == "resume" or (not sure and event.kind not in ("warning", "alarm")):
            ending = None
        found.append(event)
    if ending is not None:
        found[ending] = replace(found[ending], ends=True)
    return found


def _read_events(root: Root, record: Record, name: str) -> Iterator[tuple[Event, bool]]:
    """Each event, and whether the recorder says that it ended the training."""
    file = root.first(name)
    data = None if file is None else root.try_read(file)
    if file is None or data is None:
        return
    record.files.add(name)
    for number, row in lines(decode(data)[0]):
        if row is None:
            root.note("lines_skipped", f"`{name}`: line {number} is no JSON object")
            continue
        kind, text = as_text(row.get("kind")), as_text(row.get("text"))
        if kind == "resume" and text == CONTINUES:
            _resumed(record, row)
        if kind not in get_args(EventKind):  # a word of the run's own
            kind, text = "phase", f"{kind}: {text}"
        event = Event(cast(EventKind, kind), step_number(row.get("step")), text, name)
        yield event, row.get("ends") is True
