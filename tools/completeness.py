"""Do the rollouts hold every row that was trained on, or only a sample of them?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from firstbad.tools.rewards import group_index, total_reward
from firstbad.tools.run import BoolArray, RolloutBatch, Run
from firstbad.tools.segments import stated_from

LOOKED_AT = 20
"""Steps that the question is answered from, spread over the run."""
AGREES = 0.01
"""Distance of a logged mean to that of the rows, in units of 1 + its size."""


def expected_rows(run: Run) -> int | None:
    """Completions of one generation batch by the config, or None where it does not say."""
    stated = run.config.number("generation_batch_size")
    return int(stated) if stated else None


def groups_promised(run: Run) -> bool | None:
    """Whether a recorder says of its rows: whole groups, in order, before any filter.

    False where it denies one of these for a captured step, None where it does not say.
    """
    recorded = set(run.rollouts.steps) & set(run.flight.steps)
    told = [run.flight.at(step) for step in _spread(sorted(recorded))]
    if any(s.whole_groups is False or s.in_order is False or s.filters == "after" for s in told):
        return False
    every = all(s.whole_groups and s.in_order and s.filters is not None for s in told)
    return True if told and every else None


def _spread(steps: Sequence[int]) -> list[int]:
    """At most `LOOKED_AT` of them, spread over the run."""
    at = np.linspace(0, len(steps) - 1, min(len(steps), LOOKED_AT)).astype(int)
    return [steps[i] for i in np.unique(at).tolist()]


def rows_complete(run: Run) -> bool | None:
    """Whether steps hold all rows that were trained on.

    True: as many as the config generates, or fewer while the logged means, or the logged count of
    trained tokens, are those of the rows (groups were filtered before training). False: fewer
    rows, or fewer completions per prompt, than the config says. None: the config doesn't say how
    many there are.
    """
    steps = run.rollouts.steps
    if not len(steps):
        return None
    batches = list(run.rollouts.batches(_spread(steps.tolist())))
    rows = [len(b) for b in batches]
    generated = expected_rows(run)
    one_process = (run.config.number("per_device_train_batch_size") or 0) * (
        run.config.number("steps_per_generation") or 1
    )
    if not rows:
        return None
    if generated and np.median(rows) >= generated:
        return True
    partial = np.mean([not whole_groups(run, b).any() for b in batches]) > 0.5
    if partial or np.median(rows) < (generated or one_process):
        return _tokens_agree(run, batches) or _means_agree(run, batches)
    return None


def whole_groups(run: Run, batch: RolloutBatch) -> BoolArray:
    """(R,) rows of groups that hold as many completions as the config generates for a prompt.

    All rows where the config doesn't say how many that is, or says it of a later launch alone.
    """
    stated = stated_from(run, "num_generations")
    if stated is not None and batch.step < stated:
        return np.ones(len(batch), bool)
    wanted = run.config.number("num_generations") or 1
    index, size = group_index(batch.group)
    whole: BoolArray = size[index] >= wanted
    return whole


def whole_rows(run: Run, batch: RolloutBatch) -> RolloutBatch:
    """The batch without the rows of groups that are written in part."""
    keep = whole_groups(run, batch)
    if keep.all():
        return batch
    rows = np.flatnonzero(keep).tolist()
    return replace(
        batch,
        prompts=[batch.prompts[i] for i in rows],
        completions=[batch.completions[i] for i in rows],
        group=batch.group[keep],
        rewards={name: values[keep] for name, values in batch.rewards.items()},
        advantage=None if batch.advantage is None else batch.advantage[keep],
        total=None if batch.total is None else batch.total[keep],
        gold=None if batch.gold is None else [batch.gold[i] for i in rows],
        finish=None if batch.finish is None else [batch.finish[i] for i in rows],
        n_tokens=None if batch.n_tokens is None else batch.n_tokens[keep],
        n_sampled=None if batch.n_sampled is None else batch.n_sampled[keep],
    )


def _tokens_agree(run: Run, batches: list[RolloutBatch]) -> bool:
    """Whether as many tokens are trained as the rows written have, by the logged mean length."""
    trained = run.signals.get("trained_tokens_mean")
    length = run.signals.get("completion_length_mean")
    generated = expected_rows(run)
    share = (run.config.number("per_device_train_batch_size") or 0) / (generated or 1)
    if trained is None or length is None or not generated or not share:
        return False
    near = [
        abs(count - share * len(b) * mean) <= AGREES * count
        for b in batches
        if (count := trained.at(b.step)) and (mean := length.at(b.step))
    ]
    return len(near) >= 3 and sum(near) > 0.9 * len(near)


def _means_agree(run: Run, batches: list[RolloutBatch]) -> bool:
    """Whether every logged reward mean that varies is the mean of the rows written."""
    pairs: dict[str, list[tuple[float, float]]] = {}
    for batch in batches:
        values = {f"reward_part/{name}": v for name, v in batch.rewards.items()}
        if (total := total_reward(run, batch)) is not None:
            values["reward_mean"] = total
        for name, scores in values.items():
            signal = run.signals.get(name)
            logged = signal.at(batch.step) if signal else None
            if logged is not None and np.isfinite(scores).any():
                pairs.setdefault(name, []).append((logged, float(np.nanmean(scores))))
    shares = []
    for found in pairs.values():
        logged_means, means = np.array(found).T
        if len(found) >= 3 and np.ptp(logged_means) > AGREES:
            near = np.abs(logged_means - means) <= AGREES * (1 + np.abs(means))
            shares.append(float(near.mean()))
    return bool(shares) and min(shares) > 0.9
