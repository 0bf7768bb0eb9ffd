"""Does it fail again at the same batch, at the same step, or anywhere? From several runs."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Metrics, Table
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import Run
from firstbad.tools.used import Watched
from firstbad.tools.window import find_first_bad

NEAR_STEPS = 3
"""Steps by which two failures may differ and still count as one place: bands are that sharp."""


class Reproduction(Metrics):
    """Where runs of the same job fail."""

    n_runs: int
    n_failed: int
    """Runs in which a signal left its band, or whose record ends with an error."""
    step_spread: int | None
    """Last less first of their first bad steps."""
    same_step: bool | None
    """All fail within three steps of one another; None with fewer than two failures."""
    same_batch: bool | None
    """All fail on the same samples; None where the samples are not known."""
    batches_differ_at_step: bool | None
    """At the step of the first failure the runs have different samples: then a common step is not
    a common batch."""
    random: bool | None
    """Neither: some fail elsewhere, on other samples, or not at all."""


@dataclass(frozen=True)
class _Failure:
    run: Run
    step: int | None
    signal: str
    batch: str | None


@tool
def classify_reproduction(run: Run) -> Measured[Reproduction]:
    """First bad step and batch of this run and of its reruns, side by side.

    Same samples: data, mask, reward or deterministic numerics. Same step with other samples:
    schedule, optimizer state, staleness, accumulated drift. Neither: asynchronous weight delivery,
    uninitialised memory, non-deterministic kernels, hardware.

    Cannot tell: which of the two where all runs take the same samples in the same order.
    """
    if not run.replays:
        raise NoData("no rerun was named: `firstbad investigate RUN RERUN ...`")
    replays = [Watched(one) for one in run.replays]
    found = [_failure(one) for one in (run, *replays)]
    failed = [f for f in found if f.step is not None]
    steps = [f.step for f in failed if f.step is not None]
    spread = max(steps) - min(steps) if steps else None
    batches = [f.batch for f in failed]
    several = len(failed) >= 2
    same_step = spread is not None and spread <= NEAR_STEPS if several else None
    same_batch = len(set(batches)) == 1 if several and None not in batches else None
    at_first = [_batch(f.run, min(steps)) for f in found] if steps else []
    known = [b for b in at_first if b is not None]
    metrics = Reproduction(
        n_runs=len(found),
        n_failed=len(failed),
        step_spread=spread,
        same_step=same_step,
        same_batch=same_batch,
        batches_differ_at_step=len(set(known)) > 1 if len(known) >= 2 else None,
        random=None
        if not failed
        else not (bool(same_step) or bool(same_batch))
        if several
        else len(found) >= 3,
    )
    table = Table(
        title="where each run fails",
        columns=("run", "first bad step", "signal", "batch"),
        rows=tuple((f.run.ref, f.step, f.signal, f.batch) for f in found),
    )
    where = (
        "on the same samples"
        if same_batch
        else "near one step"
        if same_step
        else "at different places"
        if several
        else ""
    )
    said = f"{len(failed)} of {len(found)} runs leave their band"
    return Measured(
        metrics,
        f"{said}, {where}" if where else said,
        tables=(table,),
        sources=tuple(
            source.model_copy(update={"ref": f"{one.ref}/{source.ref}"})
            for one in replays
            for source in one.files()
        ),
    )


def _failure(run: Run) -> _Failure:
    try:
        found = find_first_bad(run)
    except NoData:
        return _Failure(run, None, "too few steps", None)
    step = found.metrics.first_bad_step
    return _Failure(run, step, found.signal, None if step is None else _batch(run, step))


def _batch(run: Run, step: int) -> str | None:
    """What names the samples of a step: the recorder's name, or a digest of its prompts."""
    if step in run.flight.steps and (name := run.flight.at(step).batch) is not None:
        return name
    if step not in run.rollouts.steps:
        return None
    prompts = sorted(set(run.rollouts.batch(step).prompts))
    if not any(prompts):
        return None
    text = "\0".join(prompts).encode("utf-8", "replace")
    return "prompts " + hashlib.sha256(text).hexdigest()[:8]
