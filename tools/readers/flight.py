"""What firstbad-recorder kept beside metrics and events: format version 1 of recorder/FORMAT.md."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from firstbad.tools.errors import UserError
from firstbad.tools.flight import (
    Clamp,
    FirstToken,
    Flight,
    FlightStep,
    Microbatch,
    Norms,
    ParameterGroup,
    Probe,
    Process,
    Stages,
    Sync,
    SyncedTensor,
    Trail,
)
from firstbad.tools.paths import File, Root
from firstbad.tools.readers.answers import Answers
from firstbad.tools.readers.config import visible
from firstbad.tools.readers.jsonish import decode, lines, parse_object
from firstbad.tools.readers.log import step_number
from firstbad.tools.readers.ragged import read_ragged
from firstbad.tools.readers.record import Record
from firstbad.tools.readers.repeats import Repeats
from firstbad.tools.readers.rollout_rows import batch_of
from firstbad.tools.readers.rows import rollout_rows
from firstbad.tools.readers.texts import as_text
from firstbad.tools.run import Capture, Captures, RolloutBatch, Rollouts

_STEP = re.compile(r"steps/(\d{1,15})/([^/]+)")
_MAX_BYTES = 64 * 2**20
_MAX_ROWS = 100_000
_LARGEST = 1e300
"""Of numbers that are read as such."""
_BLANKS: Mapping[str, object] = {
    "name": "",
    "prompt": "",
    "place": "",
    "trainer": None,
    "engine": None,
}
"""What fields that must be there are when a row lacks them."""
_T = TypeVar("_T")


@dataclass
class Kept:
    """What lies in the record folder of a run."""

    flight: Flight = field(default_factory=Flight)
    rollouts: Rollouts | None = None
    captures: Captures | None = None
    files: set[str] = field(default_factory=set)
    """Files read here, which are no tables of metrics."""


def read_flight(root: Root, record: Record, group_size: int | None, answers: Answers) -> Kept:
    """Read what lies beside the record's `run.json`."""
    kept = Kept()
    about = record.about
    if about is None:
        return kept
    syncs: list[Sync] = []
    probes: list[Probe] = []
    sources: list[File] = []
    steps = _steps_of(root, record.folder)
    kept.files |= {file.name for files in steps.values() for file in files.values()}
    for name in ("syncs.jsonl", "probes.jsonl"):
        file = root.first(record.folder + name)
        if file is None:
            continue
        kept.files.add(file.name)
        sources.append(file)
        for row in _rows(root, file):
            if name == "syncs.jsonl":
                syncs += _sync(row)
            else:
                probes += _probe(row)
    kept.flight = Flight(
        list(steps),
        lambda step: _flight_step(root, step, steps[step]),
        syncs=sorted(syncs, key=lambda s: s.step),
        probes=probes,
        requested=_object(about, "requested"),
        versions={k: as_text(v) for k, v in _object(about, "versions").items()},
        device=_device(about),
        environment=_environment(about),
        processes=[
            Process(step, _device(said), _environment(said))
            for step, said in record.processes
            if said is about or step is not None
        ],
        sources=lambda step: [root.source(f, "record") for f in steps[step].values()],
        run_sources=[root.source(file, "record") for file in sources],
    )
    if rows := {s: f["rollouts.jsonl"] for s, f in steps.items() if "rollouts.jsonl" in f}:
        kept.rollouts = Rollouts(
            list(rows),
            Repeats(
                list(rows),
                lambda wanted: (_batch(root, s, rows[s], group_size, answers) for s in wanted),
            ).load,
            sources=lambda step: [root.source(rows[step], "rollouts")],
            answers=lambda: answers.sources,
        )
    name = "tokens.safetensors"
    if tokens := {s: f[name] for s, f in steps.items() if name in f}:
        kept.captures = Captures(
            list(tokens),
            lambda step: _capture(root, step, tokens[step], steps[step]),
            sources=lambda step: [root.source(tokens[step], "capture")],
        )
    return kept


def _device(said: Mapping[str, Any]) -> str | None:
    return as_text(said["device"]) if isinstance(said.get("device"), str) else None


def _environment(said: Mapping[str, Any]) -> dict[str, str]:
    return {k: as_text(v) for k, v in visible(_object(said, "environment")).items()}


def _steps_of(root: Root, folder: str) -> dict[int, dict[str, File]]:
    """Files of each captured step; what was not finished has another name."""
    found: dict[int, dict[str, File]] = {}
    for file in root.files:
        if file.name.startswith(folder) and (m := _STEP.fullmatch(file.name[len(folder) :])):
            found.setdefault(int(m[1]), {})[m[2]] = file
    return found


def _batch(
    root: Root, step: int, file: File, group_size: int | None, answers: Answers
) -> RolloutBatch:
    try:
        rows = list(rollout_rows(root, file))
    except UserError as error:
        root.note("file_skipped", str(error))
        rows = []
    return answers.beside(batch_of(root, step, rows, group_size))


def _capture(root: Root, step: int, file: File, files: Mapping[str, File]) -> Capture:
    capture = read_ragged(step, file)
    said = _json(root, files.get("step.json")).get("compute_dtypes")
    computed = {k: as_text(v) for k, v in said.items()} if isinstance(said, dict) else {}
    return Capture(
        step, capture.arrays, capture.storage_dtypes, capture.unmapped, compute_dtypes=computed
    )


