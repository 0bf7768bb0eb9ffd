"""Before any update trainer and reference are one model: where their log-probs differ, and how."""

from __future__ import annotations

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Table
from firstbad.tools.numbers import number
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import Run
from firstbad.tools.tokens import completion_end

FEWEST_ROWS = 4


class FirstPass(Dated):
    """abs(logp - logp_ref) at step 1, over completion tokens, in nats."""

    n_tokens: int
    difference: float
    """Mean over all tokens; 0 when both sides are computed alike."""
    least: float
    """Mean over the rows with one amount of padding, for the amount where it is least."""
    largest: float
    k1_over_k3: float | None
    """Mean of d = logp - logp_ref over the mean of exp(-d) - 1 + d. Tokens sampled from the
    trainer's policy give 1, whatever the reference; at or below 0 they come from the reference, and
    the trainer computes something else. None where nothing differs."""
    depends_on_padding: float
    """`largest` over `least` (at least 0.005 nats): far above 1 when positions or attention masks
    differ with the padding; 1 when the models differ."""


@tool
def compare_first_pass(run: Run) -> Measured[FirstPass]:
    """Trainer against reference log-probs at step 1, by the amount of prompt padding.

    Before the first update both sides hold the same weights, so every difference is one of
    computation or of the model loaded. One that comes and goes with the padding is one of positions
    or of the attention mask. The sampled tokens tell which of the two sides they were drawn from.

    Cannot tell: why that side is off.
    """
    capture = run.captures.readable(1)
    if capture is None:
        raise NoData("no capture of step 1, before any update, that can be read")
    new, ref = capture.numbers("logp_new"), capture.numbers("logp_ref")
    prompt = capture.mask("prompt_mask")
    if new is None or ref is None or prompt is None or "token_id" not in capture.arrays:
        raise NoData("the capture of step 1 lacks log-probs, reference log-probs or prompt mask")
    real = completion_end(run, capture).real & np.isfinite(new) & np.isfinite(ref)
    gap = np.where(real, np.abs(new - ref), 0.0)
    apart = (new - ref)[real]
    k3 = float(np.mean(np.exp(np.minimum(-apart, 50.0)) - 1 + apart)) if len(apart) else 0.0
    pads = (~prompt).sum(axis=1)
    rows = []
    for amount in np.unique(pads):
        of_it = pads == amount
        if of_it.sum() >= FEWEST_ROWS:
            mean = float(gap[of_it].sum() / max(1, real[of_it].sum()))
            rows.append((int(amount), int(of_it.sum()), round(mean, 6)))
    if not rows:
        raise NoData(f"no amount of padding with at least {FEWEST_ROWS} rows at step 1")
    least, largest = min(r[2] for r in rows), max(r[2] for r in rows)
    depends = largest / max(least, 0.005)
    off = largest > 0.02
    metrics = FirstPass(
        n_tokens=int(real.sum()),
        difference=round(float(gap.sum() / max(1, real.sum())), 6),
        least=least,
        largest=largest,
        k1_over_k3=round(float(apart.mean()) / k3, 4) if k3 > 1e-6 else None,
        depends_on_padding=round(depends, 4),
        first_bad_step=1 if off else None,
        from_start=off,
    )
    table = Table(
        title="trainer against reference log-probs at step 1, by padding",
        columns=("pad tokens of the prompt", "rows", "mean abs difference"),
        rows=tuple(rows),
    )
    return Measured(
        metrics,
        "before any update trainer and reference log-probs differ by "
        f"{number(metrics.difference, digits=3)} nats "
        f"({number(least, digits=3)} to {number(largest, digits=3)} by amount of padding)",
        tables=(table,),
        window=(1, 1),
        signal="log-probs before any update, by padding",
    )
