"""Loss identity: the logged loss against the one recomputed from advantages and token counts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Table
from firstbad.tools.loss_model import LossTerms, collect_terms
from firstbad.tools.loss_terms import find_entropy_term
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import Capture, FloatArray, Run
from firstbad.tools.segments import OF_THE_LOSS, HeldToSettings, held_to_settings
from firstbad.tools.stats import pearson
from firstbad.tools.tokens import completion_end

SMALLEST = 1e-9
"""Recomputed losses that vary by less are rounding: -mean(A) of whole groups is 0."""
FEWEST = 12
"""Steps below which no slope is read."""


class LossIdentity(HeldToSettings):
    """Slope and correlation of logged against recomputed loss, and what the rest looks like."""

    n_steps: int
    whole_loss: bool
    """The whole loss is logged; False: its policy term alone, whose reduction over micro-batches
    depends on the framework's version."""
    slope: float
    """Of logged on recomputed loss over the whole run; 1 when the pipeline is what it says."""
    correlation: float
    slope_before: float | None
    """Before the change of slope that fits best; None when one slope fits."""
    slope_after: float | None
    slope_worst: float
    """The slope farthest from 1 among: all, before, after."""
    slope_deviation: float
    """max(slope_worst, 1/slope_worst) - 1; 10 for a slope of 0 or below."""
    correlation_before: float | None
    correlation_after: float | None
    correlation_least: float
    """The lower of abs(correlation) of the two sides (or of the whole run)."""
    factor: float | None
    """`slope_worst` rounded to the nearest whole number or its inverse, within 6 %; else None."""
    factor_is_accumulation: bool | None
    """That factor is the configured number of accumulation steps, or its inverse."""
    policy_coefficient: float
    """Of the advantage term in a joint fit on the worse side; 1 expected."""
    kl_coefficient: float | None
    """Of beta x KL in a joint fit on the worse side; 1 expected. None where beta is 0 or KL too
    small beside the other terms to tell."""
    entropy_taken_out: bool
    """The loss holds an entropy term (see `find_loss_terms`), taken out before fitting."""
    joint_correlation: float
    """Of the logged loss with the joint fit on the worse side."""
    capture_correlation: float | None
    """Of the logged loss with the value over the captured micro-batch alone: near 1 where only
    that micro-batch reaches the sum."""
    token_agreement: float | None
    """Correlation of estimated and logged mean length: how far token counts can be trusted."""


