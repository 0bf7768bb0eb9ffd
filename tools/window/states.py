"""The three states around a change: before it, at it and one after, as they were captured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Metrics, Scalar, Table
from firstbad.tools.flight import FlightStep
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import FloatArray, Run
from firstbad.tools.tokens import completion_end

NAMES = ("before the change", "at the change", "one after")


class States(Metrics):
    """Which of the three states were kept whole."""

    n_states: int
    """How many of the three."""
    last_good_kept: int | None
    """Captured step that stands for the last good one: the last at or before it."""
    first_bad_kept: int | None
    """The first captured step at or after the first bad one."""
    after_kept: int | None
    """The one after that."""
    steps_unseen: int | None
    """Steps between the two sides of the change that were not captured."""
    alarm_step: int | None
    """Step that the recorder itself took for the first bad one."""
    alarm_late_by: int | None
    """... less the first bad one."""
    same_batch: bool | None
    """Both sides of the change have the same batch; None where they are not named."""


@tool
def compare_states(
    run: Run, *, before: int | None = None, after: int | None = None
) -> Measured[States]:
    """What was captured on both sides of a change: batch, weights, ratios, masks, norms.

    `before` and `after` are the last good and the first bad step. Without them they are those that
    the recorder kept under these names: its alarm may come later than the first bad step.

    Cannot tell: what happened between two captures.
    """
    steps = sorted({*run.captures.steps.tolist(), *run.flight.steps})
    kept = {s.step: s for s in run.flight}
    alarm = next((s.step for s in kept.values() if s.kept == "first_bad"), None)
    if before is None and after is None:
        after = alarm
        good = [s.step for s in kept.values() if s.kept == "last_good"]
        before = max((s for s in good if alarm is None or s < alarm), default=None)
    if not steps or (before is None and after is None):
        raise NoData("no captured steps, or neither a change to look at nor an alarm of a recorder")
    limit = before if before is not None else (after or 0) - 1
    late = [s for s in steps if s >= (after if after is not None else limit + 1)][:2]
    early = [s for s in steps if s <= limit][-1:]
    found = (early[0] if early else None, *(late + [None, None])[:2])
    first, bad = found[0], found[1]
    columns = [_column(run, step, kept.get(step)) for step in found if step is not None]
    named = [c.get("batch") for c in columns[:2]]
    metrics = States(
        n_states=len(columns),
        last_good_kept=first,
        first_bad_kept=bad,
        after_kept=found[2],
        steps_unseen=None if first is None or bad is None else bad - first - 1,
        alarm_step=alarm,
        alarm_late_by=None if alarm is None or after is None else alarm - after,
        same_batch=named[0] == named[1] if None not in (first, bad) and all(named) else None,
    )
    there = [(n, s) for n, s in zip(NAMES, found, strict=True) if s is not None]
    rows = {key: None for column in columns for key in column}
    table = Table(
        title="what was captured on both sides of the change",
        columns=("of the step", *(f"{name} ({step})" for name, step in there)),
        rows=tuple((key, *(column.get(key) for column in columns)) for key in rows),
    )
    told = ", ".join(f"{name} at step {step}" for name, step in there)
    return Measured(
        metrics,
        f"captured: {told or 'neither side'}",
        tables=(table,) if columns else (),
        window=(there[0][1], there[-1][1]) if there else None,
    )


QUANTILES = {"P50": 0.5, "P95": 0.95, "P99": 0.99, "max": 1.0}
SIGNALS = {
    "reward": "reward_mean",
    "KL to the reference": "kl_ref",
    "entropy": "entropy",
    "mean length (tokens)": "completion_length_mean",
    "share cut at the limit": "truncation_rate",
    "clip fraction": "clip_frac_total",
    "learning rate": "learning_rate",
    "loss": "loss",
}


def _column(run: Run, step: int, kept: FlightStep | None) -> dict[str, Scalar]:
    """What is known of one step, by what it is."""
    found: dict[str, Scalar] = {}
    if kept is not None:
        found |= {
            "kept as": None if kept.kept is None else kept.kept.replace("_", " "),
            "kept because of": kept.why,
            "batch": kept.batch,
            "weights (version)": kept.policy_version,
            "checkpoint before it": kept.checkpoint,
            "seeds": ", ".join(f"{k} {v}" for k, v in sorted(kept.seeds.items())) or None,
            "samples drawn before it": kept.data_position,
        }
        if kept.norms:
            found["gradient norm before clipping"] = _largest(n.before_clip for n in kept.norms)
            found["gradient norm after clipping"] = _largest(n.after_clip for n in kept.norms)
    for name, key in SIGNALS.items():
        if (values := run.signals.get(key)) is not None and (at := values.at(step)) is not None:
            found[name] = _short(at)
    for part, signal in run.signals.under("reward_part").items():
        if (at := signal.at(step)) is not None:
            found[f"`{part}`"] = _short(at)
    found |= _tokens(run, step)
    return {key: value for key, value in found.items() if value is not None}


def _tokens(run: Run, step: int) -> dict[str, Scalar]:
    """Figures of the token arrays."""
    capture = run.captures.readable(step)
    if capture is None:
        return {}
    found: dict[str, Scalar] = {}
    mask = capture.mask("loss_mask")
    if "token_id" in capture.arrays:
        real = completion_end(run, capture).real
        found |= {"rows": len(real), "completion tokens": int(real.sum())}
        if mask is not None and mask.shape == real.shape:
            found["trained tokens"] = int(mask.sum())
        mask = real if mask is None or mask.shape != real.shape else mask
    new = capture.numbers("logp_new")
    pairs: Mapping[str, FloatArray | None] = {
        "log-ratio": capture.numbers("logp_old"),
        "trainer less engine": capture.numbers("logp_engine"),
    }
    for name, other in pairs.items():
        if new is None or other is None or mask is None:
            continue
        if not new.shape == other.shape == mask.shape:
            continue
        away = np.abs(new - other)[mask]
        away = away[np.isfinite(away)]
        if len(away):
            for label, share in QUANTILES.items():
                found[f"abs({name}) {label} (nats)"] = _short(float(np.quantile(away, share)))
    return found


def _largest(values: Iterable[float | None]) -> float | None:
    found = [v for v in values if v is not None]
    return _short(max(found)) if found else None


def _short(value: float) -> float:
    return float(f"{value:.4g}")
