"""The evidence of one incident: each (tool, arguments, version) is measured once, then read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from pydantic import ValidationError

from firstbad import __version__
from firstbad.agent.incident import Incident
from firstbad.agent.listing import bounded
from firstbad.agent.progress import OnProgress, Progress, silent
from firstbad.agent.reading import saved_evidence
from firstbad.tools.errors import ToolInputError
from firstbad.tools.evidence import Evidence, Scalar
from firstbad.tools.registry import find_tool, run_tool
from firstbad.tools.run import Run

Key = tuple[str, tuple[tuple[str, str], ...], str]


class EvidenceSource(Protocol):
    """Where a walk gets its evidence from."""

    def get(self, tool: str, args: Mapping[str, Scalar]) -> Evidence:
        """Evidence of a tool with these settings, measured now or before."""

    def by_id(self, evidence_id: str) -> Evidence:
        """Evidence that was got before."""


class EvidenceStore:
    """Evidence in an incident folder; what is new is saved before it is handed out."""

    def __init__(self, incident: Incident, run: Run, tell: OnProgress = silent) -> None:
        """Read what the folder holds."""
        self._incident = incident
        self._run = run
        self._tell = tell
        self._by_id = {e.id: e for e in saved_evidence(incident)}
        self._by_key = {key_of(e.tool, e.args, e.tool_version): e for e in self._by_id.values()}

    def get(self, tool: str, args: Mapping[str, Scalar]) -> Evidence:
        """Evidence of a tool with these settings."""
        full = full_args(tool, args)
        key = key_of(tool, full, __version__)
        found = self._by_key.get(key)
        self._tell(Progress("tool", tool, reused=found is not None))
        if found is None:
            found = measure(self._run, tool, full, self._next_id())
            self._incident.save_evidence(found.id, found.model_dump_json(indent=1) + "\n")
            self._by_id[found.id] = self._by_key[key] = found
        return found

    def by_id(self, evidence_id: str) -> Evidence:
        """Evidence that was got before."""
        return self._by_id[evidence_id]

    def _next_id(self) -> str:
        return f"E{max((int(i[1:]) for i in self._by_id), default=0) + 1}"


def measure(run: Run, tool: str, args: Mapping[str, Scalar], evidence_id: str) -> Evidence:
    """Run a tool; settings that this run gives no value for are missing data, not a bug.

    Long lists of files are kept as one source each.
    """
    try:
        found = run_tool(tool, run, args, evidence_id=evidence_id)
        return found.model_copy(update={"sources": bounded(found.sources)})
    except ToolInputError as error:
        return Evidence(
            id=evidence_id,
            tool=tool,
            tool_version=__version__,
            args=dict(args),
            status="no_data",
            summary=str(error),
        )


def full_args(tool: str, args: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """The settings with defaults filled in; as given where they do not fit the tool."""
    try:
        return dict(find_tool(tool).settings(**args).model_dump())
    except (ValidationError, ToolInputError):
        return dict(args)


def key_of(tool: str, args: Mapping[str, Scalar], version: str) -> Key:
    """What makes two pieces of evidence the same measurement."""
    return tool, tuple(sorted((k, repr(v)) for k, v in args.items())), version
