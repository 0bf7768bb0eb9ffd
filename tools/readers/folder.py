"""A run's folder: every kind of file that is known is read, whatever framework wrote it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from firstbad.tools.errors import UserError
from firstbad.tools.evidence import Source
from firstbad.tools.paths import Root
from firstbad.tools.readers.aliases import UNKNOWN, framework_of
from firstbad.tools.readers.answers import Answers
from firstbad.tools.readers.board import read_board
from firstbad.tools.readers.captures import capture_folders, read_captures
from firstbad.tools.readers.checkpoints import read_checkpoints
from firstbad.tools.readers.completions import read_completions
from firstbad.tools.readers.config import read_config
from firstbad.tools.readers.console import read_console
from firstbad.tools.readers.flight import (
    joined_rollouts,
    read_flight,
    set_aside_abandoned,
    together,
)
from firstbad.tools.readers.history import read_history
from firstbad.tools.readers.launch import read_launch
from firstbad.tools.readers.log import Log
from firstbad.tools.readers.naming import name_signals
from firstbad.tools.readers.record import read_record
from firstbad.tools.readers.settings import with_common_names
from firstbad.tools.readers.shelf import shelve
from firstbad.tools.readers.tables import find_tables, read_metrics
from firstbad.tools.readers.tokenizer import read_vocabulary
from firstbad.tools.readers.training_args import disagreements, read_saved
from firstbad.tools.readers.version import meanings, read_versions
from firstbad.tools.run import Config, Event, Rollouts, Run, nothing

_GROUP_SIZES = (
    "num_generations",
    "actor_rollout_ref.rollout.n",
    "n_samples_per_prompt",
    "grpo.num_generations_per_prompt",
    "num_return_sequences_in_group",
)


def read_folder(root: Root, ref: str, looks_for: str, framework: str = UNKNOWN) -> Run:
    """Read a folder; `framework` is used where no key tells which one wrote it.

    Raises:
        UserError: there is neither a metric nor a rollout nor a capture, or several records.
    """
    board = read_board(root)
    history = read_history(root)
    saved = read_saved(root)
    stated = read_config(root, saved)
    events = [*history.events, *disagreements(saved, stated)]
    config = _completed(board.fill_config(stated), history.settings)
    record = read_record(root)
    config = with_common_names(_completed(config, record.settings))
    config = replace(config, sources=(*config.sources, *record.sources))
    dumps = capture_folders(root)
    answers = Answers(root)
    group_size = next((size for n in _GROUP_SIZES if (size := _whole(config, n))), None)
    kept = read_flight(root, record, group_size, answers)
    tables = find_tables(root, skip=list(dumps), leave=record.files | kept.files)
    logged = read_metrics(root, tables.metrics, clocks=record.metrics)
    set_aside_abandoned(root, kept, record.resumes, logged.clock)
    console = read_console(
        root,
        logging_steps=_whole(config, "logging_steps") or 1,
        max_steps=_whole(config, "max_steps"),
    )
    kinds = [
        ("trainer_state.json", history.log, history.sources),
        ("table files", logged.log, logged.sources),
        ("TensorBoard", board.scalars(), board.sources),
    ]
    if record.about is not None:  # measured where it happens, and at every step
        kinds[:2] = [("the record", *kinds[1][1:]), kinds[0]]
    log, sources = _merged(root, kinds, (console.log, console.sources))
    found = record.framework or framework_of(log.series)
    framework = framework if found == UNKNOWN else found
    versions, version_sources = read_versions(root, kept.flight.versions)
    signals, notes = name_signals(log, framework)
    notes = (*notes, *meanings(log.series, framework, versions, config))

    evaluation = signals.get("eval/reward_mean")
    rollouts, evaluations = read_completions(
        root,
        group_size=group_size,
        reward_names=list(signals.under("reward_part")),
        answers=answers,
        evaluated=() if evaluation is None else evaluation.steps.tolist(),
    )
    rollouts = rollouts or shelve(root, tables.rollouts, group_size, answers)
    rollouts = joined_rollouts(kept.rollouts, rollouts)
    rollouts.grouped_by = config.sources if group_size else ()
    run = Run(
        ref=ref,
        root=root.path,
        framework=framework,
        signals=signals,
        config=config,
        rollouts=rollouts,
        evaluations=evaluations,
        captured_rows=kept.rows or Rollouts((), nothing),
        captures=together(kept.captures, read_captures(root, dumps)),
        checkpoints=read_checkpoints(root, history.global_steps),
        events=_in_order(
            [*events, *record.events, *logged.events, *console.events, *board.events()]
        ),
        vocabulary=read_vocabulary(root, config),
        sources=sources,
        event_sources=tuple(
            [
                *history.sources,
                *(root.source(s.file, "config") for s in saved),
                *logged.sources,
                *console.looked_through,
                *board.sources,
            ]
        ),
        version=versions.get(framework),
        versions=versions,
        version_sources=(*version_sources, *(record.sources if kept.flight.versions else ())),
        launch=read_launch(root),
        flight=kept.flight,
        notes=notes,
    )
    root.notes_go_to(run)
    if not (log or run.rollouts or run.captures):
        told = "".join(f"; {note.text}" for note in run.notes[:3])
        raise UserError(f"`{root.path}` holds no run; looked for {looks_for}{told}")
    return run


def _merged(
    root: Root,
    kinds: Iterable[tuple[str, Log, list[Source]]],
    printed: tuple[Log, list[Source]],
) -> tuple[Log, tuple[Source, ...]]:
    """The metrics of the best source, and from weaker ones what the better ones lack."""
    log, sources, best, lack = Log(), list[Source](), "", "lacks"
    for name, other, other_sources in kinds:
        taken, keys = log.fill(other.in_keys_of(log))
        if taken:
            sources += other_sources
            if best:
                text = f"{taken:,} values of {len(keys)} keys are from {name}: {best} {lack} them"
                root.note("filled", text)
            best = best or name
            lack = "lack" if best.endswith("files") else "lacks"
    # Printed numbers are rounded: they only serve steps at which no better source has anything.
    taken, keys = log.fill(printed[0].in_keys_of(log), only_new_steps=True)
    if taken:
        sources += printed[1]
        why = f": {best} {lack} these steps" if best else ""
        text = f"{taken:,} values of {len(keys)} keys are from the console log (rounded){why}"
        root.note("filled", text)
    return log, tuple(sources)


def _in_order(events: Iterable[Event]) -> tuple[Event, ...]:
    """By step; what several files say of one resume or one end becomes one event."""
    merged: dict[object, Event] = {}
    for event in events:
        once = event.kind in ("resume", "end")
        key = (event.kind, event.step) if once else len(merged)
        told = merged.get(key)
        if told is None:
            merged[key] = event
        elif event.kind == "resume":
            merged[key] = replace(told, text=f"{told.text}; {event.text}")
    return tuple(sorted(merged.values(), key=lambda e: (e.step is None, e.step or 0)))


def _completed(config: Config, settings: Mapping[str, object]) -> Config:
    """With settings that only the trainer's state repeats."""
    return replace(config, values={**settings, **config.values})


def _whole(config: Config, name: str) -> int | None:
    value = config.number(name)
    return int(value) if value is not None and value.is_integer() and value > 0 else None
