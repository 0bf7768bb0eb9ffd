"""Reward to advantage, recomputed sample by sample."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from firstbad.tools.completeness import rows_complete
from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Table
from firstbad.tools.registry import Measured, tool
from firstbad.tools.reward.advantage_rows import (
    AdvantageRows,
    groups_of_two,
    read_kept,
    read_rows,
    stand_apart,
)
from firstbad.tools.reward.estimators import (
    ESTIMATORS,
    NEEDS_ALL_ROWS,
    OVER_GROUP_SPREAD,
    named_estimators,
    near,
    others_equal,
    own_estimator,
)
from firstbad.tools.rewards import group_advantage, group_stats
from firstbad.tools.run import BoolArray, FloatArray, IntArray, Run
from firstbad.tools.segments import OF_THE_ADVANTAGE, HeldToSettings, held_to_settings
from firstbad.tools.stats import raised_stretch, row_medians


class Advantages(HeldToSettings):
    """Advantages used in training against those recomputed from the rewards."""

    n_rows: int
    n_groups: int
    group_size: int
    estimator_known: bool
    """A setting names the estimator, or a known one explains the first steps."""
    estimator_named: bool
    """A setting names it (TRL: `scale_rewards`, also by its default)."""
    group_method: bool
    """The config states more than one completion per prompt and no critic."""
    share_rows_differ: float
    """Of rows whose advantage differs by more than 0.02 from the recomputed one."""
    share_rows_differ_after: float
    """The same, from the first differing step on."""
    largest: float
    """Largest abs(advantage)."""
    bound: float | None
    """Largest possible under the group's own statistics: (G - 1)/sqrt(G) where the spread is
    unbiased, sqrt(G - 1) where it is the population's; None for other estimators."""
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
    """... by no division, where the estimator divides (or the other way round)."""
    ddof_fits: float
    """... by the spread of the group with the other denominator (G for G - 1, or the reverse)."""
    counted_fits: float
    """... by the other answer to whether rows left out of the loss count in their group."""
    best_fit: float
    """The largest of these six shares."""
    left_out_apart: bool
    """Rows that are left out of the loss (cut ones, or untrained ones in a capture) do not count in
    the statistics of their group, so in the first steps that can tell; they are not judged."""
    residue_rows: int
    """Rows whose group holds the same reward in all others, and whose abs(advantage) is above ten
    times both the bound and the difference of the rewards: what is left of a spread of 0."""
    residue_largest: float | None
    """Largest abs(advantage) of them."""
    tiny_spread_groups: int
    """Groups whose rewards spread by less than 1e-3 of their size, and whose advantage is above
    0.5 all the same."""
    tiny_spread_share: float
    spread_median: float


TINY = 0.05
"""Share of such groups beyond which they are dated."""
RESIDUE = 10.0
"""Times the bound, and the difference of the rewards, beyond which an advantage is blown up."""
WAYS = ("batch", "shifted", "negated", "unscaled", "ddof", "counted")
NOTHING = dict.fromkeys(WAYS, 0)
"""What other ways of computing explain where no row is wrong."""


@dataclass(frozen=True)
class _Step:
    step: int
    rows: int
    differ: int
    explained: dict[str, int]


