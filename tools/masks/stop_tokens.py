"""Stop tokens of captured rows against the reasons that generation gives for their end."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from firstbad.tools.beside import rows_beside
from firstbad.tools.cut import is_cut
from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated
from firstbad.tools.numbers import percent
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import COMPLETION, Capture, RolloutBatch, Run
from firstbad.tools.tokens import completion_end, sources

STOPPED = ("stop", "eos", "eos_token", "end_of_turn")
"""Finish reasons of rows that ended by themselves."""


class StopTokens(Dated):
    """Rows by their finish reason, and whether a stop token ends them."""

    n_captures: int
    n_cut: int
    """Rows that generation says it cut."""
    share_cut_with_stop: float
    """Of those: they end in a stop token, and it is in the loss."""
    n_stopped: int
    """Rows that generation says ended by themselves."""
    share_stopped_without: float
    """Of those: no stop token is among their tokens."""
    cut_with_stop_since: float
    """`share_cut_with_stop` of the captures from the onset on, where there is one."""
    stopped_without_since: float
    """`share_stopped_without` of these captures."""
    commonest_last_share: float
    """Of the latter: they share one last token. Near 1 where a stop text ends the answers, which
    needs no stop token."""
    stops_named: bool
    """A tokenizer or model file names the stop tokens."""


@dataclass
class _Count:
    step: int
    cut: int = 0
    forged: int = 0
    stopped: int = 0
    missing: int = 0
    last: Counter[int] = field(default_factory=Counter)

    @property
    def wrong(self) -> bool:
        return self.forged * 2 > self.cut or self.missing * 2 > self.stopped


@tool
def check_stop_tokens(run: Run) -> Measured[StopTokens]:
    """Finish reasons of captured rows against the tokens that they end in.

    A row that was cut has no stop token: one that is there was put there, and was never sampled.
    A row that ended by itself was ended by a token, which must be among those that are trained;
    where it was left out, the policy is never told to stop.

    Cannot tell: anything without finish reasons and rows in the order of the capture's.
    """
    counts: list[_Count] = []
    named = True
    for capture in run.captures:
        if "token_id" not in capture.arrays:
            continue
        batch = rows_beside(run, capture)
        if batch is not None and batch.finish is not None:
            count, guessed = _count(run, capture, batch)
            counts.append(count)
            named &= not guessed
    if not counts or not any(c.cut + c.stopped for c in counts):
        raise NoData("no finish reasons of the rows of a capture")
    cut, stopped = sum(c.cut for c in counts), sum(c.stopped for c in counts)
    missing = sum(c.missing for c in counts)
    last = sum((c.last for c in counts), Counter[int]())
    bad = [c.step for c in counts if c.wrong]
    good = [c.step for c in counts if not bad or c.step < bad[0]]
    forged = sum(c.forged for c in counts)
    late = [c for c in counts if not bad or c.step >= bad[0]]
    late_cut, late_stopped = sum(c.cut for c in late), sum(c.stopped for c in late)
    metrics = StopTokens(
        n_captures=len(counts),
        n_cut=cut,
        share_cut_with_stop=round(forged / cut, 6) if cut else 0.0,
        n_stopped=stopped,
        share_stopped_without=round(missing / stopped, 6) if stopped else 0.0,
        cut_with_stop_since=round(sum(c.forged for c in late) / max(1, late_cut), 6),
        stopped_without_since=round(sum(c.missing for c in late) / max(1, late_stopped), 6),
        commonest_last_share=round(last.most_common(1)[0][1] / missing, 6) if missing else 0.0,
        stops_named=named,
        last_good_step=good[-1] if good and bad else None,
        first_bad_step=bad[0] if bad else None,
        from_start=bool(bad) and not good,
        sampled=True,
    )
    return Measured(
        metrics,
        f"of {cut} cut rows {percent(metrics.share_cut_with_stop)} end in a trained stop token, of "
        f"{stopped} that ended by themselves {percent(metrics.share_stopped_without)} hold none",
        window=(counts[0].step, counts[-1].step),
        signal="stop tokens against finish reasons",
    )


def _count(run: Run, capture: Capture, batch: RolloutBatch) -> tuple[_Count, bool]:
    end = completion_end(run, capture)
    ids = np.asarray(capture.arrays["token_id"])
    loss = capture.mask("loss_mask")
    count = _Count(capture.step)
    source = sources(capture)
    sampled = end.real if source is None else np.asarray(source == COMPLETION)
    for row, reason in enumerate(batch.finish or ()):
        made = np.flatnonzero(end.real[row])
        ends = end.stop_at[row] >= 0 and not sampled[row, end.stop_at[row] + 1 :].any()
        if is_cut(reason):
            count.cut += 1
            trained = loss is None or loss.shape != ids.shape or loss[row, end.stop_at[row]]
            count.forged += bool(ends and trained)
        elif reason is not None and reason.lower() in STOPPED and end.stops:
            count.stopped += 1
            if not ends and len(made):
                count.missing += 1
                count.last[int(ids[row, made[-1]])] += 1
    return count, end.guessed