@tool
@held_to_settings(*OF_THE_LOSS)
def check_loss_identity(run: Run) -> Measured[LossIdentity]:
    """Slope and correlation of the logged loss on the loss recomputed from the rollouts.

    On the first pass over fresh rollouts every ratio is 1, so the loss is -sum(A n)/sum(n) for
    token-mean losses, -mean(A) for sequence-mean ones, -sum(A n)/(B L_max) for a constant
    denominator, plus beta x mean KL. n: completion tokens. A slope that is a whole number or its
    inverse names a factor; a change of slope dates it.

    Cannot tell: anything from the raw level of the loss; nor where ratio is not 1, or the rows
    trained on are not those written down.
    """
    terms, counts = collect_terms(run, fewest=FEWEST)
    extra = find_entropy_term(terms)
    if extra is not None:
        terms = extra.taken_out(terms)
    n = len(terms.steps)
    if np.ptp(terms.predicted) < SMALLEST or np.ptp(terms.logged) == 0:
        raise NoData("the recomputed or the logged loss does not vary, so no slope can be read")
    whole = _fit(terms)
    cut = _slope_change(terms)
    before, after = (terms.cut(slice(0, cut)), terms.cut(slice(cut, n))) if cut else (None, None)
    sides = [whole] if before is None or after is None else [_fit(before), _fit(after)]
    worst = max(range(len(sides)), key=lambda i: _badness(sides[i]))
    side = terms if before is None or after is None else (before, after)[worst]
    joint = _joint_fit(side)
    slope, r = sides[worst]
    factor = _whole_factor(slope)
    accumulation = run.config.number("gradient_accumulation_steps")
    wrong_term = joint.policy < 0 or (joint.kl is not None and joint.kl < 0.5)
    off = not (0.9 <= slope <= 1.1 and r >= 0.95) or wrong_term
    if off and not cut:
        cut = _right_until(terms)
        worst = 1 if cut else 0
        side = terms.cut(slice(cut, n))
    metrics = LossIdentity(
        n_steps=n,
        whole_loss=terms.whole,
        slope=whole[0],
        correlation=whole[1],
        slope_before=sides[0][0] if len(sides) == 2 else None,
        slope_after=sides[1][0] if len(sides) == 2 else None,
        slope_worst=slope,
        slope_deviation=round(max(slope, 1 / slope) - 1, 4) if slope > 0.05 else 10.0,
        correlation_before=sides[0][1] if len(sides) == 2 else None,
        correlation_after=sides[1][1] if len(sides) == 2 else None,
        correlation_least=min(abs(s[1]) for s in sides),
        factor=factor,
        factor_is_accumulation=(
            None
            if factor is None or accumulation is None
            else accumulation > 1 and factor in (accumulation, 1 / accumulation)
        ),
        policy_coefficient=joint.policy,
        kl_coefficient=joint.kl,
        entropy_taken_out=extra is not None,
        joint_correlation=joint.correlation,
        capture_correlation=_capture_correlation(run, side),
        token_agreement=counts.agreement,
        last_good_step=int(terms.steps[cut - 1]) if off and cut and worst == 1 else None,
        first_bad_step=int(side.steps[0]) if off else None,
        from_start=off and worst == 0,
    )
    shown = np.unique(np.linspace(0, n - 1, min(n, 120)).astype(int))
    table = Table(
        title="per step: logged and recomputed loss",
        columns=("step", "logged", "recomputed"),
        rows=tuple(
            (int(terms.steps[i]), round(float(terms.logged[i]), 6), _r6(terms.predicted[i]))
            for i in shown
        ),
        cut_rows=n - len(shown),
    )
    return Measured(
        metrics,
        _summary(metrics, int(side.steps[0])),
        tables=(table,),
        window=(int(terms.steps[0]), int(terms.steps[-1])),
        signal="slope of logged against recomputed loss",
    )


def _summary(m: LossIdentity, change: int) -> str:
    what = "loss" if m.whole_loss else "policy term of the loss"
    text = (
        f"logged against recomputed {what} over {m.n_steps} steps: "
        f"slope {m.slope:.3f}, r {m.correlation:.4f}"
    )
    if m.slope_before is not None and m.slope_after is not None:
        text += f"; slope {m.slope_before:.3f} before and {m.slope_after:.3f} after the change"
    if m.first_bad_step is not None:
        text += f" at step {m.first_bad_step}" if not m.from_start else " from the start"
    if m.entropy_taken_out:
        text += "; an entropy term was taken out first"
    return text


def _r6(value: float) -> float:
    return round(float(value), 6)


def _fit(terms: LossTerms) -> tuple[float, float]:
    """Least-squares slope (with intercept) and correlation of logged on predicted."""
    r = pearson(terms.predicted, terms.logged)
    if r is None:
        return 0.0, 0.0
    slope = r * float(np.std(terms.logged) / np.std(terms.predicted))
    return round(slope, 4), round(r, 6)


def _badness(fit: tuple[float, float]) -> float:
    slope, r = fit
    size = abs(math.log(abs(slope))) if slope else 10.0
    return size + (1.0 if slope < 0 else 0.0) + 3.0 * max(0.0, 1.0 - r)


