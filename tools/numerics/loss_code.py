"""Places in the user's loss code that break numbers, found by its syntax tree."""

from __future__ import annotations

from collections import Counter

from firstbad.tools.code import PLACES
from firstbad.tools.code.look import PATTERNS, Looked, look
from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Metrics, Table
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import Run

EACH = 8
"""Places of one pattern that are listed."""
LEFT_OUT = 12


class LossCode(Metrics):
    """Places by pattern. They are what the code says, which need not be the code that ran."""

    n_files: int
    """Files that were parsed."""
    n_lines: int
    n_unread: int
    """Files and folders that were left out: no Python, too large, or beyond the limits."""
    n_places: int
    exp_before_clamp: int
    """Exp of a log-ratio that nothing limits, or whose result alone is limited."""
    tight_limit: int
    """A limit on the log-ratio so tight that it works as a clip."""
    log_of_sum: int
    """Log of a sum of exps of logits."""
    log_of_softmax: int
    """Log of a softmax or sigmoid, with or without a constant added."""
    low_precision: int
    """Differences of log-probs of which one was rounded to 16 bits before."""
    sentinel: int
    """Stand-ins such as -Inf or -1e9 that are summed, subtracted or multiplied by a mask."""
    mean_of_means: int
    """Token means of micro-batches that are averaged."""
    std_axis: int
    """Rewards divided by a standard deviation over other samples than their group."""
    bare_std: int
    """Rewards divided by a standard deviation to which nothing is added."""


@tool
def read_loss_code(run: Run) -> Measured[LossCode]:
    """Places in the code of `--code` that can break numbers, each with a demonstration.

    The code is parsed, never imported or executed. Names are followed through assignments of the
    same function and the module; the numbers of a demonstration are computed with the same
    arithmetic, not with the user's code.

    Cannot tell: whether it is the code that ran, what callers pass, and what other files do to it.
    """
    if run.code is None:
        raise NoData("no code was given (`--code`)")
    looked = look(run.code)
    counts = Counter(place.pattern for place in looked.places)
    metrics = LossCode(
        n_files=looked.n_files,
        n_lines=looked.n_lines,
        n_unread=len(looked.unread),
        n_places=len(looked.places),
        **{pattern.name: counts[pattern.name] for pattern in PATTERNS},
    )
    return Measured(
        metrics,
        _summary(looked, metrics),
        tables=tuple(table for table in (_places(looked), _unread(looked)) if table.rows),
    )


def _places(looked: Looked) -> Table:
    """The first places of each pattern; the cause comes first, as a finding is supported by it."""
    shown = [
        place
        for pattern in PATTERNS
        for place in [p for p in looked.places if p.pattern == pattern.name][:EACH]
    ]
    return Table(
        title=PLACES,
        columns=("cause it would be", "place", "code", "why", "numbers"),
        rows=tuple((p.cause, f"{p.file}:{p.line}", p.code, p.why, p.shown) for p in shown),
        cut_rows=len(looked.places) - len(shown),
    )


def _unread(looked: Looked) -> Table:
    return Table(
        title="code that was left out",
        columns=("file or folder", "why"),
        rows=tuple((each.name, each.why) for each in looked.unread[:LEFT_OUT]),
        cut_rows=max(0, len(looked.unread) - LEFT_OUT),
    )


def _summary(looked: Looked, m: LossCode) -> str:
    named = [
        f"{p.name.replace('_', ' ')} {getattr(m, p.name)}" for p in PATTERNS if getattr(m, p.name)
    ]
    text = f"{m.n_places} places that can break numbers in {m.n_lines} lines of {m.n_files} files"
    text += f": {', '.join(named)}" if named else ""
    return text + (f"; left out: {m.n_unread}" if looked.unread else "")
