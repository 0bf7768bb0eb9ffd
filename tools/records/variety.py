"""Variety of the prompts that training draws: duplicates in a step and in neighbouring steps."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Table
from firstbad.tools.numbers import percent
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import FloatArray, RolloutBatch, Run
from firstbad.tools.segments import HeldToSettings, held_to_settings
from firstbad.tools.stats import first_of_run

OFTEN = 0.3
"""Share of repeated prompts in a step, beyond chance, that dates a lack of variety."""
FEWEST = 30
"""Groups over which a share is told."""
STEADY = 0.9
"""Share of the steps in which a design must show; the last of an epoch may be a part of one."""
PLACES = 64
"""Rows of a group that are compared with those of another one."""
EARLY = 3
"""First steps, in all of which a design must show, at half of its largest extent at least."""


class Variety(HeldToSettings):
    """Repeated prompts, as shares, and what chance would give."""

    n_steps: int
    n_distinct: int
    groups_per_step: float
    duplicate_share: float
    """Of groups: another group of the same step has the same prompt. Mean over the run."""
    duplicate_share_worst: float
    """The same over the tenth of the run (and 30 groups at least) where it is highest."""
    duplicate_excess: float
    """`duplicate_share_worst` less what drawing from the run's distinct prompts gives by chance."""
    adjacent_share: float
    """Of prompts: the step before had the same one. Mean over the run."""
    adjacent_share_worst: float
    adjacent_excess: float
    """`adjacent_share_worst` less chance."""
    repeated_share: float
    """Of prompts: seen at any earlier step. Normal in a second epoch."""
    copies: int | None
    """Groups of the prompt of a step that has the most, the median, where prompts repeat in nearly
    all steps and from the first one on, as where a group is sampled in blocks or hard prompts get
    more of them; None elsewhere, as where the repeats become far more."""
    copies_alike: float | None
    """Of the rows at one place of two groups of a prompt: the same text. None without `copies`."""
    copies_alike_least: float | None
    """The least by which that is more frequent than at two different places of them (less three
    standard errors over the prompts): above 0 they are no samples of their own."""


@tool
@held_to_settings("num_generations")
def check_prompt_variety(run: Run) -> Measured[Variety]:
    """Duplicated prompts within a step and in neighbouring steps, against chance.

    Chance: drawing from as many distinct prompts as the run shows.

    Cannot tell: a sampler that gives every rank the same prompts, from the first step on, from a
    group that is sampled in blocks by design; equal seeds where prompts differ and completions do
    not (see `read_rollouts`).
    """
    batches = list(run.rollouts.batches())
    if not batches:
        raise NoData("no rollouts with their prompts")
    seen: set[str] = set()
    last: set[str] = set()
    drawn: set[str] = set()  # together with the batch at hand
    duplicate, adjacent, repeated, groups = [], [], [], []
    for before, batch in zip([None, *batches], batches, strict=False):
        _, first = np.unique(batch.group, return_index=True)
        prompts = [batch.prompts[int(i)] for i in first]
        distinct = set(prompts)
        groups.append(len(prompts))
        duplicate.append(1 - len(distinct) / len(prompts))
        if before is None or not _parts_of_one(run, before, batch):
            last, drawn = drawn, set()
        adjacent.append(len(distinct & last) / len(distinct))
        repeated.append(len(distinct & (seen - drawn)) / len(distinct))
        seen |= distinct
        drawn |= distinct
    per_step = float(np.mean(groups))
    chance = per_step / len(seen)
    doubled, stayed = np.array(duplicate), np.array(adjacent)
    steps = [b.step for b in batches]
    often = (doubled - chance / 2 > OFTEN) | (stayed - chance > OFTEN)
    at = first_of_run(often.tolist(), length=min(3, len(often)))
    copies = _copies(batches, doubled, per_step)
    alike, alike_least = _alike(batches) if copies else (None, None)
    metrics = Variety(
        n_steps=len(batches),
        n_distinct=len(seen),
        groups_per_step=round(per_step, 3),
        duplicate_share=round(float(doubled.mean()), 6),
        duplicate_share_worst=_worst(doubled, per_step),
        duplicate_excess=round(_worst(doubled, per_step) - chance / 2, 6),
        adjacent_share=round(float(stayed.mean()), 6),
        adjacent_share_worst=_worst(stayed, per_step),
        adjacent_excess=round(_worst(stayed, per_step) - chance, 6),
        repeated_share=round(float(np.mean(repeated)), 6),
        copies=copies,
        copies_alike=alike,
        copies_alike_least=alike_least,
        last_good_step=steps[at - 1] if at else None,
        first_bad_step=None if at is None else steps[at],
        from_start=at == 0,
    )
    shown = [i for i in range(len(steps)) if often[i]][:20]
    table = Table(
        title="steps with repeated prompts",
        columns=("step", "groups", "repeat a prompt of the step", "stood in the step before"),
        rows=tuple(
            (steps[i], groups[i], round(duplicate[i], 4), round(adjacent[i], 4)) for i in shown
        ),
        cut_rows=int(often.sum()) - len(shown),
    )
    text = (
        f"{len(seen)} distinct prompts in {len(batches)} steps; "
        f"{percent(metrics.duplicate_share)} of groups repeat a prompt of their step, "
        f"{percent(metrics.adjacent_share)} of prompts stood in the step before"
    )
    if at is not None:
        text += f"; often so from step {steps[at]}"
    return Measured(
        metrics,
        text,
        tables=(table,) if shown else (),
        signal="repeated prompts",
    )


