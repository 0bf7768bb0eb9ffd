"""Measurements made on purpose, as recorder/FORMAT.md names them, on the trainer's own pipeline.

Each one runs the methods that training runs: what a subclass breaks, its probes see.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from firstbad_recorder import Recorder
from synthetic import policy
from synthetic.policy import Array, Ints

if TYPE_CHECKING:
    from synthetic.trainer import Batch, Trainer


def make(trainer: Trainer, recorder: Recorder, batch: Batch) -> None:
    """All probes, on the batch of the step."""
    rows = batch.loss_mask.sum(axis=1)
    lengths = {
        False: batch,
        True: replace(
            batch, loss_mask=batch.loss_mask & (batch.loss_mask.cumsum(axis=1) <= rows.min())
        ),
    }
    for equal, data in lengths.items():
        recorder.probe(trainer.step, "accumulation", **accumulation(trainer, data, equal))
    recorder.probe(trainer.step, "objective", **objective(trainer))
    recorder.probe(trainer.step, "fit", **fit(trainer, batch))
    recorder.probe(trainer.step, "gradients", parameters=gradients(trainer, batch))


def accumulation(trainer: Trainer, batch: Batch, equal: bool) -> dict[str, object]:
    """One batch whole against the same in micro-batches on all ranks."""
    s = trainer.s
    whole = gradient_of(trainer, batch, 1, 1)
    parts = gradient_of(trainer, batch, s.accumulation, s.ranks)
    one = gradient_of(trainer, batch, s.accumulation, 1)
    split = np.array_split(np.arange(len(batch.group)), s.accumulation * s.ranks)
    found: dict[str, object] = {
        "cosine": cosine(parts, whole),
        "norm_ratio": share(norm(parts), norm(whole)),
        "parameter_delta": share(
            norm(first_change(trainer, parts) - first_change(trainer, whole)),
            norm(first_change(trainer, whole)),
        ),
        "spread": share(norm(whole - gradient_of(trainer, shuffled(batch), 1, 1)), norm(whole)),
        "n_microbatches": s.accumulation,
        "world_size": s.ranks,
        "equal_lengths": equal,
        "cosine_subset": max(
            cosine(parts, gradient_of(trainer, of_rows(batch, np.concatenate(chosen)), 1, 1))
            for n in range(1, len(split) + 1)
            for chosen in combinations(split, n)
        ),
    }
    if s.ranks > 1:
        found["norm_ratio_one_rank"] = share(norm(one), norm(whole))
    return found


def objective(trainer: Trainer) -> dict[str, object]:
    """The loss of one token by its log-prob, in numbers that were worked out by hand.

    Clip 0.2: cut where the ratio has gone far enough in the direction of the advantage. KL of
    weight beta adds beta (1 - exp(logp_ref - logp)), here with logp_ref - logp = -1 or +1.
    """
    beta = trainer.s.beta
    by_hand = [
        ("up_inside", 1.0, 1.0, 0.0, -1.0),
        ("up_cut", 1.0, 1.5, 0.0, 0.0),
        ("up_flows", 1.0, 0.5, 0.0, -0.5),
        ("down_inside", -1.0, 1.0, 0.0, 1.0),
        ("down_cut", -1.0, 0.5, 0.0, 0.0),
        ("down_flows", -1.0, 1.5, 0.0, 1.5),
        ("kl_above", 0.0, 1.0, -1.0, beta * 0.6321205588),
        ("kl_below", 0.0, 1.0, 1.0, beta * -1.7182818285),
    ]
    cases = []
    for name, advantage, ratio, away, expected in by_hand:
        new = np.log([[0.3]])
        batch = _one_token(advantage, new - np.log(ratio), new + away)
        cases.append({
            "name": name, "advantage": advantage, "ratio": ratio, "expected": expected,
            "measured": float(trainer.token_terms(batch, new)[-1][0, 0]),
        })  # fmt: skip
    return {"cases": cases, "spread": 1e-9}


def fit(trainer: Trainer, batch: Batch, updates: int = 30) -> dict[str, object]:
    """Plain likelihood of six of the batch's completions, by the trainer's gradient and Adam."""
    twin = _fresh(trainer)
    chosen = of_rows(batch, np.arange(6))
    rows = twin.trainer_rows(chosen.rows)
    made = chosen.loss_mask
    losses = []
    for _ in range(updates + 1):
        log_probs = twin.forward(twin.table, rows, which="new")
        losses.append(-float(policy.picked(log_probs, rows.ids)[made].mean()))
        pull = np.where(made, -1.0 / max(made.sum(), 1), 0.0)
        twin.table = twin.stored(
            twin.table + twin.update(twin.gradient(rows, np.exp(log_probs), pull))
        )
    return {"nll_first": losses[0], "nll_last": losses[-1], "n_updates": updates}


def gradients(trainer: Trainer, batch: Batch) -> list[dict[str, object]]:
    """Gradient norm of each named group after one backward pass."""
    grad = gradient_of(trainer, batch, trainer.s.accumulation, trainer.s.ranks)
    return [
        {"name": name, "grad_norm": norm(grad[part]), "trainable": True}
        for name, part in trainer.groups().items()
    ]


def gradient_of(trainer: Trainer, batch: Batch, accumulation: int, ranks: int) -> Array:
    """Gradient of the step with so many micro-batches a rank, through the trainer's pipeline."""
    twin = copy(trainer)
    twin.s = replace(trainer.s, accumulation=accumulation, ranks=ranks)
    rows = twin.trainer_rows(batch.rows)
    log_probs = twin.forward(twin.table, rows, which="new")
    ratio, _, _, value, coefficient = twin.token_terms(batch, policy.picked(log_probs, rows.ids))
    return twin.backward(batch, rows, np.exp(log_probs), ratio, value, coefficient)[0]


