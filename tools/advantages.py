"""Reward to advantage, recomputed sample by sample."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Table
from firstbad.tools.registry import Measured, tool
from firstbad.tools.rewards import group_advantage, group_stats, scale_setting, total_reward
from firstbad.tools.run import FloatArray, Run

ESTIMATORS = ("advantage_estimator", "adv_estimator", "algorithm.adv_estimator")
"""Settings that name an estimator other than TRL's."""
TOLERANCE = 0.02
"""Recomputed advantages agree to float32 and eps; a twentieth of that is already a fault."""


class Advantages(Dated):
    """Advantages used in training against those recomputed from the rewards."""

    n_rows: int
    n_groups: int
    group_size: int
    share_rows_differ: float
    """Of rows whose advantage differs by more than 0.02 from the recomputed one."""
    share_rows_differ_after: float
    """The same, from the first differing step on."""
    largest: float
    """Largest abs(advantage)."""
    bound: float | None
    """(G - 1) / sqrt(G): largest possible under the group's own unbiased statistics."""
    over_bound: float | None
    """`largest` less `bound`."""
    group_sum_largest: float
    """Largest abs(sum of advantages of one group), over G."""
    batch_fits: float
    """Of the rows that differ: share explained by statistics over the whole batch."""
    shifted_fits: float
    """... by the rows' own group, but each row holding a neighbour's advantage."""
    negated_fits: float
    """... by the sign turned round."""
    unscaled_fits: float
    """... by no division, where the config divides (or the other way round)."""
    tiny_spread_groups: int
    """Groups whose rewards spread by less than 1e-3 of their size, and whose advantage is above
    0.5 all the same."""
    tiny_spread_share: float
    spread_median: float


@dataclass(frozen=True)
class _Step:
    step: int
    rows: int
    differ: int
    explained: dict[str, int]


@tool
def recompute_advantages(run: Run) -> Measured[Advantages]:
    """Advantages recomputed from the per-sample rewards, with the run's own settings.

    (r - group mean) / (s + 1e-4), s unbiased over the group (`scale_rewards`: group), the batch, or
    none. Where they differ, other sets and scalings are tried. Above (G - 1)/sqrt(G) an advantage
    can't come from its own group. Source: TRL 1.16, and the bound of a sample of G values.

    Cannot tell: whether the rewards are right.
    """
    batches = [b for b in run.rollouts.batches() if b.advantage is not None]
    if not batches:
        raise NoData("no rollouts with rewards and advantages")
    if (run.config.text("multi_objective_aggregation") or "sum_then_normalize") != (
        "sum_then_normalize"
    ):
        raise NoData("advantages normalised part by part (`multi_objective_aggregation`)")
    scale = scale_setting(run)
    named = next((k for k in ESTIMATORS if run.config.values.get(k) is not None), None)
    if named is not None or run.framework != "trl":
        said = f"`{named}`: {run.config.values[named]}" if named else f"framework {run.framework}"
        raise NoData(f"only TRL's group advantage can be recomputed, not that of {said}")
    if scale is None:
        raise NoData("no config that states how advantages are scaled (`scale_rewards`)")
    full = run.config.number("num_generations")
    steps: list[_Step] = []
    largest, sums, sizes, spreads = 0.0, 0.0, [], []
    tiny = groups = 0
    examples: list[tuple[int, int, float, float, float]] = []
    for batch in batches:
        total = total_reward(run, batch)
        used = batch.advantage
        if total is None or used is None:
            continue
        scored = np.isfinite(total) & np.isfinite(used)
        if full and np.bincount(batch.group)[np.unique(batch.group)].max() < full:
            continue  # rows of whole groups are not written
        if scored.sum() < 2:
            continue
        total, used, group = total[scored], used[scored], batch.group[scored]
        expected = group_advantage(total, group, scale=scale)
        wrong = np.abs(used - expected) > TOLERANCE * (1 + np.abs(expected))
        steps.append(
            _Step(
                batch.step, len(used), int(wrong.sum()), _explain(total, group, used, wrong, scale)
            )
        )
        for i in np.flatnonzero(wrong)[: max(0, 20 - len(examples))]:
            shown = [round(float(v[i]), 5) for v in (total, used, expected)]
            examples.append((batch.step, int(i), shown[0], shown[1], shown[2]))
        largest = max(largest, float(np.abs(used).max()))
        rewards, advantages = group_stats(total, group), group_stats(used, group)
        sizes.append(int(rewards.size.max()))
        spreads.append(float(np.median(rewards.spread)))
        groups += len(rewards.size)
        sums = max(sums, float(np.abs(advantages.mean).max()))
        level = np.maximum(np.maximum(np.abs(rewards.low), np.abs(rewards.high)), 1e-12)
        hair = (rewards.spread > 1e-9) & (rewards.spread < 1e-3 * level)
        tiny += int((hair & (np.maximum(-advantages.low, advantages.high) > 0.5)).sum())
    if not steps:
        raise NoData("no step with finite rewards, known weights of their parts and advantages")
    return _measured(run, steps, examples, largest, sums, sizes, spreads, tiny, groups, scale)


