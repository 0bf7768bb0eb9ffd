"""What only a flight recorder keeps: weight deliveries, probes, and the inside of captured steps.

Missing is None or an empty tuple, never 0. Field meanings are those of recorder/FORMAT.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from firstbad.tools.asked import Asked
from firstbad.tools.certificate import Certificate
from firstbad.tools.evidence import Source

_LARGEST = 1e300
Kept = Literal["last_good", "first_bad", "after", "baseline", "call", "ring"]


@dataclass(frozen=True)
class SyncedTensor:
    """One sampled tensor of a weight delivery."""

    name: str
    trainer: str | None
    """Digest in the trainer."""
    engine: str | None
    """Digest in the engine; None where it does not have the tensor."""


@dataclass(frozen=True)
class FirstToken:
    """Log-prob of one token behind a fixed prompt, as both sides give it after a delivery."""

    prompt: str
    token_id: int | None = None
    trainer: float | None = None
    """nats, at temperature 1"""
    engine: float | None = None


@dataclass(frozen=True)
class Sync:
    """One delivery of weights to the rollout engine."""

    step: int
    version: int | None = None
    engine_version: int | None = None
    tensors: tuple[SyncedTensor, ...] = ()
    n_sent: int | None = None
    n_expected: int | None = None
    adapter: str | None = None
    engine_adapter: str | None = None
    cache_cleared: bool | None = None
    first_tokens: tuple[FirstToken, ...] = ()


@dataclass(frozen=True)
class Probe:
    """One measurement made on purpose."""

    step: int
    kind: str
    """`accumulation`, `objective`, `fit` or `gradients`."""
    figures: Mapping[str, object] = field(default_factory=dict)

    def number(self, name: str) -> float | None:
        """A finite number, or None."""
        return _number(self.figures.get(name))

    def rows(self, name: str) -> tuple[Mapping[str, object], ...]:
        """A list of objects, or nothing."""
        value = self.figures.get(name)
        return (
            tuple(row for row in value if isinstance(row, dict)) if isinstance(value, list) else ()
        )


@dataclass(frozen=True)
class Microbatch:
    """One micro-batch of the ledger."""

    update: int | None = None
    epoch: int | None = None
    rank: int | None = None
    microbatch: int | None = None
    samples: tuple[str, ...] = ()
    n_samples: int | None = None
    n_tokens: int | None = None
    """Trained tokens."""
    denominator: float | None = None
    scale: float | None = None
    loss: float | None = None
    """What its backward pass begins with: scale times a sum over rows or tokens, divided."""
    grad_norm: float | None = None
    """Of its own gradient, before ranks are joined."""
    reduction: Literal["sum", "mean"] | None = None
    """How the gradients of ranks are joined."""
    ratio_p50: float | None = None
    ratio_p95: float | None = None
    ratio_p99: float | None = None
    ratio_max: float | None = None
    clip_low_share: float | None = None
    clip_high_share: float | None = None
    kl_old: float | None = None


@dataclass(frozen=True)
class Trail:
    """One tensor on the way of a step, in the order of computation."""

    name: str
    place: str
    """`logits`, `log_softmax`, `logp`, `log_ratio`, `exp`, `objective`, `kl`, `loss`, `grad`,
    `optimizer` or `parameter`."""
    dtype: str | None = None
    n: int | None = None
    n_nonfinite: int | None = None
    n_nonfinite_masked: int | None = None
    """Of those: at places outside the loss mask."""
    largest: float | None = None
    """Largest finite absolute value."""


@dataclass(frozen=True)
class NonFinite:
    """The operation that left the finite numbers in a watched pass."""

    operation: str | None = None
    phase: Literal["forward", "backward"] | None = None
    module: str | None = None
    where: str | None = None
    """File and line."""
    dtype: str | None = None
    largest: float | None = None
    """Largest finite absolute value of its operands."""


@dataclass(frozen=True)
class Clamp:
    """One limit, by its place in the computation."""

    name: str
    place: str
    """`log_ratio`, `ratio`, `objective`, `importance_weight` or `dual_clip`."""
    low: float | None = None
    high: float | None = None
    n: int | None = None
    n_hit: int | None = None


@dataclass(frozen=True)
class Norms:
    """Gradient norm of one update, on both sides of clipping."""

    before_clip: float | None = None
    after_clip: float | None = None
    clip_value: float | None = None


@dataclass(frozen=True)
class ParameterGroup:
    """One group of parameters at one step."""

    name: str
    grad_norm: float | None = None
    update_norm: float | None = None
    weight_norm: float | None = None
    moved_share: float | None = None
    """Of its numbers: those that the update changed."""
    dtype: str | None = None
    master_dtype: str | None = None


@dataclass(frozen=True)
class Process:
    """One process that wrote into the record."""

    from_step: int | None
    """First step after its start; None for the first process."""
    device: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Stages:
    """Names of the samples in the order of each stage."""

    generated: tuple[str, ...] = ()
    scored: tuple[str, ...] = ()
    trained: tuple[str, ...] = ()


@dataclass(frozen=True)
class FlightStep:
    """One captured step, beside its rollouts and token arrays."""

    step: int
    time: float | None = None
    """Seconds since 1970."""
    kept: Kept | None = None
    why: str | None = None
    whole_groups: bool | None = None
    in_order: bool | None = None
    filters: Literal["before", "after", "none"] | None = None
    first_pass: bool | None = None
    batch: str | None = None
    """Equal names are equal samples."""
    data_position: int | None = None
    seeds: Mapping[str, object] = field(default_factory=dict)
    policy_version: int | None = None
    checkpoint: str | None = None
    stages: Stages = Stages()
    compute_dtypes: Mapping[str, str] = field(default_factory=dict)
    microbatches: tuple[Microbatch, ...] = ()
    trail: tuple[Trail, ...] = ()
    """Of the rank with most tensors that are not finite, or else of the lowest one."""
    trail_rank: int = 0
    first_nonfinite: NonFinite = NonFinite()
    clamps: tuple[Clamp, ...] = ()
    norms: tuple[Norms, ...] = ()
    parameters: tuple[ParameterGroup, ...] = ()


class Flight(Asked):
    """All that a recorder kept of a run; steps are read when asked for, and kept."""

    def __init__(
        self,
        steps: Sequence[int] = (),
        load: Callable[[int], FlightStep] | None = None,
        *,
        syncs: Sequence[Sync] = (),
        probes: Sequence[Probe] = (),
        certificate: Certificate | None = None,
        requested: Mapping[str, object] | None = None,
        versions: Mapping[str, str] | None = None,
        device: str | None = None,
        environment: Mapping[str, str] | None = None,
        processes: Sequence[Process] = (),
        sources: Callable[[int], Sequence[Source]] = lambda step: (),
        run_sources: Sequence[Source] = (),
    ) -> None:
        """`sources` names the files of a step, `run_sources` those of the whole run."""
        self.steps = tuple(sorted(steps))
        self.syncs = tuple(syncs)
        self.probes = tuple(probes)
        self.certificate = certificate
        self.requested: Mapping[str, object] = requested or {}
        """Settings as asked for, flat; empty where not recorded."""
        self.versions: Mapping[str, str] = versions or {}
        self.device = device
        self.environment: Mapping[str, str] = environment or {}
        self.processes = tuple(processes)
        """The first one, and later ones whose first step is known, in order."""
        super().__init__(sources)
        self.run_sources = tuple(run_sources)
        self._load = load
        self._kept: dict[int, FlightStep] = {}

    def __bool__(self) -> bool:
        """Whether a recorder kept anything beside metrics and events."""
        return bool(self.steps or self.syncs or self.probes or self.requested or self.versions)

    def __iter__(self) -> Iterator[FlightStep]:
        """Captured steps in order."""
        return (self.at(step) for step in self.steps)

    def at(self, step: int) -> FlightStep:
        """One captured step; KeyError when there is none."""
        self.asked.add(step)
        if step not in self._kept:
            if self._load is None or step not in self.steps:
                raise KeyError(step)
            self._kept[step] = self._load(step)
        return self._kept[step]

    def probes_of(self, kind: str) -> tuple[Probe, ...]:
        """Probes of one kind, in the order of their steps."""
        return tuple(sorted((p for p in self.probes if p.kind == kind), key=lambda p: p.step))


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if abs(value) < _LARGEST else None  # NaN is not below it
