"""Identity of rollout rows: group sizes, groups of one prompt, order."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np

from firstbad.tools.completeness import groups_promised, rows_complete
from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Table
from firstbad.tools.readers.completions import EVALUATION
from firstbad.tools.readers.grouping import numbered, prompts_say_nothing
from firstbad.tools.registry import Measured, tool
from firstbad.tools.rewards import group_advantage, scale_setting, total_reward
from firstbad.tools.run import RolloutBatch, Run
from firstbad.tools.segments import HeldToSettings, held_to_settings


class Rows(HeldToSettings):
    """How rows form groups."""

    n_steps: int
    n_rows: int
    group_size: int | None
    """Completions per prompt: from the config, else the most common size."""
    steps_uneven: int
    """Steps in which some group has another size."""
    steps_interleaved: int
    """Steps in which the rows of one prompt are not next to each other."""
    share_steps_broken: float
    """Of steps: uneven or interleaved groups."""
    order_expected: bool
    """The source writes the rows of a group one after the other (known by position or key)."""
    promised: bool | None
    """A recorder says that its rows are whole groups in order, before any filter; False where it
    denies that, None where it does not say."""
    steps_row_count_differs: int
    """Steps whose number of rows is not the usual one."""
    complete: bool | None
    """Steps hold all rows that were trained on; None where the config does not say how many."""
    advantages_follow_prompts: bool | None
    """In steps with interleaved rows the advantages are those of the prompt's rows, wherever they
    stand: the file is in another order, training was not. None without such steps or advantages."""
    steps_repeated: int
    """Steps whose rollouts repeat an earlier step's (one batch trained several times)."""
    steps_short_scores: int
    """Steps in which a reward column has unscored rows."""


@tool
@held_to_settings("num_generations")
def check_rows(run: Run) -> Measured[Rows]:
    """Group sizes, contiguity and completeness of rollout rows, step by step.

    A group is one prompt's completions. Position gives the group where the framework writes groups
    one after the other; equal prompts cross-check it.

    Cannot tell: whether scores belong to the rows beside them (see `rejudge`).
    """
    if not run.rollouts:
        told = (note.text for note in run.notes if note.code == EVALUATION)
        raise NoData(next(told, "no rollouts: per-step completions with their prompts"))
    configured = run.config.number("num_generations")
    batches = list(run.rollouts.batches())
    counted = [np.bincount(b.group) for b in batches]
    sizes = np.concatenate(counted)[np.concatenate(counted) > 0] if counted else np.empty(0, int)
    usual = int(np.bincount(sizes).argmax()) if len(sizes) else None
    expected = int(configured) if configured else usual
    usual_rows = int(np.bincount([len(b) for b in batches]).argmax()) if batches else 0
    bad: list[tuple[int, str]] = []
    counts = dict.fromkeys(("uneven", "interleaved", "rows", "short"), 0)
    for batch in batches:
        problems = _problems(batch, expected, usual_rows)
        for problem in problems:
            counts[problem] += 1
        structural = [p for p in problems if p in ("uneven", "interleaved")]
        if structural:
            bad.append((batch.step, ", ".join(structural)))
    first = bad[0][0] if bad else None
    complete = rows_complete(run)
    good = [b.step for b in batches if first is None or b.step < first]
    metrics = Rows(
        n_steps=len(batches),
        n_rows=sum(len(b) for b in batches),
        group_size=expected,
        steps_uneven=counts["uneven"],
        steps_interleaved=counts["interleaved"],
        share_steps_broken=round(len(bad) / max(1, len(batches)), 6),
        order_expected=run.framework == "trl" or all(b.group_source != "prompt" for b in batches),
        promised=groups_promised(run),
        steps_row_count_differs=counts["rows"],
        complete=complete,
        advantages_follow_prompts=_follow_prompts(run, batches),
        steps_repeated=len(run.rollouts.steps) - len(batches),
        steps_short_scores=counts["short"],
        last_good_step=good[-1] if good else None,
        first_bad_step=first,
        from_start=bool(bad) and not good,
    )
    table = Table(
        title="steps whose rows do not form groups",
        columns=("step", "problem"),
        rows=tuple(bad[:20]),
        cut_rows=max(0, len(bad) - 20),
    )
    summary = (
        f"{metrics.n_rows} rows in {metrics.n_steps} steps, {expected} per prompt; "
        f"{len(bad)} steps with uneven or interleaved groups"
        + ("; only part of the rows of a step is written" if complete is False else "")
    )
    return Measured(
        metrics,
        summary,
        tables=(table,) if bad else (),
        signal="rows of a group",
    )


def _problems(batch: RolloutBatch, expected: int | None, usual_rows: int) -> list[str]:
    problems = []
    group = batch.group
    sizes = np.bincount(group - group.min())
    sizes = sizes[sizes > 0]
    if expected and (sizes != expected).any():
        problems.append("uneven")
    runs = np.count_nonzero(group[1:] != group[:-1]) + 1
    if runs != len(sizes) or _mixed_prompts(batch):
        problems.append("interleaved")
    if len(batch) != usual_rows:
        problems.append("rows")
    if any(np.isnan(scores).any() for scores in batch.rewards.values()):
        problems.append("short")
    return problems


def _follow_prompts(run: Run, batches: list[RolloutBatch]) -> bool | None:
    agree: list[bool] = []
    scale = scale_setting(run)
    for batch in batches:
        if not _moved(batch.prompts) or batch.advantage is None or scale is None:
            continue
        total = total_reward(run, batch)
        if total is None:
            continue
        by_prompt = numbered(batch.prompts)
        expected = group_advantage(total, by_prompt, scale=scale)
        agree.extend((np.abs(batch.advantage - expected) < 0.05).tolist())
    return bool(np.mean(agree) > 0.9) if agree else None


def _moved(prompts: Sequence[str]) -> bool:
    """Whether equal prompts stand apart."""
    return sum(1 for _ in groupby(prompts)) != len(set(prompts))


def _mixed_prompts(batch: RolloutBatch) -> bool:
    """Whether a group holds more than one prompt; no where prompts can't tell."""
    if prompts_say_nothing(batch.prompts):
        return False
    first: dict[int, str] = {}
    rows = zip(batch.group.tolist(), batch.prompts, strict=True)
    return any(first.setdefault(group, prompt) != prompt for group, prompt in rows)
