"""Do all parameters go on training? Adam's counts of steps, and the weights that were stored."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Table
from firstbad.tools.inert_pickle import Refused
from firstbad.tools.readers.weights import Bits, Tensor, sampled_weights, weight_files
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import Checkpoint, Run
from firstbad.tools.saved_state import read_optimizer
from firstbad.tools.segments import resumes

MOST_STATES, MOST_WEIGHTS = 20, 8
"""Checkpoints that are read: the last states, and weights spread evenly over the run."""
FEWEST = 5
"""Steps without a move that may be chance: no token is sent to an expert."""
COUNTED = 0.9
"""Share of the steps that a tensor must have counted before it stands."""
SMALL = 0.02
"""Share of all numbers below which a part that stands is a scalar or two at its bound."""
MOVES = 0.5
"""Share of a tensor's numbers that differ between two checkpoints where it trains."""
_BUFFER = re.compile(r"inv_freq|rotary|position_ids|running_(mean|var)|masked_bias")
_SPARSE = re.compile(r"embed|wte|wpe|lm_head")
"""Rows of tokens that never occur do not train."""
_EXPERT = re.compile(r"(^|\.)experts?\.\d")
"""An expert that no token is sent to gets no gradient."""
_WIDE = ("F32", "F64")
"""In 16 bits a small update leaves a number as it was."""
_FREEZES = re.compile(r"freez|frozen|trainable", re.I)
_ADAPTS = re.compile(r"(^|\.|_)(peft|lora)|^adapter\.", re.I)
_ADAPTER = re.compile(r"(^|\.)lora_")
_OUTPUT = re.compile(r"(^|\.)lora_(embedding_)?B(\.|$)")
"""The factor of an adapter that begins as 0: while it is, the adapter adds nothing."""


class StillParameters(Dated):
    """Tensors that trained, and then stand still while others train on."""

    n_states: int
    """Checkpoints whose counts of steps were read."""
    n_weights: int
    """Checkpoints whose weights were compared, by up to 2,048 numbers of each tensor."""
    n_tensors: int
    """Tensors that a checkpoint holds."""
    still_tensors: int
    """The larger of the two below."""
    counted_still: int
    """Tensors whose count of steps stands."""
    counted_at: int | None
    """... and where."""
    weights_still: int
    """Tensors of which no number differs any more."""
    weights_still_share: float | None
    """Numbers in those over numbers in all."""
    never_moved_share: float | None
    """Share of the numbers that lie in tensors that are the same in all checkpoints, while others
    differ; buffers, embeddings and what is stored in 16 bits left out."""
    freezing_declared: bool
    """A setting speaks of frozen parts, or of adapters while none of theirs stands still."""
    all_still: bool
    """All tensors, stored in 32 bits, are the same in all checkpoints, although the gradient norm
    and the learning rate are above 0 in more than five steps between them."""
    adapter_outputs: int
    """Output factors of adapters (`lora_B`) in the last checkpoint with weights."""
    adapter_outputs_zero: int
    """Those of which all sampled numbers are 0, more than five steps into the run."""
    adapters_idle: bool
    """All of them are, so that the adapters add nothing."""


class _Counts(NamedTuple):
    step: int
    """Of the checkpoint."""
    of_tensor: tuple[int, ...]


class _Moved(NamedTuple):
    """Share of the sampled numbers of each tensor that differ between two checkpoints."""

    first: int
    last: int
    share: Mapping[Tensor, float]


class _Bracket(NamedTuple):
    last_good: int | None = None
    first_bad: int | None = None


