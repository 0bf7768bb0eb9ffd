"""Do updates move log-probs the way that the advantages say?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

import numpy as np

from firstbad.tools.accumulation.ledger import Span, span_of
from firstbad.tools.beside import rows_of_capture
from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated
from firstbad.tools.numbers import number
from firstbad.tools.probability.sides import Sides, read_sides
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import BoolArray, FloatArray, Run
from firstbad.tools.stats import raised_stretch

DEEP = 16
"""Tokens of a completion that are looked at: behind more of them no context comes again."""
FEWEST_STEPS = 6
FEWEST = 40
"""Contexts below which nothing is told."""
CARRIED = 7
"""Updates over which a first moment of 0.9 carries what was before a turned sign: half of it."""
SURE_GAIN = 12.0
"""Log-likelihood, in nats, that a stretch of updates against the advantages must gain."""


class UpdateSign(Dated):
    """Change of log-probs over single updates, on the advantages of these tokens.

    Least squares over all contexts, beside the log-prob itself (an entropy term pulls by it) and
    its distance from the reference (a KL term by that), inside the stretch where the sign is off or
    over everything.
    """

    n_updates: int
    """Captured steps whose next step was captured as well, with contexts that came again."""
    n_contexts: int
    """Tokens behind the same prompt and tokens in both."""
    partial_correlation: float
    """Of the change with the sum of advantages: above 0 for a policy that follows them."""
    z: float
    """The coefficient over its standard error."""
    share_against: float
    """Of the updates: those whose changes go against the advantages."""
    pull_unknown: bool
    """The loss has a KL term, or may have one, and no log-probs of the reference are there."""


@dataclass(frozen=True)
class _Update:
    """K contexts that stand in two steps."""

    step: int
    advantage: FloatArray
    """(K,) summed over the rows that were trained on it."""
    change: FloatArray
    """(K,) of its log-prob to the next step, nats."""
    others: FloatArray
    """(K, 2) log-prob before, and the reference's less that; about their means."""


@tool
def measure_update_sign(run: Run) -> Measured[UpdateSign]:
    """Log-probs of the same tokens behind the same context before and after an update.

    Where a prompt, and the first tokens behind it, come again in the next captured step, their
    log-probs in both show what one update did to them. It raises what had a positive advantage; one
    that lowers it has a wrong sign somewhere between advantages and weights, be it in the loss, in
    the gradient or in the step, which a loss whose advantages cancel in a group does not show.

    Cannot tell: which of these signs; anything where no context comes again from step to step.
    """
    updates = [u for u in _updates(run) if np.ptp(u.advantage) > 0]
    n = sum(len(u.change) for u in updates)
    if len(updates) < FEWEST_STEPS or n < FEWEST:
        raise NoData("no prompts that come again in the next captured step, with advantages")
    against = np.array([float(u.advantage @ u.change) < 0 for u in updates])
    steps = [u.step for u in updates]
    stretch = raised_stretch(against.astype(np.int64), np.ones(len(updates), np.int64))
    inside = slice(0, len(updates))
    if stretch is not None and stretch.gain > SURE_GAIN:
        inside = slice(stretch.first, stretch.stop)
    r, z = _partial(updates[inside])
    bad = np.zeros(len(updates), bool)
    bad[inside] = against[inside] if z < 0 else False
    span = _span(steps, bad)
    beta = run.config.number("beta")
    metrics = UpdateSign(
        n_updates=len(updates[inside]),
        n_contexts=sum(len(u.change) for u in updates[inside]),
        partial_correlation=round(r, 4),
        z=round(z, 2),
        share_against=round(float(against[inside].mean()), 4),
        pull_unknown=beta != 0 and not any(u.others[:, 1].any() for u in updates),
        **asdict(span),
    )
    return Measured(
        metrics,
        f"over {metrics.n_updates} updates, {metrics.n_contexts} contexts that came again: change "
        f"of log-prob against advantage {number(metrics.partial_correlation, digits=2)} "
        f"(z {number(metrics.z, digits=2)})",
        window=(steps[0], steps[-1]),
        signal="change of log-probs over an update",
    )


