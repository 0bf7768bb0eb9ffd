"""The files of a record: lines, step folders within so many bytes, and `run.json`.

Every line is written by one system call before the method returns, and the folder of a step gets
its name when it is complete, so a process that is killed loses at most what it was writing.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from firstbad_recorder.plain import now

SCHEMA_VERSION = 1
METRICS, EVENTS, RUN = "metrics.jsonl", "events.jsonl", "run.json"
SYNCS, PROBES, KEEPS = "syncs.jsonl", "probes.jsonl", "keeps.jsonl"
STEPS, RING = "steps", "ring"
LOCK = ".lock"
LINES = (METRICS, EVENTS, SYNCS, PROBES, KEEPS)

_MAX_RESTARTS = 50
_MAX_REASONS = 50
_OTHER = "other reasons"
_UNFINISHED = ".unfinished-"
_BESIDE = ".tmp"
"""End of the name of a file that is to replace another."""


def replace(file: str, data: bytes) -> None:
    """Replace a file in one go: it is never half written, also where others do the same.

    Raises:
        OSError: it can't be written.
    """
    beside = f"{file}.{os.getpid()}{_BESIDE}"
    try:
        with open(beside, "wb") as stream:
            stream.write(data)
        os.replace(beside, file)
    except OSError:
        with suppress(OSError):
            os.remove(beside)
        raise


class Folder:
    """One folder of one process; what could not be written is counted."""

    def __init__(
        self, path: str | os.PathLike[str], begin: Mapping[str, object], max_bytes: int
    ) -> None:
        """Nothing is written before `open` or the first line.

        `max_bytes`: of lines and step folders together; the last twentieth is kept for events, and
        step folders leave a fifth to lines. `run.json` comes on top.
        """
        self.path = os.fspath(path)
        self.dropped = 0
        self.restarted = False
        """Whether the record was there before this process."""
        self.closed = False
        self.begin = dict(begin)
        """What `run.json` says of this process."""
        self.shared = False
        """Whether another process records here at the same time."""
        self._lock: int | None = None
        self._max_bytes = max_bytes
        self._bytes = 0
        self._reasons: dict[str, int] = {}
        self._run: dict[str, Any] = {}  # what run.json says; empty until the folder could be used

    def open(self) -> None:
        """Make or continue the record; tried again with each line until the folder can be used.

        Raises:
            OSError: it can't be used.
        """
        if self._run:
            return
        os.makedirs(self.path, exist_ok=True)
        files = [os.path.join(self.path, name) for name in LINES]
        self._bytes = sum(os.path.getsize(file) for file in files if os.path.exists(file))
        for place in (STEPS, RING):
            for folder, _, names in os.walk(os.path.join(self.path, place)):
                self._bytes += sum(os.path.getsize(os.path.join(folder, name)) for name in names)
        earlier = self._read_run()
        if earlier:
            restarts = [*earlier["restarts"], self.begin][-_MAX_RESTARTS:]
            run = {**earlier, "restarts": restarts, "finished": None}
        else:
            run = {
                "schema_version": SCHEMA_VERSION,
                **self.begin,
                "restarts": [],
                "finished": None,
                "dropped": 0,
                "dropped_by_reason": {},
            }
        self.restarted = earlier is not None
        self.shared = not self._locked()
        self._run = run
        self._write_run()

    def append(self, name: str, record: Mapping[str, object]) -> None:
        """Append one line to a file that is opened and closed for it.

        That costs a few microseconds and leaves no handle that could go stale, be inherited by
        a fork, or point to a deleted file.

        Raises:
            OSError: the folder can't be written.
            ValueError: the record is no strict JSON.
        """
        if not self._ready():
            return
        line = json.dumps(record, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        limit = self._max_bytes if name == EVENTS else self._max_bytes - self._max_bytes // 20
        if self._bytes + len(line) > limit:
            self.drop("max_bytes is reached")
            return
        file = os.path.join(self.path, name)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
        try:
            handle = os.open(file, flags, 0o666)
        except FileNotFoundError:  # the folder was removed, or could not be made before
            os.makedirs(self.path, exist_ok=True)
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
            self.drop("a line was cut off by a full disk")

    def put(self, place: str, files: Mapping[str, bytes]) -> bool:
        """Write a folder of files under another name, and give it its own when complete.

        False where the recorder is closed.

        Raises:
            OSError: it can't be written; ENOSPC also where `max_bytes` leaves no room.
        """
        if not self._ready():
            return False
        size = sum(map(len, files.values()))
        if self._bytes + size > self._max_bytes - self._max_bytes // 5:
            raise OSError(errno.ENOSPC, "max_bytes is reached")
        folder = os.path.join(self.path, place)
        unfinished = f"{folder}{_UNFINISHED}{os.getpid()}"
        shutil.rmtree(unfinished, ignore_errors=True)
        try:
            os.makedirs(unfinished)
            for file, data in files.items():
                with open(os.path.join(unfinished, file), "wb") as stream:
                    stream.write(data)
            self.remove(place)
            os.rename(unfinished, folder)
        except OSError:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
        self._bytes += size
        return True

    def move(self, source: str, target: str) -> None:
        """Give a folder another name; one that has it is replaced.

        Raises:
            OSError: it can't be moved.
        """
        self.remove(target)
        os.makedirs(os.path.dirname(os.path.join(self.path, target)), exist_ok=True)
        os.rename(os.path.join(self.path, source), os.path.join(self.path, target))

    def remove(self, place: str) -> None:
        """Delete a folder of files, if it is there."""
        folder = os.path.join(self.path, place)
        if os.path.isdir(folder):
            size = sum(entry.stat().st_size for entry in os.scandir(folder) if entry.is_file())
            shutil.rmtree(folder, ignore_errors=True)
            self._bytes -= size

    def tidy(self) -> None:
        """Delete what earlier processes had begun to write when they were killed."""
        for place in (STEPS, RING):
            folder = os.path.join(self.path, place)
            for name in os.listdir(folder) if os.path.isdir(folder) else ():
                if _UNFINISHED in name:
                    self.remove(f"{place}/{name}")
        for name in os.listdir(self.path):
            if name.startswith(f"{RUN}.") and name.endswith(_BESIDE):
                with suppress(OSError):
                    os.remove(os.path.join(self.path, name))

    def names(self, place: str) -> list[str]:
        """Finished folders in a place, in order."""
        try:
            found = os.listdir(os.path.join(self.path, place))
        except OSError:
            return []
        return sorted(name for name in found if name.isdigit())

    def drop(self, reason: str) -> None:
        """Count what is not written; say each reason once, and save the count now and then."""
        try:
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

    def close(self) -> None:
        """Write down that the process ended in order, and how much was dropped.

        Raises:
            OSError: it can't be written.
        """
        if self._run and not self.closed:
            self._run["finished"] = now()
            self._write_run()
        self.closed = True
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _locked(self) -> bool:
        """Whether nobody else records here; where files can't be locked, that is taken to be so."""
        try:
            import fcntl

            flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
            self._lock = os.open(os.path.join(self.path, LOCK), flags, 0o666)
        except (ImportError, OSError):
            return True
        try:
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return error.errno not in (errno.EACCES, errno.EAGAIN)
        return True

    def _ready(self) -> bool:
        if self.closed:
            self.drop("the recorder is closed")
            return False
        self.open()
        return True

    def _read_run(self) -> dict[str, Any] | None:
        """The `run.json` that is there; one that cannot be used is moved aside."""
        file = os.path.join(self.path, RUN)
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
        self.drop("the earlier run.json could not be read")
        return None

    def _write_run(self) -> None:
        """Replace `run.json`."""
        counts = dict(self._run["dropped_by_reason"])
        for reason, count in self._reasons.items():
            if reason not in counts and len(counts) >= _MAX_REASONS:
                reason = _OTHER
            counts[reason] = counts.get(reason, 0) + count
        total = self._run["dropped"] + self.dropped
        run = {**self._run, "dropped": total, "dropped_by_reason": counts}
        file = os.path.join(self.path, RUN)
        os.makedirs(self.path, exist_ok=True)
        replace(file, json.dumps(run, allow_nan=False, indent=2).encode())