@tool
def find_still_parameters(run: Run) -> Measured[StillParameters]:
    """Tensors that stop training while others go on, read off the checkpoints.

    By Adam's count of steps, which stands for a tensor without a gradient, and by the stored
    weights, which are then the same bit for bit; for the latter the learning rate must not have
    fallen by half meanwhile, since small updates vanish. Nothing is unpickled.

    Cannot tell: a part that was frozen all along from one that should train; numbers that were not
    sampled; the names of tensors from counts alone; an idle adapter that does not begin as 0.
    """
    states = [
        _Counts(c.step, found)
        for c in run.checkpoints[-MOST_STATES:]
        if "optimizer.pt" in c.files and (found := _counts(c))
    ]
    saved = [c for c in run.checkpoints if weight_files(c)]
    moved = _moved(_spread(saved))
    outputs, idle = (
        _adapter_outputs(saved[-1]) if saved and _trains(run, 0, saved[-1].step) else (0, 0)
    )
    if not states and not moved and not outputs:
        raise NoData("no optimizer state and no two checkpoints with weights that can be read")
    counted, at = _standing(states, resumes(run))
    stored, since = _same(moved, run)
    sizes = {t: t.size for t in moved[-1].share} if moved else {}
    if (_share(stored, sizes) or 0.0) < SMALL:
        stored, since = [], _Bracket()
    bracket = _by_count(states[-1], at) if at is not None else since
    never = _never_moved(moved)
    of_adapters = bool(counted) or any(_ADAPTER.search(t.name) for t in stored)
    declared = {k for k, v in run.config.values.items() if v}
    all_still = _all_still(run, moved)
    idle_all = 0 < outputs == idle
    metrics = StillParameters(
        n_states=len(states),
        n_weights=len(moved) + bool(moved),
        n_tensors=max(len(states[-1].of_tensor) if states else 0, len(sizes), outputs),
        still_tensors=max(len(counted), len(stored)),
        counted_still=len(counted),
        counted_at=at,
        weights_still=len(stored),
        weights_still_share=_share(stored, sizes),
        never_moved_share=_share(never, sizes),
        freezing_declared=any(map(_FREEZES.search, declared))
        or (any(map(_ADAPTS.search, declared)) and not of_adapters),
        all_still=all_still,
        adapter_outputs=outputs,
        adapter_outputs_zero=idle,
        adapters_idle=idle_all,
        last_good_step=bracket.last_good,
        first_bad_step=int(run.signals.steps[0]) if all_still or idle_all else bracket.first_bad,
        from_start=all_still or idle_all,
        sampled=bracket.first_bad is not None and bracket.first_bad - 1 != bracket.last_good,
    )
    known = stored or never
    names = _names(known) if not counted or len(known) == len(counted) else ""
    return Measured(
        metrics,
        f"{metrics.still_tensors} of {metrics.n_tensors} tensors stand still while others train "
        f"({len(states)} optimizer states, weights of {metrics.n_weights} checkpoints)",
        tables=_tables(states, moved),
        sources=run.sources,
        signal="steps counted for each tensor" if counted else "weights in the checkpoints",
        quote=f"By name: {names}." if names else "",
    )


def _counts(checkpoint: Checkpoint) -> tuple[int, ...]:
    """Steps counted for each parameter; none where the file can't be read."""
    try:
        return read_optimizer(checkpoint.path / "optimizer.pt").step_counts
    except Refused:
        return ()


