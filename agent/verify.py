"""Verify: recompute every number of an incident from the run's files, and conclude again."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from firstbad.agent.code import with_code
from firstbad.agent.compare import compare_json, compare_lines, count_numbers
from firstbad.agent.evidence_store import full_args, key_of, measure
from firstbad.agent.incident import Incident, IncidentRecord, find
from firstbad.agent.judge import file_of, with_judge
from firstbad.agent.nodes import ask_of
from firstbad.agent.reading import verdict_of, waivers_in
from firstbad.agent.remarks import Remark, remarks
from firstbad.agent.runs import open_ref
from firstbad.agent.trail import Trail, reach_verdict, refusals, walk_all
from firstbad.agent.versions import versions
from firstbad.agent.waive import check_waivers
from firstbad.playbooks.loader import Loaded, load
from firstbad.tools.errors import UserError
from firstbad.tools.evidence import Evidence, Scalar
from firstbad.tools.run import Run


@dataclass(frozen=True)
class Difference:
    """One place where the stored and the recomputed part."""

    place: str
    """Evidence id, or file."""
    field: str
    stored: Any
    recomputed: Any


@dataclass(frozen=True)
class Verification:
    """What verifying found."""

    incident: str
    evidence: int
    numbers: int
    differences: tuple[Difference, ...]
    files: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Files of the run that are not what was measured, each `changed`, `gone` or `new`."""
    versions: Mapping[str, tuple[str, str]] = dataclasses.field(default_factory=dict)
    """Packages whose version is another than when it was measured: then and now."""

    def as_json(self) -> dict[str, Any]:
        """The object that `verify --json` prints."""
        return {
            "schema": 1,
            "incident": self.incident,
            "equal": not self.differences,
            "evidence": self.evidence,
            "numbers": self.numbers,
            "files": dict(self.files),
            "differences": [asdict(d) for d in self.differences],
            "versions": {n: {"stored": old, "now": new} for n, (old, new) in self.versions.items()},
        }


class Recount:
    """Evidence measured anew, under the ids and with the timings of the stored records."""

    def __init__(self, incident: Incident, run: Run) -> None:
        """Measure again what the folder holds."""
        self._run = run
        self.differences: list[Difference] = []
        self.numbers = 0
        self._read: dict[str, str | None] = {}
        """Digest by file, or by first and last of many, as it was and as it is."""
        self._reads: dict[str, str | None] = {}
        self._by_id: dict[str, Evidence] = {}
        self._by_key: dict[tuple[Any, ...], Evidence] = {}
        for evidence_id in incident.evidence_ids():
            self._again(evidence_id, incident.evidence_text(evidence_id))

    def get(self, tool: str, args: Mapping[str, Scalar]) -> Evidence:
        """Evidence of a tool with these settings; what the folder lacks is a difference."""
        full = full_args(tool, args)
        key = key_of(tool, full, "")
        if key not in self._by_key:
            last = max((int(i[1:]) for i in self._by_id), default=0)
            found = measure(self._run, tool, full, f"E{last + 1}")
            self._file(found)
            self.differences.append(
                Difference(found.id, f"{tool} {json.dumps(full)}", None, found.summary)
            )
        return self._by_key[key]

    def by_id(self, evidence_id: str) -> Evidence:
        """Evidence that was got before."""
        return self._by_id[evidence_id]

    @property
    def files(self) -> dict[str, str]:
        """Files that are not what was measured: `changed`, `gone` or `new`."""
        every = dict.fromkeys([*self._read, *self._reads])
        return {
            name: "new" if name not in self._read else "changed" if name in self._reads else "gone"
            for name in every
            if self._read.get(name, "none") != self._reads.get(name, "none")
        }

    def _again(self, evidence_id: str, text: str) -> None:
        try:
            raw = json.loads(text)
            stored = Evidence.model_validate_json(text)
        except ValueError as error:
            self.differences.append(
                Difference(evidence_id, "file", str(error).split("\n")[0], "a record of evidence")
            )
            return
        again = measure(self._run, stored.tool, stored.args, evidence_id)
        again = again.model_copy(
            update={"seconds": stored.seconds, "tool_version": stored.tool_version}
        )
        self._read |= _digests(stored)
        self._reads |= _digests(again)
        self.numbers += count_numbers(raw.get("metrics")) + count_numbers(raw.get("tables"))
        expected = json.loads(again.model_dump_json())
        for field, old, new in compare_json(raw, expected):
            self.differences.append(Difference(evidence_id, field, old, new))
        self._file(again)

    def _file(self, evidence: Evidence) -> None:
        self._by_id[evidence.id] = evidence
        self._by_key[key_of(evidence.tool, evidence.args, "")] = evidence


