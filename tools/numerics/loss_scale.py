"""The loss scale of float16 training: does it hold, or do gradients overflow at any scale?"""

from __future__ import annotations

from itertools import pairwise

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Table
from firstbad.tools.inert_pickle import Refused
from firstbad.tools.numbers import number
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import Run
from firstbad.tools.saved_state import SavedScaler, falls, read_scaler

PLAIN = 1.0
"""Below it the scale makes gradients smaller, which protects nothing."""
OFTEN = 0.5
"""Share of the updates between two checkpoints above which skipping them is no search any more."""
FEWEST = 10
"""... and how many they are at least: a scale that is looked for falls a few times."""


class LossScale(Dated):
    """Loss scale of the saved scalers; dated by the first one that fell below 1.

    ... or by the first before which most updates were skipped, the last one too.
    """

    n_states: int
    """Checkpoints whose loss scaler could be read."""
    n_unread: int
    scale_first: float
    """In the first of these checkpoints."""
    scale_last: float
    scale_least: float
    skipped_least: int
    """Updates that were skipped at least between the first and the last of them: the scale falls
    by one factor at each."""
    unskipped_last: int | None
    """Updates in a row before the last checkpoint that were not skipped."""
    fell: bool
    """The scale came down: between checkpoints, or before one that counts fewer sound updates in a
    row than it has steps. A scale that was set once and held never did."""
    skipped_in_last: int
    """Updates that were skipped at least between the last two checkpoints."""
    skipped_in_last_share: float
    """... over the steps between them; at most 1."""


@tool
def read_loss_scale(run: Run) -> Measured[LossScale]:
    """Loss scale in scaler.pt of each checkpoint.

    Where a gradient is not finite, the update is skipped and the scale halved; after 2,000 sound
    updates in a row it is doubled. A scale that falls and falls was not too large: something is
    not finite at any scale. Files are not unpickled: their operations are listed and followed.

    Cannot tell: which tensor overflows, nor skipped updates that later growth has made up for.
    """
    states: list[tuple[int, SavedScaler]] = []
    unread: list[str] = []
    for checkpoint in run.checkpoints:
        if "scaler.pt" in checkpoint.files:
            try:
                states.append((checkpoint.step, read_scaler(checkpoint.path / "scaler.pt")))
            except Refused as error:
                unread.append(f"`{checkpoint.path.name}/scaler.pt`: {error}")
    if not states:
        raise NoData(unread[0] if unread else "no checkpoint holds a scaler.pt")
    scales = [state.scale for _, state in states]
    steps = [step for step, _ in states]
    lost = [falls(a.scale, b.scale, b.backoff) for (_, a), (_, b) in pairwise(states)]
    shares = [min(1.0, n / (b - a)) for n, (a, b) in zip(lost, pairwise(steps), strict=True)]
    fell = any(lost) or any(s.unskipped is not None and s.unskipped < at for at, s in states)
    often = [False] + [
        n >= FEWEST and share >= OFTEN and state.unskipped == 0
        for n, share, (_, state) in zip(lost, shares, states[1:], strict=True)
    ]
    bad = [(fell and scale < PLAIN) or much for scale, much in zip(scales, often, strict=True)]
    first = bad.index(True) if any(bad) else None
    good = steps[first - 1] if first else None
    skipped = sum(lost)
    last = states[-1][1]
    metrics = LossScale(
        n_states=len(states),
        n_unread=len(unread),
        scale_first=scales[0],
        scale_last=last.scale,
        scale_least=min(scales),
        skipped_least=skipped,
        unskipped_last=last.unskipped,
        fell=fell,
        skipped_in_last=lost[-1] if lost else 0,
        skipped_in_last_share=round(shares[-1], 4) if shares else 0.0,
        last_good_step=good,
        first_bad_step=None if first is None else steps[first],
        from_start=first == 0,
        sampled=good is not None,
    )
    text = f"the loss scale is {number(scales[0])} in checkpoint-{states[0][0]}"
    if len(states) > 1:
        text += f" and {number(last.scale)} in checkpoint-{states[-1][0]}"
    if skipped:
        text += f": at least {skipped} updates between them were skipped"
    return Measured(
        metrics,
        text,
        tables=(
            Table(
                title="loss scale by checkpoint",
                columns=("checkpoint", "scale", "updates since it changed"),
                rows=tuple((step, s.scale, s.unskipped) for step, s in states[-40:]),
                cut_rows=max(0, len(states) - 40),
            ),
        ),
        sources=run.sources,
        signal="loss scale",
    )
