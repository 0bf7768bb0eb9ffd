"""The canonical Run: what every reader produces and every tool reads. Lazy and read-only.

Steps are optimizer steps. Missing is None or an absent entry, never 0. Numbers are float64.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from firstbad.tools.asked import Asked
from firstbad.tools.errors import UserError
from firstbad.tools.evidence import Source
from firstbad.tools.flight import Flight
from firstbad.tools.judge_scores import JudgeScores

if TYPE_CHECKING:
    from firstbad.tools.code.files import Code

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

EventKind = Literal["resume", "config_change", "phase", "warning", "error", "alarm", "end"]


@dataclass(frozen=True)
class Signal:
    """One logged quantity over steps, in canonical name and unit."""

    name: str
    steps: IntArray
    """Ascending, unique; only steps with a finite value."""
    values: FloatArray
    source_key: str
    unit: str = ""
    nonfinite_steps: tuple[int, ...] = ()
    """Steps at which NaN or Inf was logged: counted here, never stored as a value."""

    def at(self, step: int) -> float | None:
        """Value at a step, or None."""
        return self._by_step.get(step)

    def on(self, steps: IntArray) -> FloatArray:
        """(N,) values at these steps, NaN where there is none."""
        found = np.full(len(steps), np.nan)
        place = np.searchsorted(self.steps, steps)
        there = place < len(self.steps)
        there[there] = self.steps[place[there]] == steps[there]
        found[there] = self.values[place[there]]
        return found

    @cached_property
    def _by_step(self) -> dict[int, float]:
        return dict(zip(self.steps.tolist(), self.values.tolist(), strict=True))

    def between(self, first: int, last: int) -> FloatArray:
        """Values with first <= step <= last."""
        return self.values[(self.steps >= first) & (self.steps <= last)]

    def since(self, step: int) -> Signal:
        """The signal from a step on."""
        later = self.steps >= step
        counted = tuple(s for s in self.nonfinite_steps if s >= step)
        return replace(
            self, steps=self.steps[later], values=self.values[later], nonfinite_steps=counted
        )


@dataclass(frozen=True)
class Signals:
    """All logged quantities: recognised ones by canonical name, the rest by their own key."""

    known: Mapping[str, Signal] = field(default_factory=dict)
    unknown: Mapping[str, Signal] = field(default_factory=dict)
    """Keys that no alias explains: listed for the user, never guessed at."""

    def get(self, name: str) -> Signal | None:
        """The signal of a canonical name, or None."""
        return self.known.get(name)

    def under(self, prefix: str) -> dict[str, Signal]:
        """Signals named `<prefix>/<x>`, by `<x>`: such as the parts of the reward."""
        start = prefix + "/"
        return {n[len(start) :]: s for n, s in self.known.items() if n.startswith(start)}

    def since(self, step: int) -> Signals:
        """The signals from a step on, without those that end before it."""
        kinds = ({n: s.since(step) for n, s in kind.items()} for kind in (self.known, self.unknown))
        return Signals(
            *(
                {n: s for n, s in kind.items() if len(s.steps) or s.nonfinite_steps}
                for kind in kinds
            )
        )

    @cached_property
    def steps(self) -> IntArray:
        """Every step at which anything recognised was logged."""
        found = [s.steps for s in self.known.values()]
        return np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)


CUT = ("length", "max_tokens", "max_length", "truncated")
"""Finish reasons of a completion that was cut at the cap."""


@dataclass(frozen=True)
class RolloutBatch:
    """The rollouts of one step, in the order in which they were written. R rows."""

    step: int
    prompts: Sequence[str]
    completions: Sequence[str]
    group: IntArray
    """(R,) group index of each row inside the batch."""
    rewards: Mapping[str, FloatArray]
    """Reward parts, raw and unweighted, (R,) each; NaN where a row was not scored."""
    advantage: FloatArray | None = None
    """(R,) as used in training."""
    total: FloatArray | None = None
    """(R,) total reward where the source writes one."""
    gold: Sequence[str | None] | None = None
    """Right answers, where the data holds them."""
    finish: Sequence[str | None] | None = None
    """Finish reasons (`stop`, `length`), where the source writes them."""
    n_tokens: IntArray | None = None
    """(R,) completion tokens, where the source writes them."""
    n_sampled: IntArray | None = None
    """(R,) ... without those of tools, where it tells them apart."""
    group_source: Literal["key", "position", "prompt"] = "position"
    sample: Sequence[str] | None = None
    """Names of the rows, where the source gives them; equal names are equal samples."""
    prompt_id: Sequence[str] | None = None
    policy_version: FloatArray | None = None
    """(R,) number of the weights that sampled each row; NaN where a row names none."""
    seed: Sequence[str | None] | None = None
    rank: IntArray | None = None
    errors: Mapping[str, Sequence[str | None]] = field(default_factory=dict)
    """What scoring raised, by reward part; None where it raised nothing."""
    latency_seconds: Mapping[str, FloatArray] = field(default_factory=dict)
    """(R,) time that scoring took, by reward part; NaN where not recorded."""
    messages: bool | None = None
    """Prompts were written as lists of messages (True) or as bare texts (False); None where the
    source does not keep their form."""
    repeats_step: int | None = None
    """Earlier step with the same content: the source wrote one generation batch twice."""

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.completions)

    @cached_property
    def derived(self) -> dict[object, npt.NDArray[Any]]:
        """Per-row figures that several tools compute from this batch, kept by what they are."""
        return {}

    @cached_property
    def members(self) -> list[list[int]]:
        """Rows of each group, in order of group."""
        found: dict[int, list[int]] = {}
        for row, group in enumerate(self.group.tolist()):
            found.setdefault(group, []).append(row)
        return [found[group] for group in sorted(found)]

    @cached_property
    def cut(self) -> BoolArray | None:
        """(R,) rows that ended at the cap; None where no finish reasons are written."""
        if self.finish is None:
            return None
        return np.array([reason is not None and reason.lower() in CUT for reason in self.finish])

    @cached_property
    def words(self) -> FloatArray:
        """(R,) words of each completion."""
        return np.array([len(text.split()) for text in self.completions], np.float64)

    @cached_property
    def characters(self) -> FloatArray:
        """(R,) characters of each completion."""
        return np.array([len(text) for text in self.completions], np.float64)


LoadBatches = Callable[[Sequence[int]], Iterator[RolloutBatch]]
"""Reads the batches of the steps given, in that order; KeyError for a step without rollouts."""


_ROW_BYTES = 300
"""About what a row takes in memory beside its characters."""


class Rollouts(Asked):
    """Rollouts by step, read when asked for; a bounded number of batches is kept."""

    def __init__(
        self,
        steps: Sequence[int],
        load: LoadBatches,
        *,
        sources: Callable[[int], Sequence[Source]] = lambda step: (),
        answers: Callable[[], Sequence[Source]] = lambda: (),
        keep_bytes: int = 300_000_000,
    ) -> None:
        """`load` may read a few steps ahead; `keep_bytes` bounds about what stays in memory.

        `sources` names the files of a step, `answers` those that right answers were joined from.
        """
        super().__init__(sources)
        self.steps: IntArray = np.array(sorted(steps), np.int64)
        self.answers = answers
        self.grouped_by: tuple[Source, ...] = ()
        """Files that state the size of a group, where rows do not name theirs."""
        self.tables: dict[object, object] = {}
        """What tools made of several batches that are kept, for the next one that asks."""
        self._load = load
        self._kept: dict[int, RolloutBatch] = {}
        self._room = keep_bytes

    def __bool__(self) -> bool:
        """Whether there is any step with rollouts."""
        return len(self.steps) > 0

    def since(self, step: int) -> Rollouts:
        """The rollouts from a step on; what was read is shared."""
        later = copy(self)
        later.steps = self.steps[self.steps >= step]
        return later

    def batch(self, step: int) -> RolloutBatch:
        """The rollouts of one step; KeyError when the step has none."""
        self.asked.add(step)
        if step not in self._kept:
            return self._keep(next(self._load([step])))
        return self._kept[step]

    def batches(self, steps: Sequence[int] | IntArray | None = None) -> Iterator[RolloutBatch]:
        """Batches in step order; those that repeat an earlier step's content are left out."""
        wanted = [int(step) for step in (self.steps if steps is None else steps)]
        missing = deque(dict.fromkeys(step for step in wanted if step not in self._kept))
        loaded = self._load(tuple(missing))
        for step in wanted:
            self.asked.add(step)
            if missing and missing[0] == step:
                missing.popleft()
                batch = self._keep(next(loaded))
            else:
                batch = self.batch(step)
            if batch.repeats_step is None and len(batch):
                yield batch

    def keeps(self, batches: Sequence[RolloutBatch]) -> bool:
        """Whether all of these very batches stay in memory."""
        return all(self._kept.get(batch.step) is batch for batch in batches)

    def _keep(self, batch: RolloutBatch) -> RolloutBatch:
        if batch.step not in self._kept:
            texts = sum(map(len, batch.completions)) + sum(map(len, batch.prompts))
            size = texts + _ROW_BYTES * len(batch)
            if size <= self._room:
                self._kept[batch.step] = batch
                self._room -= size
        return batch


