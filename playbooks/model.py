"""The form of a playbook file: layers, checks, gates, what a broken bound points to."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from firstbad.playbooks.bound import Bound
from firstbad.playbooks.results import (
    Confidence,
    Experiment,
    Outcome,
    RemedyKind,
    Strength,
    Weights,
    WindowKind,
)
from firstbad.tools.strict_yaml import Strict

Measure = Annotated[str, Field(pattern=r"^[a-z0-9_]+\.[a-z0-9_]+$")]
"""`alias.field`: a number of one piece of evidence."""
Bounds = dict[Measure, Bound]
Name = Annotated[str, Field(pattern=r"^[a-z0-9_]+$")]
Setting = bool | int | float | str | None
Call = str | dict[str, dict[str, Setting]]
"""A tool's name, or `{name: {setting: value}}`; a text value `$alias.field` is a number of
earlier evidence, `$noticed_step` the step that the user named and `$finding_step` the first bad
step of the leading finding, which only calls of `compared` know."""


class Alternative(Strict):
    """One way to decide a check."""

    strength: Strength
    needs: Bounds = {}
    """All must hold, or the next alternative is tried."""
    fail_if: Bounds = {}
    """Any that holds fails the check."""
    doubt_if: Bounds = {}
    """Any that holds leaves the check inconclusive, when nothing fails it."""
    excludes_not: str = ""
    """What a pass by this alternative does not exclude."""


class Pointer(Strict):
    """A cause that a failed check points to; the first whose bounds all hold is named."""

    cause: str
    when: Bounds = {}
    claim: str
    """Sentence with `{alias.field}` places for numbers of the evidence."""
    confidence: Confidence = "high"
    onset: Name | tuple[Name, ...] = ()
    """Evidence that dates it, the first of it with an onset. Default: what the claim names with a
    step, then what else the claim and its bounds speak of."""

    def dated_by(self, evidence: Sequence[str]) -> tuple[str, ...]:
        """Aliases that may date it, in their order, given those of its check."""
        if self.onset:
            return (self.onset,) if isinstance(self.onset, str) else self.onset
        said = " ".join(re.findall(r"\{([^}]*)", self.claim))
        steps = re.findall(r"(\w+)\.first_bad_step", said)
        spoken = {*re.findall(r"(\w+)\.", said), *(measure.split(".")[0] for measure in self.when)}
        return tuple(dict.fromkeys([*steps, *(alias for alias in evidence if alias in spoken)]))

    contradicted_if: Bounds = {}
    """Bounds that, where they hold, speak against the cause and lower the confidence."""
    ruled_out: dict[str, Bounds] = {}
    """Look-alike sentence -> bounds that strike it out when they all hold."""
    remedy: str = ""
    """What to do, where this form of the cause wants another remedy than the cause's own; like
    `verify` and `refuted_by`, a sentence with places for numbers."""
    remedy_kind: RemedyKind | None = None
    """Of that remedy, where it is of another kind than the cause's own."""
    verify: str = ""
    """What to look at after the fix, where that is another thing than for the cause."""
    refuted_by: str = ""
    """What would refute it, where that is another thing than for the cause."""
    dilutes: str = ""
    """What only makes the curve look better, where that is another thing than for the cause."""
    weights: Weights | None = None
    """What the weights are worth, where that is another thing than for the cause."""
    rollback: str = ""
    """How far to go back, where that is another thing than for the cause."""
    experiment: Experiment | None = None
    """A trial that settles this form of the cause, where the cause's own does not fit it."""


class Ask(Strict):
    """Evidence to ask for where a check is inconclusive."""

    need: str | dict[str, str]
    """What it is and how to get it; by framework where the settings differ, with a `default` for
    all others."""
    unless: Bounds = {}
    """Bounds under which it is there already; an ask without them is for when nothing else is
    missing."""
    in_every_step: Bounds = {}
    """Bounds under which each step of a short run has it: then the playbook's `longer` is asked for
    in its place."""
    new_run: bool = False
    """Only a new run can write it: the command then names NEW_RUN in the place of the run."""


class Note(Strict):
    """Looks odd and is normal: said when the bounds all hold."""

    when: Bounds
    say: str


