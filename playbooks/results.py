"""What a judgement is made of: Clause, CheckResult, Finding, Verdict.

Measure (Evidence), judge (CheckResult), interpret (Finding), conclude (Verdict): each reads only
what comes before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from firstbad.tools.evidence import Record

Outcome = Literal["pass", "fail", "inconclusive", "waived", "not_reached"]
Strength = Literal["direct", "certified", "differential", "proxy", "declared"]
STRENGTHS: tuple[Strength, ...] = ("direct", "certified", "differential", "proxy", "declared")
WindowKind = Literal["onset", "steady", "bad_from_start"]
Confidence = Literal["low", "medium", "high"]
RemedyKind = Literal["fixes", "dilutes", "experiment"]
Weights = Literal["sound", "spoiled", "unclear"]
Reason = Literal[
    "bounds_held",
    "bound_broken",
    "evidence_missing",
    "bound_doubtful",
    "tool_error",
    "depends_on_open",
    "waived",
    "way_closed",
]
Number = bool | int | float


class Clause(Record):
    """One comparison with both operands shown."""

    measure: str
    """`alias.field`: which number of which evidence."""
    role: Literal["needs", "fail_if", "doubt_if", "looked_for"]
    """`looked_for`: a condition of a stronger alternative that was seen not to hold."""
    op: str
    limit: Number
    observed: Number | None
    held: bool | None
    """None when the number could not be had."""
    evidence: str | None
    """Id of the evidence that the number comes from."""


class CheckResult(Record):
    """Outcome of one check of one layer, computed from its clauses."""

    playbook: str
    layer: str
    check: str
    outcome: Outcome
    strength: Strength | None
    required: bool
    """False for a check that can only fail, or only inform."""
    depends_on: tuple[str, ...]
    blocked_by: tuple[str, ...] = ()
    """What it depends on that has not passed; then its numbers are not read."""
    reason: Reason
    clauses: tuple[Clause, ...]
    evidence: tuple[str, ...]
    message: str
    excludes_not: str = ""
    """What a pass at this strength does not exclude."""


class Onset(Record):
    """When a fault began."""

    last_good: int | None
    first_bad: int | None
    signal: str
    sampled: bool = False
    """True when only some steps were measured: the onset lies after `bracket_start`."""
    quiet: int | None = None
    """Last step at which a test that is only necessary was quiet: it opens the bracket, and does
    not make the step a good one."""
    from_start: bool = False
    last_bad: int | None = None
    """Last step that may be bad, of a fault that ended; None where it goes on."""

    @property
    def bracket_start(self) -> int | None:
        """Step after which a sampled onset lies; None where it is bad from the start."""
        if self.from_start:
            return None
        return self.last_good if self.last_good is not None else self.quiet

    @property
    def is_bracket(self) -> bool:
        """Whether steps lie between the last good and the first bad one."""
        if self.from_start or self.first_bad is None or self.bracket_start is None:
            return False
        return self.sampled or self.first_bad - self.bracket_start > 1

    @property
    def earliest(self) -> float:
        """First step that may carry the fault; -inf from the start on, inf where not dated."""
        if self.from_start:
            return float("-inf")
        if self.is_bracket and self.bracket_start is not None:
            return self.bracket_start + 1
        return self.latest

    @property
    def latest(self) -> float:
        """Last step that may be the first with the fault; -inf and inf as in `earliest`."""
        if self.from_start:
            return float("-inf")
        return float("inf") if self.first_bad is None else self.first_bad


class Experiment(Record):
    """A trial that changes one thing, and settles whether a cause is the cause."""

    change: str
    expect: str
    """What is then seen if it is."""
    otherwise: str
    """What is seen if it is not."""
    cost: str

    def told(self) -> str:
        """In two sentences: what to change at which cost, and what either answer shows."""
        return (
            f"{self.change[:1].upper()}{self.change[1:]} ({self.cost}). "
            f"If this is the cause, {self.expect}; if not, {self.otherwise}."
        )


class Finding(Record):
    """A cause from the closed list, with what supports and what contradicts it."""

    id: str
    cause: str
    layer: str
    check: str
    claim: str
    first_bad: Onset
    supports: tuple[str, ...] = Field(min_length=1)
    contradicts: tuple[str, ...] = ()
    origin: Literal["gate", "model", "human"] = "gate"
    confidence: Confidence
    confidence_because: str = ""
    """Why it is not high, in a few words; empty where it is."""
    refuted_by: str
    experiment: Experiment | None = None
    remedy: str
    remedy_kind: RemedyKind
    verify: str = ""
    """What to look at after the fix."""
    dilutes: str = ""
    """What only makes the curve look better."""
    weights: Weights = "unclear"
    """What the weights are worth that were trained under it."""
    rollback: str = ""
    """Whether to go back for it, how far and why."""
    log_next: str = ""
    """What to record so that next time direct evidence decides it."""
    ruled_out: tuple[str, ...] = ()
    mechanism_of: str | None = None
    """Id of the finding whose mechanism this one is."""
    independent: bool = False
    """True for a fact that stands whatever the layers before it turn out to be."""


NEW_RUN = "NEW_RUN"
"""Stands for the run in a command that only a new run can answer."""


class Request(Record):
    """Evidence that would close an open layer."""

    layer: str
    need: str
    command: str
    decides: str


class NotChecked(Record):
    """A check whose numbers were not read or could not be had."""

    layer: str
    check: str
    why: str
    needs: str = ""
    """Evidence that would decide it, where the playbook names some."""
    kind: Literal["missing", "not_applicable", "optional"] = "missing"
    """`not_applicable`: a setting rules it out, as `why` says; `optional`: the layer does without
    it, and nothing of its data is there."""


class Waiver(Record):
    """A person's decision to go past a layer that has not passed."""

    layer: str
    reason: str


