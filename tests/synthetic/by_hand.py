"""Ledgers of micro-batches and probes by hand, for tests of single tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from firstbad.tools.flight import Flight, FlightStep, Microbatch, Norms, Probe


def flight(
    *steps: FlightStep, probes: Sequence[Probe] = (), environment: dict[str, str] | None = None
) -> Flight:
    """A record of these steps and probes."""
    by_step = {step.step: step for step in steps}
    return Flight(list(by_step), by_step.__getitem__, probes=probes, environment=environment)


def ledger(
    step: int, *parts: dict[str, Any], norm: float | None = None, **about: Any
) -> FlightStep:
    """A step whose micro-batches have these fields; their places are counted on each rank."""
    places: dict[object, int] = {}
    made = []
    for part in parts:
        rank = part.get("rank", 0)
        places[rank] = places.get(rank, -1) + 1
        made.append(Microbatch(**{"update": 0, "rank": 0, "microbatch": places[rank], **part}))
    norms = () if norm is None else (Norms(before_clip=norm),)
    return FlightStep(step, microbatches=tuple(made), norms=norms, **about)


def means(lengths: Sequence[int], terms: Sequence[float], below: float | None = None) -> list[Any]:
    """Micro-batches of one row each, with a constant term for each token: over their own tokens
    and their number, or over `below`."""
    return [
        {
            "n_samples": 1,
            "n_tokens": n,
            "denominator": float(n) if below is None else below,
            "scale": 1 / len(lengths) if below is None else 1.0,
            "loss": term / len(lengths) if below is None else term * n / below,
        }
        for n, term in zip(lengths, terms, strict=True)
    ]


def probe(kind: str, step: int = 1, **figures: object) -> Probe:
    """A probe with these figures."""
    return Probe(step, kind, figures)
