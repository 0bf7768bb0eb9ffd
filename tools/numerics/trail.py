"""The numeric trail of captured steps: the first tensor that is not finite."""

from __future__ import annotations

from collections.abc import Sequence

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Table
from firstbad.tools.flight import FlightStep, Trail
from firstbad.tools.numbers import number, percent
from firstbad.tools.numerics.spoiled_groups import SpoiledGroups, spoiled_groups
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import Run

PLACES = (
    "logits",
    "log_softmax",
    "logp",
    "log_ratio",
    "exp",
    "objective",
    "kl",
    "loss",
    "grad",
    "optimizer",
    "parameter",
)
"""In the order of computation."""
LOGITS, LOG_SOFTMAX, LOGP, LOG_RATIO, EXP, OBJECTIVE, KL, LOSS, GRAD = range(9)
EXP_LIMIT = {"float16": 11.09, "bfloat16": 88.72, "float32": 88.72, "float64": 709.78}
"""Largest argument of exp with a finite result."""


class TrailFigures(Dated):
    """Recorded tensors of captured steps.

    A step fails where the loss or what follows it is not finite, or a tensor before it at a place
    that is trained.
    """

    n_steps: int
    """Captured steps with a trail."""
    n_tensors: int
    n_failing: int
    first_place: int | None
    """Place of the first tensor of the first failing step that is not finite, and is finite in all
    sound steps: 0 logits, 1 log-softmax, 2 log-prob, 3 log-ratio, 4 exp, 5 objective, 6 KL, 7 loss,
    8 gradient, 9 optimizer state, 10 parameter. None where loss, gradient norm or KL are logged as
    not finite at an earlier step: that trail shows what followed."""
    first_masked_share: float
    """Of its values that are not finite: those outside the loss mask."""
    first_in_half: bool
    """It is computed in float16, which ends at 65504."""
    zero_denominators: int | None
    """Micro-batches of the ledger at that step whose loss is divided by 0; None without any."""
    spoiled_groups: int
    """Groups of that step whose advantages are not finite, by its rollouts."""
    spoiled_flat_share: float | None
    """Of those: all scores are finite and equal, so that their spread is 0; None without any."""
    spoiled_score_share: float | None
    """Of those: a score is not finite."""
    resumed: bool
    """The run was resumed after the last sound step with a trail, up to that step."""
    rate_nonfinite: bool
    """The learning rate is logged as NaN or Inf at that step."""
    largest_log_ratio: float | None
    """Largest log-ratio recorded up to and at that step."""
    log_ratio_over_limit: float | None
    """... over the largest argument for which exp is finite in its dtype."""
    hidden_steps: int
    """Failing steps at which loss, gradient norm and KL are all logged, and as finite numbers."""
    n_harmless: int
    """Sound steps with values that are not finite: at masked places, or logits of excluded tokens,
    and selected away."""


@tool
def read_trail(run: Run) -> Measured[TrailFigures]:
    """The first tensor that is not finite in the order of computation, from the recorded trail.

    The cause lies one or two operations before it. A tensor that holds such values in sound steps
    too (logits of tokens that are excluded by -Inf, masked places that are selected away) is not
    it.

    Cannot tell: tensors that are not in the trail; steps that were not captured.
    """
    steps = [flown for flown in run.flight if flown.trail]
    if not steps:
        raise NoData("no recorded trail of tensors")
    failing = [flown for flown in steps if _fails(flown.trail)]
    sound = [flown for flown in steps if flown not in failing]
    usual = {t.name for flown in sound for t in flown.trail if t.n_nonfinite}
    first = failing[0] if failing else None
    broken = [t for t in first.trail if t.n_nonfinite and t.name not in usual] if first else []
    culprit = broken[0] if broken else None
    good = [flown.step for flown in sound if first is None or flown.step < first.step]
    followed = first is not None and _logged_before(run, first.step, good)
    ratios = [
        (t.largest, EXP_LIMIT.get(plain_dtype(t.dtype), EXP_LIMIT["float32"]))
        for flown in steps
        if first is None or flown.step <= first.step
        for t in flown.trail
        if t.place == "log_ratio" and t.largest is not None
    ]
    spoiled = SpoiledGroups() if first is None else spoiled_groups(run, first.step)
    metrics = TrailFigures(
        n_steps=len(steps),
        n_tensors=sum(len(flown.trail) for flown in steps),
        n_failing=len(failing),
        first_place=None if culprit is None or followed else place_of(culprit.place),
        first_masked_share=_masked_share(culprit),
        first_in_half=culprit is not None and plain_dtype(culprit.dtype) in ("float16", "half"),
        zero_denominators=None if first is None else _zero_denominators(first),
        spoiled_groups=spoiled.n,
        spoiled_flat_share=round(spoiled.n_flat / spoiled.n, 6) if spoiled.n else None,
        spoiled_score_share=round(spoiled.n_scored_badly / spoiled.n, 6) if spoiled.n else None,
        resumed=first is not None and _resumed(run, good[-1] if good else 0, first.step),
        rate_nonfinite=first is not None and _rate_nonfinite(run, first.step),
        largest_log_ratio=max((r for r, _ in ratios), default=None),
        log_ratio_over_limit=round(max(r / limit for r, limit in ratios), 6) if ratios else None,
        hidden_steps=sum(_hidden(run, flown.step) for flown in failing),
        n_harmless=sum(any(t.n_nonfinite for t in flown.trail) for flown in sound),
        last_good_step=good[-1] if good and first else None,
        first_bad_step=first.step if first else None,
        from_start=first is not None and not good,
        sampled=_sampled(steps, first),
    )
    text = f"{metrics.n_tensors} tensors of {len(steps)} captured steps: all finite where trained"
    if first is not None:
        text = f"first not finite at step {first.step}: {culprit.name if culprit else 'no tensor'}"
        text += f" on rank {first.trail_rank}" if culprit and first.trail_rank else ""
        if culprit is not None and metrics.first_masked_share:
            text += f", {percent(metrics.first_masked_share)} of it outside the loss mask"
        if metrics.largest_log_ratio is not None:
            text += f"; largest log-ratio until then {number(metrics.largest_log_ratio)}"
    table = Table(
        title=f"trail of step {first.step}" if first else "trail",
        columns=("tensor", "place", "dtype", "values", "not finite", "of these masked", "largest"),
        rows=tuple(
            (t.name, t.place, t.dtype, t.n, t.n_nonfinite, t.n_nonfinite_masked, t.largest)
            for t in (first.trail[:40] if first else ())
        ),
    )
    return Measured(
        metrics,
        text,
        tables=(table,) if first else (),
        window=(steps[0].step, steps[-1].step),
        signal=f"finiteness of {culprit.name}" if culprit else "",
        quote=_watched(first),
    )


