"""What firstbad-recorder kept beside metrics and events: format version 1 of recorder/FORMAT.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from itertools import chain
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

from firstbad.tools.errors import UserError
from firstbad.tools.flight import (
    Clamp,
    FirstToken,
    Flight,
    FlightStep,
    Microbatch,
    NonFinite,
    Norms,
    ParameterGroup,
    Probe,
    Process,
    Stages,
    Sync,
    SyncedTensor,
    Trail,
)
from firstbad.tools.flight import (
    Kept as HowKept,
)
from firstbad.tools.paths import File, Root
from firstbad.tools.readers.answers import Answers
from firstbad.tools.readers.certificate import read_certificate
from firstbad.tools.readers.config import visible
from firstbad.tools.readers.jsonish import decode, lines, parse_object
from firstbad.tools.readers.log import step_number
from firstbad.tools.readers.ragged import read_ragged
from firstbad.tools.readers.ranks import ByRank, in_ranks, joined, own_files, steps_of
from firstbad.tools.readers.record import Record
from firstbad.tools.readers.repeats import Repeats
from firstbad.tools.readers.rollout_rows import batch_of
from firstbad.tools.readers.rows import Row, rollout_rows
from firstbad.tools.readers.texts import as_text
from firstbad.tools.run import TOOL, Capture, Captures, RolloutBatch, Rollouts

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
_ALIKE = 1e-3
"""Distance of two advantages that are one, relative to their size; tables may round."""
_T = TypeVar("_T")


@dataclass
class Kept:
    """What lies in the record folder of a run."""

    flight: Flight = field(default_factory=Flight)
    rollouts: Rollouts | None = None
    rows: Rollouts | None = None
    """Of captured steps, as their token arrays have them."""
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
    steps, held = steps_of(root, record.folder)
    kept.files |= own_files(root, record.folder)
    ranks = {*record.ranks, *(rank for files in steps.values() for rank in files)}
    _say_what_ranks_lack(root, ranks, steps)
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
    file = root.first(record.folder + "certificate.json")
    certificate = None if file is None else read_certificate(root, file, about)
    if file is not None:
        kept.files.add(file.name)
        sources.append(file)
    kept.flight = Flight(
        list(steps),
        lambda step: _flight_step(root, step, steps[step], ranks, is_held=step in held),
        syncs=sorted(syncs, key=lambda s: s.step),
        probes=probes,
        certificate=certificate,
        requested=_object(about, "requested"),
        versions={k: as_text(v) for k, v in _object(about, "versions").items()},
        device=_device(about),
        environment=_environment(about),
        processes=[
            Process(step, _device(said), _environment(said))
            for step, said in record.processes
            if said is about or step is not None
        ],
        sources=lambda step: [
            root.source(f, "record") for files in steps[step].values() for f in files.values()
        ],
        run_sources=[root.source(file, "record") for file in sources],
    )
    if rows := _with(steps, "rollouts.jsonl"):
        kept.rows = kept.rollouts = _rollouts(root, rows, group_size, answers)
    if generated := _with(steps, "generated.jsonl"):
        whole = {step: {**files, **generated.get(step, {})} for step, files in rows.items()}
        kept.rollouts = _rollouts(root, whole, group_size, answers)
    if tokens := _with(steps, "tokens.safetensors"):
        kept.captures = Captures(
            list(tokens),
            lambda step: joined(
                [_capture(root, step, f, steps[step][r]) for r, f in tokens[step].items()]
            ),
            sources=lambda step: [root.source(file, "capture") for file in tokens[step].values()],
        )
    return kept


def _rollouts(
    root: Root, rows: Mapping[int, Mapping[int, File]], group_size: int | None, answers: Answers
) -> Rollouts:
    """From the files of each step, by rank."""
    return Rollouts(
        list(rows),
        Repeats(
            list(rows),
            lambda wanted: (_batch(root, s, rows[s], group_size, answers) for s in wanted),
        ).load,
        sources=lambda step: [root.source(file, "rollouts") for file in rows[step].values()],
        answers=lambda: answers.sources,
    )


def set_aside_abandoned(
    root: Root,
    kept: Kept,
    resumes: Sequence[tuple[int, float]],
    clock: Mapping[int, float],
) -> None:
    """Leave out steps of a process that died, where a later one made them again.

    What it kept of them is of other weights than the metrics, which the later one wrote.

    Args:
        root: Notes what was left out.
        kept: The record; changed.
        resumes: First step of each later process, and when it was made.
        clock: When each step was logged, the last time.
    """
    left = {
        step
        for first, began in resumes
        for step in kept.flight.steps
        if step >= first and clock.get(step, 0.0) >= began > (kept.flight.at(step).time or began)
    }
    kept.flight.asked.clear()
    if not left:
        return
    kept.flight.steps = tuple(s for s in kept.flight.steps if s not in left)
    for part in (kept.rollouts, kept.rows, kept.captures):
        if part is not None:
            part.steps = np.array([s for s in part.steps.tolist() if s not in left], np.int64)
    named = ", ".join(map(str, sorted(left)[:10])) + (", ..." if len(left) > 10 else "")
    root.note(
        "abandoned",
        f"kept steps left out, since a later process made them again from a checkpoint: {named}",
    )


def _device(said: Mapping[str, Any]) -> str | None:
    return as_text(said["device"]) if isinstance(said.get("device"), str) else None


def _environment(said: Mapping[str, Any]) -> dict[str, str]:
    return {k: as_text(v) for k, v in visible(_object(said, "environment")).items()}


def _with(steps: Mapping[int, ByRank], name: str) -> dict[int, dict[int, File]]:
    """By step and rank: files of that name."""
    found = {step: dict(in_ranks(files, name)) for step, files in steps.items()}
    return {step: files for step, files in found.items() if files}


def _say_what_ranks_lack(root: Root, ranks: set[int], steps: Mapping[int, ByRank]) -> None:
    for rank in sorted(ranks):
        lacks = [step for step, files in steps.items() if rank not in files]
        if lacks and len(ranks) > 1:
            which = f"{len(lacks)} of {len(steps)} captured steps, the first is {lacks[0]}"
            root.note("rank_lacks", f"rank {rank} did not keep {which}")


def _batch(
    root: Root, step: int, files: Mapping[int, File], group_size: int | None, answers: Answers
) -> RolloutBatch:
    rows: list[Row] = []
    for rank, file in files.items():
        try:
            of_rank = list(rollout_rows(root, file))
        except UserError as error:
            root.note("file_skipped", str(error))
            continue
        rows += of_rank if len(files) == 1 else [{"rank": rank, **row} for row in of_rank]
    return answers.beside(batch_of(root, step, rows, group_size))


def _capture(root: Root, step: int, file: File, files: Mapping[str, File]) -> Capture:
    capture = read_ragged(step, file)
    said = _json(root, files.get("step.json")).get("compute_dtypes")
    computed = {k: as_text(v) for k, v in said.items()} if isinstance(said, dict) else {}
    return Capture(
        step, capture.arrays, capture.storage_dtypes, capture.unmapped, compute_dtypes=computed
    )


def _flight_step(
    root: Root, step: int, by_rank: ByRank, ranks: set[int], *, is_held: bool
) -> FlightStep:
    """What the ranks say of a step: the lowest speaks for all, but for rows and what broke."""
    abouts = {rank: _json(root, files.get("step.json")) for rank, files in by_rank.items()}
    figures = {rank: _json(root, files.get("numerics.json")) for rank, files in by_rank.items()}
    about, numerics = next(iter(abouts.values())), next(iter(figures.values()))
    trails = {rank: _all(Trail, said.get("trail")) for rank, said in figures.items()}
    # Excluded tokens are -Inf on all ranks, and a gradient carries NaN to all: where it began, more
    # tensors on the way have it.
    broken = {rank: sum(bool(t.n_nonfinite) for t in trail) for rank, trail in trails.items()}
    trail_rank = max(broken, key=lambda rank: (broken[rank], -rank))
    plain = typed(FlightStep, {**about, "step": step})
    values = {f.name: getattr(plain, f.name) for f in fields(FlightStep)}
    if is_held:
        values["kept"] = "ring"
    elif values["kept"] is None:  # what one rank kept a step for, another may not know
        other = next(
            (said for said in abouts.values() if said.get("kept") in get_args(HowKept)), about
        )
        plain = typed(FlightStep, {**other, "step": step})
        values |= {"kept": plain.kept, "why": plain.why}
    if len(ranks) > 1:
        for name in ("whole_groups", "in_order"):
            if any(said.get(name) is False for said in abouts.values()):
                values[name] = False
            elif ranks - by_rank.keys():  # some rows are not here
                values[name] = None
    stages = [said for a in abouts.values() if isinstance(said := a.get("stages"), dict)]
    values |= {
        "seeds": _object(about, "seeds"),
        "compute_dtypes": {k: as_text(v) for k, v in _object(about, "compute_dtypes").items()},
        "stages": _in_turn([typed(Stages, said) for said in stages]),
        "microbatches": tuple(_microbatches(root, by_rank)),
        "trail": trails[trail_rank],
        "trail_rank": trail_rank,
        "first_nonfinite": typed(NonFinite, _object(numerics, "first_nonfinite")),
        "clamps": _all(Clamp, numerics.get("clamps")),
        "norms": _all(Norms, numerics.get("norms")),
        "parameters": _all(ParameterGroup, numerics.get("parameters")),
    }
    return FlightStep(**values)


def _in_turn(stages: Sequence[Stages]) -> Stages:
    """Names of the samples of all ranks, in their order."""
    return Stages(
        *(tuple(chain.from_iterable(getattr(s, f.name) for s in stages)) for f in fields(Stages))
    )


def _microbatches(root: Root, by_rank: ByRank) -> Iterator[Microbatch]:
    for rank, file in in_ranks(by_rank, "microbatches.jsonl"):
        for found in _all(Microbatch, list(_rows(root, file))):
            lacks = found.rank is None and len(by_rank) > 1
            yield replace(found, rank=rank) if lacks else found


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
    """Captures of a record and of dumps beside it; where both have a step, the record counts.

    Dumps that do not say where tokens come from are left out where the record knows of tools: what
    these wrote would count as sampled.
    """
    if kept is None:
        return dumps
    if dumps and _has_tools(kept) and not _says_sources(dumps):
        return kept
    own = set(kept.steps.tolist())
    steps = own | set(dumps.steps.tolist())

    def of(step: int) -> Captures:
        return kept if step in own else dumps

    return Captures(
        sorted(steps), lambda s: of(s).at(s), sources=lambda s: of(s).sources(s), keep_bytes=0
    )


def _has_tools(kept: Captures) -> bool:
    first = next(iter(kept), None)
    source = None if first is None else first.arrays.get("source")
    return source is not None and bool((source == TOOL).any())


def _says_sources(dumps: Captures) -> bool:
    first = next(iter(dumps), None)
    return first is not None and "source" in first.arrays


def _same_rows(one: RolloutBatch, other: RolloutBatch) -> bool:
    """Whether they hold the same rows, in whatever order."""
    if len(one) != len(other):
        return False
    if one.advantage is None or other.advantage is None:
        return sorted(one.completions) == sorted(other.completions)
    pair = np.sort(one.advantage), np.sort(other.advantage)
    return bool(np.allclose(*pair, rtol=_ALIKE, atol=_ALIKE, equal_nan=True))


def joined_rollouts(kept: Rollouts | None, others: Rollouts) -> Rollouts:
    """Rollouts of a record and of other files; where both have a step, the record counts.

    Unless its rows are others: a step may train a part of a generation batch, or several.
    """
    if kept is None or not others:
        return kept or others
    own = set(kept.steps.tolist())
    steps = own | set(others.steps.tolist())

    shared = own & set(others.steps.tolist())

    def load(wanted: Sequence[int]) -> Iterator[RolloutBatch]:
        for step in wanted:
            batch = (kept if step in own else others).batch(step)
            if step in shared:
                other = others.batch(step)
                same = _same_rows(batch, other)
                # Which steps repeat one batch is told by the source that has them all.
                batch = replace(batch, repeats_step=other.repeats_step) if same else other
            yield batch

    return Rollouts(
        sorted(steps),
        load,
        sources=lambda s: (kept if s in own else others).sources(s),
        answers=others.answers,
    )