@tool
@held_to_settings(*OF_THE_ADVANTAGE)
def recompute_advantages(run: Run) -> Measured[Advantages]:
    """Advantages recomputed from the per-sample rewards, with the run's own estimator.

    The estimator is the one that the settings name: (r - group mean) / (s + 1e-4) with s over the
    group, over the batch, or none (TRL's `scale_rewards`), leave-one-out, group mean with one scale
    for the batch. Where none is named, the known one that explains the first steps is the run's.
    Where advantages differ from it, other sets and scalings are tried. Above its bound an advantage
    can't come from its own group. Groups of which only part is written are left out, and so are
    rows that neither the loss nor the statistics of their group take (cut answers, say).

    Cannot tell: whether the rewards are right, nor whether an estimator that is used from the first
    step on is the one that was meant, where no setting names it.
    """
    batches = [b for b in run.rollouts.batches() if b.advantage is not None]
    if not batches:
        raise NoData("no rollouts with rewards and advantages")
    if (run.config.text("multi_objective_aggregation") or "sum_then_normalize") != (
        "sum_then_normalize"
    ):
        raise NoData("advantages normalised part by part (`multi_objective_aggregation`)")
    named = named_estimators(run)
    allowed = named or tuple(ESTIMATORS)
    if rows_complete(run) is False:
        allowed = tuple(name for name in allowed if name not in NEEDS_ALL_ROWS)
        if not allowed:
            raise NoData("advantages are scaled over the batch, of which only part is written")
    rows = read_rows(run, batches)
    if not len(rows.steps):
        raise NoData("no step with finite rewards, known weights of their parts and advantages")
    own = own_estimator(rows.of_steps(), allowed)
    expected = other = rows.expected(own or allowed[0])
    wrong = ~near(rows.used, expected)
    apart = False
    if wrong.any():  # perhaps not all rows count in their group
        kept = read_kept(run, batches)
        apart = stand_apart(rows, kept, allowed)
        if apart:  # who is alone then has no statistics
            kept[kept] = groups_of_two(rows.only(kept))
            everyone, rows = rows, rows.only(kept)
            own = own_estimator(rows.of_steps(), allowed)
            expected, other = (
                rows.expected(own or allowed[0]),
                everyone.expected(own or allowed[0])[kept],
            )
            wrong = ~near(rows.used, expected)
        else:
            other = np.nan_to_num(rows.expected_of(kept, own or allowed[0]))
    estimator = own or allowed[0]
    steps: list[_Step] = []
    examples: list[tuple[int, int, float, float, float]] = []
    differ = np.bincount(rows.at[wrong], minlength=len(rows.steps)).tolist()
    for k, step in enumerate(rows.steps.tolist()):
        part = rows.part(k)
        of_step = (rows.total[part], rows.group[part], rows.used[part])
        explained = (
            _explain(*of_step, wrong[part], expected[part], other[part]) if differ[k] else NOTHING
        )
        steps.append(_Step(step, part.stop - part.start, differ[k], explained))
        for i in np.flatnonzero(wrong[part])[: 20 - len(examples)] if differ[k] else ():
            at = part.start + int(i)
            shown = [round(float(v[at]), 5) for v in (rows.total, rows.used, expected)]
            examples.append((step, int(i), shown[0], shown[1], shown[2]))
    known = bool(named) or own is not None
    return _measured(run, steps, examples, rows, estimator, known, bool(named), apart)


class _Groups:
    """Rewards and advantages of all groups of all steps."""

    def __init__(self, rows: AdvantageRows) -> None:
        rewards, advantages = (
            group_stats(rows.total, rows.group),
            group_stats(rows.used, rows.group),
        )
        self.count = len(rewards.size)
        step = np.empty(self.count, np.int64)
        step[rewards.index] = rows.at
        begins = np.flatnonzero(np.diff(step, prepend=-1))
        self.size = int(np.median(np.maximum.reduceat(rewards.size, begins)))
        self.largest = float(np.abs(rows.used).max())
        self.largest_mean = float(np.abs(advantages.mean).max())
        spreads = np.split(rewards.spread, begins[1:])
        self.spread_median = float(np.median([row_medians(part[None])[0] for part in spreads]))
        level = np.maximum(np.maximum(np.abs(rewards.low), np.abs(rewards.high)), 1e-12)
        hair = (rewards.spread > 1e-9) & (rewards.spread < 1e-3 * level)
        strong = np.maximum(-advantages.low, advantages.high) > 0.5
        n = len(rows.steps)
        self.tiny = np.bincount(step[hair & strong], minlength=n)
        """(S,) groups of each step that spread by a hair and carry full-size advantages."""
        self.of_step = np.bincount(step, minlength=n)


def _hair_from(groups: _Groups) -> int:
    """Place of the first step of the stretch where groups spread by a hair; 0 for all along."""
    stretch = raised_stretch(groups.tiny, groups.of_step)
    return 0 if stretch is None or stretch.rate_out > 0.2 * stretch.rate_in else stretch.first


def _residue(rows: AdvantageRows) -> BoolArray:
    """(N,) rows whose advantage is what is left of a spread of 0 among the others.

    (r - mean of the others) / (their spread + eps): in float32 the spread of equal rewards comes
    out as a small number, and the quotient as a huge one.
    """
    stats = group_stats(rows.total, rows.group)
    size = stats.size[stats.index]
    apart = np.abs(rows.total - stats.mean[stats.index]) * size / np.maximum(size - 1, 1)
    bound = (size - 1) / np.sqrt(np.maximum(size, 1))
    found: BoolArray = others_equal(rows.total, rows.group) & (
        np.abs(rows.used) > RESIDUE * np.maximum(bound, apart)
    )
    return found


CRITICS = ("critic", "value_model", "vf_coef", "value_loss", "gae")


def _group_method(run: Run) -> bool:
    """Whether advantages are a matter of groups: several completions a prompt, and no critic."""
    named = [*run.config.values, *run.signals.known, *run.signals.unknown]
    critic = any(word in name.lower() for name in named for word in CRITICS)
    return (run.config.number("num_generations") or 0) > 1 and not critic


