"""Terms of the loss that no config names: a hidden entropy bonus."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from firstbad.tools.accumulation.loss_model import LossTerms, collect_terms
from firstbad.tools.numbers import number
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import Run
from firstbad.tools.segments import OF_THE_LOSS, HeldToSettings, held_to_settings
from firstbad.tools.stats import level_shift, pearson

FEWEST = 20
MARGIN = 10


@dataclass(frozen=True)
class EntropyTerm:
    """What is left of the loss goes with the entropy: coefficient, and from which index on."""

    coefficient: float
    start: int
    correlation: float

    def taken_out(self, terms: LossTerms) -> LossTerms:
        """The terms with this one subtracted from the logged loss."""
        assert terms.entropy is not None
        rest = terms.logged.copy()
        rest[self.start :] -= self.coefficient * terms.entropy[self.start :]
        return replace(terms, logged=rest)


class LossTermsFound(HeldToSettings):
    """What the logged loss holds beyond the advantage and KL terms."""

    n_steps: int
    entropy_term: bool
    entropy_coefficient: float | None
    """Of the mean token entropy; negative for a bonus."""
    entropy_correlation: float | None
    offset: float
    """Mean of logged less recomputed loss over the last third."""
    offset_over_spread: float
    """... over the spread of that difference within the first third."""
    entropy_rise: float | None
    """Mean entropy after the term appears over before (or last third over first)."""
    declared_coefficient: float | None
    """Weight of the entropy bonus that the config states; None where it states none."""
    declared_over_policy: float | None
    """That bonus, over what the rows of a step move the policy term by (its spread over rows: the
    term itself is near 0 at ratio 1, whatever its gradient)."""


@tool
@held_to_settings(*OF_THE_LOSS)
def find_loss_terms(run: Run) -> Measured[LossTermsFound]:
    """A term in the logged loss that goes with the entropy, and no config names.

    The advantage and KL terms are recomputed and subtracted; where the rest is far from 0 and
    follows the entropy better than a constant, an entropy term is in the loss. A bonus that the
    config states (`entropy_coef`) is taken out first.

    Cannot tell: terms that never reach the logged loss.
    """
    terms, _ = collect_terms(run, fewest=FEWEST)
    found = find_entropy_term(terms)
    rest = terms.logged - terms.predicted
    third = len(rest) // 3
    spread = float(np.std(rest[:third]))
    start = found.start if found else None
    rise = None
    if terms.entropy is not None:
        cut = start if start else third
        before = float(terms.entropy[:cut].mean())
        rise = round(float(terms.entropy[-third:].mean()) / before, 4) if before else None
    declared = run.config.number("entropy_coef") or None
    size = float(terms.spread.mean())
    over = None
    if declared and terms.entropy is not None and size > 0:
        over = round(min(declared * float(terms.entropy.mean()) / size, 1e6), 4)
    metrics = LossTermsFound(
        n_steps=len(rest),
        entropy_term=found is not None,
        entropy_coefficient=None if found is None else round(found.coefficient, 6),
        entropy_correlation=None if found is None else round(found.correlation, 4),
        offset=round(float(rest[-third:].mean()), 6),
        offset_over_spread=round(float(rest[-third:].mean()) / max(spread, 1e-9), 4),
        entropy_rise=rise,
        declared_coefficient=declared,
        declared_over_policy=over,
        last_good_step=terms.good_before(start) if start else None,
        first_bad_step=None if start is None else int(terms.steps[start]),
        from_start=start == 0,
        sampled=bool(start) and terms.wide,
    )
    text = "the loss holds nothing beyond advantage and KL terms"
    if declared:
        text += f" and the configured entropy bonus of {number(declared, digits=3)}"
    if found is not None:
        text = (
            f"an entropy term with coefficient {number(found.coefficient, digits=3)} is in the "
            f"loss from step {metrics.first_bad_step}"
        )
    return Measured(
        metrics,
        text,
        window=(int(terms.steps[0]), int(terms.steps[-1])),
        signal="logged less recomputed loss",
    )


def find_entropy_term(terms: LossTerms) -> EntropyTerm | None:
    """The entropy term in what is left of the loss, or None."""
    h = terms.entropy
    if h is None or len(h) < 2 * MARGIN or not (h > 0).all():
        return None
    rest = terms.logged - terms.predicted
    shift = level_shift(rest, margin=MARGIN)
    starts = [0]
    if shift is not None and shift.sds > 3 and abs(shift.after) > 3 * abs(shift.before):
        starts.insert(0, shift.index)
    for start in starts:
        e, x = rest[start:], h[start:]
        coefficient = float(e @ x / (x @ x))
        left = float(np.std(e - coefficient * x))
        flat = float(np.std(e))
        r = pearson(x, e)
        follows = left < 0.9 * flat and r is not None and abs(r) * np.sqrt(len(e)) > 4
        if abs(float(e.mean())) > 3 * left and follows and r is not None:
            return EntropyTerm(coefficient, start, r)
    return None
