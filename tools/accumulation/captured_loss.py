"""The loss of each micro-batch, recomputed from the captured tokens: which term is off?"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np

from firstbad.tools.accumulation.ledger import span_of, updates_of
from firstbad.tools.accumulation.token_losses import TokenLoss
from firstbad.tools.beside import rows_of_capture
from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Table
from firstbad.tools.numbers import number
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import Capture, FloatArray, Run

KNOWN = 0.1
"""Standard error below which a coefficient is told."""
FEWEST = 6
"""Micro-batches below which nothing is fitted."""
APART = 0.05
"""Share of the usual size by which a micro-batch's loss is off."""
MOST_CAPTURES = 24
ROUNDING = 1e-5
"""Share of its rows' size below which a sum of them that should be 0 is rounding of float32."""
_KL_KIND = re.compile(r"kl\w*_(type|estimator|kind)$", re.I)
K3 = ("k3", "low_var_kl", None)


class CapturedLoss(Dated):
    """Losses of micro-batches in the ledger, against those of their captured tokens."""

    n_steps: int
    n_microbatches: int
    correlation: float
    """Of the ledger's losses with the recomputed ones, advantage and KL term as stated."""
    fit_correlation: float
    """... with the best sum of the two terms."""
    policy_coefficient: float | None
    """Of the advantage term in that sum; 1 expected. None where its standard error is above 0.1."""
    kl_coefficient: float | None
    """Of beta x KL; None as well where beta is 0 or no reference was captured."""
    balance_off: float | None
    """abs(coefficient of the advantage term - of the KL term), where both are told."""
    plain_coefficient: float | None
    """Of the advantage term without clipping, fitted in place of the clipped one: 1 with a better
    fit where the loss does not clip. None where no captured ratio leaves the clip range."""
    error_share: float
    """Root mean square of ledger less recomputed, over the spread of the recomputed ones."""


@dataclass(frozen=True)
class _Row:
    """One micro-batch: terms over its own denominator, and the loss in the ledger."""

    step: int
    size: float
    """Of the policy term, were all of its rows of one sign."""
    policy: float
    unclipped: float
    kl: float
    loss: float


@tool
def check_captured_loss(run: Run) -> Measured[CapturedLoss]:
    """Loss of each micro-batch from its captured log-probs, advantages and mask, term by term.

    The policy term of the stated loss type and beta x k3, summed over the trained tokens (for a
    loss of row means: the mean of each row), times the micro-batch's scale over its denominator;
    the ledger's losses are fitted by the two. The term is -min(ratio A, clip(ratio) A), for cispo
    -min(ratio, cap) A logp, for vespo -phi(sequence ratio) A logp, for sapo the soft gate. Weights
    that correct for another sampler are not known here.

    Cannot tell: clipping where every ratio is 1, nor a gradient that is not that of its loss.
    """
    loss_type = TokenLoss.of(run)
    beta = run.config.number("beta")
    if beta is None:
        raise NoData("the weight of KL in the loss (`beta`) is not stated")
    corrected = any(
        "importance_sampling_correction" in k and v for k, v in run.config.values.items()
    )
    if corrected and run.config.flag("use_vllm") is not False:
        raise NoData("importance weights scale the tokens of the loss")
    if any(_KL_KIND.search(k) and v not in K3 for k, v in run.config.values.items()):
        raise NoData("KL is estimated in another way than exp(d) - d - 1")
    rows = list(_rows(run, beta, loss_type))
    if len(rows) < FEWEST:
        raise NoData("fewer than six micro-batches whose tokens were captured")
    policy, kl, loss, plain = (
        np.array([getattr(r, name) for r in rows]) for name in ("policy", "kl", "loss", "unclipped")
    )
    if np.ptp(policy) < ROUNDING * max(r.size for r in rows):  # row means over whole groups
        policy = plain = np.zeros_like(policy)
    stated = policy + kl
    terms = [t for t in (policy, kl) if np.ptp(t) > 0]
    if not terms or np.ptp(loss) == 0 or np.ptp(stated) == 0:
        raise NoData("the losses of the micro-batches do not vary")
    fitted, coefficient, error = _fit(terms, loss)
    told = [
        round(float(c), 4) if e < KNOWN else None for c, e in zip(coefficient, error, strict=True)
    ]
    of_kl = told[-1] if np.ptp(kl) > 0 else None
    of_policy = told[0] if np.ptp(policy) > 0 else None
    balance = None
    if of_policy is not None and of_kl is not None:
        balance = round(abs(of_policy - of_kl), 4)
    cut = bool((np.abs(plain - policy) > 1e-9).any())
    of_plain = None
    if cut:
        other, values, errors = _fit([plain, *([kl] if np.ptp(kl) > 0 else [])], loss)
        better = float(((loss - other) ** 2).sum()) < 0.1 * float(((loss - fitted) ** 2).sum())
        of_plain = round(float(values[0]), 4) if errors[0] < KNOWN and better else None
    spread = float(np.std(stated))
    apart = np.abs(loss - stated) > APART * spread
    steps = sorted({r.step for r in rows})
    bad = np.array([apart[[r.step == s for r in rows]].any() for s in steps])
    metrics = CapturedLoss(
        n_steps=len(steps),
        n_microbatches=len(rows),
        correlation=round(float(np.corrcoef(stated, loss)[0, 1]), 6),
        fit_correlation=round(float(np.corrcoef(fitted, loss)[0, 1]), 6),
        policy_coefficient=of_policy,
        kl_coefficient=of_kl,
        balance_off=balance,
        plain_coefficient=of_plain,
        error_share=round(float(np.sqrt(np.mean((loss - stated) ** 2))) / spread, 6),
        **asdict(span_of(steps, bad)),
    )
    return Measured(
        metrics,
        f"losses of {len(rows)} micro-batches in {len(steps)} captured steps against those of "
        f"their tokens: r {number(metrics.correlation)}, coefficient of the advantage term "
        f"{number(metrics.policy_coefficient, digits=3)}, of the KL term "
        f"{number(metrics.kl_coefficient, digits=3)}",
        tables=(_table(rows),),
        window=(steps[0], steps[-1]),
        signal="loss of micro-batches against their captured tokens",
    )