def _slope_change(terms: LossTerms) -> int:
    """Index at which the slope through the origin changes; 0 when one slope fits as well.

    Two slopes are accepted when they cut the squared error to less than half and differ by more
    than a tenth.
    """
    x, y = terms.predicted, terms.logged
    n, margin = len(x), 10
    if n < 2 * margin:
        return 0
    xx, xy, yy = np.cumsum(x * x), np.cumsum(x * y), np.cumsum(y * y)
    cuts = np.arange(margin, n - margin + 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        left = yy[cuts - 1] - xy[cuts - 1] ** 2 / xx[cuts - 1]
        right_xx, right_xy = xx[-1] - xx[cuts - 1], xy[-1] - xy[cuts - 1]
        right = yy[-1] - yy[cuts - 1] - right_xy**2 / right_xx
    error = np.where(np.isfinite(left + right), left + right, np.inf)
    whole = float(yy[-1] - xy[-1] ** 2 / xx[-1])
    best = int(np.argmin(error))
    if not error[best] < 0.5 * whole or whole <= 1e-4 * float(yy[-1]):
        return 0
    cut = int(cuts[best])
    slopes = xy[cut - 1] / xx[cut - 1], right_xy[best] / right_xx[best]
    return cut if abs(slopes[0] - slopes[1]) > 0.1 * max(map(abs, slopes)) else 0


def _right_until(terms: LossTerms) -> int:
    """Index up to which the recomputed loss is simply right, and after which it is not; 0: nowhere.

    The part before is held against the recomputed loss itself, the part after against its best
    joint fit. KL is small early on, so a term that turns shows late and in no slope.
    """
    n, margin = len(terms.logged), FEWEST
    if n < 3 * margin:
        return 0
    rest = (terms.logged - terms.predicted) ** 2
    before = np.cumsum(rest)
    best, error = 0, float(_left(terms))
    for cut in np.unique(np.linspace(margin, n - margin, 200).astype(int)):
        total = float(before[cut - 1]) + _left(terms.cut(slice(int(cut), n)))
        if total < (error if best else 0.8 * error):
            best, error = int(cut), total
    return best


def _left(terms: LossTerms) -> float:
    """Squared error of the joint fit."""
    columns = {"policy": terms.policy}
    if np.ptp(terms.kl) > 0:
        columns["kl"] = terms.kl
    _, rest = _least_squares(columns, terms.logged)
    return float((rest**2).sum())


@dataclass(frozen=True)
class _Joint:
    policy: float
    kl: float | None
    correlation: float


def _joint_fit(terms: LossTerms) -> _Joint:
    """Coefficients of each term of the loss, fitted together with an intercept."""
    columns = {"policy": terms.policy}
    if np.ptp(terms.kl) > 0:
        columns["kl"] = terms.kl
    fit, rest = _least_squares(columns, terms.logged)
    total = float(np.var(terms.logged))
    share = max(0.0, 1.0 - float(np.var(rest)) / total) if total else 0.0
    kl = fit.get("kl")
    if kl is not None and np.std(terms.kl) < 0.5 * np.std(rest):
        kl = None  # its own variation drowns in what is left over
    return _Joint(
        round(fit["policy"], 4), None if kl is None else round(kl, 4), _r6(math.sqrt(share))
    )


def _least_squares(
    columns: dict[str, FloatArray], y: FloatArray
) -> tuple[dict[str, float], FloatArray]:
    x = np.column_stack([*columns.values(), np.ones(len(y))])
    solution, *_ = np.linalg.lstsq(x, y, rcond=None)
    return dict(zip(columns, map(float, solution), strict=False)), y - x @ solution


def _whole_factor(slope: float) -> float | None:
    """The whole number (2 to 1024) or inverse that a slope is within 6 % of."""
    if slope <= 0:
        return None
    larger = slope if slope > 1 else 1 / slope
    whole = round(larger)
    if whole < 2 or whole > 1024 or abs(larger - whole) > 0.06 * whole:
        return None
    return float(whole) if slope > 1 else 1.0 / whole


def _capture_correlation(run: Run, terms: LossTerms) -> float | None:
    """Correlation of the logged loss with the policy loss of the captured rows alone."""
    logged = dict(zip(terms.steps.astype(int).tolist(), terms.logged, strict=True))
    kl = dict(zip(terms.steps.astype(int).tolist(), terms.kl, strict=True))
    pairs = []
    for capture in run.captures:
        value = _captured_loss(run, capture) if capture.step in logged else None
        if value is not None:
            pairs.append((value, logged[capture.step] - kl[capture.step]))
    if len(pairs) < 5:
        return None
    x, y = np.array(pairs).T
    r = pearson(x, y)
    return None if r is None else round(r, 4)


def _captured_loss(run: Run, capture: Capture) -> float | None:
    advantage = capture.numbers("advantage")
    if advantage is None or advantage.ndim != 1 or "token_id" not in capture.arrays:
        return None
    n = completion_end(run, capture).real.sum(axis=1)
    return float(-(advantage * n).sum() / n.sum()) if n.sum() else None