def _parts_of_one(run: Run, before: RolloutBatch, batch: RolloutBatch) -> bool:
    """Whether two steps train parts of the same groups, which were sampled at once."""
    size = run.config.number("num_generations") or 0
    versions = [b.policy_version for b in (before, batch)]
    if any(v is None or len(set(v.tolist())) != 1 for v in versions):
        return False
    partial = all(np.bincount(b.group).max() < size for b in (before, batch))
    return partial and versions[0][0] == versions[1][0]  # type: ignore[index]


def _groups_of(batch: RolloutBatch) -> dict[str, list[list[int]]]:
    """Rows of each group, by its prompt."""
    rows: dict[int, list[int]] = {}
    for row, group in enumerate(batch.group.tolist()):
        rows.setdefault(group, []).append(row)
    found: dict[str, list[list[int]]] = {}
    for members in rows.values():
        found.setdefault(batch.prompts[members[0]], []).append(members)
    return found


def _copies(batches: list[RolloutBatch], duplicate: FloatArray, per_step: float) -> int | None:
    """Groups of the prompt that has the most, the median of the steps; None without a design."""
    most = np.array([max(map(len, _groups_of(batch).values())) for batch in batches])
    first = slice(0, EARLY)
    if most[first].min() < 2 or np.mean(most >= 2) < STEADY:
        return None
    if duplicate[first].mean() < _worst(duplicate, per_step) / 2:
        return None  # prompts that repeat by chance, and then by far more
    return int(np.median(most))


def _alike(batches: list[RolloutBatch]) -> tuple[float | None, float | None]:
    """Share of equal texts at one place of two groups of a prompt, and its excess at the least.

    Samples are exchangeable: two that were drawn by themselves are the same at one place as often
    as at two.
    """
    at_one, beyond = [], []
    for batch in batches:
        for groups in _groups_of(batch).values():
            for first, second in pairwise(groups):
                n = min(len(first), len(second), PLACES)
                a, b = ([batch.completions[i] for i in rows[:n]] for rows in (first, second))
                if n < 2:
                    continue
                equal = np.array([[text == other for other in b] for text in a], np.float64)
                one = float(equal.trace()) / n
                at_one.append(one)
                beyond.append(one - float(equal.sum() - equal.trace()) / (n * (n - 1)))
    if len(beyond) < 2:
        return None, None
    error = float(np.std(beyond, ddof=1)) / np.sqrt(len(beyond))
    return round(float(np.mean(at_one)), 6), round(float(np.mean(beyond)) - 3 * error, 6)


def _worst(share: FloatArray, groups: float) -> float:
    """Mean over the tenth of the run where it is highest, or over as many groups as tell a share.

    With two groups a step, one coincidence makes a half of it.
    """
    size = min(len(share), max(1, len(share) // 10, math.ceil(FEWEST / groups)))
    sums = np.convolve(share, np.ones(size) / size, mode="valid")
    return round(float(sums.max()), 6)