def _measured(
    run: Run,
    steps: list[_Step],
    examples: list[tuple[int, int, float, float, float]],
    largest: float,
    sums: float,
    sizes: list[int],
    spreads: list[float],
    tiny: int,
    groups: int,
    scale: str,
) -> Measured[Advantages]:
    size = int(np.median(sizes))
    bound = (size - 1) / np.sqrt(size) if scale == "group" and size > 1 else None
    bad = [s for s in steps if s.differ > 0.05 * s.rows]
    first = bad[0].step if bad else None
    good = [s.step for s in steps if first is None or s.step < first]
    after = [s for s in steps if first is not None and s.step >= first]
    differ = sum(s.differ for s in steps)

    def fits(name: str) -> float:
        return round(sum(s.explained[name] for s in steps) / differ, 4) if differ else 0.0

    rows = sum(s.rows for s in steps)
    metrics = Advantages(
        n_rows=rows,
        n_groups=groups,
        group_size=size,
        share_rows_differ=round(differ / rows, 6),
        share_rows_differ_after=(
            round(sum(s.differ for s in after) / sum(s.rows for s in after), 6) if after else 0.0
        ),
        largest=round(largest, 4),
        bound=None if bound is None else round(float(bound), 4),
        over_bound=None if bound is None else round(largest - float(bound), 4),
        group_sum_largest=round(sums, 4),
        batch_fits=fits("batch"),
        shifted_fits=fits("shifted"),
        negated_fits=fits("negated"),
        unscaled_fits=fits("unscaled"),
        tiny_spread_groups=tiny,
        tiny_spread_share=round(tiny / groups, 6),
        spread_median=round(float(np.median(spreads)), 6),
        last_good_step=good[-1] if good else None,
        first_bad_step=first,
        from_start=bool(bad) and not good,
    )
    table = Table(
        title="advantages that differ from the recomputed ones",
        columns=("step", "row", "reward", "advantage used", "recomputed"),
        rows=tuple(examples),
        cut_rows=max(0, differ - len(examples)),
    )
    text = (
        f"{rows} advantages recomputed ({scale} statistics, G = {size}): "
        f"{differ} differ; largest {largest:.3f}"
    )
    if bound is not None:
        text += f", bound {bound:.3f}"
    if first is not None:
        text += f"; first at step {first}"
    return Measured(
        metrics,
        text,
        tables=(table,) if examples else (),
        window=(steps[0].step, steps[-1].step),
        signal="advantage against its reward",
    )


def _explain(
    total: FloatArray,
    group: np.ndarray[tuple[int], np.dtype[np.int64]],
    used: FloatArray,
    wrong: np.ndarray[tuple[int], np.dtype[np.bool_]],
    scale: str,
) -> dict[str, int]:
    """Of the wrong rows of a step, how many each other way of computing explains."""
    names = ("batch", "shifted", "negated", "unscaled")
    if not wrong.any():
        return dict.fromkeys(names, 0)
    own = group_advantage(total, group, scale=scale)
    deviation = float(np.std(total, ddof=1)) + 1e-4
    others = {
        "batch": [
            (total - total.mean()) / deviation,
            group_advantage(total, group, scale="batch"),
        ],
        "shifted": [np.roll(own, k) for k in (1, -1)],
        "negated": [-own],
        "unscaled": [group_advantage(total, group, scale="none" if scale != "none" else "group")],
    }
    return {
        name: max(
            int((np.abs(used - o) <= TOLERANCE * (1 + np.abs(o)))[wrong].sum()) for o in candidates
        )
        for name, candidates in others.items()
    }