def _measured(
    run: Run,
    steps: list[_Step],
    examples: list[tuple[int, int, float, float, float]],
    rows: AdvantageRows,
    estimator: str,
    known: bool,
    named: bool,
    apart: bool,
) -> Measured[Advantages]:
    groups, residue = _Groups(rows), _residue(rows)
    any_residue = bool(residue.any())
    size = groups.size
    tiny = int(groups.tiny.sum()) if estimator in OVER_GROUP_SPREAD else 0
    bound = None
    if estimator in OVER_GROUP_SPREAD and known and size > 1:
        bound = np.sqrt(size - 1) if "population" in estimator else (size - 1) / np.sqrt(size)
    bad = [s for s in steps if s.differ > 0.05 * s.rows]
    first = bad[0].step if bad else None
    good = [s.step for s in steps if first is None or s.step < first]
    after = [s for s in steps if first is not None and s.step >= first]
    hair = _hair_from(groups) if first is None and tiny > TINY * groups.count else None
    if hair is not None:
        first = steps[hair].step
        good = [s.step for s in steps[:hair]]
    if any_residue:
        worst = int(rows.at[residue].min())
        first, hair = steps[worst].step, None
        good = [s.step for s in steps[:worst]]
    differ = sum(s.differ for s in steps)

    def fits(name: str) -> float:
        return round(sum(s.explained[name] for s in steps) / differ, 4) if differ else 0.0

    n_rows = sum(s.rows for s in steps)
    metrics = Advantages(
        n_rows=n_rows,
        n_groups=groups.count,
        group_size=size,
        estimator_known=known,
        estimator_named=named,
        group_method=_group_method(run),
        share_rows_differ=round(differ / n_rows, 6),
        share_rows_differ_after=(
            round(sum(s.differ for s in after) / sum(s.rows for s in after), 6) if after else 0.0
        ),
        largest=round(groups.largest, 4),
        bound=None if bound is None else round(float(bound), 4),
        over_bound=None if bound is None else round(groups.largest - float(bound), 4),
        group_sum_largest=round(groups.largest_mean, 4),
        batch_fits=fits("batch"),
        shifted_fits=fits("shifted"),
        negated_fits=fits("negated"),
        unscaled_fits=fits("unscaled"),
        ddof_fits=fits("ddof"),
        counted_fits=fits("counted"),
        left_out_apart=apart,
        best_fit=max(map(fits, WAYS)),
        residue_rows=int(residue.sum()),
        residue_largest=round(float(np.abs(rows.used[residue]).max()), 4) if any_residue else None,
        tiny_spread_groups=tiny,
        tiny_spread_share=round(tiny / groups.count, 6),
        spread_median=round(groups.spread_median, 6),
        last_good_step=good[-1] if good else None,
        first_bad_step=first,
        from_start=first is not None and not good,
    )
    table = Table(
        title="advantages that differ from the recomputed ones",
        columns=("step", "row", "reward", "advantage used", "recomputed"),
        rows=tuple(examples),
        cut_rows=max(0, differ - len(examples)),
    )
    text = (
        f"{n_rows} advantages recomputed ({estimator}; G = {size}): "
        f"{differ} differ; largest {groups.largest:.3f}"
    )
    if bound is not None:
        text += f", bound {bound:.3f}"
    if not named:
        text += (
            "; no setting names the estimator, this one explains the first steps"
            if known
            else "; no setting names the estimator and no known one explains the first steps"
        )
    if apart:
        text += "; rows that are left out of the loss do not count in their group"
    if any_residue:
        text += f"; {residue.sum()} rows carry up to {metrics.residue_largest} of a spread of 0"
    if hair is not None:
        text += f"; {tiny} groups spread by a hair and carry full-size advantages"
    if first is not None:
        text += f"; first at step {first}"
    return Measured(
        metrics,
        text,
        tables=(table,) if examples else (),
        window=(steps[0].step, steps[-1].step),
        signal="advantage against its reward" if hair is None else "groups that spread by a hair",
    )


def _explain(
    total: FloatArray,
    group: IntArray,
    used: FloatArray,
    wrong: BoolArray,
    own: FloatArray,
    counted: FloatArray,
) -> dict[str, int]:
    """Of the wrong rows of a step, how many each other way of computing explains."""
    deviation = float(np.std(total, ddof=1)) + 1e-4
    size = group_stats(total, group).size[group_stats(total, group).index]
    other = np.sqrt(size / np.maximum(size - 1, 1))
    others = {
        "batch": [
            (total - total.mean()) / deviation,
            group_advantage(total, group, scale="batch"),
        ],
        "shifted": [np.roll(own, k) for k in (1, -1)],
        "negated": [-own],
        "ddof": [own * other, own / other],
        "unscaled": [group_advantage(total, group, scale=kind) for kind in ("none", "group")],
        "counted": [counted],
    }
    return {
        name: max(int(near(used, o)[wrong].sum()) for o in candidates)
        for name, candidates in others.items()
    }
