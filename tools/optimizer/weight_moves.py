"""Did the weights move as far as the logged learning rate lets Adam move them?"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Table
from firstbad.tools.inert_pickle import Refused
from firstbad.tools.numbers import number, percent
from firstbad.tools.optimizer.between_checkpoints import Began, began_between
from firstbad.tools.readers.weights import Bits, Tensor, sampled_weights, weight_files
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import Checkpoint, FloatArray, Run
from firstbad.tools.saved_state import read_optimizer
from firstbad.tools.segments import resumes

MOST_CHECKPOINTS = 8
"""With weights, the last ones."""
FEWEST = 5
"""Steps between two checkpoints below which Adam's first, largest updates may fill all of them."""
LOGGED = 0.9
"""Share of the steps between two checkpoints whose rate must be known."""
TOO_FAR = 1.5
"""Distance over the sum of the rates beyond which a pair of checkpoints is dated."""


class WeightMoves(Dated):
    """Root mean square of what the weights moved between checkpoints, numbers of 32 bits."""

    n_pairs: int
    """Neighbouring checkpoints that were compared."""
    adam: bool | None
    """Updates are Adam's: by the saved state, by the settings, or by the trainer's default. None
    where neither is known."""
    moved_over_rates: float | None
    """Distance over the sum of the logged rates between the two, largest of the pairs. An update
    of Adam moves a weight by about its rate at most, so it stays below 1. None without rates."""
    relative_distance: float
    """Distance over the size of the weights, in that pair."""
    relative_per_step: float
    """... over the steps between them, had all gone the same way."""
    step_before: int
    """Step of the checkpoint before, and of the later one."""
    step_after: int


class _Pair(NamedTuple):
    before: int
    after: int
    distance: float
    size: float
    rates: float | None
    """Sum of the learning rates between, with what weight decay takes away."""

    @property
    def over_rates(self) -> float | None:
        return None if not self.rates else self.distance / self.rates


@tool
def measure_weight_moves(run: Run) -> Measured[WeightMoves]:
    """How far the weights moved from checkpoint to checkpoint, over the sum of the learning rates.

    Adam divides the average gradient by the root of the average squared one: at a steady size of
    gradients a weight moves by its rate at most in a step, by less where signs vary. So the
    distance stays below the sum of the rates. Farther means an optimizer whose second moments do
    not belong to its gradients, another rate than the logged one, or weights from elsewhere.

    Cannot tell: which of these; anything of weights stored with 16 bits or of other optimizers.
    """
    saved = [c for c in run.checkpoints if weight_files(c)][-MOST_CHECKPOINTS:]
    adam, largest_rate = _optimizer(run)
    pairs: list[_Pair] = []
    last: tuple[Checkpoint, dict[Tensor, Bits]] | None = None
    for checkpoint in saved:
        weights = {t: b for t, b in sampled_weights(checkpoint).items() if t.dtype == "F32"}
        if last is not None and (pair := _pair(run, *last, checkpoint, weights)) is not None:
            rates = None if pair.rates is None else pair.rates * largest_rate
            pairs.append(pair._replace(rates=rates))
        if weights:
            last = checkpoint, weights
    if not pairs:
        raise NoData("no two checkpoints with weights of 32 bits")
    worst = max(pairs, key=lambda p: (p.over_rates or 0.0, p.distance))
    over = worst.over_rates
    began = Began(pairs[-1].after, None)
    if over is not None and over > TOO_FAR:
        good = [
            step for p in pairs if (p.over_rates or 0) <= TOO_FAR for step in (p.before, p.after)
        ]
        began = began_between([*good, worst.before], worst.after, resumes(run))
    relative = worst.distance / worst.size if worst.size else 0.0
    metrics = WeightMoves(
        n_pairs=len(pairs),
        adam=adam,
        moved_over_rates=None if over is None else round(over, 4),
        relative_distance=round(relative, 8),
        relative_per_step=round(relative / (worst.after - worst.before), 10),
        step_before=worst.before,
        step_after=worst.after,
        last_good_step=began.last_good_step,
        first_bad_step=began.first_bad_step,
        sampled=began.first_bad_step is not None and began.sampled,
    )
    text = (
        f"from checkpoint {worst.before} to {worst.after} the weights move by {percent(relative)} "
        "of their size"
    )
    if over is not None:
        text += f", {number(over, digits=2)} times the sum of the learning rates between"
    return Measured(
        metrics,
        text,
        tables=(
            Table(
                title="distance from one checkpoint to the next",
                columns=("from", "to", "distance", "size of the weights", "over the sum of rates"),
                rows=tuple(
                    (p.before, p.after, *(_short(x) for x in (p.distance, p.size, p.over_rates)))
                    for p in pairs
                ),
            ),
        ),
        sources=run.sources,
        window=(pairs[0].before, pairs[-1].after),
        signal="weights in the checkpoints",
    )


def _pair(
    run: Run,
    before: Checkpoint,
    old: dict[Tensor, Bits],
    after: Checkpoint,
    new: dict[Tensor, Bits],
) -> _Pair | None:
    """Distance and size over all weights, each tensor by its sample; None where none is in both."""
    both = [t for t in old if t in new]
    if not both or after.step - before.step < FEWEST:
        return None
    count = float(sum(t.size for t in both))
    moved, whole = 0.0, 0.0
    for tensor in both:
        a, b = _numbers(old[tensor]), _numbers(new[tensor])
        moved += float(np.mean((b - a) ** 2)) * tensor.size
        whole += float(np.mean(a**2)) * tensor.size
    distance, size = np.sqrt(moved / count), np.sqrt(whole / count)
    if not np.isfinite(distance) or not np.isfinite(size):
        return None
    signal = run.signals.get("learning_rate")
    steps = after.step - before.step
    rates = signal.between(before.step + 1, after.step) if signal is not None else np.empty(0)
    total = float(rates.mean()) * steps if len(rates) >= LOGGED * steps else None
    if total is not None:
        total *= 1 + (run.config.number("weight_decay") or 0.0) * float(size)
    return _Pair(before.step, after.step, float(distance), float(size), total)


def _numbers(bits: Bits) -> FloatArray:
    return np.ascontiguousarray(bits).view("<f4").astype(np.float64)


def _optimizer(run: Run) -> tuple[bool | None, float]:
    """Whether it is Adam; the largest rate of a group over that of the first, which is logged."""
    for checkpoint in reversed(run.checkpoints):
        if "optimizer.pt" in checkpoint.files:
            try:
                groups = read_optimizer(checkpoint.path / "optimizer.pt").groups
            except Refused:
                continue
            if groups:
                rates = [group.learning_rate or 0.0 for group in groups]
                largest = max(rates) / rates[0] if rates[0] else 1.0
                return all(group.is_adam for group in groups), largest
    named = run.config.text("optim")
    if named is not None:
        return named.startswith("adam"), 1.0
    return (True if run.config.of_trainer else None), 1.0


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")
