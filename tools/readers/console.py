"""Console logs: metric lines, and warnings and errors with the step in progress."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

from firstbad.tools.evidence import Source
from firstbad.tools.paths import File, Root
from firstbad.tools.readers.jsonish import decode
from firstbad.tools.readers.log import Log
from firstbad.tools.readers.log_lines import (
    TRACEBACK,
    printed_dict,
    read_traceback,
    severity,
    stepped_metrics,
)
from firstbad.tools.run import Event, EventKind

MAX_EVENTS = 2_000
MAX_LINE = 500
_HALF_BYTES = 32 * 2**20
_NAME = r"(?:[^/]+/)*[^/]+\.(?:log|out|err|txt)"
_NOT_LOGS = re.compile(
    r"(^|/)(requirements|vocab|merges|readme|license|latest[^/]*)\.txt$|"
    r"(^|/)(checkpoint-\d+|tokenizer|data)/|(^|/)logs/debug[^/]*\.log$",
    re.I,
)
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]")
_PROGRESS = re.compile(r"\b(\d{1,15})/(\d{1,15}) \[\d+:\d+")
_SEGMENT = re.compile(r"\bstart segment (\d{1,15})/(\d+)\s*:?\s*(.*)")
_CONTINUED = re.compile(r"\bContinuing training from global step (\d{1,15})\b")
_GOES_BACK = "step goes back"
_MAX_RESUMES = 10
_PROCESS = re.compile(r"^\([^)]{0,200}pid=\d+[^)]{0,200}\) ?")
_FINISHED = re.compile(r"\btraining (?:finished|completed)\b", re.I)


@dataclass
class Console:
    """What console logs say."""

    log: Log = field(default_factory=Log)
    events: list[Event] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    """Logs with a metric."""
    looked_through: list[Source] = field(default_factory=list)


def read_console(
    root: Root,
    files: Sequence[File] | None = None,
    *,
    logging_steps: int = 1,
    max_steps: int | None = None,
) -> Console:
    """Read these console logs, or all below the root.

    Dicts printed by Hugging Face carry no step: they are counted by `logging_steps`, and progress
    bars over `max_steps` tell the step in progress.
    """
    console = Console()
    for file in root.matching(_NAME) if files is None else files:
        data = None if _NOT_LOGS.search(file.name) else _head_and_tail(root, file)
        if not data:
            continue
        reader = _Reader(file, logging_steps, max_steps)
        reader.read(decode(data)[0])
        reader.drop_interleaved()
        if file.suffix == ".txt" and not reader.is_log:
            continue
        console.events += reader.events
        if left := sum(reader.left.values()):
            root.note("events_cut", f"`{file.name}`: {left:,} further warnings and errors")
        for key, series in reader.log.series.items():
            console.log.add_series(key, series.steps, series.values)
        console.looked_through.append(root.source(file, "log"))
        if reader.log:
            console.sources.append(console.looked_through[-1])
    return console


def _head_and_tail(root: Root, file: File) -> bytes | None:
    if file.size <= 2 * _HALF_BYTES:
        return root.try_read(file)
    root.note("file_cut", f"`{file.name}`: only its first and last 32 MiB were read")
    with file.path.open("rb") as stream:
        head = stream.read(_HALF_BYTES)
        stream.seek(-_HALF_BYTES, 2)
        return head + b"\n" + stream.read()


class _Reader:
    def __init__(self, file: File, logging_steps: int, max_steps: int | None) -> None:
        self._file = file
        self._max_steps = max_steps
        self._every = max(1, logging_steps)
        self.log = Log()
        self.events: list[Event] = []
        self.left: Counter[str] = Counter()
        self._kept: Counter[str] = Counter()
        self._waiting: list[tuple[str, str]] = []
        """Kind and text of what was printed since the last metric line."""
        self._step: int | None = None
        self._gap = self._every
        self._counted = 0
        """Step of the last printed dict, and where counting began after a resume."""
        self._finished = False
        self._settings: dict[str, str] = {}
        self.is_log = False

    def read(self, text: str) -> None:
        lines = (
            _PROCESS.sub("", _ANSI.sub("", line[: 50 * MAX_LINE]))
            for line in re.split(r"[\r\n]+", text)
        )
        for line in lines:
            if TRACEBACK in line:
                self.is_log = True
                text, after = read_traceback(lines)
                self._wait("error", text)
                line = after
            self._line(line)
        self._flush_end(ends=not self._finished)

    def drop_interleaved(self) -> None:
        """Lines of several processes mixed in one file go back all the time: no resumes."""
        back = [e for e in self.events if e.kind == "resume" and _GOES_BACK in e.text]
        if len(back) > _MAX_RESUMES:
            self.events = [event for event in self.events if event not in back]

    def _line(self, line: str) -> None:
        if match := _SEGMENT.search(line):
            self._segment(int(match[1]), match[3])
        elif match := _CONTINUED.search(line):
            self._counted = int(match[1])
            self._wait("resume", line)
        elif found := stepped_metrics(line):
            self._metrics(*found)
        elif values := printed_dict(line):
            self._dict(values)
        elif kind := severity(line):
            self._wait(kind, line)
        elif match := _PROGRESS.search(line):
            self._progress(int(match[1]), int(match[2]))
        elif _FINISHED.search(line):
            self._finished = True

    def _metrics(self, step: int, values: dict[str, str]) -> None:
        self.is_log = True
        if self._step is not None and step < self._step:
            self._wait("resume", f"{_GOES_BACK} from {self._step} to {step}")
        self._arrive(step)
        self.log.add(step, values)

    def _dict(self, values: dict[str, str]) -> None:
        self.is_log = True
        if "train_runtime" in values:
            self._finished = True
        elif any(key.startswith("eval_") for key in values):
            self.log.add(self._counted, {k: v for k, v in values.items() if k != "epoch"})
        else:
            self._counted += self._every
            self._arrive(max(self._counted, self._step or 0))
            self.log.add(self._counted, values)

    def _progress(self, done: int, total: int) -> None:
        """Bars of other work (generation, data) have another total."""
        if total == self._max_steps and (self._step is None or done > self._step):
            self._arrive(done)

    def _arrive(self, step: int) -> None:
        if self._step is not None and step > self._step:
            self._gap = step - self._step
        self._flush(step)
        self._step = step
        self._finished = False

    def _segment(self, number: int, text: str) -> None:
        self.is_log = True
        words = [word.partition("=") for word in text.split()]
        settings = {name: value for name, _, value in words if name and value}
        resumed = settings.pop("resume", "no")
        if number > 1 or resumed.lower() not in ("no", "none", "false"):
            self._wait("resume", f"start segment {number}: {text}")
        for name, value in settings.items():
            before = self._settings.get(name, value)
            if before != value:
                self._wait("config_change", f"{name}: {before} -> {value}")
        self._settings = settings
        # A new segment may begin before the last step of the one that was killed.
        self._flush_before_segment()

    def _flush_before_segment(self) -> None:
        started = [w for w in self._waiting if w[0] in ("resume", "config_change")]
        self._waiting = [w for w in self._waiting if w not in started]
        self._flush_end()
        self._waiting = started
        self._step = None

    def _wait(self, kind: str, text: str) -> None:
        """Keep for the step in progress, which is known when its metric line comes."""
        # Warnings must not crowd out errors: each kind has its own limit.
        if self._kept[kind] >= MAX_EVENTS // 2:
            self.left[kind] += 1
            return
        self._kept[kind] += 1
        self._waiting.append((kind, " ".join(text.split())[:MAX_LINE]))

    def _flush(self, step: int | None, *, ends: bool = False) -> None:
        """Date what waits; where the log `ends` here, its last exception ended the process."""
        raised = [i for i, (kind, text) in enumerate(self._waiting) if _raised(kind, text)]
        for i, (kind, text) in enumerate(self._waiting):
            last = ends and i == max(raised, default=None)
            self.events.append(Event(cast(EventKind, kind), step, text, self._file.name, ends=last))
        self._waiting.clear()

    def _flush_end(self, *, ends: bool = False) -> None:
        """What was printed after the last metric line belongs to the step in progress."""
        step = self._step
        self._flush(step if step is None or self._finished else step + self._gap, ends=ends)


def _raised(kind: str, text: str) -> bool:
    """Whether it is what a traceback ends with: its text names the place that raised it."""
    return kind == "error" and " (File " in text