PADDING, SYSTEM, PROMPT, COMPLETION, TOOL = range(5)
"""Where a token comes from: values of the array `source`."""


@dataclass(frozen=True)
class Capture:
    """Token-level tensors of one step. Padded: R rows, T tokens; `prompt_*` have P tokens."""

    step: int
    arrays: Mapping[str, npt.NDArray[np.generic]]
    """Canonical name -> array: `token_id`, `completion_mask`, `loss_mask`, `logp_new`, `logp_old`,
    `logp_ref`, `logp_engine`, `logp_recheck`, `logp_layout`, `entropy`, `varentropy`, `source`,
    `position`, `attention_mask`, `turn`, `expert_trainer`, `expert_engine` (R, T);
    `prompt_token_id`, `prompt_mask`, `prompt_loss_mask`, `prompt_source`, `prompt_position`,
    `prompt_attention_mask` (R, P); `advantage` (R,) or (R, T); `loss_mask.<objective>` (R, T);
    `engine_token_id` (R, E) with -1 behind its end: prompt and completion as the engine had them.
    """
    storage_dtypes: Mapping[str, str]
    unmapped: tuple[str, ...] = ()
    """Field names of the file that no mapping explains."""
    compute_dtypes: Mapping[str, str] = field(default_factory=dict)
    """What arrays were computed in, where the source says so."""

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, without reading those that are read when asked for."""
        known = getattr(self.arrays, "nbytes", None)
        return sum(a.nbytes for a in self.arrays.values()) if known is None else int(known)

    @cached_property
    def derived(self) -> dict[object, object]:
        """What several tools make of this capture, kept by what it is."""
        return {}

    def numbers(self, name: str) -> FloatArray | None:
        """An array as float64, or None when it was not captured."""
        found = self.arrays.get(name)
        return None if found is None else np.asarray(found, np.float64)

    def mask(self, name: str) -> BoolArray | None:
        """A mask as bool, or None when it was not captured."""
        found = self.arrays.get(name)
        return None if found is None else np.asarray(found) != 0


class Captures(Asked):
    """Captures by step, read when asked for; a bounded number of bytes is kept."""

    def __init__(
        self,
        steps: Sequence[int],
        load: Callable[[int], Capture],
        *,
        sources: Callable[[int], Sequence[Source]] = lambda step: (),
        keep_bytes: int = 150_000_000,
    ) -> None:
        """`load` reads one step's capture; `keep_bytes` bounds what stays in memory.

        `sources` names the files of a step.
        """
        super().__init__(sources)
        self.steps: IntArray = np.array(sorted(steps), np.int64)
        self._load = load
        self.unreadable: dict[int, str] = {}
        """Why a capture could not be read, by step."""
        self._kept: dict[int, Capture] = {}
        self._room = keep_bytes

    def __bool__(self) -> bool:
        """Whether there is any."""
        return len(self.steps) > 0

    def __iter__(self) -> Iterator[Capture]:
        """Captures in step order; those that cannot be read are left out and kept count of."""
        for step in self.steps.tolist():
            if (capture := self.readable(step)) is not None:
                yield capture

    def readable(self, step: int) -> Capture | None:
        """The capture of one step; None where there is none, or it cannot be read."""
        if step not in self.steps:
            return None
        try:
            return self.at(step)
        except UserError as error:  # one damaged file must not lose the others
            self.unreadable.setdefault(step, str(error))
            return None

    def since(self, step: int) -> Captures:
        """The captures from a step on; what was read is shared."""
        later = copy(self)
        later.steps = self.steps[self.steps >= step]
        return later

    def at(self, step: int) -> Capture:
        """The capture of one step; KeyError when there is none, UserError when it is damaged."""
        self.asked.add(step)
        if step in self._kept:
            return self._kept[step]
        capture = self._load(step)
        size = capture.nbytes
        if size <= self._room:
            self._kept[step] = capture
            self._room -= size
        return capture


LARGEST_SETTING = 1e15
"""No batch, length or rate comes near it: what is larger, or not finite, is a writer's mistake."""
TRAINER_KEYS = (
    "beta",
    "gradient_accumulation_steps",
    "learning_rate",
    "loss_type",
    "num_generations",
    "per_device_train_batch_size",
    "reward_weights",
    "scale_rewards",
)
"""Any of them shows that a config is a trainer's; then an absent key has its default."""


