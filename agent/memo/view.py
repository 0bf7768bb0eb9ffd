"""What the templates place: every text chosen and written out, nothing left to compute."""

from __future__ import annotations

from dataclasses import dataclass

from firstbad.agent.memo.head import FirstPage
from firstbad.agent.memo.plots import Plot
from firstbad.agent.memo.tables import Grid
from firstbad.agent.memo.text import Cut
from firstbad.agent.memo.words import Row
from firstbad.playbooks.model import Decision


@dataclass(frozen=True)
class ClauseView:
    """One comparison, both operands shown."""

    measure: str
    observed: str
    condition: str
    result: str
    evidence: str
    state: str
    """`bad` when it speaks against the run, `open` when it leaves the check undecided, or empty."""


@dataclass(frozen=True)
class CheckView:
    """One check of a layer."""

    name: str
    place: str
    asks: str
    outcome: str
    word: str
    strength: str
    message: str
    clauses: tuple[ClauseView, ...]
    excludes_not: str
    evidence: tuple[str, ...]
    is_fact: bool
    """True for a check that was read although its layer was not reached."""
    lacks_data: bool
    """True for a check that stayed undecided and of which nothing was observed."""


@dataclass(frozen=True)
class LayerView:
    """One layer of the walk."""

    id: str
    number: str
    asks: str
    outcome: str
    word: str
    strength: str
    why: str
    checks: tuple[CheckView, ...]
    closes: bool
    """True for the layer at which the way is closed."""
    is_open: bool
    """True for a layer that the page shows unfolded: it closes the way, or holds a failed fact."""


@dataclass(frozen=True)
class FindingView:
    """A finding beside the leading one."""

    cause: str
    claim: str
    role: str
    """What it is to the leading one, with layer, confidence and onset."""
    remedy: str
    supports: str
    refuted_by: str
    experiment: str


@dataclass(frozen=True)
class EvidenceView:
    """One piece of evidence, with what recomputes it."""

    id: str
    tool: str
    status: str
    origin: str
    summary: str
    signal: str
    settings: str
    steps: str
    metrics: tuple[Row, ...]
    focus_grids: tuple[Grid, ...]
    """A few rows of each table, those around the first bad step."""
    grids: tuple[Grid, ...]
    reads: str
    """Files that it was read from."""
    command: str


@dataclass(frozen=True)
class Side:
    """One side of a pair: its name, and texts with what they are."""

    name: str
    texts: tuple[tuple[str, Cut], ...]


@dataclass(frozen=True)
class Pair:
    """A rollout before and one after, side by side."""

    title: str
    sides: tuple[Side, Side]


@dataclass(frozen=True)
class View:
    """All that the templates place."""

    title: str
    run: str
    first: FirstPage
    layers: tuple[LayerView, ...]
    window: str
    focus_title: str
    focus: tuple[EvidenceView, ...]
    plots: tuple[Plot, ...]
    plots_key: str
    plots_note: str
    pairs: tuple[Pair, ...]
    pairs_note: str
    others: tuple[FindingView, ...]
    contradicts: tuple[Row, ...]
    ruled_out: tuple[str, ...]
    decisions: tuple[Decision, ...]
    evidence: tuple[EvidenceView, ...]
    files: tuple[tuple[Row, str], ...]
    """What was read, with its digest, and its kind."""
    reading: tuple[str, ...]
    """What was noticed while the run was opened."""
    glossary: tuple[Row, ...]
    about: tuple[Row, ...]
    verify: str