def _flight_step(root: Root, step: int, files: Mapping[str, File]) -> FlightStep:
    about = _json(root, files.get("step.json"))
    numerics = _json(root, files.get("numerics.json"))
    stages = about.get("stages")
    ledger = files.get("microbatches.jsonl")
    plain = typed(FlightStep, {**about, "step": step})
    values = {f.name: getattr(plain, f.name) for f in fields(FlightStep)}
    values |= {
        "seeds": _object(about, "seeds"),
        "compute_dtypes": {k: as_text(v) for k, v in _object(about, "compute_dtypes").items()},
        "stages": typed(Stages, stages) if isinstance(stages, dict) else Stages(),
        "microbatches": _all(Microbatch, [] if ledger is None else list(_rows(root, ledger))),
        "trail": _all(Trail, numerics.get("trail")),
        "clamps": _all(Clamp, numerics.get("clamps")),
        "norms": _all(Norms, numerics.get("norms")),
        "parameters": _all(ParameterGroup, numerics.get("parameters")),
    }
    return FlightStep(**values)


def _sync(row: Mapping[str, Any]) -> Iterator[Sync]:
    if (step := step_number(row.get("step"))) is None:
        return
    plain = typed(Sync, {**row, "step": step})
    lists = {
        "tensors": _all(SyncedTensor, row.get("tensors")),
        "first_tokens": _all(FirstToken, row.get("first_tokens")),
    }
    yield Sync(**{**vars(plain), **lists})


def _probe(row: Mapping[str, Any]) -> Iterator[Probe]:
    step, kind = step_number(row.get("step")), row.get("probe")
    if step is not None and isinstance(kind, str):
        figures = {k: v for k, v in row.items() if k not in ("step", "time", "probe")}
        yield Probe(step, kind, figures)


def typed(kind: Callable[..., _T], row: Mapping[str, Any]) -> _T:
    """A record from the fields of a row that have its types; others are as if not there."""
    hints = _hints(kind)
    found = {
        name: value
        for name, hint in hints.items()
        if name in row and (value := _as(hint, row[name])) is not None
    }
    for name, blank in _BLANKS.items():
        if name in hints:
            found.setdefault(name, blank)
    return kind(**found)


@cache
def _hints(kind: Callable[..., object]) -> dict[str, Any]:
    return get_type_hints(kind)


@cache
def _origin(hint: Any) -> Any:
    return get_origin(hint)


@cache
def _args(hint: Any) -> tuple[Any, ...]:
    return get_args(hint)


@cache
def _plain(hint: Any) -> Any:
    """The type that a field has unless it is missing; None where it may have several."""
    kinds = [one for one in _args(hint) or (hint,) if one is not NoneType]
    return kinds[0] if len(kinds) == 1 and kinds[0] in (bool, int, float, str) else None


def _as(hint: Any, value: object) -> object:
    """The value where it is of the type asked for, else None."""
    if type(value) is _plain(hint):  # nearly always
        if isinstance(value, (int, float)):
            return value if abs(value) < _LARGEST else None  # NaN is not below it
        return as_text(value)
    if _origin(hint) is Literal:
        return value if value in _args(hint) else None
    if _origin(hint) is tuple:
        if not isinstance(value, list) or _args(hint)[0] is not str:
            return None
        return tuple(as_text(item) for item in value)
    for one in _args(hint) or (hint,):
        if _origin(one) is Literal and value in _args(one):
            return value
        if one is bool and isinstance(value, bool):
            return value
        if isinstance(value, bool):
            continue
        if isinstance(value, (int, float)) and not abs(value) < _LARGEST:  # NaN is not below it
            continue
        if one is int and isinstance(value, (int, float)) and float(value).is_integer():
            return int(value)
        if one is float and isinstance(value, (int, float)):
            return float(value)
        if one is str and isinstance(value, (str, int)):
            return as_text(value)
    return None


def _all(kind: Callable[..., _T], rows: object) -> tuple[_T, ...]:
    if not isinstance(rows, list):
        return ()
    return tuple(typed(kind, row) for row in rows[:_MAX_ROWS] if isinstance(row, dict))


def _object(about: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = about.get(name)
    return dict(value) if isinstance(value, dict) else {}


def _json(root: Root, file: File | None) -> dict[str, Any]:
    data = None if file is None else root.try_read(file, _MAX_BYTES)
    if file is None or data is None:
        return {}
    try:
        return parse_object(data, file.name)
    except UserError as error:
        root.note("file_skipped", str(error))
        return {}


def _rows(root: Root, file: File) -> Iterator[dict[str, Any]]:
    data = root.try_read(file, _MAX_BYTES)
    skipped = 0
    for _, row in () if data is None else lines(decode(data)[0]):
        if row is None:
            skipped += 1
        else:
            yield row
    if skipped:
        root.note("lines_skipped", f"`{file.name}`: {skipped} lines are no JSON objects")


def together(kept: Captures | None, dumps: Captures) -> Captures:
    """Captures of a record and of dumps beside it; where both have a step, the record counts."""
    if kept is None:
        return dumps
    own = set(kept.steps.tolist())
    steps = own | set(dumps.steps.tolist())

    def of(step: int) -> Captures:
        return kept if step in own else dumps

    return Captures(
        sorted(steps), lambda s: of(s).at(s), sources=lambda s: of(s).sources(s), keep_bytes=0
    )


def joined_rollouts(kept: Rollouts | None, others: Rollouts) -> Rollouts:
    """Rollouts of a record and of other files; where both have a step, the record counts."""
    if kept is None or not others:
        return kept or others
    own = set(kept.steps.tolist())
    steps = own | set(others.steps.tolist())

    def load(wanted: Sequence[int]) -> Iterator[RolloutBatch]:
        # Runs of steps from one source are read together, as that source reads best.
        for step in wanted:
            yield (kept if step in own else others).batch(step)

    return Rollouts(
        sorted(steps),
        load,
        sources=lambda s: (kept if s in own else others).sources(s),
        answers=others.answers,
    )