def _spread(checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
    places = np.linspace(0, len(checkpoints) - 1, min(MOST_WEIGHTS, len(checkpoints)))
    return [checkpoints[int(i)] for i in places]


def _moved(checkpoints: Sequence[Checkpoint]) -> list[_Moved]:
    """Of each checkpoint with weights against the one before it; what both hold."""
    found = []
    before: dict[Tensor, Bits] = {}
    step = 0
    for checkpoint in checkpoints:
        weights = sampled_weights(checkpoint)
        if both := before.keys() & weights.keys():
            share = {t: float((weights[t] != before[t]).mean()) for t in sorted(both)}
            found.append(_Moved(step, checkpoint.step, share))
        if weights:
            before, step = weights, checkpoint.step
    return found


def _standing(states: Sequence[_Counts], resumed: Sequence[int]) -> tuple[list[int], int | None]:
    """Places of the tensors that counted nearly all steps and then none, and where most stand.

    They must be seen to stand: from one checkpoint to a later one, or since a resume.
    """
    if not states:
        return [], None
    last = states[-1].of_tensor
    alike = [s for s in states if len(s.of_tensor) == len(last)]
    still = []
    for i, count in enumerate(last):
        first = next(n for n, s in enumerate(alike) if s.of_tensor[i] == count)
        reached = max(alike[first].of_tensor)
        seen = max(last) - reached > FEWEST or count + 1 in resumed
        before = alike[max(0, first - 1)].of_tensor
        trained = before[i] >= COUNTED * max(before) or count + 1 in resumed
        if max(last) - count > FEWEST and seen and trained:
            still.append(i)
    if not still:
        return [], None
    return still, Counter(last[i] for i in still).most_common(1)[0][0]


def _by_count(last: _Counts, count: int) -> _Bracket:
    """Steps that all tensors have skipped may lie on either side of where the count stands."""
    skipped = max(0, last.step - max(last.of_tensor))
    return _Bracket(count, count + skipped + 1)


def _same(moved: Sequence[_Moved], run: Run) -> tuple[list[Tensor], _Bracket]:
    """Tensors that moved, and from some checkpoint on are the same, while others move on."""
    rate = run.signals.get("learning_rate")
    if len(moved) < 2 or rate is None:
        return [], _Bracket()
    found: dict[int, list[Tensor]] = {}
    for tensor in moved[-1].share:
        if tensor.dtype not in _WIDE or _EXPERT.search(tensor.name):
            continue
        shares = [pair.share.get(tensor, 0.0) for pair in moved]
        since = max((i for i, share in enumerate(shares) if share), default=-1) + 1
        if since == 0 or since == len(moved) or shares[since - 1] < MOVES:
            continue
        before, after = moved[since - 1], moved[since:]
        rates = [rate.between(pair.first + 1, pair.last) for pair in (before, *after)]
        holds = all(len(r) and np.median(r) >= np.median(rates[0]) / 2 > 0 for r in rates)
        others = all(max(pair.share.values()) >= MOVES for pair in after)
        if holds and others and moved[-1].last - after[0].first > FEWEST:
            found.setdefault(since, []).append(tensor)
    if not found:
        return [], _Bracket()
    since = max(found, key=lambda i: len(found[i]))
    still = [tensor for tensors in found.values() for tensor in tensors]
    return still, _Bracket(moved[since - 1].first, moved[since].first + 1)


def _never_moved(moved: Sequence[_Moved]) -> list[Tensor]:
    if not moved or max(moved[-1].share.values(), default=0.0) < MOVES:
        return []
    return [
        t
        for t in moved[-1].share
        if t.dtype in _WIDE
        and not _BUFFER.search(t.name)
        and not _SPARSE.search(t.name)
        and not any(pair.share.get(t, 0.0) for pair in moved)
    ]


def _all_still(run: Run, moved: Sequence[_Moved]) -> bool:
    shares = [(t, share) for pair in moved for t, share in pair.share.items()]
    alike = bool(shares) and all(t.dtype in _WIDE and share == 0 for t, share in shares)
    return alike and _trains(run, moved[0].first, moved[-1].last)


def _trains(run: Run, first: int, last: int) -> bool:
    """Whether more than five steps from `first` to `last` have a gradient and a rate above 0."""
    norm, rate = run.signals.get("grad_norm_preclip"), run.signals.get("learning_rate")
    if norm is None or rate is None:
        return False
    inside = (norm.steps > first) & (norm.steps <= last) & (norm.values > 0)
    return sum((rate.at(step) or 0.0) > 0 for step in norm.steps[inside].tolist()) > FEWEST


def _adapter_outputs(checkpoint: Checkpoint) -> tuple[int, int]:
    """Output factors of adapters in a checkpoint, and how many of them are 0."""
    found = [bits for t, bits in sampled_weights(checkpoint).items() if _OUTPUT.search(t.name)]
    return len(found), sum(not (bits << 1).any() for bits in found)  # the sign of a 0 is dropped


def _share(tensors: Sequence[Tensor], sizes: Mapping[Tensor, int]) -> float | None:
    return round(sum(t.size for t in tensors) / sum(sizes.values()), 6) if sizes else None


def _group(tensor: Tensor) -> str:
    """The part of the model that a tensor is in: all layers of a kind are one."""
    return re.sub(r"\.\d+\..*", ".*", tensor.name.removesuffix(".weight"))


def _names(tensors: Sequence[Tensor]) -> str:
    groups = Counter(map(_group, tensors)).most_common()
    more = f" and {len(groups) - 3} more" if len(groups) > 3 else ""
    return ", ".join(f"`{name}` ({n})" for name, n in groups[:3]) + more


def _tables(states: Sequence[_Counts], moved: Sequence[_Moved]) -> tuple[Table, ...]:
    counts = [
        (s.step, count, n) for s in states[-5:] for count, n in Counter(s.of_tensor).most_common(4)
    ]
    parts = [
        (pair.first, pair.last, group, len(shares), sum(s == 0 for s in shares), round(mean, 4))
        for pair in moved[-5:]
        for group in sorted({_group(t) for t in pair.share})[:12]
        if (shares := [s for t, s in pair.share.items() if _group(t) == group])
        and (mean := float(np.mean(shares))) >= 0
    ]
    titled = (
        ("steps counted", ("checkpoint", "steps", "tensors"), counts),
        (
            "weights from one checkpoint to the next",
            ("from", "to", "part", "tensors", "of which the same", "numbers that differ"),
            parts,
        ),
    )
    return tuple(
        Table(title=title, columns=columns, rows=tuple(rows))
        for title, columns, rows in titled
        if rows
    )
