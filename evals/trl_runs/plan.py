"""What a run is made of, and short ways to write one down."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from firstbad.evals.trl_runs import rewards
from firstbad.evals.trl_runs.task import RewardFunction, Row, WarmStart, make_rows

RowMaker = Callable[[random.Random], list[Row]]
Settings = dict[str, Any]

M1, M2, M3 = WarmStart(seed=1), WarmStart(seed=2), WarmStart(seed=3)
M6, M7 = WarmStart(seed=6), WarmStart(seed=7, digit_noise=0.5, form_noise=0.25)
PROMPTS = 2000


def rows(low: int = 4, high: int = 6) -> RowMaker:
    """Prompt file with `low` to `high` digits."""
    return lambda rng: make_rows(rng, PROMPTS, low, high)


def wrong_gold(share: float = 1.0) -> RowMaker:
    """Prompt file whose answers belong to the row before, for a share of the rows."""

    def build(rng: random.Random) -> list[Row]:
        made = make_rows(rng, PROMPTS, 4, 6)
        answers = [row["answer"] for row in made]
        return [
            {**row, "answer": answers[i - 1]} if rng.random() < share else row
            for i, row in enumerate(made)
        ]

    return build


def staged(*stages: tuple[int, int, int]) -> RowMaker:
    """Prompt file in order, (count, low, high) per stage; needs `shuffle_dataset` off."""
    return lambda rng: [row for stage in stages for row in make_rows(rng, *stage)]


@dataclass(frozen=True)
class Segment:
    """One call of the training script; what it leaves out is as in the run."""

    config: Settings = field(default_factory=dict)
    rows: RowMaker | None = None
    trainer: str | None = None


@dataclass(frozen=True)
class Run:
    """One run and the truth about it."""

    name: str
    seed: int
    cause: str
    layer: str
    onset: int | None
    """First step at which the change acts; None without a fault."""
    what: str
    complaint: str
    kind: str = "fault"
    from_start: bool = False
    start: WarmStart = M1
    config: Settings = field(default_factory=dict)
    trainer: str | None = None
    """Name of a class in `faults`."""
    fault: Settings = field(default_factory=dict)
    """What that class needs to know."""
    make_rewards: Callable[[], list[RewardFunction]] = rewards.healthy
    segments: tuple[Segment, ...] = (Segment(),)


def resumed(second: Segment, at: int = 60) -> tuple[Segment, ...]:
    """Two segments with a resume at a step."""
    return Segment(config={"max_steps": at}), second


def on(make: RowMaker) -> tuple[Segment, ...]:
    """One segment on this prompt file."""
    return (Segment(rows=make),)


def fault(
    name: str, seed: int, cause: str, onset: int | None, what: str, complaint: str, **more: Any
) -> Run:
    """A run with a fault; `onset` None means from the first step."""
    layer = more.pop("layer", LAYERS.get(cause.partition(".")[0], ""))
    start = onset is None
    return Run(name, seed, cause, layer, onset or 1, what, complaint, from_start=start, **more)


def sound(name: str, seed: int, what: str, complaint: str, **more: Any) -> Run:
    """A run without a fault, by default one that looks as if it had one."""
    more.setdefault("kind", "lookalike")
    return Run(name, seed, "none.healthy", "-", None, what, complaint, **more)


LAYERS = {
    "cfg": "records",
    "collapse": "samples",
    "data": "records",
    "grad": "accumulation",
    "id": "records",
    "infra": "records",
    "mask": "masks",
    "num": "numerics",
    "opt": "optimizer",
    "prob": "probability",
    "reward": "reward",
}
