"""Investigate a run: one call for the command line, services and tests alike."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from firstbad import __version__
from firstbad.agent import incident as incidents
from firstbad.agent.code import as_kept
from firstbad.agent.complaint import read_complaint
from firstbad.agent.garbage import rarely_collected
from firstbad.agent.graph import build, steps_allowed
from firstbad.agent.incident import Incident, IncidentRecord
from firstbad.agent.judge import JudgeOrder, check_order, check_resumed
from firstbad.agent.nodes import Nodes
from firstbad.agent.progress import OnProgress, Progress, silent
from firstbad.agent.reading import playbook_of, verdict_of, waivers_in
from firstbad.agent.remarks import remarks
from firstbad.agent.runs import absolute, open_ref
from firstbad.agent.state import GRAPH_VERSION, fresh
from firstbad.agent.versions import versions
from firstbad.agent.waive import check_waivers, merged
from firstbad.playbooks.loader import load, shipped
from firstbad.playbooks.results import Verdict, Waiver
from firstbad.tools.errors import Stopped, UserError
from firstbad.tools.run import Run


@dataclass(frozen=True)
class Finished:
    """An investigation with its verdict and where its files lie."""

    incident: Incident
    verdict: Verdict


@dataclass(frozen=True)
class Waiting:
    """An investigation that waits for a person: resume it with an answer."""

    incident: Incident
    question: Mapping[str, Any]
    """`layer`, `reason`, and `requests` of `need`, `command`, `decides`."""


@rarely_collected()
def investigate(
    ref: str | None = None,
    complaint: str = "",
    *,
    replays: Sequence[str] = (),
    step: int | None = None,
    waivers: Sequence[Waiver] = (),
    out: Path | None = None,
    resume: str | None = None,
    playbook: str | None = None,
    interactive: bool = False,
    answer: Mapping[str, Any] | None = None,
    judge: JudgeOrder | None = None,
    code: str | None = None,
    on_progress: OnProgress = silent,
) -> Finished | Waiting:
    """Walk a playbook over a run, or go on with an incident.

    Args:
        ref: the run, as a path or URI; None with `resume`.
        complaint: what the person noticed, in their words.
        replays: further runs of the same job, to see whether they fail at the same place.
        step: the step they noticed it at; wins over the text.
        waivers: layers to go past although they have not passed.
        out: folder to put the incident folder into; default: under the home folder.
        resume: id or folder of an incident to go on with, or to walk again with more waivers.
        playbook: shipped name or path; default: `crash`. An incident keeps the one it began with.
        interactive: stop with a question where the way would close for want of evidence.
        answer: to the question an incident waits with: `{"waive": reason}` or `{"continue": True}`.
        judge: a command of the user's that scores rollouts, asked once before the walk; with
            `resume` the one that the incident began with, which a folder from elsewhere may only
            name.
        code: file or folder of loss code, which is read and never executed; an incident keeps the
            one it began with.
        on_progress: is told what happens.

    Raises:
        UserError: something that the person can fix.
        Stopped: interrupted from the keyboard; everything measured is kept.
    """
    if resume is None:
        if ref is None:
            raise UserError("which run? Give its folder or file: firstbad investigate RUN")
        kept = playbook or "crash"
        incident, run = _begin(ref, replays, complaint, step, waivers, out, kept, judge, code)
    else:
        if ref is not None or replays or complaint or step is not None:
            raise UserError("--resume goes on with what was asked; give no run, complaint or step")
        if playbook is not None:
            raise UserError(
                "--resume keeps the playbook that the incident began with; give no --playbook, "
                "or begin anew with the run"
            )
        if code is not None:
            raise UserError("--resume keeps the code that the incident began with; begin anew")
        incident, run = incidents.find(resume, out), None
        check_resumed(incident, judge)
    with incident.lock(), stoppable(incident):
        if resume is not None:
            _add_waivers(incident, waivers)
            incident.log("resumed")
            _remove_damaged(incident, on_progress)
        return _walk(incident, run, interactive, answer, on_progress)


def _begin(
    ref: str,
    replays: Sequence[str],
    complaint: str,
    step: int | None,
    waivers: Sequence[Waiver],
    out: Path | None,
    playbook: str,
    judge: JudgeOrder | None,
    code: str | None,
) -> tuple[Incident, Run]:
    """Open the run and make the incident folder; nothing is written when the run can't be read."""
    loaded = load(playbook)
    check_waivers(waivers, loaded)
    run = open_ref(ref, replays=replays)
    if judge is not None:
        check_order(judge, run)
    kept_code = "" if code is None else as_kept(code)
    said = read_complaint(complaint, step)
    lasting = playbook if playbook in shipped() else str(Path(playbook).resolve())
    incident = incidents.create(
        {
            "run": absolute(run.ref).encode("utf-8", "backslashreplace").decode("utf-8"),
            "run_at": absolute(ref),
            "replays": [absolute(other) for other in replays],
            "framework": run.framework,
            "recorded": bool(run.flight.steps),
            "complaint": said.raw,
            "noticed_step": said.noticed_step,
            "symptoms": said.symptoms,
            "not_understood": said.not_understood,
            "playbook": {
                "name": loaded.ref.name,
                "digest": loaded.ref.digest,
                "path": lasting,
            },
            "versions": versions(),
            "waivers": [w.model_dump() for w in waivers],
            "reading": [asdict(r) for r in remarks(run, ref, absolute(run.ref))],
            "judge": {} if judge is None else asdict(judge),
            "code": kept_code,
        },
        out,
    )
    incident.log("started")
    return incident, run


