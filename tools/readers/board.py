"""What the TensorBoard files of a run say."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from firstbad.tools.errors import UserError
from firstbad.tools.evidence import Source
from firstbad.tools.paths import File, Root
from firstbad.tools.readers.jsonish import flatten, parse_object
from firstbad.tools.readers.log import Log
from firstbad.tools.readers.steps import note_folders
from firstbad.tools.readers.tfevents import EventFile, parse_events
from firstbad.tools.run import Config, Event

NAME = r"(?:.*/)?[^/]*events\.out\.tfevents\.[^/]*"
_TEXTS = (("args/text_summary", ""), ("model_config/text_summary", "model."))
_AT_END = (
    "train/train_runtime", "train/train_samples_per_second", "train/train_steps_per_second",
    "train/total_flos", "train/train_loss",
)  # fmt: skip


@dataclass
class Board:
    """All event files of a run, in the order in which they were begun."""

    files: list[EventFile] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    """Files with scalars."""
    by_name: dict[str, Source] = field(default_factory=dict)

    def scalars(self) -> Log:
        """All scalars; of two values for one tag and step that of the later file counts."""
        log = Log()
        for file in self.files:
            for tag, series in file.log.series.items():
                if tag not in _AT_END:
                    log.add_series(tag, series.steps, series.values)
        return log

    def events(self) -> list[Event]:
        """The end of training, and resumes: each launch begins a file of its own."""
        events: list[Event] = []
        before: set[str] = set()
        for file in self.files:
            series = file.log.series
            if ended := series.get("train/train_runtime"):
                text = f"training ended: train_runtime={ended.values[-1]:g}"
                events.append(Event("end", ended.steps[-1], text, file.name))
            tags = {tag for tag in series if not tag.startswith("eval/") and tag not in _AT_END}
            if again := tags & before:
                first = min(min(series[tag].steps) for tag in again)
                events.append(Event("resume", first, "a new event file begins", file.name))
            before |= tags
        return events

    def fill_config(self, config: Config) -> Config:
        """Settings from text summaries, where no file states them."""
        values = dict(config.values)
        sources = list(config.sources)
        for file in self.files:
            for tag, prefix in _TEXTS:
                for key, value in _settings(file, tag).items():
                    if prefix + key not in values:
                        values[prefix + key] = value
                        source = self.by_name[file.name]
                        sources += [] if source in sources else [source]
        return Config(values, tuple(sources), self._changed())

    def _changed(self) -> frozenset[str] | None:
        """Settings that differ between launches; None where a launch states none of its own."""
        launches = [_settings(file, _TEXTS[0][0]) for file in self.files if file.log]
        if len(launches) < 2 or not all(launches):
            return None
        names = {name for settings in launches for name in settings}
        return frozenset(n for n in names if any(s.get(n) != launches[0].get(n) for s in launches))


def read_board(root: Root) -> Board:
    """Parse all event files."""
    board = Board()
    for file in sorted(root.matching(NAME), key=_begun):
        data = root.try_read(file)
        if not data:
            continue
        events = parse_events(data, file.name)
        if events.cut_at is not None:
            root.note("file_cut", f"`{file.name}` is cut off at byte {events.cut_at:,}")
        board.files.append(events)
        source = board.by_name[file.name] = root.source(file, "metrics", data)
        if events.log:
            board.sources.append(source)
    note_folders(root, "event files", [source.ref for source in board.sources])
    return board


def _settings(file: EventFile, tag: str) -> dict[str, object]:
    try:
        return flatten(parse_object(file.texts.get(tag, "{}").encode(), file.name), ".")
    except UserError:
        return {}


def _begun(file: File) -> tuple[int, str]:
    """Event files carry the time of their beginning in their name."""
    match = re.search(r"tfevents\.(\d{1,18})", file.name)
    return (int(match[1]) if match else 0), file.name