def _span(steps: list[int], bad: BoolArray) -> Span:
    """A sign that turns shows as late as momentum lets it."""
    span = span_of(steps, bad)
    if span.first_bad_step is None or span.from_start:
        return span
    good = [step for step in steps if step < span.first_bad_step - CARRIED]
    return replace(span, last_good_step=max(good, default=None), sampled=True)


def _updates(run: Run) -> Iterator[_Update]:
    last: tuple[int, dict[int, _Context]] | None = None
    for sides in read_sides(run, "trainer"):
        found = _contexts(run, sides)
        if last is not None and last[0] == sides.step - 1:
            both = [(c, found[key].logp) for key, c in last[1].items() if key in found]
            if len(both) > 1:
                before = np.array([c.logp for c, _ in both])
                away = np.array([c.away for c, _ in both])
                yield _Update(
                    last[0],
                    np.array([c.advantage for c, _ in both]),
                    np.array([after for _, after in both]) - before,
                    np.stack([before - before.mean(), away - away.mean()], axis=1),
                )
        last = sides.step, found


@dataclass
class _Context:
    """One token behind one prompt and the tokens so far."""

    logp: float
    away: float
    advantage: float


def _contexts(run: Run, sides: Sides) -> dict[int, _Context]:
    """By a digest of prompt and tokens."""
    own, capture = sides.trainer, run.captures.readable(sides.step)
    advantage = _advantage(run, sides)
    if own is None or capture is None or advantage is None:
        return {}
    prompts, mask = capture.arrays.get("prompt_token_id"), capture.mask("prompt_mask")
    if prompts is None or (mask is not None and mask.shape != prompts.shape):
        return {}
    trained = capture.mask("loss_mask")
    if trained is not None and trained.shape != own.shape:  # over prompt and completion, say
        return {}
    if len(prompts) != len(own) or len(advantage) != len(own):
        return {}
    use = sides.real & np.isfinite(own) & (True if trained is None else trained)
    ref = sides.side("ref")
    away = np.zeros_like(own) if ref is None else ref - own
    found: dict[int, _Context] = {}
    for row in range(len(own)):
        real = prompts[row] if mask is None else prompts[row][mask[row]]
        key = hash(tuple(np.asarray(real).tolist()))
        for at in range(min(DEEP, own.shape[1])):
            key = hash((key, int(sides.ids[row, at])))
            if not use[row, at] or not np.isfinite(away[row, at]):
                break
            one = found.setdefault(key, _Context(float(own[row, at]), float(away[row, at]), 0.0))
            one.advantage += float(advantage[row])
    return found


def _advantage(run: Run, sides: Sides) -> FloatArray | None:
    """(R,) of the rows of a capture: its own, or those of the step's rollouts in the same order."""
    capture = run.captures.readable(sides.step)
    own = None if capture is None else capture.numbers("advantage")
    if own is not None:
        rows = own if own.ndim == 1 else np.where(np.isfinite(own), own, 0.0)
        if rows.ndim == 2:  # one value along the row, 0 where it is not trained
            rows = np.take_along_axis(rows, np.abs(rows).argmax(axis=1)[:, None], 1)[:, 0]
        return rows if np.isfinite(rows).all() else None
    batch = rows_of_capture(run, sides.step)
    if sides.step not in run.flight.steps or batch is None:
        return None
    kept = run.flight.at(sides.step)
    if kept.in_order is not True or batch.advantage is None or len(batch) != len(sides.ids):
        return None
    return batch.advantage if np.isfinite(batch.advantage).all() else None


def _partial(updates: list[_Update]) -> tuple[float, float]:
    """Partial correlation of change and advantage given the rest, and its z."""
    change = np.concatenate([u.change for u in updates])
    x = np.concatenate([u.advantage for u in updates])
    rest = np.column_stack([np.concatenate([u.others for u in updates]), np.ones(len(x))])
    left = [v - rest @ np.linalg.lstsq(rest, v, rcond=None)[0] for v in (x, change)]
    sizes = [float(np.linalg.norm(v)) for v in left]
    if min(sizes) <= 1e-12 * max(1.0, float(np.linalg.norm(change))):
        return 0.0, 0.0
    r = float(left[0] @ left[1]) / (sizes[0] * sizes[1])
    free = max(1, len(x) - rest.shape[1] - 1)
    return r, r * float(np.sqrt(free / max(1e-12, 1 - r * r)))