def _add_waivers(incident: Incident, waivers: Sequence[Waiver]) -> None:
    """Keep waivers given on resuming; they lead to a new walk over the same evidence."""
    if not waivers:
        return
    loaded = playbook_of(incident.record())
    verdict = verdict_of(incident)
    check_waivers(waivers, loaded, {r.id: r for r in verdict.layers} if verdict else None)
    old = waivers_in(incident.record())
    incident.change(waivers=[w.model_dump() for w in merged(old, waivers)])
    for waiver in waivers:
        incident.log("waiver", layer=waiver.layer, reason=waiver.reason)


def _remove_damaged(incident: Incident, tell: OnProgress) -> None:
    """Evidence that a crash cut short is measured again; one line says so."""
    if removed := incident.remove_damaged():
        named = ", ".join(removed[:3]) + (", ..." if len(removed) > 3 else "")
        what = f"evidence that a crash left half written ({named}) is measured again"
        tell(Progress("repaired", what))


def _walk(
    incident: Incident,
    run: Run | None,
    interactive: bool,
    answer: Mapping[str, Any] | None,
    on_progress: OnProgress,
) -> Finished | Waiting:
    """Run the graph from where the incident stands to its end, or to a question."""
    from langgraph.checkpoint.sqlite import SqliteSaver
    from langgraph.types import Command

    record = incident.record()
    loaded = playbook_of(record)
    check_waivers(waivers_in(record), loaded)
    nodes = Nodes(incident, record, loaded, on_progress, interactive, run)
    config: Any = {
        "configurable": {"thread_id": incident.id},
        "recursion_limit": steps_allowed(len(loaded.playbook.layers)),
    }
    with _graph_file(incident) as connection:
        graph = build(nodes, SqliteSaver(connection))
        given: Any = None  # go on from the last checkpoint
        found = graph.get_state(config)
        _check_version(found.values, record)
        walked = found.values.get("waivers") == list(record.waivers)
        # Where a power failure took evidence, the walk begins anew over what is there.
        lost = {*found.values.get("aliases", {}).values()} - {*incident.evidence_ids()}
        if not found.values or lost or not walked or not (found.next or _has_files(incident)):
            given = fresh(waivers_in(record))
        elif found.interrupts and answer is None and interactive:
            return Waiting(incident, found.interrupts[0].value)
        elif found.interrupts:
            given = Command(resume=dict(answer or {"continue": True}))
        if given is not None or found.next:
            for _ in graph.stream(given, config, durability="sync", stream_mode="updates"):
                pass
            found = graph.get_state(config)
        if found.interrupts:
            return Waiting(incident, found.interrupts[0].value)
    verdict = verdict_of(incident)
    if verdict is None:
        raise RuntimeError("the graph ended without a verdict")
    return Finished(incident, verdict)


@contextmanager
def _graph_file(incident: Incident) -> Iterator[sqlite3.Connection]:
    """The database of the graph's checkpoints.

    Raises:
        UserError: it is damaged, can't be opened, or has no room to grow.
    """
    try:
        with closing(sqlite3.connect(incident.graph_file, check_same_thread=False)) as connection:
            connection.execute("PRAGMA synchronous=NORMAL")  # a killed process loses nothing
            yield connection
    except sqlite3.Error as error:
        what = "make room" if "full" in str(error) or "I/O" in str(error) else "remove it"
        raise UserError(
            f"`{incident.graph_file}` can't be used: {error}; {what}, then go on with: "
            f"firstbad investigate --resume {incident.handle}"
        ) from error


def _check_version(values: Mapping[str, Any], record: IncidentRecord) -> None:
    """An incident that another graph began can't go on in this one."""
    began = values.get("graph_version", GRAPH_VERSION)
    if began != GRAPH_VERSION:
        raise UserError(
            f"incident `{record.id}` was begun by graph version {began}, this firstbad "
            f"{__version__} has {GRAPH_VERSION}; begin anew: firstbad investigate {record.run}"
        )


def _has_files(incident: Incident) -> bool:
    return incident.verdict_file.is_file() and incident.markdown_file.is_file()


@contextmanager
def stoppable(incident: Incident) -> Iterator[None]:
    """An interrupt from the keyboard becomes a line that says how to go on."""
    try:
        yield
    except KeyboardInterrupt as stop:
        incident.log("stopped")
        raise Stopped(
            "stopped; what was measured is kept. Go on with: "
            f"firstbad investigate --resume {incident.handle}"
        ) from stop
