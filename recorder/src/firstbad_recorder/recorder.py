"""The recorder: takes what a training loop reports, and never raises into it.

FORMAT.md says what the files hold.
"""

from __future__ import annotations

import functools
import operator
import os
import platform
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, TypeVar

from firstbad_recorder.folder import EVENTS, METRICS, PROBES, STEPS, SYNCS, Folder
from firstbad_recorder.plain import as_line, as_number, as_plain, as_text, now, reason_of
from firstbad_recorder.ranks import Ranks
from firstbad_recorder.ring import CALL, ENDED, FIRST_BAD, Ring
from firstbad_recorder.rules import Alarm, Rules
from firstbad_recorder.secrets import without_secrets
from firstbad_recorder.signals import on_signal
from firstbad_recorder.tensors import ragged

_MAX_CONFIG = 256 * 1024
LAST, FIRST = 4, 2
"""Steps that are kept at the end of a process, and at the beginning of one that continues it."""
_RESERVED = ("step", "time")
_MOST_SAID = 5
_SHARED = (
    "another process records in this folder at the same time: give each its `rank`, or a folder of "
    "its own"
)
_Method = TypeVar("_Method", bound=Callable[..., None])


def _silent(method: _Method) -> _Method:
    """One call at a time, and nothing that goes wrong in it reaches the training loop."""

    @functools.wraps(method)
    def called(self: Recorder, *args: Any, **more: Any) -> None:
        try:
            with self._lock:
                method(self, *args, **more)
        except Exception as error:
            self._drop(reason_of(error))

    return called  # type: ignore[return-value]


