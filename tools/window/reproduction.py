"""Does it fail again at the same batch, at the same step, or anywhere? From several runs."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Metrics, Table
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import Run
from firstbad.tools.used import Watched
from firstbad.tools.window.first_bad import SHORTEST, find_first_bad, find_move, watched

SAME_SIZE = 0.5
"""Share of the run's own move that a rerun's must have to be the same failure."""
NEAR_STEPS = 3
"""Steps by which two failures may differ and still count as one place: bands are that sharp."""


class Reproduction(Metrics):
    """Where runs of the same job fail."""

    n_runs: int
    n_failed: int
    """Runs in which the signal that led here left its band too, at least half as far."""
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
    size: float
    """How far the signal went."""
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
    own = _own_failure(run)
    found = [own, *(_same_failure(one, own) for one in replays)]
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
    if own.step is None:
        return Measured(metrics, "nothing leaves its band in this run", tables=(table,))
    said = f"`{own.signal}` leaves its band in {len(failed)} of {len(found)} runs"
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


def _own_failure(run: Run) -> _Failure:
    """The move that leads in the run itself."""
    try:
        found = find_first_bad(run)
    except NoData:
        return _Failure(run, None, "", 0.0, None)
    step = found.metrics.first_bad_step
    if step is None:
        return _Failure(run, None, "", 0.0, None)
    moves = _moves(run)
    size = moves[found.signal][1] if found.signal in moves else 0.0
    return _Failure(run, step, found.signal, size, _batch(run, step))


def _same_failure(run: Run, own: _Failure) -> _Failure:
    """The same signal's move in a rerun; what moves less is no failure of that kind."""
    step, size = _moves(run).get(own.signal, (None, 0.0))
    if step is None or size < SAME_SIZE * own.size:
        return _Failure(run, None, own.signal, size, None)
    return _Failure(run, step, own.signal, size, _batch(run, step))


def _moves(run: Run) -> dict[str, tuple[int, float]]:
    """Step and size of the move of each signal that left its band."""
    found = ((s, find_move(s, w)) for s, w in watched(run) if len(s.steps) >= SHORTEST + 3)
    return {s.source_key: (m.first_bad, abs(m.after - m.before)) for s, m in found if m is not None}


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
