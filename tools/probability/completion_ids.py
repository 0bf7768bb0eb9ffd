"""The completion that the trainer scores, against the one that the rollouts show."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from rapidfuzz.distance import Levenshtein

from firstbad.tools.completeness import rows_complete
from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Table
from firstbad.tools.numbers import percent
from firstbad.tools.probability.prompt_ids import captured_prompts, plain_text
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import COMPLETION, Capture, RolloutBatch, Run
from firstbad.tools.tokens import completion_end, sources

FEW = 0.1
"""Share of the rows of a capture with another text, up to which it is sound."""
MANY = 0.3
"""... and from which it is not."""
SHOWN = 10


class CapturedCompletions(Dated):
    """Captured completions whose text is that of a completion of the rollouts, or is not."""

    n_captures: int
    n_rows: int
    """Captured rows."""
    share_other: float
    """Of those in the captures from the onset on, or in all: the text is that of no completion
    that the rollouts have under this prompt."""
    share_other_before: float | None
    """The same before the onset; None without one."""
    edit_share: float | None
    """Characters by which those texts differ from the nearest completion, over its length; None
    where all are the same. Small: the same answer, written otherwise."""


@dataclass
class _Read:
    step: int
    rows: int = 0
    other: list[tuple[str, str]] = field(default_factory=list)
    """Captured text and the nearest completion, of rows whose text differs."""

    @property
    def share(self) -> float:
        return len(self.other) / self.rows


LONGEST = 50_000
"""Characters of a completion that is compared: an edit distance takes their square in time."""


@tool
def compare_completion_ids(run: Run) -> Measured[CapturedCompletions]:
    """Captured completion ids, as text, against the completions of the rollouts.

    White space and special tokens are left out of both; a row is compared with the completions
    under its own prompt, or where none is found with all of the step. Dated where captures agree
    with the rollouts up to a step and no longer from then on: the ids are then not those that were
    sampled, as after tokenising the text again.

    Cannot tell: other ids that spell the same text; anything where the texts never agreed, since
    text may be logged without a part of it.
    """
    if run.vocabulary is None or not len(run.vocabulary.texts):
        raise NoData("no tokenizer to read captured completion ids with")
    if not run.rollouts or rows_complete(run) is False:
        raise NoData("no rollouts of all rows, which captured completions could be compared with")
    steps = set(run.rollouts.steps.tolist())
    fresh = (c for c in run.captures if c.step in steps and run.fresh_at(c.step))
    read = [r for c in fresh if (r := _read(run, c, run.rollouts.batch(c.step))).rows]
    if not read:
        raise NoData("no captures of completion ids at a step whose rollouts are there")
    onset = _onset(read)
    late = read if onset is None else read[onset:]
    other = [pair for r in late for pair in r.other]
    edits = [Levenshtein.normalized_distance(a, b) for a, b in other]
    early = read[:onset] if onset else []
    metrics = CapturedCompletions(
        n_captures=len(read),
        n_rows=sum(r.rows for r in read),
        share_other=round(len(other) / sum(r.rows for r in late), 6),
        share_other_before=(
            round(sum(len(r.other) for r in early) / sum(r.rows for r in early), 6)
            if early
            else None
        ),
        edit_share=round(float(np.mean(edits)), 6) if edits else None,
        last_good_step=read[onset - 1].step if onset else None,
        first_bad_step=read[onset].step if onset else None,
        sampled=True,
    )
    told = f"{metrics.n_rows} captured completions: {percent(1 - metrics.share_other)} "
    told += "read as in the rollouts"
    if onset is not None and metrics.share_other_before is not None:
        told += (
            f" from step {read[onset].step} on, {percent(1 - metrics.share_other_before)} before"
        )
    table = Table(
        title="captured completions that the rollouts do not have",
        columns=("step", "captured", "nearest in the rollouts"),
        rows=tuple((r.step, a, b) for r in late for a, b in r.other)[:SHOWN],
        cut_rows=max(0, len(other) - SHOWN),
    )
    return Measured(
        metrics,
        told,
        tables=(table,) if other else (),
        window=(read[0].step, read[-1].step),
        signal="captured completions against those of the rollouts",
    )


def _onset(read: list[_Read]) -> int | None:
    """First capture from which on all texts differ, after some that agree; None: there is none."""
    for i in range(1, len(read)):
        if max(r.share for r in read[:i]) <= FEW and min(r.share for r in read[i:]) >= MANY:
            return i
    return None


def _read(run: Run, capture: Capture, batch: RolloutBatch) -> _Read:
    read = _Read(capture.step)
    ids = capture.arrays.get("token_id")
    if ids is None:
        return read
    assert run.vocabulary is not None
    known = run.vocabulary.texts
    prompts = captured_prompts(run, capture)
    rows: dict[str, list[int]] = {}
    for i, prompt in enumerate(batch.prompts):
        rows.setdefault(plain_text(prompt), []).append(i)
    completions = [plain_text(text) for text in batch.completions]
    real = completion_end(run, capture).real
    source = sources(capture)
    # Where generation runs on behind a stop, rollouts hold all that was sampled.
    sampled = real if source is None else np.asarray(source == COMPLETION)
    for i in range(len(ids)):
        held = [p for p in rows if p and prompts is not None and p in prompts[i]]
        under = rows[max(held, key=len)] if held else range(len(completions))
        tokens = np.asarray(ids)[i][sampled[i]].tolist()
        if not tokens:
            continue
        spelled = [known.get(token, "\ufffd") for token in tokens]
        if sum(map(len, spelled)) > LONGEST:
            continue
        text = plain_text("".join(spelled))
        read.rows += 1
        if not any(completions[j] == text for j in under):
            nearest = min(
                (completions[j] for j in under), key=lambda c: Levenshtein.distance(c, text)
            )
            read.other.append((text, nearest))
    return read