class Check(Strict):
    """One question of a layer."""

    id: Name
    asks: str
    evidence: dict[Name, Call]
    depends_on: tuple[str, ...] = ()
    """Layers, or `layer.check`, that must have passed before the numbers may be read.
    Empty: an independent fact, established whatever the earlier layers turn out to be."""
    voided_by: tuple[str, ...] = ()
    """`layer.check`s whose failure makes the numbers unreadable, such as wrong gold answers for
    independent judging. Unlike `depends_on`, an inconclusive one does no harm."""
    passes: bool = True
    """False: a pass of this check is only necessary; the layer can't pass by it."""
    gate: tuple[Alternative, ...]
    points_to: tuple[Pointer, ...] = ()
    notes: tuple[Note, ...] = ()
    request: str | tuple[Ask, ...] = ""
    """What to ask for when it is inconclusive."""
    command: str = ""
    decides: str = ""
    cases: dict[str, Outcome] = {}
    """Recorded run -> expected outcome; run as tests."""


class Layer(Strict):
    """One layer of the walk."""

    id: Name
    number: str
    asks: str
    checks: tuple[Check, ...]


class Link(Strict):
    """An earlier fact that explains a failed layer: the fact leads, the layer is its mechanism.

    Where something else leads, what it explains is named as its effect all the same.
    """

    cause: str
    """A cause, or all of a family, such as `prob.*`."""
    to: tuple[str, ...]
    """Layers, or checks of one as `layer.check`, that it can bring down."""

    def names(self, cause: str) -> bool:
        """Whether the link is from this cause."""
        family, star, _ = self.cause.partition("*")
        return cause.startswith(family) if star else cause == self.cause


class Symptom(Strict):
    """A row of the symptom table: what is seen, which layers to look at closely."""

    seen: str
    when: Bounds
    suspects: tuple[str, ...]


class Claim(Strict):
    """What a complaint may say, and what of the record answers it."""

    symptom: Name
    """As the complaint's grammar names it."""
    says: str
    """The claim in words, after "the complaint says that"."""
    contradicted_if: Bounds = {}
    """Bounds under which the log shows nothing of the kind."""
    contradicted: str = "no lasting change of that kind is logged"
    """What is said then, after the claim and a semicolon."""
    partly_if: Bounds = {}
    """Bounds under which it is so in part only."""
    partly: str = ""
    """What is said then."""
    measure: str = ""
    """`alias.signal` of a comparison around the step that was named: its `_before`, `_after` and
    `_z` are told. A claim about a signal that is not logged stays open."""
    called: str = ""
    """The signal in words, where there is a `measure`."""
    instead: tuple[Note, ...] = ()
    """Sentences told in place of the averages of a `measure`, where these do not answer or there is
    none: the first whose bounds hold."""
    whole: str = ""
    """`alias.signal` of what the `measure` is a part of: told as well where it differs."""
    whole_called: str = ""
    whole_true_if: Bounds = {}
    """Bounds under which the log bears the claim out for the whole."""
    true_if: Bounds = {}
    """Bounds under which the log plainly bears the claim out."""
    open_if: Bounds = {}
    """Bounds under which it stays open whatever passed: plainly true, and the outcome suffers."""
    answered_by: tuple[str, ...] = ()
    """`layer.check`s whose direct passes exclude the faults that look like this; empty: none do."""
    answers: tuple[Note, ...] = ()
    """Sentences that explain the claim where their bounds hold, said beside the outcome. What is
    explained does not stay open."""
    beside: tuple[Note, ...] = ()
    """Sentences said with the numbers where their bounds hold; they settle nothing."""
    begins_at: str = ""
    """`alias.field` of a step: where the leading finding may have begun there, the verdict is the
    answer to the claim."""
    is_cause: tuple[str, ...] = ()
    """Causes that are the answer to the claim wherever they begin."""
    excluded: str = ""
    """What is said beside that, where a check of `answered_by` passed on direct evidence."""
    request: str = ""
    """Evidence that would settle a claim about what is not logged or what no check explains;
    default: what the open checks of `answered_by` ask for."""


class Comparison(Strict):
    """Signals held against a step that the complaint does not name, read after the walk."""

    alias: Name
    call: Call
    symptom: str = ""
    """Made only where the complaint says this; empty: wherever a finding is dated."""
    least_z: float = 0.0
    """Standard errors by which a signal must move there, or the claim keeps its first measure."""