def _rows(run: Run, beta: float, loss_type: TokenLoss) -> list[_Row]:
    found = []
    steps = np.intersect1d(run.captures.steps, np.array(run.flight.steps))
    if not len(steps):
        return []
    chosen = steps[np.unique(np.linspace(0, len(steps) - 1, MOST_CAPTURES).astype(int))]
    updates = {u.step: u for u in reversed(updates_of(run))}  # the first of a step, on fresh rows
    for step in chosen.tolist():
        update = updates.get(step)
        rows = rows_of_capture(run, step)
        names = None if rows is None else rows.sample
        capture = run.captures.readable(step)
        if update is None or names is None or capture is None:
            continue
        terms = _terms(capture, beta, loss_type)
        place: Mapping[str, int] = {name: i for i, name in enumerate(names)}
        for part in update.parts:
            own = [place[name] for name in part.samples if name in place]
            if terms is None or not own or len(own) != len(part.samples) or part.loss is None:
                continue
            if not part.denominator or len(terms[0]) != len(names):
                continue
            weight = (1.0 if part.scale is None else part.scale) / part.denominator
            policy, plain, kl = (float(weight * t[own].sum()) for t in terms)
            size = abs(weight) * float(np.abs(terms[0][own]).sum())
            found.append(_Row(step, size, policy, plain, kl, part.loss))
    return found


def _terms(
    capture: Capture, beta: float, loss_type: TokenLoss
) -> tuple[FloatArray, FloatArray, FloatArray] | None:
    """(R,) policy term, the same without clipping, and KL term of each row.

    None where an array is missing, a trained value is not finite, or prompt tokens are trained.
    """
    new, old, ref = (capture.numbers(n) for n in ("logp_new", "logp_old", "logp_ref"))
    mask, advantage = capture.mask("loss_mask"), capture.numbers("advantage")
    prompt = capture.mask("prompt_loss_mask")
    if new is None or mask is None or advantage is None or (prompt is not None and prompt.any()):
        return None
    if advantage.ndim == 1:
        advantage = np.broadcast_to(advantage[:, None], new.shape)
    kl = np.zeros_like(new)
    if beta:
        if ref is None:
            return None
        with np.errstate(over="ignore", invalid="ignore"):  # at masked places, which are left out
            kl = beta * (np.exp(ref - new) - (ref - new) - 1)
            if loss_type.corrects_kl and old is not None:
                kl = kl * np.exp(new - old)
    with np.errstate(over="ignore", invalid="ignore"):
        policy, plain = loss_type.terms(new, new if old is None else old, advantage, mask)
    found = [loss_type.sum_of_rows(t, mask) for t in (policy, plain, kl)]
    if not all(np.isfinite(t).all() for t in found):
        return None
    return found[0], found[1], found[2]


def _fit(terms: list[FloatArray], loss: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Fitted losses, and each coefficient with its standard error."""
    table = np.stack(terms, axis=1)
    found = np.asarray(np.linalg.lstsq(table, loss, rcond=None)[0], np.float64)
    fitted: FloatArray = table @ found
    left = float(((loss - fitted) ** 2).sum()) / max(len(loss) - table.shape[1], 1)
    error: FloatArray = np.sqrt(left * np.diag(np.linalg.pinv(table.T @ table)))
    return fitted, found, error


def _table(rows: list[_Row]) -> Table:
    shown = tuple(
        (r.step, *(round(v, 6) for v in (r.policy, r.kl, r.policy + r.kl, r.loss)))
        for r in rows[-20:]
    )
    return Table(
        title="losses of micro-batches",
        columns=("step", "advantage term", "KL term", "recomputed", "in the ledger"),
        rows=shown,
        cut_rows=max(0, len(rows) - 20),
    )