def _digests(evidence: Evidence) -> dict[str, str | None]:
    """Digest by what was read: a file, or the first and last of many."""
    return {f"{s.ref} to {s.last}" if s.last else s.ref: s.digest for s in evidence.sources}


def verify(id_or_folder: str, *, out: Path | None = None, run: str | None = None) -> Verification:
    """Recompute an incident.

    Args:
        id_or_folder: which incident.
        out: folder of incident folders, when not the home.
        run: where the run lies now, when it was moved.

    Raises:
        UserError: no such incident, it is unfinished, or the run is not there.
    """
    incident = find(id_or_folder, out)
    record = incident.record()
    if not incident.verdict_file.is_file() or not incident.markdown_file.is_file():
        raise UserError(
            f"incident `{incident.id}` is unfinished; go on with: "
            f"firstbad investigate --resume {incident.handle}"
        )
    if record.judge and not file_of(incident).is_file():
        raise UserError(f"`{file_of(incident)}` is gone: what the judge said can't be read again")
    loaded = load(record.playbook["path"])
    opened = with_judge(incident, with_code(record, _opened(incident, record, run)))
    noticed = remarks(opened, run or record.run_at, record.run)
    source = Recount(incident, opened)
    found = [*source.differences]
    source.differences.clear()
    if loaded.ref.digest == record.playbook["digest"]:
        conclusions = list(_conclude_again(incident, record, loaded, opened, source, noticed))
    else:  # other questions and bounds: only the measurements can be compared
        before, now = record.playbook["digest"], loaded.ref.digest
        conclusions = [Difference("playbook", f"{loaded.ref.name}: digest", before, now)]
    return Verification(
        incident=record.id,
        evidence=len(incident.evidence_ids()),
        numbers=source.numbers,
        differences=(*found, *source.differences, *conclusions),
        files=source.files,
        versions={
            name: (str(record.versions.get(name, "unknown")), now)
            for name, now in versions().items()
            if record.versions.get(name) != now
        },
    )


def _opened(incident: Incident, record: IncidentRecord, run: str | None) -> Run:
    """The run of an incident, where it lies now.

    Raises:
        UserError: it can't be read there; the text says how to name another place.
    """
    try:
        return open_ref(run or record.run_at, shown=record.run, replays=record.replays)
    except UserError as error:
        if run is not None:
            raise
        raise UserError(
            f"{error}; if the run was moved: firstbad verify {incident.handle} --run RUN"
        ) from error


def _conclude_again(
    incident: Incident,
    record: IncidentRecord,
    loaded: Loaded,
    run: Run,
    source: Recount,
    noticed: Sequence[Remark],
) -> Iterator[Difference]:
    """Walk, judge, conclude and write again; differences in the verdict and in the memo."""
    from firstbad.agent.memo.build import build_memo

    waivers = waivers_in(record)
    check_waivers(waivers, loaded)
    trail = Trail()
    step, symptoms = record.noticed_step, record.symptoms
    walk_all(loaded, loaded.playbook.layers, trail, source, step, symptoms, waivers)
    verdict = reach_verdict(
        loaded,
        ask_of(record),
        trail,
        source,
        waivers=waivers,
        checkpoint_steps=[c.step for c in run.checkpoints],
        versions=record.versions,
    )
    try:
        stored = json.loads(incident.verdict_file.read_text(encoding="utf-8"))
        verdict_of(incident)
    except (ValueError, UserError) as error:
        yield Difference("verdict.json", "file", str(error).split("\n")[0], "a verdict")
    else:
        for field, old, new in compare_json(stored, json.loads(verdict.model_dump_json())):
            yield Difference("verdict.json", field, old, new)
    blocked = [r for r in record.refusals if "tool" not in r]
    for field, old, new in compare_json(blocked, refusals(loaded, trail)):
        yield Difference("incident.json", f"refusals{field}", old, new)
    evidence = {i: source.by_id(i) for i in trail.evidence_ids()}
    memo = build_memo(verdict, evidence, run, loaded, noticed)
    for path, text in ((incident.markdown_file, memo.markdown), (incident.html_file, memo.html)):
        written = path.read_bytes().decode("utf-8", "replace") if path.is_file() else ""
        for line, old, new in compare_lines(written, text):
            told = (None, None) if path == incident.html_file else (old, new)  # HTML is no text
            yield Difference(path.name, f"line {line}", *told)