@dataclass(frozen=True)
class Config:
    """Settings as the run's files state them, flat, with the file each came from."""

    values: Mapping[str, object] = field(default_factory=dict)
    sources: tuple[Source, ...] = ()
    changed: frozenset[str] | None = None
    """Settings that differ between launches; None where not every launch states its own."""

    @property
    def of_trainer(self) -> bool:
        """Whether settings of a trainer are there, not only those of a model."""
        return any(name in self.values for name in TRAINER_KEYS)

    def number(self, name: str) -> float | None:
        """A numeric setting, or None when absent, null, or no number that a setting can be."""
        value = self.values.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return None
        return float(value) if abs(value) < LARGEST_SETTING else None  # NaN is not below it

    def text(self, name: str) -> str | None:
        """A text setting, or None."""
        value = self.values.get(name)
        return value if isinstance(value, str) else None

    def flag(self, name: str) -> bool | None:
        """A yes/no setting, or None."""
        value = self.values.get(name)
        return value if isinstance(value, bool) else None


@dataclass(frozen=True)
class Event:
    """Something that happened at a step (or at an unknown one)."""

    kind: EventKind
    step: int | None
    text: str
    source: str
    ends: bool = False
    """An exception after which its source tells of nothing more: it ended the process."""


@dataclass(frozen=True)
class Checkpoint:
    """A saved state: its step by name, and what lies in its folder."""

    step: int
    path: Path
    files: tuple[str, ...]
    state_step: int | None
    """`global_step` that the checkpoint's own state file gives."""


