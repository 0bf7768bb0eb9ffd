"""Do the steps that break share a sample which the others do not have?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Table
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import Run

SIGNALS = ("loss", "policy_loss", "grad_norm_preclip", "kl_ref", "kl_old")
SPIKE = 10.0
"""Times the median over the run from which a gradient norm counts as a spike."""


class DirtySamples(Dated):
    """Failures and the sample, prompt or batch that fits them best."""

    n_steps: int
    """Steps whose samples are known."""
    n_failures: int
    """Of those: a value is not finite, or the gradient norm is over ten times its median, and the
    step before was sound."""
    failures_with: int
    """Failures at which the best fitting sample is in the batch."""
    sound_with: int
    """Sound steps at which it is."""
    share_of_failures: float
    n_shared: int
    """Samples, prompts and batches that fit as well."""
    chance: float
    """Number of samples expected to fit as well if failures came at random steps."""
    is_batch: bool
    """What fits best is a named batch."""


@dataclass(frozen=True)
class _Fit:
    name: str
    kind: str
    hits: int
    others: int
    chance: float


@tool
def find_dirty_samples(run: Run) -> Measured[DirtySamples]:
    """Sample, prompt and batch names that the failing steps share and the sound ones lack.

    A failure is the first step of a stretch with a value that is not finite, in the log or in the
    recorded trail, or with a gradient norm far above its median. For every name with m steps among
    N, of which h are among the F failures, the chance to hit as many at random is hypergeometric;
    it is multiplied by the number of names that come more than once.

    Cannot tell: a sample that comes once; which of several samples that always come together it
    is, or what is wrong with it.
    """
    failing = _failing(run)
    steps, where = _names(run)
    if len(steps) < 5:
        raise NoData("fewer than five steps whose samples, prompts or batches have names")
    measured = {int(s) for s in run.signals.steps} | set(run.flight.steps) | set(steps)
    order = sorted(measured)
    first = {s for before, s in zip([None, *order], order, strict=False)
             if s in failing and (before is None or before not in failing)}  # fmt: skip
    known = [s for s in steps if s in first or s not in failing]
    failures = [s for s in known if s in first]
    fits = _fits(where, set(known), set(failures))
    best = fits[0] if fits else None
    shared = [f for f in fits if best and (f.hits, f.others) == (best.hits, best.others)]
    good = [s for s in known if failures and s < failures[0]]
    metrics = DirtySamples(
        n_steps=len(known),
        n_failures=len(failures),
        failures_with=best.hits if best else 0,
        sound_with=best.others if best else 0,
        share_of_failures=round(best.hits / len(failures), 6) if best else 0.0,
        n_shared=len(shared),
        chance=round(min(best.chance, 1e6), 12) if best else 1.0,
        is_batch=best is not None and any(f.kind == "batch" for f in shared),
        last_good_step=good[-1] if good else None,
        first_bad_step=failures[0] if failures else None,
        from_start=bool(failures) and not good,
    )
    table = Table(
        title="names that fit the failing steps best",
        columns=("kind", "name", "failures with it", "sound steps with it", "steps that fail"),
        rows=tuple(
            (f.kind, f.name[:120], f.hits, f.others, ", ".join(map(str, failures[:8])))
            for f in shared[:10]
        ),
        cut_rows=max(0, len(shared) - 10),
    )
    text = f"{len(failures)} failures in {len(known)} steps with named samples"
    if best:
        text += f"; the same {best.kind} is in {best.hits} of them and in {best.others} sound steps"
    return Measured(
        metrics,
        text,
        tables=(table,) if best else (),
        window=(steps[0], steps[-1]),
        signal="steps that break",
        quote=f"Named: {_quoted(shared)}." if shared else "",
    )


def _quoted(shared: Sequence[_Fit]) -> str:
    """The first names that fit, and how many more do."""
    few = ", ".join(f"{f.kind} `{f.name[:60]}`" for f in shared[:3])
    return few + (f" and {len(shared) - 3} more" if shared[3:] else "")


def _failing(run: Run) -> set[int]:
    """Steps with a value that is not finite, or with a spike of the gradient norm."""
    found: set[int] = set()
    for name in SIGNALS:
        if (signal := run.signals.get(name)) is not None:
            found.update(signal.nonfinite_steps)
    norm = run.signals.get("grad_norm_preclip")
    if norm is not None and len(norm.values) >= 10:
        spikes = norm.values > SPIKE * float(np.median(norm.values))
        found.update(norm.steps[spikes].tolist())
    for flown in run.flight:
        if any(t.n_nonfinite and t.place in ("objective", "loss", "grad") for t in flown.trail):
            found.add(flown.step)
    return found


def _names(run: Run) -> tuple[list[int], dict[tuple[str, str], set[int]]]:
    """Steps whose samples have names, and the steps of each name."""
    where: dict[tuple[str, str], set[int]] = defaultdict(set)
    steps: set[int] = set()
    for batch in run.rollouts.batches():
        ids = batch.prompt_id if batch.prompt_id is not None else batch.prompts
        for name in {name for name in ids if name}:
            where["prompt", name].add(batch.step)
            steps.add(batch.step)
        for name in set(batch.sample or ()):
            where["sample", name].add(batch.step)
    for flown in run.flight:
        if flown.batch is not None:
            where["batch", flown.batch].add(flown.step)
            steps.add(flown.step)
    return sorted(steps), where


def _fits(
    where: dict[tuple[str, str], set[int]], known: set[int], failures: set[int]
) -> list[_Fit]:
    """Names by how little chance explains their hits; those with fewer than two are left out."""
    n, f = len(known), len(failures)
    several = {key: own for key, all_ in where.items() if len(own := all_ & known) >= 2}
    fits = []
    for (kind, name), own in several.items():
        hits = len(own & failures)
        if hits < 2:
            continue
        at_least = range(hits, min(f, len(own)) + 1)
        ways = sum(comb(f, k) * comb(n - f, len(own) - k) for k in at_least)
        chance = len(several) * ways / comb(n, len(own))
        fits.append(_Fit(name, kind, hits, len(own) - hits, chance))
    return sorted(fits, key=lambda fit: (fit.chance, fit.kind, fit.name))
