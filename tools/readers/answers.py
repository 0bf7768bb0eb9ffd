"""Right answers from data files that lie beside the run, joined by prompt text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property

from firstbad.tools.errors import UserError
from firstbad.tools.evidence import Source
from firstbad.tools.paths import File, Root
from firstbad.tools.readers.arrow import open_parquet, read_parquet
from firstbad.tools.readers.rows import ALL_SUFFIXES, NOT_TABLES, Row, first_rows, read_rows
from firstbad.tools.readers.texts import answer_text, canonical_text, column_texts
from firstbad.tools.run import RolloutBatch

GOLD = (
    "answer", "gold", "solution", "ground_truth", "gts", "target", "targets", "label",
    "expected", "reference", "reference_answer", "final_answer", "golden_answer",
)  # fmt: skip
PROMPT = ("prompt", "question", "problem", "input", "query", "instruction", "messages")
_FILE = re.compile(r"(?:(?:[^/]+/)*(?:data|datasets?)/(?:[^/]+/)*)?[^/]+", re.I)
_MAX_BYTES = 256 * 2**20


class Answers:
    """Right answers by prompt text, read when first asked for."""

    def __init__(self, root: Root) -> None:
        """Files are only looked at when an answer is wanted."""
        self._root = root
        self._used: list[File] = []

    @property
    def sources(self) -> tuple[Source, ...]:
        """Files with answers, once they have been read."""
        return tuple(self._root.source(file, "answers") for file in self._used)

    @cached_property
    def files(self) -> list[File]:
        """Files that look like data sets."""
        return [
            file
            for file in self._root.files
            if file.suffix in ALL_SUFFIXES
            and _FILE.fullmatch(file.name)
            and not NOT_TABLES.search(file.name)
            and 0 < file.size <= _MAX_BYTES
        ]

    @cached_property
    def _by_prompt(self) -> dict[str, str | None]:
        """A prompt that has two different answers has none."""
        found: dict[str, str | None] = {}
        for file in self.files:
            for prompt, answer in _pairs(self._root, file):
                if file not in self._used:
                    self._used.append(file)
                if answer is not None and found.setdefault(prompt, answer) != answer:
                    found[prompt] = None
        return found

    def of(self, prompts: Sequence[str], last: Sequence[str]) -> list[str | None] | None:
        """The answer to each prompt, or None when no prompt has one.

        `last` is the last message alone: data sets often lack the system message.
        """
        known = self._by_prompt
        if not known:
            return None
        found = [
            known[prompt] if prompt in known else known.get(message)
            for prompt, message in zip(prompts, last, strict=True)
        ]
        return found if any(answer is not None for answer in found) else None

    def beside(self, batch: RolloutBatch) -> RolloutBatch:
        """The batch with right answers; its own count where it has some."""
        if batch.gold is not None:
            return batch
        return replace(batch, gold=self.of(batch.prompts, batch.prompts))


def _pairs(root: Root, file: File) -> Iterator[tuple[str, str | None]]:
    head = first_rows(root, file)
    if head and not any(_first(row, PROMPT) and _first(row, GOLD) for row in head):
        return
    try:
        if file.suffix == ".parquet":
            yield from _parquet_pairs(file)
        else:
            yield from _row_pairs(read_rows(root, file))
    except UserError as error:
        root.note("file_skipped", str(error))


def _row_pairs(rows: Iterable[Row]) -> Iterator[tuple[str, str | None]]:
    columns: dict[tuple[str, ...], tuple[str | None, str | None]] = {}
    for row in rows:
        names = tuple(row)
        if names not in columns:
            columns[names] = _first(names, PROMPT), _first(names, GOLD)
        prompt, gold = columns[names]
        if prompt and gold:
            yield canonical_text(row[prompt]), answer_text(row[gold])


def _parquet_pairs(file: File) -> Iterator[tuple[str, str | None]]:
    names = open_parquet(file.path, file.name).schema_arrow.names
    prompt, gold = _first(names, PROMPT), _first(names, GOLD)
    if prompt and gold:
        table = read_parquet(file.path, file.name, [prompt, gold])
        answers = (answer_text(value) for value in table.column(gold).to_pylist())
        yield from zip(column_texts(table.column(prompt)), answers, strict=True)


def _first(names: Iterable[str], wanted: Sequence[str]) -> str | None:
    have = {name.lower(): name for name in names}
    return next((have[name] for name in wanted if name in have), None)
