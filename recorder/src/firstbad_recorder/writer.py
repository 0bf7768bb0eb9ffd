"""The writer: puts what a training loop reports into small plain files and never raises into it.

Every line is written by one system call before the method returns, and the folder of a captured
step gets its name when it is complete, so a process that is killed loses at most what it was
writing. FORMAT.md says what the files hold.
"""

from __future__ import annotations

import json
import logging
import math
import operator
import os
import platform
import shutil
import threading
import time
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from types import TracebackType
from typing import Any

from firstbad_recorder.tensors import ragged

SCHEMA_VERSION = 1
METRICS, EVENTS, RUN = "metrics.jsonl", "events.jsonl", "run.json"
SYNCS, PROBES, STEPS = "syncs.jsonl", "probes.jsonl", "steps"

_MAX_TEXT = 10_000
_MAX_ROLLOUT_TEXT = 1_000_000
_MAX_CONFIG = 256 * 1024
_MAX_RESTARTS = 50
_MAX_REASONS = 50
_OTHER = "other reasons"
_RESERVED = ("step", "time")


class Recorder:
    """Records scalars, events, weight deliveries, probes and whole steps in one folder.

    Use it in one process only (rank 0), and one folder per run. A folder that already holds a
    record is continued: that is a restart, and the record says so.
    """

    dropped: int = 0
    """Lines, events and values that could not be written by this object."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        config: Mapping[str, object] | None = None,
        requested: Mapping[str, object] | None = None,
        versions: Mapping[str, object] | None = None,
        device: str | None = None,
        environment: Mapping[str, object] | None = None,
        max_bytes: int = 2**30,
    ) -> None:
        """Start a record, or continue the one that is there.

        Args:
            path: Folder of the record; made if it is not there.
            config: The run's settings as they are in force, kept in `run.json`. Values that JSON
                does not know are kept as their text. Leave secrets out.
            requested: The settings as they were asked for, under the same names.
            versions: Versions of the libraries that compute, by name.
            device: What computes, in words.
            environment: Environment variables that bear on the numbers. Leave secrets out.
            max_bytes: Most that the record may take on disk. What comes later is counted in
                `dropped` and not written; the last twentieth is kept for events.
        """
        self._path = path
        self._max_bytes = max_bytes
        self._bytes = 0
        self._reasons: dict[str, int] = {}
        self._run: dict[str, Any] = {}  # what run.json says; empty until the folder could be used
        self._restarted = False
        self._closed = False
        self._last_step: int | None = None
        self._lock = threading.RLock()
        self._begin = {
            "started": _now(),
            "python": platform.python_version(),
            "config": self._settings(config),
        }
        about = {"requested": requested, "versions": versions, "environment": environment}
        self._begin |= {k: self._settings(v) for k, v in about.items() if v is not None}
        if device is not None:
            self._begin["device"] = _text(device)
        try:
            self._open()
        except Exception as error:  # nothing that goes wrong here may reach the training loop
            self._drop(_reason(error))

    def scalars(
        self, step: int, values: Mapping[str, object] | None = None, **more: object
    ) -> None:
        """Append one line with the numbers of one step.

        A value is a number, a bool, None, or an object whose `.item()` gives one (numpy and torch
        scalars; reading a tensor that lies on a GPU waits for it). NaN and infinities are written
        as the texts "NaN", "Infinity" and "-Infinity". Anything else is left out and counted.
        """
        try:
            with self._lock:
                step = operator.index(step)
                if self._restarted:
                    self._restarted = False
                    self.event("resume", step, "a new process continues this record")
                record: dict[str, object] = {"step": step, "time": round(time.time(), 3)}
                for key, value in {**(values or {}), **more}.items():
                    if key in _RESERVED:
                        self._drop(f"`{key}` is a reserved name")
                        continue
                    try:
                        record[str(key)] = _number(value)
                    except Exception:
                        self._drop(f"value of `{str(key)[:80]}` is not a number")
                self._append(METRICS, record)
                self._last_step = step
        except Exception as error:  # see __init__
            self._drop(_reason(error))

    def event(self, kind: str, step: int | None, text: str) -> None:
        """Append one line about something that happened.

        Args:
            kind: A word such as `phase`, `config_change`, `warning` or `error`.
            step: The step at which it happened; None if that is not known.
            text: What happened, up to 10,000 characters.
        """
        try:
            with self._lock:
                record = {
                    "kind": str(kind)[:100],
                    "step": None if step is None else operator.index(step),
                    "time": round(time.time(), 3),
                    "text": str(text)[:_MAX_TEXT],
                }
                self._append(EVENTS, record)
        except Exception as error:  # see __init__
            self._drop(_reason(error))

    def sync(self, step: int, **facts: object) -> None:
        """Append one line about weights that were handed to the rollout engine.

        Args:
            step: Optimizer steps that the weights have seen.
            facts: Fields of `syncs.jsonl` in FORMAT.md, such as `version`, `engine_version`,
                `tensors` (name, digest in the trainer, digest in the engine) and `adapter`.
        """
        self._fact(SYNCS, step, facts)

    def probe(self, step: int, probe: str, **figures: object) -> None:
        """Append one line with the result of a measurement made on purpose.

        Args:
            step: Step at which it was made.
            probe: Its name in FORMAT.md, such as `accumulation` or `objective`.
            figures: What it found, under the names of FORMAT.md.
        """
        self._fact(PROBES, step, {"probe": str(probe)[:100], **figures})

    def capture(
        self,
        step: int,
        *,
        rollouts: Iterable[Mapping[str, object]] | None = None,
        tokens: Mapping[str, Any] | None = None,
        microbatches: Iterable[Mapping[str, object]] | None = None,
        numerics: Mapping[str, object] | None = None,
        **about: object,
    ) -> None:
        """Keep one step whole, in a folder of its own; a step that is there is replaced.

        Args:
            step: The step.
            rollouts: One mapping a row, with the fields of `rollouts.jsonl` in FORMAT.md.
            tokens: Arrays by name (`token_id`, `logp_new`, ...): for each row a row of numbers, as
                long as its `token_id`, or one number.
            microbatches: One mapping for each micro-batch, in the order in which they ran.
            numerics: `trail`, `clamps`, `norms`, `parameters` of FORMAT.md.
            about: Fields of `step.json`: `kept`, `whole_groups`, `in_order`, `filters`, ...
        """
        try:
            with self._lock:
                step = operator.index(step)
                files: dict[str, bytes] = {}
                if tokens is not None:
                    arrays, left = ragged(tokens)
                    for name, why in left.items():
                        self._drop(f"array `{name[:80]}`: {why}")
                    files["tokens.safetensors"] = arrays.file()
                    about = {"compute_dtypes": arrays.dtypes, **about}
                for name, rows in (("rollouts", rollouts), ("microbatches", microbatches)):
                    if rows is not None:
                        files[f"{name}.jsonl"] = b"".join(map(_line, rows))
                if numerics is not None:
                    files["numerics.json"] = _line(numerics)
                files["step.json"] = _line({"step": step, "time": round(time.time(), 3), **about})
                self._keep(f"{step:08d}", files)
        except Exception as error:  # see __init__
            self._drop(_reason(error))

    def close(self) -> None:
        """Write down that the process ended in order, and how much was dropped."""
        try:
            with self._lock:
                if self._run and not self._closed:
                    self._run["finished"] = _now()
                    self._write_run()
                self._closed = True
        except Exception as error:  # see __init__
            self._drop(_reason(error))

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
            self.event("error", self._last_step, f"{type(error).__name__}: {_text(error)}")
        self.close()

    def _fact(self, name: str, step: int, facts: Mapping[str, object]) -> None:
        try:
            with self._lock:
                plain = _plain({k: v for k, v in facts.items() if k not in _RESERVED})
                assert isinstance(plain, dict)
                self._append(
                    name, {"step": operator.index(step), "time": round(time.time(), 3), **plain}
                )
        except Exception as error:  # see __init__
            self._drop(_reason(error))

    def _keep(self, name: str, files: Mapping[str, bytes]) -> None:
        """Write the folder of a step under another name, and give it its own when complete."""
        if self._closed:
            self._drop("the recorder is closed")
            return
        if not self._run:
            self._open()
        size = sum(map(len, files.values()))
        if self._bytes + size > self._max_bytes - self._max_bytes // 20:
            self._drop("max_bytes is reached")
            return
        folder = os.path.join(self._path, STEPS, name)
        unfinished = folder + ".unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        os.makedirs(unfinished)
        for file, data in files.items():
            with open(os.path.join(unfinished, file), "wb") as stream:
                stream.write(data)
        shutil.rmtree(folder, ignore_errors=True)
        os.rename(unfinished, folder)
        self._bytes += size

    def _settings(self, config: Mapping[str, object] | None) -> object:
        try:
            settings = _plain({} if config is None else config)
            if len(json.dumps(settings)) <= _MAX_CONFIG:
                return settings
            self._drop("config is too large")
        except Exception as error:
            self._drop(f"config could not be read: {_reason(error)}")
        return {}

    def _open(self) -> None:
        """Make or continue the record; tried again with each line until the folder can be used."""
        os.makedirs(self._path, exist_ok=True)
        lines = (METRICS, EVENTS, SYNCS, PROBES)
        files = [os.path.join(self._path, name) for name in lines]
        self._bytes = sum(os.path.getsize(file) for file in files if os.path.exists(file))
        for folder, _, names in os.walk(os.path.join(self._path, STEPS)):
            self._bytes += sum(os.path.getsize(os.path.join(folder, name)) for name in names)
        earlier = self._read_run()
        if earlier:
            restarts = [*earlier["restarts"], self._begin][-_MAX_RESTARTS:]
            run = {**earlier, "restarts": restarts, "finished": None}
        else:
            run = {
                "schema_version": SCHEMA_VERSION,
                **self._begin,
                "restarts": [],
                "finished": None,
                "dropped": 0,
                "dropped_by_reason": {},
            }
        self._restarted = earlier is not None
        self._run = run
        self._write_run()

    def _read_run(self) -> dict[str, Any] | None:
        """The `run.json` that is there; one that cannot be used is moved aside."""
        file = os.path.join(self._path, RUN)
        try:
            with open(file, encoding="utf-8") as stream:
                run = json.load(stream)
        except FileNotFoundError:
            return None
        except ValueError:
            run = None
        shape = {"restarts": list, "dropped": int, "dropped_by_reason": dict}
        if (
            isinstance(run, dict)
            and run.get("schema_version") == SCHEMA_VERSION
            and all(isinstance(run.get(key), kind) for key, kind in shape.items())
        ):
            return run
        os.replace(file, file + ".unreadable")
        self._drop("the earlier run.json could not be read")
        return None

    def _append(self, name: str, record: Mapping[str, object]) -> None:
        """Append one line to a file that is opened and closed for it.

        That costs a few microseconds and leaves no handle that could go stale, be inherited by
        a fork, or point to a deleted file.
        """
        if self._closed:
            self._drop("the recorder is closed")
            return
        if not self._run:
            self._open()
        line = json.dumps(record, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        limit = self._max_bytes if name == EVENTS else self._max_bytes - self._max_bytes // 20
        if self._bytes + len(line) > limit:
            self._drop("max_bytes is reached")
            return
        file = os.path.join(self._path, name)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
        try:
            handle = os.open(file, flags, 0o666)
        except FileNotFoundError:  # the folder was removed, or could not be made before
            os.makedirs(self._path, exist_ok=True)
            handle = os.open(file, flags, 0o666)
        try:
            if os.lseek(handle, 0, os.SEEK_END) > 0:
                os.lseek(handle, -1, os.SEEK_END)
                if os.read(handle, 1) != b"\n":  # a line that was cut off stays alone
                    line = b"\n" + line
            written = os.write(handle, line)
        finally:
            os.close(handle)
        self._bytes += written
        if written < len(line):
            self._drop("a line was cut off by a full disk")

    def _drop(self, reason: str) -> None:
        """Count what is not written; say each reason once, and save the count now and then."""
        try:
            with self._lock:
                self.dropped += 1
                if reason not in self._reasons and len(self._reasons) >= _MAX_REASONS:
                    reason = _OTHER
                self._reasons[reason] = self._reasons.get(reason, 0) + 1
                if self._reasons[reason] == 1:
                    logging.getLogger("firstbad_recorder").warning("not recorded: %s", reason)
                if self._run and self.dropped & (self.dropped - 1) == 0:  # at 1, 2, 4, 8, ...
                    self._write_run()
        except Exception:  # a count that cannot be saved is still in `dropped`
            return

    def _write_run(self) -> None:
        """Replace `run.json` in one go, so that it is never half written."""
        counts = dict(self._run["dropped_by_reason"])
        for reason, count in self._reasons.items():
            if reason not in counts and len(counts) >= _MAX_REASONS:
                reason = _OTHER
            counts[reason] = counts.get(reason, 0) + count
        total = self._run["dropped"] + self.dropped
        run = {**self._run, "dropped": total, "dropped_by_reason": counts}
        file = os.path.join(self._path, RUN)
        os.makedirs(self._path, exist_ok=True)
        with open(file + ".tmp", "w", encoding="utf-8") as stream:
            json.dump(run, stream, allow_nan=False, indent=2)
        os.replace(file + ".tmp", file)


def _number(value: Any) -> object:
    """The JSON form of one number.

    Raises:
        TypeError: it is not a number, nor an object whose `.item()` gives one.
        OverflowError: it is an integer of more than 64 bits.
    """
    if not (value is None or isinstance(value, (int, float))):
        value = value.item()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        if value.bit_length() > 63:
            raise OverflowError
        return int(value)
    if not isinstance(value, float):
        raise TypeError
    if math.isfinite(value):
        return float(value)
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _plain(value: object, depth: int = 20) -> object:
    """The JSON form of a setting; what JSON does not know becomes its text."""
    kind = type(value)
    if kind is str:
        return _text(value)
    if kind is float or kind is int:  # most of what is written: before the slower questions
        return _scalar(value)
    if depth and isinstance(value, Mapping):
        return {_text(key): _plain(item, depth - 1) for key, item in value.items()}
    if depth and isinstance(value, (list, tuple)):
        return [_plain(item, depth - 1) for item in value]
    return _text(value) if isinstance(value, str) else _scalar(value)


def _scalar(value: object) -> object:
    try:
        return _number(value)
    except Exception:
        return _text(value)


def _line(record: Mapping[str, object]) -> bytes:
    """A JSON object and a line end; its own texts may be long, as those of a rollout are."""
    plain: dict[str, object] = {}
    for key, value in record.items():
        text = isinstance(value, str)
        plain[_text(key)] = str(value)[:_MAX_ROLLOUT_TEXT] if text else _plain(value)
    return json.dumps(plain, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def _text(value: object) -> str:
    try:
        return str(value)[:_MAX_TEXT]
    except Exception:
        return f"<{type(value).__name__} without a text>"


def _reason(error: Exception) -> str:
    """Kind of error without paths and values, so that equal causes are counted together."""
    detail = error.strerror if isinstance(error, OSError) else None
    return f"{type(error).__name__}: {detail}" if detail else type(error).__name__


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
