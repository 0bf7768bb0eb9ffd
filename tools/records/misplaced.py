"""Do completions stand beside their own prompts? Right answers of other prompts of the step."""

from __future__ import annotations

import numpy as np

from firstbad.tools.answers import extract, likely_extractor, loose, normalise
from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Scalar, Table
from firstbad.tools.judges import ByGold
from firstbad.tools.numbers import percent
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import FloatArray, RolloutBatch, Run
from firstbad.tools.stats import raised_stretch

FEWEST = 60
"""Rows with an answer and a known right one."""
NEAR = 2
"""Steps on each side whose right answers tell what coincidence gives."""
SURE_GAIN = 10.0
"""Log-likelihood by which a stretch of steps must be better than none to be dated."""


class Misplaced(Dated):
    """Rows whose answer is the right one of another prompt of the same step."""

    n_rows: int
    """Rows with an answer whose prompt has a known right answer."""
    misplaced_share: float
    """Of the rows: answered wrongly, with the right answer of another prompt of the step. Inside
    the stretch where that is raised, else over the run."""
    chance_share: float
    """Of the same rows: with the right answer of a prompt of a neighbouring step, on average over
    four of these; what coincidence gives."""
    excess_z: float
    """Difference of the two counts, in standard errors of it were both by chance."""
    misplaced_before: float | None
    """Share outside that stretch; None without one."""
    rise: float | None
    """Misplaced beyond chance inside the stretch over outside it (at least 0.5 % of the rows)."""
    mixed_share: float
    """Of the groups that hold such rows: others of their rows answer their own prompt. 0 where
    whole groups are wrong, as with right answers that belong to other prompts."""


@tool
def find_misplaced(run: Run) -> Measured[Misplaced]:
    """Share of rows that answer another prompt of their step, step by step.

    Where completions lose their place between generation and scoring, the answer of one prompt
    stands beside another. By chance that is as frequent as the right answer of a prompt of a
    neighbouring step.

    Cannot tell: completions in another order among samples of one prompt; nor anything where most
    prompts have the same few right answers.
    """
    batches = [b for b in run.rollouts.batches() if b.gold is not None]
    if len(batches) < 2:
        raise NoData("no two steps of rollouts whose right answers are known")
    extractor = likely_extractor(batches)
    wanted = [{normalise(g) for g in b.gold or () if g is not None} for b in batches]
    rows: list[tuple[float, ...]] = []
    examples: list[tuple[Scalar, ...]] = []
    for i, batch in enumerate(batches):
        near = [wanted[j] for j in range(i - NEAR, i + NEAR + 1) if j != i and 0 <= j < len(wanted)]
        mixed, groups, chance = 0, 0, 0.0
        moved = np.zeros(len(batch), bool)
        known, right = ByGold(extractor, "loose").judge(batch)
        n = int(right.sum())
        for r in np.flatnonzero(known & ~right).tolist():
            gold = str((batch.gold or ())[r])
            said = extract(extractor, batch.completions[r])
            if said is None:
                continue
            n += 1
            answer = normalise(said)
            if loose(answer) == loose(normalise(gold)):
                continue
            moved[r] = answer in wanted[i]
            chance += sum(answer in answers for answers in near) / len(near)
            if moved[r] and len(examples) < 400:
                examples.append((batch.step, batch.prompts[r][:120], answer[:80], gold[:80]))
        here = int(moved.sum())
        for group in np.unique(batch.group[moved]).tolist():
            groups += 1
            mixed += bool(right[batch.group == group].any())
        rows.append((n, here, chance, mixed, groups))
    return _measured(run, batches, np.array(rows), examples)


def _measured(
    run: Run, batches: list[RolloutBatch], rows: FloatArray, examples: list[tuple[Scalar, ...]]
) -> Measured[Misplaced]:
    """`rows` (S, 5): rows, misplaced, by chance, groups with both kinds, groups with misplaced."""
    steps = [b.step for b in batches]
    total = int(rows[:, 0].sum())  # shares of chance are no whole numbers, the rest are
    if total < FEWEST:
        raise NoData(f"{total} rows with an answer and a known right one; {FEWEST} are needed")
    beyond = np.maximum(np.round(rows[:, 1] - rows[:, 2]), 0).astype(np.int64)
    stretch = raised_stretch(beyond, rows[:, 0].astype(np.int64))
    if stretch is not None and stretch.gain < SURE_GAIN:
        stretch = None
    part = slice(stretch.first, stretch.stop) if stretch else slice(None)
    n, here, chance, mixed, groups = rows[part].sum(axis=0).tolist()
    out_n, out_here = total - n, int(rows[:, 1].sum()) - here
    out_beyond = float((rows[:, 1] - rows[:, 2]).sum()) - (here - chance)
    first = steps[stretch.first] if stretch else None
    at_start = stretch is not None and stretch.first == 0
    metrics = Misplaced(
        n_rows=total,
        misplaced_share=round(here / max(n, 1), 6),
        chance_share=round(chance / max(n, 1), 6),
        excess_z=round((here - chance) / max(here + chance / (2 * NEAR), 1.0) ** 0.5, 3),
        misplaced_before=round(out_here / out_n, 6) if stretch and out_n else None,
        rise=round(((here - chance) / max(n, 1)) / max(out_beyond / out_n, 0.005), 4)
        if stretch and out_n
        else None,
        mixed_share=round(mixed / groups, 6) if groups else 0.0,
        last_good_step=steps[stretch.first - 1] if stretch and not at_start else None,
        first_bad_step=first,
        last_bad_step=steps[stretch.stop] - 1 if stretch and stretch.stop < len(steps) else None,
        from_start=at_start,
    )
    shown = [e for e in examples if first is None or int(str(e[0])) >= first]
    text = (
        f"{percent(metrics.misplaced_share)} of {n:.0f} answers are the right one of another "
        f"prompt of their step ({percent(metrics.chance_share)} by chance)"
    )
    if first is not None:
        text += " from the start" if at_start else f" from step {first} on"
    return Measured(
        metrics,
        text,
        tables=(
            Table(
                title="rows that give the right answer of another prompt of their step",
                columns=("step", "prompt", "answer", "right answer of the prompt"),
                rows=tuple(shown[:12]),
                cut_rows=max(0, len(shown) - 12),
            ),
        )
        if shown
        else (),
        sources=tuple(run.rollouts.answers()),
        window=(steps[0], steps[-1]),
        signal="answers of other prompts",
    )