class Recorder:
    """Records scalars, events, weight deliveries, probes and whole steps in one folder.

    One folder a run, one recorder a process. A folder that already holds a record is continued:
    that is a restart, and the record says so.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        config: Mapping[str, object] | None = None,
        requested: Mapping[str, object] | None = None,
        framework: str | None = None,
        versions: Mapping[str, object] | None = None,
        device: str | None = None,
        environment: Mapping[str, object] | None = None,
        preflight_key: Mapping[str, object] | None = None,
        max_bytes: int = 2**30,
        rank: int = 0,
        ring_steps: int = 8,
        ring_bytes: int = 2**28,
        baseline_every: int = 100,
        process_ends: bool = True,
    ) -> None:
        """Start a record, or continue the one that is there.

        Args:
            path: Folder of the record; made if it is not there.
            config: The run's settings as they are in force, kept in `run.json`. Values that JSON
                does not know are kept as their text. What may be a secret by its name is left out.
            requested: The settings as they were asked for, under the same names.
            framework: Library whose trainer runs, as in `versions`; None for a loop of your own.
            versions: Versions of the libraries that compute, by name (see `surroundings`).
            device: What computes, in words.
            environment: Environment variables that bear on the numbers; the same.
            preflight_key: Digests `loss_code` and `model_shape`, by which a certificate is held
                against the run.
            max_bytes: Most that lines and steps of this process may take on disk. What comes later
                is counted in `dropped` and not written; the last twentieth is kept for events, and
                steps leave a fifth to lines.
            rank: Number of this process among those that train; each writes on its own, and what
                makes one keep a step makes all keep it.
            ring_steps: Steps that `hold` has on disk at a time.
            ring_bytes: Most that these may take once a step is held; older ones go first.
            baseline_every: Steps between the held ones that are kept as healthy samples; 0: none.
            process_ends: Whether the last held steps of a process are kept, and the first ones of
                a process that continues it: what a resume brought back shows in them.
        """
        self._lock = threading.RLock()
        self._last_step: int | None = None
        self._last_time = 0.0
        self._said: dict[str, int] = {}
        self._signalled = False
        self._process_ends = process_ends
        self._rules = Rules()
        self._ranks = Ranks(path, rank)
        begin: dict[str, object] = {"started": now(), "python": platform.python_version()}
        self._new_folder = functools.partial(Folder, self._ranks.folder, max_bytes=max_bytes)
        self._new_ring = functools.partial(
            Ring, most_steps=ring_steps, most_bytes=ring_bytes, baseline_every=baseline_every
        )
        self._open(begin)
        about = {
            "requested": requested,
            "environment": environment,
            "versions": versions,
            "preflight_key": preflight_key,
        }
        self._folder.begin["config"] = self._settings(config)
        self._folder.begin |= {k: self._settings(v) for k, v in about.items() if v is not None}
        for name, text in (("framework", framework), ("device", device)):
            if text is not None:
                self._folder.begin[name] = as_text(text)
        if rank:
            self._folder.begin["rank"] = rank
        self._start()

    def _open(self, begin: Mapping[str, object]) -> None:
        self._folder = self._new_folder(begin=begin)
        self._ring = self._new_ring(self._folder)
        self._begun = False

    @_silent
    def reopen(self, config: Mapping[str, object] | None = None) -> None:
        """Go on with a record that was closed; it reads like a restart of the process.

        Args:
            config: The settings that are in force now, where they may be others.
        """
        if not self._folder.closed:
            return
        begin = {**self._folder.begin, "started": now()}
        self._open(begin if config is None else {**begin, "config": self._settings(config)})
        self._rules.restart()
        self._begin()

    @property
    def dropped(self) -> int:
        """Lines, events, steps and values that could not be written by this object."""
        return self._folder.dropped

    @property
    def closed(self) -> bool:
        """Whether nothing is recorded any more."""
        return self._folder.closed

    @_silent
    def _start(self) -> None:
        self._begin()

    def _begin(self) -> None:
        """Once the folder can be used: continue what is there.

        Raises:
            OSError: it can't be used so far.
        """
        if self._begun:
            return
        self._folder.open()
        self._begun = True
        self._restarted = self._folder.restarted
        if self._folder.shared:  # what the other one holds is its own
            self.event("warning", None, _SHARED)
        else:
            self._ring.adopt()
        self._ranks.begin()

    @_silent
    def scalars(
        self, step: int, values: Mapping[str, object] | None = None, **more: object
    ) -> None:
        """Append one line with the numbers of one step, and look whether a rule fires.

        A value is a number, a bool, None, or an object whose `.item()` gives one (numpy and torch
        scalars; reading a tensor that lies on a GPU waits for it). NaN and infinities are written
        as the texts "NaN", "Infinity" and "-Infinity". Anything else is left out and counted.
        """
        step = operator.index(step)
        self._resumed(step)
        record: dict[str, object] = {"step": step, "time": self._at(step)}
        for key, value in {**(values or {}), **more}.items():
            if key in _RESERVED:
                self._drop(f"`{key}` is a reserved name")
                continue
            try:
                record[str(key)] = as_number(value)
            except Exception:
                self._drop(f"value of `{str(key)[:80]}` is not a number")
        self._folder.append(METRICS, record)
        del record["step"], record["time"]
        for alarm in self._rules.observe(step, record):
            self._alarmed(alarm)

    @_silent
    def event(self, kind: str, step: int | None, text: str) -> None:
        """Append one line about something that happened.

        Args:
            kind: A word such as `phase`, `config_change`, `warning` or `error`.
            step: The step at which it happened; None if that is not known.
            text: What happened, up to 10,000 characters.
        """
        if kind == "phase":
            self._rules.restart()
        self._tell(kind, step, text)

    def _tell(self, kind: str, step: int | None, text: str, **more: object) -> None:
        record = {
            "kind": str(kind)[:100],
            "step": None if step is None else operator.index(step),
            "time": round(time.time(), 3),
            "text": as_text(text),
            **more,
        }
        self._folder.append(EVENTS, record)

    @_silent
    def sync(self, step: int, **facts: object) -> None:
        """Append one line about weights that were handed to the rollout engine.

        Args:
            step: Optimizer steps that the weights have seen.
            facts: Fields of `syncs.jsonl` in FORMAT.md, such as `version`, `engine_version`,
                `tensors` (name, digest in the trainer, digest in the engine) and `adapter`.
        """
        self._fact(SYNCS, step, facts)

    @_silent
    def probe(self, step: int, probe: str, **figures: object) -> None:
        """Append one line with the result of a measurement made on purpose.

        Args:
            step: Step at which it was made.
            probe: Its name in FORMAT.md, such as `accumulation` or `objective`.
            figures: What it found, under the names of FORMAT.md.
        """
        self._fact(PROBES, step, {"probe": str(probe)[:100], **figures})

    @_silent
    def capture(
        self,
        step: int,
        *,
        rollouts: Iterable[Mapping[str, object]] | None = None,
        generated: Iterable[Mapping[str, object]] | None = None,
        tokens: Mapping[str, Any] | None = None,
        microbatches: Iterable[Mapping[str, object]] | None = None,
        numerics: Mapping[str, object] | None = None,
        **about: object,
    ) -> None:
        """Keep one step whole, in a folder of its own; a step that is there is replaced.

        Args:
            step: The step.
            rollouts: One mapping a row, with the fields of `rollouts.jsonl` in FORMAT.md.
            generated: The same for all rows of the batches that these come from, where the step
                trains a part of them.
            tokens: Arrays by name (`token_id`, `logp_new`, ...): for each row a row of numbers, as
                long as its `token_id`, or one number. A numpy or torch array of two dimensions has
                rows of equal length. With `offsets` among them, of R+1 places where rows begin,
                arrays may be flat: the rows behind one another.
            microbatches: One mapping for each micro-batch, in the order in which they ran.
            numerics: `trail`, `clamps`, `norms`, `parameters` of FORMAT.md.
            about: Fields of `step.json`: `kept`, `whole_groups`, `in_order`, `filters`, ...
        """
        step = operator.index(step)
        lines = {"rollouts": rollouts, "generated": generated, "microbatches": microbatches}
        files = self._files(step, lines, tokens, numerics, about)
        self._folder.put(f"{STEPS}/{step:08d}", files)

    @_silent
    def hold(
        self,
        step: int,
        *,
        rollouts: Iterable[Mapping[str, object]] | None = None,
        generated: Iterable[Mapping[str, object]] | None = None,
        tokens: Mapping[str, Any] | None = None,
        microbatches: Iterable[Mapping[str, object]] | None = None,
        numerics: Mapping[str, object] | None = None,
        **about: object,
    ) -> None:
        """Hold one step for a while, as `capture` would keep it.

        It is kept for good when a rule fires, a value is not finite, an exception ends the `with`
        block, a signal or `keep` asks for it, or it is due as a healthy sample; else it is deleted
        when `ring_steps` newer ones are held.
        """
        step = operator.index(step)
        lines = {"rollouts": rollouts, "generated": generated, "microbatches": microbatches}
        try:
            self._resumed(step)
            if self._ranks.is_time(self._ring.n_held):
                self._asked()
            self._ring.hold(step, self._files(step, lines, tokens, numerics, about))
            self._answer_signal()
        finally:
            self._ring.passed(step)

    def is_sample(self, step: int) -> bool:
        """Whether `hold` would keep this step as a healthy sample: worth a closer look then."""
        try:
            return self._ring.is_due(int(step))
        except Exception:
            return False

    @_silent
    def keep(self, why: str) -> None:
        """Keep the step that was held last, or the next one if none is held.

        Args:
            why: Stands in `step.json`.
        """
        newest = self._ring.newest
        step = (self._last_step or 0) if newest is None else newest
        self._ring.want(step, CALL, as_text(why))
        self._ranks.tell(step, CALL, as_text(why), self._folder)

    def keep_on_signal(self, number: int | None = None) -> bool:
        """Keep the next held step when the process gets a signal; False where that can't be had.

        Only in the main thread, and only where nothing but another recorder handles it.

        Args:
            number: The signal; SIGUSR1 unless given.
        """
        try:
            wanted = getattr(signal, "SIGUSR1", None) if number is None else number
            return wanted is not None and on_signal(wanted, self._on_signal)
        except Exception as error:  # not the main thread, or no such signal
            self._drop(reason_of(error))
            return False

    def _on_signal(self) -> None:
        self._signalled = True  # looked at when a step is held: no file is touched in a handler

    @_silent
    def failed(self, error: BaseException, step: int | None = None, where: str = "") -> None:
        """Record an exception that ends the training, and keep all steps that are held.

        Args:
            error: The exception.
            step: The step that was being made; the last one recorded unless given.
            where: What raised it, such as `reward function accuracy`, where that is known.
        """
        kind = type(error).__name__
        place = f" (in {as_text(where)})" if where else ""
        at = self._last_step if step is None else step
        self._tell("error", at, f"{kind}: {as_text(error)}{place}", ends=True)
        self._ring.keep_all(ENDED, f"held when {kind} ended the training")

    @_silent
    def lost(self, error: Exception) -> None:
        """Count something that could not be recorded because of an error."""
        self._drop(f"{reason_of(error)}: {as_text(error)[:120]}")

    @_silent
    def close(self) -> None:
        """Write down that the process ended in order, and how much was dropped."""
        if not self._folder.closed:
            self._answer_signal()
            self._asked()
            if self._process_ends:
                self._ring.keep_newest(LAST, ENDED, "one of the last steps of a process")
            self._ring.clear()
            self._folder.close()

    def __enter__(self) -> Recorder:
        """Return the recorder itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Record the exception that ends the block, if there is one, and close."""
        left_in_order = isinstance(error, SystemExit) and not error.code
        if error is not None and not left_in_order:
            self.failed(error)
        self.close()

    def _resumed(self, step: int) -> None:
        self._begin()
        if self._restarted:
            self._restarted = False
            self.event("resume", step, "a new process continues this record")
            for later in range(step, step + FIRST if self._process_ends else step):
                self._ring.want(later, "after", "one of the first steps of a new process")

    def _at(self, step: int) -> float:
        """The time now; a warning where it, or the step, lies before the last one."""
        clock = round(time.time(), 3)
        if self._last_step is not None and step < self._last_step:
            self._say("step", f"step {step} comes after step {self._last_step}", step)
        if clock < self._last_time - 1:
            back = self._last_time - clock
            self._say("clock", f"the clock went back by {back:.0f} seconds", step)
        self._last_step, self._last_time = step, clock
        return clock

    def _say(self, about: str, text: str, step: int) -> None:
        """Add a warning, a few times of each kind."""
        self._said[about] = self._said.get(about, 0) + 1
        if self._said[about] <= _MOST_SAID:
            self.event("warning", step, text)

    def _alarmed(self, alarm: Alarm) -> None:
        self.event("alarm", alarm.step, alarm.why)
        self._ring.want(alarm.first, FIRST_BAD, alarm.why)
        self._ranks.tell(alarm.first, FIRST_BAD, alarm.why, self._folder)
        self._asked()

    def _asked(self) -> None:
        """Keep what other ranks have asked for."""
        for step, mark, why in self._ranks.news():
            self._ring.want(step, FIRST_BAD if mark == FIRST_BAD else CALL, why)

    def _answer_signal(self) -> None:
        if self._signalled:
            self._signalled = False
            self.keep("a signal asked for it")

    def _files(
        self,
        step: int,
        lines: Mapping[str, Iterable[Mapping[str, object]] | None],
        tokens: Mapping[str, Any] | None,
        numerics: Mapping[str, object] | None,
        about: Mapping[str, object],
    ) -> dict[str, bytes]:
        files: dict[str, bytes] = {}
        if tokens is not None:
            arrays, left = ragged(tokens)
            for name, why in left.items():
                self._drop(f"array `{name[:80]}`: {why}")
            if arrays.arrays:
                files["tokens.safetensors"] = arrays.file()
                about = {"compute_dtypes": arrays.dtypes, **about}
        for name, rows in lines.items():
            if rows is not None:
                files[f"{name}.jsonl"] = b"".join(as_line(row, self._drop) for row in rows)
        if numerics is not None:
            files["numerics.json"] = as_line(numerics, self._drop)
        about = {"step": step, "time": round(time.time(), 3), **about}
        files["step.json"] = as_line(about, self._drop)
        return files

    def _fact(self, name: str, step: int, facts: Mapping[str, object]) -> None:
        plain = as_plain({k: v for k, v in facts.items() if k not in _RESERVED})
        assert isinstance(plain, dict)
        when = {"step": operator.index(step), "time": round(time.time(), 3)}
        self._folder.append(name, {**when, **plain})

    def _settings(self, config: Mapping[str, object] | None) -> object:
        try:
            settings = as_plain({} if config is None else config)
            if not isinstance(settings, dict):
                self._drop("config is no mapping")
                return {}
            settings = without_secrets(settings)
            if len(as_line({"settings": settings})) > _MAX_CONFIG:
                self._drop("config is too large")
            else:
                return settings
        except Exception as error:
            self._drop(f"config could not be read: {reason_of(error)}")
        return {}

    def _drop(self, reason: str) -> None:
        with self._lock:
            self._folder.drop(reason)
