"""Three switches of cut answers: are they scored, do they count in their group, do they train?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from firstbad.tools.beside import rows_beside
from firstbad.tools.cut import is_cut
from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Table
from firstbad.tools.numbers import percent
from firstbad.tools.registry import Measured, tool
from firstbad.tools.rewards import total_reward, used_advantage
from firstbad.tools.run import BoolArray, FloatArray, RolloutBatch, Run
from firstbad.tools.tokens import completion_end

ZERO = 0.02
"""Size of a sum of advantages over the sum of their sizes that counts as 0."""


class CutSwitches(Dated):
    """Rows that were cut, and the groups that hold both cut and finished ones."""

    n_rows: int
    n_cut: int
    share_cut: float
    n_groups: int
    """Groups with cut and finished rows, whose advantages tell whether the cut ones count."""
    share_scored: float
    """Of cut rows: they have a finite reward."""
    share_counted: float
    """Of those groups: the advantages sum to 0 over all rows; of the others they do so over the
    finished rows alone."""
    n_captured: int
    """Cut rows whose loss mask was captured."""
    share_trained: float | None
    """... of them, in the loss. Without any: as `mask_truncated_completions` says; None where the
    settings do not name it."""
    trained_by_setting: bool
    """The share in the loss is what the settings say, not what was measured."""
    shift: float
    """Mean size by which cut rows move the advantages of the finished rows beside them."""
    size_cut: float
    """Mean size of the advantages of the cut rows."""


@dataclass
class _Count:
    step: int
    rows: int
    cut: int
    scored: int
    counted: int
    apart: int
    shift: float
    """Sum over groups."""
    size: float
    """Sum over cut rows."""
    captured: int = 0
    trained: int = 0

    def differs(self, *, masked: bool) -> bool:
        """Whether cut rows count in their groups, and are left out of the loss or not scored.

        `masked`: the settings leave cut rows out, where no capture tells.
        """
        if not self.counted:
            return False
        untrained = not self.trained if self.captured else masked
        return untrained or not self.scored


@tool
def check_cut_switches(run: Run) -> Measured[CutSwitches]:
    """Whether cut answers are scored, count in the statistics of their group, and are trained.

    Advantages of a group sum to 0 over the rows that its mean was taken over, so the sums tell
    which rows count. Cut answers that are left out of the loss and still count shift the
    advantages of all others in their group.

    Cannot tell: which of the switches is the one that was meant; anything without finish reasons
    or captures, nor where advantages are scaled once more over the batch.
    """
    counts = list(_counts(run))
    n_cut, groups = sum(c.cut for c in counts), sum(c.counted + c.apart for c in counts)
    if not counts:
        raise NoData("no rows with advantages of which finish reason or tokens tell who was cut")
    rows, captured = sum(c.rows for c in counts), sum(c.captured for c in counts)
    trained: float | None = None
    if captured:
        trained = round(sum(c.trained for c in counts) / captured, 6)
    elif (masked := run.config.flag("mask_truncated_completions")) is not None:
        trained = float(not masked)
    # Where captures tell, steps without one tell nothing.
    read = [c for c in counts if c.captured or not captured or (c.cut and not c.scored)]
    bad = [c.step for c in read if c.differs(masked=trained == 0.0 and not captured)]
    good = [c.step for c in read if not bad or c.step < bad[0]]
    metrics = CutSwitches(
        n_rows=rows,
        n_cut=n_cut,
        share_cut=round(n_cut / max(1, rows), 6),
        n_groups=groups,
        share_scored=_share(sum(c.scored for c in counts), n_cut),
        share_counted=_share(sum(c.counted for c in counts), groups),
        n_captured=captured,
        share_trained=trained,
        trained_by_setting=not captured and trained is not None,
        shift=round(sum(c.shift for c in counts) / max(1, groups), 6),
        size_cut=round(sum(c.size for c in counts) / max(1, n_cut), 6),
        last_good_step=good[-1] if good and bad else None,
        first_bad_step=bad[0] if bad else None,
        from_start=bool(bad) and not good,
        sampled=captured > 0,
    )
    said = "unknown" if trained is None else percent(trained)
    table = Table(
        title="switches of cut answers",
        columns=("switch", "of", "share"),
        rows=(
            ("scored", f"{n_cut} cut rows", percent(metrics.share_scored)),
            ("counted in the group", f"{groups} groups", percent(metrics.share_counted)),
            ("in the loss", f"{captured} captured cut rows" if captured else "the settings", said),
        ),
    )
    return Measured(
        metrics,
        f"{percent(metrics.share_cut)} of {rows} rows were cut: {percent(metrics.share_scored)} of "
        f"these are scored, they count in {percent(metrics.share_counted)} of {groups} groups, and "
        f"{said} are in the loss",
        tables=(table,) if n_cut else (),
        window=(counts[0].step, counts[-1].step),
        signal="cut answers in the group and in the loss",
    )


def _share(part: int, whole: int) -> float:
    return round(part / whole, 6) if whole else 0.0


def _counts(run: Run) -> Iterator[_Count]:
    captured = set(run.captures.steps.tolist())
    for batch in run.rollouts.batches():
        advantage, total = used_advantage(run, batch), total_reward(run, batch)
        if advantage is None or total is None:
            continue
        cut = None
        if batch.finish is not None and any(batch.finish):
            cut = np.array([is_cut(reason) for reason in batch.finish])
        in_loss = None
        if batch.step in captured and (cut is None or cut.any()):
            ends, in_loss = _captured(run, batch)
            cut = ends if cut is None else cut
        if cut is None:
            continue
        counted, apart, shift = _sums(advantage, total, cut, batch)
        count = _Count(
            batch.step,
            len(batch),
            int(cut.sum()),
            int(np.isfinite(total[cut]).sum()),
            counted,
            apart,
            shift,
            float(np.nansum(np.abs(advantage[cut]))),
        )
        if in_loss is not None:
            count.captured, count.trained = int(cut.sum()), int(in_loss[cut].sum())
        yield count


def _sums(
    advantage: FloatArray, total: FloatArray, cut: BoolArray, batch: RolloutBatch
) -> tuple[int, int, float]:
    """Groups in which cut rows count, those in which they do not, and the shift summed up."""
    counted = apart = 0
    shift = 0.0
    for group in np.unique(batch.group[cut]).tolist():
        own = batch.group == group
        kept = advantage[own & ~cut]
        values = np.nan_to_num(advantage[own])
        size = float(np.abs(values).sum())
        if len(kept) < 2 or size < ZERO or not np.isfinite(kept).all():
            continue
        of_all = abs(float(values.sum())) <= ZERO * size
        of_kept = abs(float(kept.sum())) <= ZERO * size
        if of_all and of_kept:  # cut rows lie at the mean, or were given 0
            away = np.abs(total[own & cut] - total[own].mean())
            of_all = not bool((away > ZERO * np.ptp(total[own])).any())
        if of_all == of_kept:
            continue  # neither, or the cut rows make no difference
        counted, apart = counted + of_all, apart + of_kept
        shift += abs(float(kept.mean())) if of_all else 0.0
    return counted, apart, shift


def _captured(run: Run, batch: RolloutBatch) -> tuple[BoolArray | None, BoolArray | None]:
    """(R,) rows that no stop token ends, and rows with a trained token; None where not captured."""
    capture = run.captures.readable(batch.step)
    if (
        capture is None
        or "token_id" not in capture.arrays
        or rows_beside(run, capture) is not batch
    ):
        return None, None
    end = completion_end(run, capture)
    loss = capture.mask("loss_mask")
    trained: BoolArray | None = None
    if loss is not None and loss.shape == end.real.shape:
        trained = np.asarray(loss.any(axis=1))
    return (None if end.guessed else np.asarray(end.stop_at < 0)), trained