def _watched(step: FlightStep | None) -> str:
    """Which operation it was, where the recorder went through the step once more."""
    found = None if step is None else step.first_nonfinite
    if found is None or not found.operation:
        return ""
    where = ", ".join(part for part in (found.module, found.where) if part)
    place = f" ({where[-200:]})" if where else ""
    of = f" of values up to {number(found.largest)}" if found.largest is not None else ""
    dtype = f" in {found.dtype}" if found.dtype else ""
    return (
        f"Watched, the first operation whose result is not finite is `{found.operation[:60]}`{of}"
        f"{dtype}, in the {found.phase or 'same'} pass{place}."
    )


def place_of(name: str) -> int:
    """Rank of a place in the order of computation; what is unknown comes last."""
    return PLACES.index(name) if name in PLACES else len(PLACES)


def plain_dtype(name: str | None) -> str:
    """A dtype without the library's name."""
    return (name or "").rpartition(".")[2]


def _fails(trail: Sequence[Trail]) -> bool:
    """Whether anything that reaches the update is not finite."""
    return any(
        (t.n_nonfinite or 0) > (0 if place_of(t.place) >= LOSS else t.n_nonfinite_masked or 0)
        for t in trail
        if LOGP <= place_of(t.place) < len(PLACES)
    )


def _masked_share(tensor: Trail | None) -> float:
    if tensor is None or not tensor.n_nonfinite:
        return 0.0
    return round((tensor.n_nonfinite_masked or 0) / tensor.n_nonfinite, 6)


def _hidden(run: Run, step: int) -> bool:
    """Whether all the figures that would show it are logged at this step as finite numbers."""
    logged = [
        signal
        for name in ("loss", "grad_norm_preclip", "kl_ref")
        if (signal := run.signals.get(name)) is not None
    ]
    return bool(logged) and all(
        s.at(step) is not None and step not in s.nonfinite_steps for s in logged
    )


def _logged_before(run: Run, step: int, sound: Sequence[int]) -> bool:
    """Whether the log is not finite before a step, other than where the trail is sound.

    With fp16 a gradient norm alone says nothing: the loss scaler skips such steps.
    """
    names = ["loss", "kl_ref", *([] if run.config.flag("fp16") else ["grad_norm_preclip"])]
    signals = [signal for name in names if (signal := run.signals.get(name)) is not None]
    return any(s < step and s not in sound for own in signals for s in own.nonfinite_steps)


def _zero_denominators(flown: FlightStep) -> int | None:
    stated = [m.denominator for m in flown.microbatches if m.denominator is not None]
    return sum(value == 0 for value in stated) if stated else None


def _resumed(run: Run, after: int, step: int) -> bool:
    found = (e.step for e in run.events if e.kind == "resume" and e.step is not None)
    return any(after < at <= step for at in found)


def _rate_nonfinite(run: Run, step: int) -> bool:
    rate = run.signals.get("learning_rate")
    return rate is not None and step in rate.nonfinite_steps


def _sampled(steps: Sequence[FlightStep], first: FlightStep | None) -> bool:
    """Whether steps between the last sound and the first failing one have no trail."""
    before = [flown.step for flown in steps if first is not None and flown.step < first.step]
    return bool(before) and first is not None and first.step > before[-1] + 1
