"""Does generation stop where the answers end? Lengths in tokens against lengths of the text."""

from __future__ import annotations

import numpy as np

from firstbad.tools.completeness import rows_complete
from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated
from firstbad.tools.numbers import percent
from firstbad.tools.registry import Measured, tool
from firstbad.tools.row_table import RowTable
from firstbad.tools.run import BoolArray, FloatArray, Run
from firstbad.tools.stats import level_shift
from firstbad.tools.token_counts import characters_of, words_of

FEWEST = 5
"""Steps on each side of the change."""
ALIKE = 0.3
"""Share of texts of the very same, largest length that shows a writer's limit."""
LEAP = 0.5
"""Smallest change of the cut share, from one step to the next, that dates anything."""


class StopRule(Dated):
    """Levels (medians of steps) before and after the step at which the cut share changes most."""

    n_steps: int
    truncated_before: float
    truncated_after: float
    truncated_leap: float
    """Change of the share of cut completions from one step to the next, at that place."""
    length_rise: float
    """Logged mean length after over before, in tokens."""
    text_rise: float
    """The same of the text, in words or characters, whichever rose more."""


@tool
def check_stop_rule(run: Run) -> Measured[StopRule]:
    """Tokens and text of the completions before and after the share of cut ones leaps.

    A model that rambles writes more text. Where completions run to the cap from one step to the
    next while their text stays as long, what follows the end is left out of the text: stop tokens
    and other special ones, sampled by a generation that does not stop there.

    Cannot tell: a stop that was never honoured; one after which the model goes on in plain words.
    """
    cut, length = (run.signals.get(n) for n in ("truncation_rate", "completion_length_mean"))
    if cut is None or length is None:
        raise NoData("no logged share of truncated completions and mean completion length")
    if rows_complete(run) is False or not run.rollouts:
        raise NoData("no rollouts of all rows of a step, whose text could be told from tokens")
    both = [step for step in cut.steps.tolist() if length.at(step) is not None]
    share, tokens = (np.array([s.at(step) for step in both], float) for s in (cut, length))
    shift = level_shift(share, margin=FEWEST)
    if shift is None:
        raise NoData(f"fewer than {2 * FEWEST} steps with mean length and truncated share")
    at = shift.index
    rows = RowTable.of(run, list(run.rollouts.batches()))
    text = [rows.mean(unit(rows)) for unit in (words_of, characters_of)]
    late = rows.steps >= both[at]
    if min(late.sum(), (~late).sum()) < FEWEST // 2:
        raise NoData("no rollouts on both sides of the change of the truncated share")
    if _cut_for_the_log(rows, late):
        raise NoData("the texts after the change are cut at one length, so they tell no tokens")
    before, after = (float(np.median(v)) for v in np.split(share, [at]))
    leap = float(share[at] - share[at - 1])
    metrics = StopRule(
        n_steps=len(both),
        truncated_before=round(before, 6),
        truncated_after=round(after, 6),
        truncated_leap=round(leap, 6),
        length_rise=_rise(tokens[:at], tokens[at:]),
        text_rise=max(_rise(mean[~late], mean[late]) for mean in text),
        last_good_step=both[at - 1] if leap > LEAP else None,
        first_bad_step=both[at] if leap > LEAP else None,
    )
    return Measured(
        metrics,
        f"cut completions {percent(before)} up to step {both[at - 1]} and {percent(after)} from "
        f"step {both[at]}, {metrics.length_rise:.2f} times as many tokens and "
        f"{metrics.text_rise:.2f} times as much text",
        window=(both[0], both[-1]),
        signal="share of cut completions",
    )


def _rise(before: FloatArray, after: FloatArray) -> float:
    """Median of the later values over that of the earlier ones; 0 where those are 0."""
    level = float(np.median(before))
    return round(float(np.median(after)) / level, 4) if level > 0 else 0.0


def _cut_for_the_log(rows: RowTable, late: BoolArray) -> bool:
    """Whether many of the longest texts are of the very same length: a writer's limit."""
    lengths = rows.characters[late[rows.step]]
    return bool(len(lengths) and np.mean(lengths == lengths.max()) > ALIKE)