class LayerResult(Record):
    """One layer's outcome, over its checks."""

    id: str
    number: str
    outcome: Outcome
    strength: Strength | None
    reason: str


class PlaybookRef(Record):
    """Which playbook judged, and its digest."""

    name: str
    digest: str
    shipped: bool = True
    """Whether it is, byte for byte, one that ships with this version."""


class Usage(Record):
    """What the investigation cost."""

    tool_calls: int = 0
    model_calls: int = 0
    tokens: int = 0
    cost_usd: float = 0.0
    seconds: float = 0.0


class LeastBad(Record):
    """A checkpoint that was saved after the fault began."""

    checkpoint: str
    updates: int
    """Bad updates that it holds, by the date of the fault; of a bracket the fewest."""
    updates_most: int | None = None
    """... and the most; None where the date is no bracket."""


class Verdict(Record):
    """The conclusion of an investigation."""

    schema_version: Literal[1] = 1
    incident: str
    run: str
    framework: str
    complaint: str
    outcome: Literal["incident", "healthy", "undetermined"]
    headline: str
    window: WindowKind
    first_bad: Onset
    noticed_step: int | None
    layers: tuple[LayerResult, ...]
    checks: tuple[CheckResult, ...]
    findings: tuple[Finding, ...]
    """The leading finding first."""
    ended: str = ""
    """When and by what the run ended, where that was not in order."""
    symptoms: tuple[str, ...] = ()
    """What is seen, and which layers it suggests looking at closely."""
    answers: tuple[str, ...] = ()
    """What the record says to the complaint."""
    notes: tuple[str, ...]
    """Looks odd and is normal, with the reason."""
    conditional_on: tuple[str, ...]
    waivers: tuple[Waiver, ...]
    not_checked: tuple[NotChecked, ...]
    requests: tuple[Request, ...]
    left_open_by: tuple[str, ...] = ()
    """Ids of the evidence that leaves the outcome open, where no layer does."""
    resume_from: str | None = None
    """Last checkpoint before the onset whose parts belong together; the newest such one where the
    weights are sound."""
    passed_over: tuple[str, ...] = ()
    """Newer ones before the onset that are not, each with what is wrong with it."""
    least_bad: LeastBad | None = None
    """Where there is none before it: the first one after."""
    playbooks: tuple[PlaybookRef, ...]
    usage: Usage
    versions: dict[str, str]

    @property
    def leading(self) -> Finding | None:
        """The finding that names the cause, or None."""
        return self.findings[0] if self.findings and self.outcome == "incident" else None

    @property
    def first_spoiled(self) -> Finding | None:
        """The finding before which a checkpoint must lie, or None: see `first_spoiled`."""
        return first_spoiled(self.findings) if self.leading else None


def first_spoiled(findings: Sequence[Finding]) -> Finding | None:
    """The leading finding, or one of high confidence that began before it.

    A checkpoint from before the leading fault may carry another one that is as certain. A fault
    that leaves the weights sound asks for no earlier checkpoint: then any other finding may, and
    it is None where none does.
    """
    leading, *others = findings
    sound = leading.weights == "sound"
    asking = [f for f in others if f.weights != "sound" and (sound or f.confidence == "high")]
    return min(
        asking if sound else (leading, *asking),
        key=lambda f: f.first_bad.earliest,
        default=None,
    )
