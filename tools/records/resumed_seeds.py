"""Does sampling begin its sequence of seeds again at a resume, and do completions come again?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated
from firstbad.tools.numbers import percent
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import RolloutBatch, Run
from firstbad.tools.segments import resumes

LONG = 3
"""Words from which on a completion counts: shorter ones repeat by themselves."""
NEARLY = 0.9
"""Share of seeds that stood before from which on, and of others up to which, a step counts."""


class ResumedSeeds(Dated):
    """Seeds of rows, or of steps by name, that vary before a resume and begin again at it.

    Dated by that resume where completions come again with them; where none does, nothing is dated.
    """

    n_resumes: int
    reused_from_step: int | None
    """A resume, or a step just behind it if rollouts were sampled ahead, from which on seeds stood
    in earlier steps, where before it hardly any had."""
    by_row: bool
    """Seeds are recorded with the rows; else with the steps."""
    comes_round: bool
    """They come again without a resume as well: seeds that are fixed by the place in an epoch."""
    epoch_may_end: bool
    """An epoch may have ended just there, so that they may come round by design: the prompts with
    them are those of the earlier steps, or each prompt before stood in as many groups."""
    n_again: int
    """Rows since then, of three words or more, whose prompt stood before with the same seed (where
    seeds are those of steps: at the same place among the samples of the prompt)."""
    same_share: float | None
    """Of these: the same completion, word for word."""
    other_same_share: float | None
    """Of these: the completion that another sample of that earlier group had."""


@tool
def check_resumed_seeds(run: Run) -> Measured[ResumedSeeds]:
    """Seeds after a resume that are those of earlier steps, and whether completions are too.

    A sequence of seeds that begins again does no harm by itself: other prompts and weights make
    other completions. Seeds that never vary are no sequence.

    Cannot tell: a state of a random generator that no seed names; where `epoch_may_end`, a
    generator that begins again from seeds that are fixed by the place in an epoch.
    """
    marked = list(_row_marks(run))
    by_row = bool(marked)
    if not by_row:
        marked = list(_step_marks(run))
    if not marked:
        raise NoData("no seeds that vary are recorded, neither with rows nor with captured steps")
    starts = resumes(run)
    begun = ((step, _begins_again(marked, step)) for step in starts)
    resume, at = next(((r, step) for r, step in begun if step is not None), (None, None))
    again = _come_again(run, marked, at) if at is not None else _Again()
    same, other = again.same, again.other
    before = [m.step for m in marked if at is not None and m.step < at]
    share = round(float(np.mean(same)), 6) if same else None
    metrics = ResumedSeeds(
        n_resumes=len(starts),
        reused_from_step=at,
        by_row=by_row,
        comes_round=resume is not None and _comes_round(marked, resume, starts),
        epoch_may_end=again.epoch_may_end,
        n_again=len(same),
        same_share=share,
        other_same_share=round(float(np.mean(other)), 6) if other else None,
        last_good_step=before[-1] if share else None,
        first_bad_step=at if share else None,
    )
    text = "no resume at which a sequence of seeds begins again"
    if at is not None:
        text = f"after the resume at step {resume}, from step {at} on, earlier seeds come again"
        if share is not None:
            text += f", and {percent(share)} of {len(same)} completions with them"
    return Measured(metrics, text, signal="seeds of the sampling")


@dataclass(frozen=True)
class _Marked:
    """A step with its seeds."""

    step: int
    seeds: tuple[Hashable, ...]
    by_row: bool


def _row_marks(run: Run) -> Iterator[_Marked]:
    for batch in run.rollouts.batches():
        if batch.seed is not None and any(batch.seed):
            yield _Marked(batch.step, tuple(s for s in batch.seed if s is not None), True)


def _step_marks(run: Run) -> Iterator[_Marked]:
    """By the seeds that are never the same twice before the first resume; others tell nothing."""
    first = min(resumes(run), default=None)
    kept = [step for step in run.flight if step.seeds and step.first_pass is not False]
    names = sorted({name for step in kept for name in step.seeds})
    for name in names:
        early = [str(s.seeds.get(name)) for s in kept if first is None or s.step < first]
        if len(early) > 1 and len(set(early)) == len(early):
            for step in kept:
                if name in step.seeds:
                    yield _Marked(step.step, (str(step.seeds[name]),), False)
            return


AHEAD = 3
"""Steps behind a resume whose rollouts may have been sampled ahead of it."""


def _begins_again(marked: Sequence[_Marked], resume: int) -> int | None:
    """The step at or just behind a resume from which on seeds are those of earlier steps."""
    known = _known(marked)
    before = [k for one, k in zip(marked, known, strict=True) if one.step < resume]
    since = [(one.step, k) for one, k in zip(marked, known, strict=True) if one.step >= resume]
    if len(before) < 2 or max(before) >= 1 - NEARLY:
        return None
    for i, (step, share) in enumerate(since[: AHEAD + 1]):
        if share >= NEARLY:
            return step if all(k >= NEARLY for _, k in since[i : i + AHEAD]) else None
    return None


def _comes_round(marked: Sequence[_Marked], resume: int, resumes: Sequence[int]) -> bool:
    """Whether the seeds since a resume come again at a step that no resume lies before."""
    own = [one for one in marked if one.step >= resume]
    known = _known(own)
    return any(
        now >= NEARLY
        and max(known[:i]) < 1 - NEARLY
        and not any(0 <= own[i].step - start <= AHEAD for start in resumes)
        for i, now in enumerate(known)
        if i
    )


def _known(marked: Sequence[_Marked]) -> list[float]:
    """Of the seeds of each step, the share that stood in an earlier one."""
    seen: set[Hashable] = set()
    known: list[float] = []
    for one in marked:
        known.append(float(np.mean([seed in seen for seed in one.seeds])))
        seen.update(one.seeds)
    return known


@dataclass
class _Again:
    """Rows since a resume, against those that had their prompt and seed before."""

    same: list[bool] = field(default_factory=list)
    """For each of three words or more: the same completion."""
    other: list[bool] = field(default_factory=list)
    """... that of another row of the earlier group."""
    met: list[bool] = field(default_factory=list)
    """For each row whatever its length: there is an earlier one."""
    prompts: Counter[str] = field(default_factory=Counter)
    """Groups of each prompt before the resume."""

    @property
    def epoch_may_end(self) -> bool:
        return bool(self.met) and (
            float(np.mean(self.met)) >= NEARLY or len(set(self.prompts.values())) == 1
        )


def _come_again(run: Run, marked: Sequence[_Marked], resume: int) -> _Again:
    marks = {one.step: one for one in marked if one.step in set(run.rollouts.steps.tolist())}
    where: dict[Hashable, tuple[Hashable, int]] = {}
    groups: dict[Hashable, list[str]] = {}
    again = _Again()
    for batch in run.rollouts.batches(sorted(marks)):
        found = list(_keys(batch, marks[batch.step]))
        if batch.step < resume:
            of_group = dict(zip(batch.group.tolist(), batch.prompts, strict=True))
            again.prompts.update(of_group.values())
        for key, _, text in found if batch.step >= resume else []:
            again.met.append(key in where)
            if key in where and len(text.split()) >= LONG:
                group, i = where[key]
                before = groups[group]
                again.same.append(before[i] == text)
                if len(before) > 1:
                    again.other.append(before[(i + 1) % len(before)] == text)
        for key, group, text in found:
            texts = groups.setdefault(group, [])
            where.setdefault(key, (group, len(texts)))
            texts.append(text)
    return again


def _keys(batch: RolloutBatch, mark: _Marked) -> Iterator[tuple[Hashable, Hashable, str]]:
    """Of each row: what another with the same prompt and seed shares, its group, its text."""
    count: dict[str, int] = {}
    seeds = batch.seed if mark.by_row and batch.seed is not None else [None] * len(batch)
    rows = zip(batch.prompts, seeds, batch.completions, batch.group.tolist(), strict=True)
    for prompt, seed, text, group in rows:
        place = count.get(prompt, 0)
        count[prompt] = place + 1
        if mark.by_row and seed is None:
            continue
        key = (prompt, seed) if mark.by_row else (prompt, place, mark.seeds)
        yield key, (batch.step, group), text