class Otherwise(Strict):
    """What to ask for where an outcome is undetermined and no check has anything to ask for."""

    need: str
    command: str
    decides: str


class Unexplained(Otherwise):
    """A change that is not normal although no check failed: the outcome stays open."""

    when: Bounds
    say: str
    layer: Name = "window"
    """Id of the layer that the need is asked under."""


class Ended(Strict):
    """How a run ended before its end: told on the first page, whatever the layers say."""

    when: Bounds
    """Bounds under which it ended so."""
    say: str
    """When and by what, after "the run ended"."""
    headline: str
    """The headline where nothing else is wrong: a run that died is not plainly healthy."""


class Unbuilt(Strict):
    """A measure that no check of this playbook takes: named among what was not checked."""

    layer: Name
    """Id of the layer it would belong to."""
    check: Name
    """What the check would be called."""
    why: str
    """Why it is not checked, and what stays unknown."""


class Inapplicable(Strict):
    """Checks that a setting or a fact of the run rules out: they lack no evidence."""

    checks: tuple[str, ...]
    """As `layer.check`."""
    when: Bounds
    because: str
    """The setting or fact, after "not applicable: "."""


class Decision(Strict):
    """A row of the decision table, shown with the next step where its result is what was found."""

    result: str
    causes: tuple[str, ...]
    found_by: tuple[str, ...]
    """`layer.check`s whose failure is that result."""
    conclusion: str
    do: str


class WindowRule(Strict):
    """How the window is read from its evidence."""

    kind: WindowKind
    when: Bounds


class Playbook(Strict):
    """A whole playbook file."""

    name: Name
    title: str
    window: tuple[WindowRule, ...]
    outcome_holds: Bounds
    """Bounds under which a change with no failed check is normal."""
    unexplained: tuple[Unexplained, ...] = ()
    """... and changes that are not, whatever passed, with what to ask for."""
    ended: tuple[Ended, ...] = ()
    """How the run ended, where it did not end as it should: the first whose bounds hold."""
    layers: tuple[Layer, ...]
    leads_to: tuple[Link, ...] = ()
    symptoms: tuple[Symptom, ...] = ()
    complaints: tuple[Claim, ...] = ()
    """What a complaint may claim, and which check answers it."""
    compared: tuple[Comparison, ...] = ()
    """Comparisons that take the place of a claim's own where the complaint names no step, or where
    they divide at that step and only they show a move; the first that fits."""
    about_step: tuple[Note, ...] = ()
    """Sentences about the step that a complaint names, said where their bounds hold."""
    longer: str = ""
    """What is asked for where a run holds what a check needs, in too few steps; with places for
    numbers."""
    otherwise: Otherwise | None = None
    """What to ask for where the outcome is undetermined and no check has anything to ask for."""
    unbuilt: tuple[Unbuilt, ...] = ()
    """Measures that no check takes yet: every verdict names them as not checked."""
    inapplicable: tuple[Inapplicable, ...] = ()
    decisions: tuple[Decision, ...] = ()


class Form(Strict):
    """What is said of a cause in another way where its bounds hold, such as without an engine."""

    when: Bounds
    remedy: str = ""
    verify: str = ""
    refuted_by: str = ""
    experiment: Experiment | None = None
    rollback: str = ""
    log_next: str = ""


class Cause(Strict):
    """One entry of the closed list of causes."""

    id: Annotated[str, Field(pattern=r"^[a-z0-9]+\.[a-z0-9_]+$")]
    layer: str
    wrong: str
    tells: str
    remedy: str = ""
    remedy_kind: RemedyKind = "fixes"
    dilutes: str = ""
    verify: str = ""
    refuted_by: str = ""
    experiment: Experiment | None = None
    weights: Weights = "unclear"
    """What the weights are worth that were trained under it."""
    rollback: str = ""
    """Whether to go back for it, how far and why."""
    log_next: str = ""
    """What to record so that next time direct evidence decides it."""
    forms: tuple[Form, ...] = ()
    """Sentences for runs of another kind: the first whose bounds hold."""


CheckKind = Literal["required", "necessary", "fact"]
