"""Surprise of sampled tokens before and after a step that other signals name."""

from __future__ import annotations

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated
from firstbad.tools.probability.surprise import read_dump
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import FloatArray, Run
from firstbad.tools.stats import mean_z

POOL = 600
"""Fewest tokens of a side. No cut is searched for, so that fewer do than for `test_surprise`."""


class SurpriseChange(Dated):
    """Pooled surprise on both sides of the change, nats per token; the onset is a bracket."""

    n_before: int
    n_after: int
    before: float
    before_z: float
    """abs(before) in standard errors."""
    after: float
    after_size: float
    after_z: float
    """abs(after) in standard errors."""
    difference_z: float
    """abs(after - before) in standard errors of the difference."""
    entropy_after: float
    """Where it is near 0 the rare tokens are missing from the sample, and z means nothing."""


@tool
def compare_surprise(run: Run, change: int | None = None) -> Measured[SurpriseChange]:
    """Mean of -logp - entropy over the tokens sampled before a step, and from it on.

    Without a step the first half of the captures is compared with the second, and nothing is dated.

    0 where the sampler is the trainer's policy. The step comes from elsewhere and what is stored is
    stored alike on both sides, so a surprise that begins there needs no floor for how captures are
    rounded.

    Cannot tell: another temperature from a cut tail; a sampler that was another all along.
    """
    captured = run.captures.steps
    step = (
        change if change is not None else int(captured[len(captured) // 2]) if len(captured) else 0
    )
    sides: tuple[list[FloatArray], list[FloatArray]] = ([], [])
    steps: tuple[list[int], list[int]] = ([], [])
    entropies: list[tuple[float, int]] = []
    for capture in run.captures:
        if not run.fresh_at(capture.step) or (dump := read_dump(run, capture)) is None:
            continue
        late = dump.step >= step
        sides[late].append(dump.surprise)
        steps[late].append(dump.step)
        if late:
            entropies.append((dump.entropy, len(dump.surprise)))
    if not sides[0] and not sides[1]:
        raise NoData("no captures of fresh rollouts that hold both token log-probs and entropies")
    sizes = [sum(map(len, side)) for side in sides]
    if min(sizes) < POOL:
        raise NoData(
            f"{sizes[0]} captured tokens with log-prob and entropy before step {step} and "
            f"{sizes[1]} from it on; {POOL} on each side are needed"
        )
    before, after = (np.concatenate(side) for side in sides)
    error = np.hypot(before.std() / np.sqrt(len(before)), after.std() / np.sqrt(len(after)))
    gap = abs(float(after.mean() - before.mean()))
    metrics = SurpriseChange(
        n_before=sizes[0],
        n_after=sizes[1],
        before=round(float(before.mean()), 6),
        before_z=round(abs(mean_z(before)), 4),
        after=round(float(after.mean()), 6),
        after_size=round(abs(float(after.mean())), 6),
        after_z=round(abs(mean_z(after)), 4),
        difference_z=round(float(gap / error), 4) if error > 0 else 0.0,
        entropy_after=round(sum(entropy * n for entropy, n in entropies) / sizes[1], 6),
        quiet_step=None if change is None else steps[0][-1],
        first_bad_step=None if change is None else steps[1][0],
        sampled=True,
    )
    return Measured(
        metrics,
        f"surprise {metrics.before:+.3f} nats per token to step {steps[0][-1]} and "
        f"{metrics.after:+.3f} from step {steps[1][0]} on ({sizes[0]} and {sizes[1]} tokens)",
        window=(steps[0][0], steps[1][-1]),
        signal="surprise of sampled tokens",
    )
