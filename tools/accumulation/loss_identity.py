"""Loss identity: the logged loss against the one recomputed from advantages and token counts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from firstbad.tools.accumulation.loss_forms import TOKEN_MEAN, left_out_by_version, loss_type
from firstbad.tools.accumulation.loss_model import LossTerms, collect_terms
from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Table
from firstbad.tools.optimizer.loss_terms import find_entropy_term
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import BoolArray, Capture, FloatArray, IntArray, Run
from firstbad.tools.segments import OF_THE_LOSS, HeldToSettings, held_to_settings
from firstbad.tools.stats import pearson
from firstbad.tools.tokens import completion_end

SMALLEST = 1e-9
"""Recomputed losses that vary by less are rounding: -mean(A) of whole groups is 0."""
FEWEST = 12
"""Steps below which no slope is read."""
CARRIES = 0.5
"""Share of the spread of the recomputed loss beyond which one step carries the slope by itself."""
KNOWN = 0.1
"""Standard error below which a coefficient is told."""


class LossIdentity(HeldToSettings):
    """Slope and correlation of logged against recomputed loss, and what the rest looks like."""

    n_steps: int
    """Units compared: steps, or least stretches of them in which logged rows and rollout batches
    come out even."""
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
    factor_of_version: float | None
    """The factor that the run's TRL version is known to leave out: accumulation steps over
    `steps_per_generation`, before 1.9.1. None where the version is a later one, or not stated."""
    factor_is_of_version: bool
    """`slope_worst` is that factor, within 6 %."""
    padded_deviation: float
    """max(slope, 1/slope) - 1 on the worse side, of the logged loss on one that is recomputed with
    padding in its denominator: all rows times the longest one of the step."""
    padded_correlation: float
    padded_error_ratio: float | None
    """Squared error of that fit over that of the plain one: well below 1 where the factor follows
    the padding, above 1 where it is a constant. None where the plain fit is exact."""
    one_sign_correlation: float
    """Of the logged loss on the worse side with the loss of the rows of one sign alone, those with
    an advantage above 0 or those below, whichever fits better."""
    one_sign_deviation: float
    """max(slope, 1/slope) - 1 of that fit."""
    one_sign_is_gain: bool
    """Those rows are the ones above 0."""
    fitted_from_step: int
    """First and last step of the worse side, which the coefficients below are fitted on."""
    fitted_to_step: int
    policy_coefficient: float | None
    """Of the advantage term in a joint fit on the worse side; 1 expected. None where its standard
    error is above 0.1: for sequence means over whole groups the term is rounding around 0."""
    kl_coefficient: float | None
    """Of beta x KL in a joint fit on the worse side; 1 expected. None where beta is 0, or where its
    standard error is above 0.1."""
    carried_by: int | None
    """Step that alone carried the slope, and another one than the rest of the run has: it is left
    out of all figures. None where there is no such step."""
    recovered_step: int | None
    """Step from which the loss is right again, after a stretch in which it is not; what follows is
    left out of all figures."""
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
    token-mean losses (dapo, bnpo), -mean(A) for sequence-mean ones (grpo, also at sequence level),
    -mean(2A/t) for sapo with its temperatures t, -sum(A n)/(B L_max) for a constant denominator
    (dr_grpo), -mean(A n) for sequence sums (luspo), plus beta x mean KL. n: trained tokens. Losses
    -A logp (cispo, vespo, gpg) are -sum(A S)/sum(n) with S the summed log-probs of a row's trained
    tokens, over the steps that were captured whole. Where a row is logged for several steps, or
    several updates share a batch, means over the same steps are compared. A slope that is a whole
    number or its inverse names a factor; a change of slope dates it. One step that alone makes
    another slope than the rest is left out. A slope that follows the mean over the longest length
    of each step tells of padding in the denominator.

    Cannot tell: anything from the raw level of the loss; nor where ratio is not 1, or the rows
    trained on are not those written down; nor for a loss of another type.
    """
    terms, counts = collect_terms(run, fewest=FEWEST)
    carried_by: int | None = None
    extra = find_entropy_term(terms)
    if extra is not None:
        terms = extra.taken_out(terms)
    carrying = _carrying_step(terms)
    if carrying is not None:
        carried_by, terms = int(terms.steps[carrying]), terms.cut(_all_but(carrying, terms))
    n = len(terms.steps)
    if np.ptp(terms.predicted) < SMALLEST or np.ptp(terms.logged) == 0:
        raise NoData("the recomputed or the logged loss does not vary, so no slope can be read")
    recovery = _recovery(terms)
    recovered = int(terms.steps[recovery]) if recovery else None
    if recovery:  # what follows is right: left in, it would dilute the stretch that is not
        terms = terms.cut(slice(0, recovery))
        n = recovery
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
    of_version = left_out_by_version(run)
    off = _off((slope, r), joint)
    from_start = off and worst == 0
    if off and not cut:
        cut = _right_until(terms)
        worst = 1 if cut else 0
        side = terms.cut(slice(cut, n))
        joint = _joint_fit(side)
        from_start = not cut and _wrong(terms.cut(slice(0, n // 3)))
    first = int(side.steps[0]) if off else None
    padded = _slope_and_r(side.padded, side.logged)
    one_sign = [
        _slope_and_r(t + side.kl, side.logged) for t in (side.gains, side.policy - side.gains)
    ]
    is_gain = one_sign[0][1] >= one_sign[1][1]
    sign_slope, sign_r = one_sign[0 if is_gain else 1]
    plain_error = 1.0 - _fit(side)[1] ** 2
    late = off and not cut and not from_start
    if late:  # the first steps tell nothing: it began no later than where the steps so far show it
        first = int(terms.steps[_shown_by(terms) - 1])
    clear = _told_good(terms, cut) if off and cut and worst == 1 else 0
    good = terms.good_before(clear) if clear else None
    metrics = LossIdentity(
        n_steps=n,
        whole_loss=terms.whole,
        slope=whole[0],
        correlation=whole[1],
        slope_before=sides[0][0] if len(sides) == 2 else None,
        slope_after=sides[1][0] if len(sides) == 2 else None,
        slope_worst=slope,
        slope_deviation=_deviation(slope),
        correlation_before=sides[0][1] if len(sides) == 2 else None,
        correlation_after=sides[1][1] if len(sides) == 2 else None,
        correlation_least=min(abs(s[1]) for s in sides),
        factor=factor,
        factor_is_accumulation=(
            None
            if factor is None or accumulation is None
            else accumulation > 1 and factor in (accumulation, 1 / accumulation)
        ),
        factor_of_version=of_version,
        factor_is_of_version=of_version is not None and abs(slope / of_version - 1) < 0.06,
        padded_deviation=_deviation(padded[0]),
        padded_correlation=padded[1],
        padded_error_ratio=(
            round((1.0 - padded[1] ** 2) / plain_error, 4) if plain_error > 1e-9 else None
        ),
        one_sign_correlation=sign_r,
        one_sign_deviation=_deviation(sign_slope),
        one_sign_is_gain=is_gain,
        fitted_from_step=int(side.steps[0]),
        fitted_to_step=int(side.steps[-1]),
        policy_coefficient=joint.policy,
        kl_coefficient=joint.kl,
        carried_by=carried_by,
        recovered_step=recovered,
        entropy_taken_out=extra is not None,
        joint_correlation=joint.correlation,
        capture_correlation=_capture_correlation(run, side),
        token_agreement=counts.agreement,
        last_good_step=good,
        first_bad_step=first,
        from_start=from_start,
        sampled=late
        or (first is not None and (terms.wide or _between(run, good, cut - clear, first))),
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


def _carrying_step(terms: LossTerms) -> int | None:
    """Index of the one step that makes the slope what it is, against the rest of the run.

    A factor is in every step. One step far out, with answers of a length that the text does not
    tell, say, makes a slope and a correlation by itself.
    """
    x = terms.predicted - terms.predicted.mean()
    squares = float(x @ x)
    if len(x) <= FEWEST or squares <= 0:
        return None
    at = int(np.argmax(x * x))
    if x[at] ** 2 < CARRIES * squares:
        return None
    whole, rest = _fit(terms)[0], _fit(terms.cut(_all_but(at, terms)))[0]
    return at if abs(rest - whole) > 0.1 * max(abs(rest), abs(whole)) else None


def _all_but(at: int, terms: LossTerms) -> BoolArray:
    return np.asarray(np.arange(len(terms.steps)) != at)


def _told_good(terms: LossTerms, cut: int) -> int:
    """Number of first steps up to the last one before `cut` that the loss after it does not fit.

    A step whose terms are near 0 has the same loss with the fault and without.
    """
    columns = {"policy": terms.policy, "kl": terms.kl}
    after = {name: term[cut:] for name, term in columns.items()}
    fit, _ = _least_squares(after, terms.logged[cut:])
    noise = float(np.std(terms.logged[:cut] - terms.predicted[:cut]))
    level = float(np.mean(terms.logged[cut:] - sum(fit[n] * t for n, t in after.items())))
    fitted = level + sum(fit[name] * term for name, term in columns.items())
    apart = np.abs(terms.logged - fitted)[:cut] > 3 * noise
    return int(np.flatnonzero(apart)[-1]) + 1 if apart.any() else 0


def _between(run: Run, good: int | None, unclear: int, bad: int) -> bool:
    """Whether steps lie between the two that were logged and not read, or told nothing."""
    steps = run.signals.steps
    return unclear > 0 or (good is not None and bool(((steps > good) & (steps < bad)).any()))


def _summary(m: LossIdentity, change: int) -> str:
    what = "loss" if m.whole_loss else "policy term of the loss"
    text = (
        f"logged against recomputed {what} over {m.n_steps} steps: "
        f"slope {m.slope:.3f}, r {m.correlation:.4f}"
    )
    if m.slope_before is not None and m.slope_after is not None:
        text += f"; slope {m.slope_before:.3f} before and {m.slope_after:.3f} after the change"
        if m.first_bad_step is not None and not m.from_start:
            text += f" at step {m.first_bad_step}"
    elif m.first_bad_step is not None and not m.from_start:
        text += f"; off from step {m.first_bad_step} on"
    if m.from_start:
        text += "; off from the start"
    if m.recovered_step is not None:
        text += f"; right again from step {m.recovered_step}"
    if m.carried_by is not None:
        text += f"; step {m.carried_by}, which alone carried another slope, was left out"
    if m.entropy_taken_out:
        text += "; an entropy term was taken out first"
    return text


def _r6(value: float) -> float:
    return round(float(value), 6)


def _fit(terms: LossTerms) -> tuple[float, float]:
    """Slope and correlation of logged on predicted."""
    return _slope_and_r(terms.predicted, terms.logged)


def _slope_and_r(x: FloatArray, y: FloatArray) -> tuple[float, float]:
    """Least-squares slope (with intercept) and correlation; zeros where one does not vary."""
    r = pearson(x, y)
    if r is None:
        return 0.0, 0.0
    return round(r * float(np.std(y) / np.std(x)), 4), round(r, 6)


def _deviation(slope: float) -> float:
    """How far a slope is from 1, either way; 10 for one of 0 or below."""
    return round(max(slope, 1 / slope) - 1, 4) if slope > 0.05 else 10.0


def _badness(fit: tuple[float, float]) -> float:
    slope, r = fit
    size = abs(math.log(abs(slope))) if slope else 10.0
    return size + (1.0 if slope < 0 else 0.0) + 3.0 * max(0.0, 1.0 - r)


def _off(fit: tuple[float, float], joint: _Joint) -> bool:
    """Whether the logged loss is not the recomputed one, so that the steps are to be dated."""
    slope, r = fit
    wrong_term = (joint.policy is not None and joint.policy < 0) or (
        joint.kl is not None and joint.kl < 0.5
    )
    return not (0.9 <= slope <= 1.1 and r >= 0.95) or wrong_term


def _wrong(terms: LossTerms) -> bool:
    """Whether these steps alone show that the loss is off: too few to tell is no."""
    return len(terms.steps) >= FEWEST // 2 and _off(_fit(terms), _joint_fit(terms))


def _shown_by(terms: LossTerms) -> int:
    """Number of first steps that together show that the loss is off."""
    n = len(terms.steps)
    counts = np.unique(np.linspace(n // 3, n, 60).astype(int)).tolist()
    return next((k for k in counts if _wrong(terms.cut(slice(0, k)))), n)


def _slope_change(terms: LossTerms) -> int:
    """Index at which the slope through the origin changes; 0 when one slope fits as well.

    Two slopes are accepted when they cut the squared error to less than half and differ by more
    than a tenth. Of fewer than 20 steps each side may have six, and the error must fall to a fifth.
    """
    x, y = terms.predicted, terms.logged
    n = len(x)
    margin, share = (10, 0.5) if n >= 20 else (FEWEST // 2, 0.2)
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
    if not error[best] < share * whole or whole <= 1e-4 * float(yy[-1]):
        return 0
    cut = int(cuts[best])
    slopes = xy[cut - 1] / xx[cut - 1], right_xy[best] / right_xx[best]
    return cut if abs(slopes[0] - slopes[1]) > 0.1 * max(map(abs, slopes)) else 0


def _recovery(terms: LossTerms) -> int:
    """Index at which a stretch with another slope ends and the loss is right again; 0: none does.

    Outside the stretch the recomputed loss itself must hold, inside one slope. Accepted when that
    leaves less than a third of the squared error of any single change.
    """
    x, y, n = terms.predicted, terms.logged, len(terms.steps)
    if n < 2 * FEWEST:
        return 0
    zero = np.zeros(1)
    xx, xy, yy = (np.concatenate([zero, np.cumsum(v)]) for v in (x * x, x * y, y * y))
    apart = np.concatenate([zero, np.cumsum((y - x) ** 2)])

    def fitted(a: IntArray, b: IntArray) -> FloatArray:
        """Squared error of one slope through the origin over steps a to b - 1."""
        found: FloatArray = yy[b] - yy[a] - (xy[b] - xy[a]) ** 2 / np.maximum(xx[b] - xx[a], 1e-30)
        return found

    edges = np.unique(np.linspace(0, n, min(n, 240) + 1).astype(np.int64))
    start, stop = (v.ravel() for v in np.meshgrid(edges, edges, indexing="ij"))
    least = FEWEST // 2
    use = (stop - start >= least) & (start >= least) & (n - stop >= least)
    start, stop = start[use], stop[use]
    if not len(start):
        return 0
    error = apart[-1] - (apart[stop] - apart[start]) + fitted(start, stop)
    best = int(np.argmin(error))
    a, b = int(start[best]), int(stop[best])
    single = edges[(edges >= least) & (edges <= n - least)]
    ends = np.full(len(single), n)
    changes = fitted(np.zeros_like(single), single) + fitted(single, ends)
    other = min(float(changes.min()), float(apart[-1]))
    slope = (xy[b] - xy[a]) / max(float(xx[b] - xx[a]), 1e-30)
    return b if error[best] < other / 3 and abs(slope - 1) > 0.15 else 0


def _right_until(terms: LossTerms) -> int:
    """Index up to which the recomputed loss is simply right, and after which it is not; 0: nowhere.

    The part before is held against the recomputed loss itself, the part after against its best
    joint fit. KL is small early on, so a term that turns shows late and in no slope.
    """
    n, margin = len(terms.logged), FEWEST // 2
    if n < 2 * margin:
        return 0
    share = 0.8 if n >= 3 * margin else 0.2  # three terms fit a few steps anyhow
    rest = (terms.logged - terms.predicted) ** 2
    before = np.cumsum(rest)
    best, error = 0, float(_left(terms))
    for cut in np.unique(np.linspace(margin, n - margin, 200).astype(int)):
        total = float(before[cut - 1]) + _left(terms.cut(slice(int(cut), n)))
        if total < (error if best else share * error):
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
    policy: float | None
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
    # A term that is rounding, or drowns in what is left over, has no coefficient.
    known = {
        name: round(fit[name], 4)
        for name, term in columns.items()
        if np.ptp(term) >= SMALLEST and _error(columns, name, rest) < KNOWN
    }
    return _Joint(known.get("policy"), known.get("kl"), _r6(math.sqrt(share)))


def _least_squares(
    columns: dict[str, FloatArray], y: FloatArray
) -> tuple[dict[str, float], FloatArray]:
    x = np.column_stack([*columns.values(), np.ones(len(y))])
    solution, *_ = np.linalg.lstsq(x, y, rcond=None)
    return dict(zip(columns, map(float, solution), strict=False)), y - x @ solution


def _error(columns: dict[str, FloatArray], name: str, rest: FloatArray) -> float:
    """Standard error of a coefficient that also holds where errors grow with a term.

    Residuals over (1 - leverage), HC3 of MacKinnon and White (1985): what is left over is largest
    where KL is, so the plain formula promises too much. Columns are scaled to one spread: a term of
    1e-8 beside one of 1 would be cut off with the null space, and its error read as 0.
    """
    scale = {n: float(np.std(term)) or 1.0 for n, term in columns.items()}
    x = np.column_stack([*(term / scale[n] for n, term in columns.items()), np.ones(len(rest))])
    inverse = np.linalg.pinv(x.T @ x)
    leverage = np.einsum("ij,jk,ik->i", x, inverse, x)
    scaled = rest / np.maximum(1.0 - leverage, 1e-9)
    spread = inverse @ (x.T * scaled**2) @ x @ inverse
    at = list(columns).index(name)
    return float(np.sqrt(max(0.0, spread[at, at]))) / scale[name]


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
    """Correlation of the logged loss with the policy loss of the captured rows alone.

    Captures that hold the whole step tell nothing of a micro-batch.
    """
    logged = dict(zip(terms.steps.astype(int).tolist(), terms.logged, strict=True))
    kl = dict(zip(terms.steps.astype(int).tolist(), terms.kl, strict=True))
    both = np.intersect1d(run.captures.steps, run.rollouts.steps)
    rows = {batch.step: len(batch) for batch in run.rollouts.batches(both)}
    pairs = []
    for capture in run.captures:
        whole = len(capture.arrays.get("token_id", ())) >= rows.get(capture.step, np.inf)
        value = _captured_loss(run, capture) if capture.step in logged and not whole else None
        if value is not None:
            pairs.append((value, logged[capture.step] - kl[capture.step]))
    if len(pairs) < 5:
        return None
    x, y = np.array(pairs).T
    r = pearson(x, y)
    return None if r is None else round(r, 4)


def _captured_loss(run: Run, capture: Capture) -> float | None:
    """Policy loss over the captured rows; None where it is no mean over tokens or rows."""
    advantage, kind = capture.numbers("advantage"), loss_type(run)
    if kind not in (*TOKEN_MEAN, "grpo"):
        return None
    if advantage is None or advantage.ndim != 1 or "token_id" not in capture.arrays:
        return None
    if kind == "grpo":
        return float(-advantage.mean())
    n = completion_end(run, capture).real.sum(axis=1)
    return float(-(advantage * n).sum() / n.sum()) if n.sum() else None