def first_change(trainer: Trainer, grad: Array) -> Array:
    """What the clipped gradient adds to the weights, from fresh optimizer state."""
    return _fresh(trainer).update(grad * min(1.0, share(trainer.s.clip_norm, norm(grad))))


def _fresh(trainer: Trainer) -> Trainer:
    twin = copy(trainer)
    twin.moments = np.zeros_like(twin.table), np.zeros_like(twin.table)
    twin.count = 0
    return twin


def of_rows(batch: Batch, chosen: Ints) -> Batch:
    """The rows given, alone."""
    at, rows = chosen, batch.rows
    return replace(
        batch,
        rows=policy.Rows(rows.ids[at], rows.attention[at], rows.position[at], rows.source[at]),
        engine_logp=batch.engine_logp[at],
        group=batch.group[at],
        sample=[batch.sample[i] for i in at],
        advantage=batch.advantage[at],
        loss_mask=batch.loss_mask[at],
        old=batch.old[at],
        ref=batch.ref[at],
    )


def shuffled(batch: Batch) -> Batch:
    """The same rows in another order: sums are then rounded otherwise."""
    return of_rows(batch, np.random.default_rng(0).permutation(len(batch.group)))


def norm(values: Array) -> float:
    """Euclidean norm."""
    return float(np.linalg.norm(values))


def share(part: float, whole: float) -> float:
    """Part over whole; NaN where there is none."""
    return part / whole if whole else float("nan")


def cosine(a: Array, b: Array) -> float:
    """Cosine of the angle between two gradients; 0 where one of them is 0."""
    size = norm(a) * norm(b)
    return float((a * b).sum() / size) if size else 0.0


def _one_token(advantage: float, old: Array, ref: Array) -> Batch:
    from synthetic.trainer import Batch

    ids = np.zeros((1, 1), int)
    rows = policy.Rows(ids, ids, ids, ids + 3)
    batch = Batch(0, rows, old, ids[0], [None], ["s"], ["stop"], ids[0])
    return replace(batch, advantage=np.array([advantage]), old=old, ref=ref)