@dataclass(frozen=True)
class Vocabulary:
    """Token texts, where a tokenizer file is there."""

    texts: Mapping[int, str]
    eos_ids: frozenset[int]
    """Ids that end an answer, from tokenizer, model and generation config."""
    pad_id: int | None
    sources: tuple[Source, ...] = ()
    template: str = ""
    """Chat template, as the tokenizer's files state it; empty where none does."""
    eos_by_file: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """Ids that end an answer by what states them: `tokenizer`, `model`, `generation`."""


@dataclass(frozen=True)
class Note:
    """Something the reader noticed and handled: shown to the user, judged by nobody."""

    code: str
    text: str


@dataclass
class Run:
    """A training run, read from files. Everything heavy is loaded on first use."""

    ref: str
    """What the user typed, normalised: `trl:PATH`, `csv:PATH`, ..."""
    root: Path
    framework: str
    signals: Signals
    config: Config = field(default_factory=Config)
    rollouts: Rollouts = field(default_factory=lambda: Rollouts((), nothing))
    evaluations: Rollouts = field(default_factory=lambda: Rollouts((), nothing))
    """Rollouts of evaluations, which no step was trained on."""
    captured_rows: Rollouts = field(default_factory=lambda: Rollouts((), nothing))
    """What a flight recorder kept beside its token arrays, row for row."""
    captures: Captures = field(default_factory=lambda: Captures((), _no_capture))
    checkpoints: tuple[Checkpoint, ...] = ()
    events: tuple[Event, ...] = ()
    vocabulary: Vocabulary | None = None
    notes: tuple[Note, ...] = ()
    sources: tuple[Source, ...] = ()
    """Files that the metrics were read from."""
    event_sources: tuple[Source, ...] = ()
    """Files that were looked through for events."""
    version: str | None = None
    """Framework version, where a file states it."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Version by package, where a file states it."""
    version_sources: tuple[Source, ...] = ()
    """Files that state versions."""
    launch: Config = field(default_factory=Config)
    """Settings of the command line that launched it; empty where none was kept."""
    judge: JudgeScores | None = None
    """What the user's own judge said of the rollouts, where one was asked."""
    code: Code | None = None
    """Loss code that the user gave: read by its syntax tree, never executed."""
    flight: Flight = field(default_factory=Flight)
    """What only a flight recorder keeps; empty where there is none."""
    replays: tuple[Run, ...] = ()
    """Other runs of the same job that the user named beside this one."""

    def fresh_at(self, step: int) -> bool:
        """Whether the rollouts of a step were generated for it, not kept from an earlier step.

        True where no rollouts of the step are there to say otherwise.
        """
        if step not in self.rollouts.steps:
            return True
        return self.rollouts.batch(step).repeats_step is None

    @property
    def last_step(self) -> int | None:
        """Last step seen anywhere."""
        steps = np.concatenate([self.signals.steps, self.rollouts.steps, self.captures.steps])
        return int(steps.max()) if len(steps) else None


def nothing(steps: Sequence[int]) -> Iterator[RolloutBatch]:
    """Loader of rollouts where there are none."""
    for step in steps:
        raise KeyError(step)
    yield from ()


def _no_capture(step: int) -> Capture:
    raise KeyError(step)
