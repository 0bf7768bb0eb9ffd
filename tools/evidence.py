"""Evidence: what a tool measured, with its sources. Measured, never judged."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import BaseModel, ConfigDict, field_validator, model_validator

from firstbad.tools.metrics import Metrics as Metrics
from firstbad.tools.metrics import Plain

Scalar = bool | int | float | str | None
Status = Literal["measured", "no_data", "error"]
Origin = Literal["tool", "probe", "preflight", "model", "human"]


class Record(BaseModel):
    """Base of everything that is saved: frozen, closed, no silent coercion of extra fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Dated(Metrics):
    """Metrics of a tool that can date what it measures."""

    last_good_step: int | None = None
    """Last step at which the measure was seen inside its bound; None when none was."""
    first_bad_step: int | None = None
    """First step at which it was seen outside."""
    last_bad_step: int | None = None
    """Last step that may be outside, where it came back: the one before it was seen inside again.
    None where it did not."""
    quiet_step: int | None = None
    """For a test that is only necessary: last step at which it was quiet. It opens the bracket of
    the onset and marks no step as good."""
    from_start: bool = False
    """True when the first measured step is already outside."""
    gradual: bool = False
    """True for what grows from nothing: signals that move later, as its effect, do not date it."""
    sampled: bool = False
    """True when only some steps were measured, so that the onset is a bracket."""


class Table(Record):
    """Bounded rows shown to a person; `cut_rows` says how many were left out."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Scalar, ...], ...]
    cut_rows: int = 0

    @field_validator("rows")
    @classmethod
    def _finite(cls, rows: tuple[tuple[Scalar, ...], ...]) -> tuple[tuple[Scalar, ...], ...]:
        """A value that is not finite is shown as text: JSON has no word for it."""
        return tuple(
            tuple(str(v) if isinstance(v, float) and not math.isfinite(v) else v for v in row)
            for row in rows
        )


class Source(Record):
    """A file (or part of one) that a measurement was read from, or many of one folder."""

    kind: str
    ref: str
    """Path relative to the run's root; of many files the first by name."""
    digest: str | None = None
    """`sha256:` and the first 16 hex digits; None where a file could not be read again. Of many
    files it is taken over the name and digest of each, in the order of their names."""
    files: int = 1
    last: str | None = None
    """Of many files the last by name."""


class StepWindow(Record):
    """First and last step that a measurement covers."""

    first: int
    last: int


class Evidence(Record):
    """One run of one tool."""

    schema_version: Literal[1] = 1
    id: str
    tool: str
    tool_version: str
    args: dict[str, Scalar]
    window: StepWindow | None = None
    status: Status
    origin: Origin = "tool"
    metrics: dict[str, Plain] | None = None
    tables: tuple[Table, ...] = ()
    sources: tuple[Source, ...] = ()
    summary: str = ""
    signal: str = ""
    """What the onset was seen in, for metrics that are dated."""
    quote: str = ""
    """What the run's own files say, shortened, as a sentence for a claim; its text is untrusted."""
    error: str | None = None
    seconds: float = 0.0

    @model_validator(mode="after")
    def _consistent(self) -> Evidence:
        if (self.metrics is not None) != (self.status == "measured"):
            raise ValueError("metrics belong to measured evidence and to no other")
        if (self.error is not None) != (self.status == "error"):
            raise ValueError("an error text belongs to status `error` and to no other")
        return self
