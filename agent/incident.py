"""The incident folder: what was asked, what was measured, what was concluded.

Every file is written to a temporary name and then renamed, so that a process killed at any moment
leaves either the old file or the new one. Id and times are the only things that chance or the
clock decides.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from firstbad.agent.files import reason_of, write_atomic
from firstbad.agent.home import incidents_folder
from firstbad.tools.errors import UserError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

SCHEMA = 1
WAIVER_KEYS = {"layer", "reason"}
LATER = {"reading", "not_understood", "replays", "judge", "code"}
"""Fields that older records lack."""
JUDGE_KEYS = {"command", "batch_seconds", "seconds"}
_LETTERS = "23456789abcdefghjkmnpqrstuvwxyz"
"""No 0, o, 1, l, i: ids are read aloud and typed."""


@dataclass(frozen=True)
class IncidentRecord:
    """`incident.json`: what was asked and what the process decided on the way."""

    id: str
    run: str
    """The run, normalised by its reader and with an absolute path; memos and commands show it."""
    run_at: str
    """The same run, wherever the next process is started."""
    framework: str
    complaint: str
    noticed_step: int | None
    symptoms: tuple[str, ...]
    playbook: Mapping[str, str]
    """Name, digest and path."""
    created: str
    """UTC, ISO 8601."""
    versions: Mapping[str, str]
    waivers: tuple[Mapping[str, str], ...] = ()
    refusals: tuple[Mapping[str, Any], ...] = ()
    """What was not read, or a tool that was not run, and the layer that closed the way."""
    replays: tuple[str, ...] = ()
    """Further runs of the same job, wherever the next process is started."""
    reading: tuple[Mapping[str, str], ...] = ()
    """`code` and `text` of what was noticed while the run was opened."""
    not_understood: tuple[str, ...] = ()
    """Statements of the complaint of which nothing was understood."""
    judge: Mapping[str, Any] = field(default_factory=dict)
    """Command and time limits of the judge that was given; empty without one."""
    code: str = ""
    """Path of the loss code that was given, wherever the next process is started; empty without."""
    recorded: bool = False
    """A flight recorder kept steps of the run."""
    schema: int = SCHEMA


@dataclass(frozen=True)
class Incident:
    """One incident folder."""

    folder: Path
    under_home: bool = field(default=False, compare=False)

    @property
    def id(self) -> str:
        """The folder's name."""
        return self.folder.name

    @property
    def handle(self) -> str:
        """What a person types to name it: the id, or the path where it lies elsewhere."""
        return self.id if self.under_home else str(self.folder)

    @property
    def graph_file(self) -> Path:
        """Database of the graph's checkpoints."""
        return self.folder / "graph.sqlite"

    @property
    def verdict_file(self) -> Path:
        """The verdict, once there is one."""
        return self.folder / "verdict.json"

    @property
    def markdown_file(self) -> Path:
        """The memo for people and pull requests."""
        return self.folder / "memo.md"

    @property
    def html_file(self) -> Path:
        """The memo as one self-contained page."""
        return self.folder / "memo.html"

    @property
    def evidence_folder(self) -> Path:
        """One file per piece of evidence."""
        return self.folder / "evidence"

    def record(self) -> IncidentRecord:
        """What `incident.json` says.

        Raises:
            UserError: the file is not there, or this firstbad does not know its form.
        """
        path = self.folder / "incident.json"
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(f"`{self.folder}` holds no readable incident.json: {error}") from error
        if not isinstance(raw, dict) or raw.get("schema") != SCHEMA:
            schema = raw.get("schema") if isinstance(raw, dict) else raw
            raise UserError(f"`{path}`: expected schema {SCHEMA}, found {schema}")
        names = {f.name for f in fields(IncidentRecord)}
        if not names - LATER <= set(raw) <= names:
            raise UserError(f"`{path}`: keys differ: {', '.join(sorted(set(raw) ^ names))}")
        from pydantic import ValidationError

        try:
            record = _form().validate_python(raw)
        except ValidationError as error:
            wrong = ", ".join(sorted({f"`{e['loc'][0]}`" for e in error.errors()}))
            raise UserError(f"`{path}`: not of the expected form at {wrong}") from error
        judge = [record.judge] if record.judge else []
        whole = {"playbook": [record.playbook], "waivers": record.waivers, "judge": judge}
        for name, keys in (
            ("playbook", {"name", "digest", "path"}),
            ("waivers", WAIVER_KEYS),
            ("judge", JUDGE_KEYS),
        ):
            if any(not keys <= set(part) for part in whole[name]):
                raise UserError(f"`{path}`: not of the expected form at `{name}`")
        return record

    def change(self, **changes: Any) -> IncidentRecord:
        """Write `incident.json` with some fields changed."""
        record = replace(self.record(), **changes)
        write_atomic(self.folder / "incident.json", _json(asdict(record)))
        return record

    def log(self, kind: str, **what: Any) -> None:
        """Append one line to `events.jsonl`: the history of the work, with times."""
        line = json.dumps({"time": _now(), "kind": kind, **what}, ensure_ascii=True)
        path = self.folder / "events.jsonl"
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:
            raise UserError(f"`{path}` cannot be written: {error.strerror}") from error

    def evidence_ids(self) -> tuple[str, ...]:
        """Ids of the saved evidence, in the order in which they were given.

        An empty file, as a power failure leaves, is none.
        """
        names = (p.stem for p in self.evidence_folder.glob("E*.json") if p.stat().st_size)
        return tuple(sorted(names, key=lambda name: (len(name), name)))

    def evidence_text(self, evidence_id: str) -> str:
        """The saved record of one piece of evidence."""
        path = self.evidence_folder / f"{evidence_id}.json"
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise UserError(f"`{path}` cannot be read: {error}") from error

    def remove_damaged(self) -> tuple[str, ...]:
        """Remove evidence that is no JSON, as a crash leaves it: cut short, or filled with NUL.

        It can be measured again from the run. What is JSON and no record of evidence was changed by
        somebody: it stays, and is refused where it is read. Returns the ids of what was removed.
        """
        removed = []
        for evidence_id in self.evidence_ids():
            path = self.evidence_folder / f"{evidence_id}.json"
            try:
                json.loads(path.read_bytes())
            except ValueError:
                path.unlink()
                removed.append(evidence_id)
            except (OSError, RecursionError):  # no crash leaves that
                continue
        if removed:
            self.log("damaged", evidence=removed)
        return tuple(removed)

    def save_evidence(self, evidence_id: str, text: str) -> None:
        """Write one piece of evidence.

        There are a hundred of them, and each can be measured again: none waits for the disk.
        """
        write_atomic(self.evidence_folder / f"{evidence_id}.json", text, flush=False)

    def _lock_file(self) -> TextIO:
        path = self.folder / "lock"
        try:
            return path.open("a+", encoding="utf-8")
        except OSError as error:
            raise UserError(f"`{path}` can't be written: {reason_of(error)}") from error

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes off this incident while it is worked on.

        Raises:
            UserError: another process holds it.
        """
        import fcntl

        with self._lock_file() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                file.seek(0)
                holder = file.read().strip() or "unknown"
                raise UserError(
                    f"incident `{self.id}` is being worked on by process {holder}; "
                    "wait for it, or stop it, then resume"
                ) from error
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            try:
                yield
            finally:
                file.truncate(0)


@cache
def _form() -> TypeAdapter[IncidentRecord]:
    """What a record must look like."""
    from pydantic import TypeAdapter

    return TypeAdapter(IncidentRecord)


def create(record_without_id: Mapping[str, Any], out: Path | None = None) -> Incident:
    """Make a new incident folder; it appears under its name with `incident.json` inside.

    Raises:
        UserError: the folder can't be written to.
    """
    parent = incidents_folder(out)
    try:
        parent.mkdir(parents=True, exist_ok=True)
        while True:
            now = datetime.now(UTC)
            tail = "".join(secrets.choice(_LETTERS) for _ in range(4))
            name = f"{now:%Y%m%d-%H%M%S}-{tail}"
            folder, draft = parent / name, parent / f".{name}"
            record = IncidentRecord(
                id=name, created=now.isoformat(timespec="seconds"), **record_without_id
            )
            try:
                draft.mkdir()
            except FileExistsError:
                continue
            (draft / "evidence").mkdir()
            write_atomic(draft / "incident.json", _json(asdict(record)))
            draft.rename(folder)
            return Incident(folder, under_home=out is None)
    except OSError as error:
        raise UserError(
            f"incidents can't be written to `{parent}`: {reason_of(error)}; "
            "set FIRSTBAD_HOME or give --out"
        ) from error


def find(id_or_folder: str, out: Path | None = None) -> Incident:
    """The incident of an id (in the home folder, or in `out`), of its beginning, or of a folder.

    Raises:
        UserError: there is none, or several begin so; the text names some.
    """
    parent = incidents_folder(out)
    named = parent / id_or_folder
    if "/" not in id_or_folder and (named / "incident.json").is_file():
        return Incident(named, under_home=out is None)
    folder = Path(id_or_folder).expanduser()
    if (folder / "incident.json").is_file():
        folder = folder.resolve()
        return Incident(folder, under_home=folder.parent == incidents_folder().resolve())
    there_are = listing(out)
    begin_so = [i for i in there_are if id_or_folder and i.id.startswith(id_or_folder)]
    if len(begin_so) == 1:
        return begin_so[0]
    if begin_so:
        names = ", ".join(i.id for i in begin_so[-5:])
        several = f"{len(begin_so)} incidents begin with `{id_or_folder}`"
        raise UserError(f"{several}: {names if len(begin_so) < 6 else '..., ' + names}")
    newest = [i.id for i in there_are][-3:]
    there = f"the newest are {', '.join(newest)}" if newest else "there are none yet"
    raise UserError(f"no incident `{id_or_folder}` in `{parent}`; {there}")


def listing(out: Path | None = None) -> Sequence[Incident]:
    """All incidents, oldest first."""
    parent = incidents_folder(out)
    if not parent.is_dir():
        return ()
    folders = sorted(p for p in parent.iterdir() if (p / "incident.json").is_file())
    return [Incident(p, under_home=out is None) for p in folders if not p.name.startswith(".")]


def _json(value: Any) -> str:
    """JSON that people can read; a path that is not UTF-8 is escaped and comes back as it was."""
    text = json.dumps(value, indent=1, ensure_ascii=False) + "\n"
    return re.sub("[\ud800-\udfff]", lambda c: f"\\u{ord(c[0]):04x}", text)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
