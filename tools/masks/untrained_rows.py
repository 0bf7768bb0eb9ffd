"""Captured rows of which no token is trained: how many have a reason on record?"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from firstbad.tools.beside import rows_beside
from firstbad.tools.cut import ABORTED, is_cut
from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Table
from firstbad.tools.numbers import percent
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import Capture, Run
from firstbad.tools.tokens import completion_end

MASKING = (
    "off_policy_mask_threshold",
    "icepop",
    "rollout_rs",
    "algorithm.rollout_correction.rollout_rs",
    "algorithm.rollout_rs",
    "truncated_importance_sampling_mask",
)
"""Settings that leave samples out of the loss for what their log-probs are."""
REASONS = ("cut", "failed", "no advantage", "setting", "no reason")


class UntrainedRows(Dated):
    """Rows without a trained token, by the first reason that explains them."""

    n_rows: int
    n_untrained: int
    n_cut: int
    """Cut rows: generation says so, or no stop token ends them."""
    n_failed: int
    """Rows whose finish reason is an error or an abort, without a token, or without a score."""
    n_no_advantage: int
    """Rows with an advantage of 0, which teach nothing."""
    n_by_setting: int
    """All others, where a setting leaves samples out by their log-probs."""
    n_unexplained: int
    """Finished rows with an advantage that are not in the loss."""
    share_unexplained: float
    """... of all rows."""


@dataclass
class _Count:
    step: int
    rows: int = 0
    by: Counter[str] = field(default_factory=Counter)


@tool
def count_untrained_rows(run: Run) -> Measured[UntrainedRows]:
    """Captured rows with no trained token, counted by reason.

    Reasons: cut at the cap, failed, an advantage of 0, or a setting that leaves samples out by
    their log-probs. What none of them explains was lost on the way.

    Cannot tell: rows that left the batch before the capture; whether a reason is a good one.
    """
    counts = [
        found
        for capture in run.captures
        if (found := _count(run, capture)) is not None and found.rows
    ]
    if not counts:
        raise NoData("no captures that hold token ids and a loss mask")
    total = sum((c.by for c in counts), Counter[str]())
    rows = sum(c.rows for c in counts)
    bad = [c.step for c in counts if c.by["no reason"] > 0.02 * c.rows]
    good = [c.step for c in counts if not bad or c.step < bad[0]]
    metrics = UntrainedRows(
        n_rows=rows,
        n_untrained=total.total(),
        n_cut=total["cut"],
        n_failed=total["failed"],
        n_no_advantage=total["no advantage"],
        n_by_setting=total["setting"],
        n_unexplained=total["no reason"],
        share_unexplained=round(total["no reason"] / rows, 6),
        last_good_step=good[-1] if good and bad else None,
        first_bad_step=bad[0] if bad else None,
        from_start=bool(bad) and not good,
        sampled=True,
    )
    table = Table(
        title="rows without a trained token, by reason",
        columns=("step", "rows", *REASONS),
        rows=tuple(
            (c.step, c.rows, *(c.by[reason] for reason in REASONS)) for c in counts[:60] if c.by
        ),
    )
    return Measured(
        metrics,
        f"{total.total()} of {rows} captured rows have no trained token, "
        f"{total['no reason']} of them ({percent(metrics.share_unexplained)} of all) without a "
        "reason on record",
        tables=(table,) if table.rows else (),
        window=(counts[0].step, counts[-1].step),
        signal="rows without a trained token",
    )


def _count(run: Run, capture: Capture) -> _Count | None:
    ids, loss = capture.arrays.get("token_id"), capture.mask("loss_mask")
    if ids is None or loss is None or loss.shape != ids.shape:
        return None
    trained = loss.any(axis=1)
    prompt = capture.mask("prompt_loss_mask")
    if prompt is not None:
        trained |= prompt.any(axis=1)
    end = completion_end(run, capture)
    batch = rows_beside(run, capture)
    reasons = batch.finish if batch is not None else None
    scores = list(batch.rewards.values()) if batch is not None else []
    unscored = np.full(len(loss), bool(scores))
    for part in scores:
        unscored &= np.isnan(part)
    advantage = _by_row(capture)
    masks = any(run.config.values.get(name) not in (None, False, 0) for name in MASKING)
    count = _Count(capture.step, len(loss))
    for row in np.flatnonzero(~trained).tolist():
        said = reasons[row] if reasons is not None else None
        failed = said is not None and said.lower() in ("error", *ABORTED)
        if failed or unscored[row] or not end.real[row].any():
            count.by["failed"] += 1
        elif is_cut(said) or (said is None and end.stop_at[row] < 0):
            count.by["cut"] += 1
        elif advantage is None or abs(advantage[row]) < 1e-6 or not np.isfinite(advantage[row]):
            count.by["no advantage"] += 1
        else:
            count.by["setting" if masks else "no reason"] += 1
    return count


def _by_row(capture: Capture) -> np.ndarray[tuple[int], np.dtype[np.float64]] | None:
    """(R,) advantage of each row, of largest size where tokens have their own."""
    found = capture.numbers("advantage")
    if found is None or found.ndim == 1:
        return found
    return np.asarray(np.nanmax(np.abs(np.nan_to_num(found)), axis=1))
