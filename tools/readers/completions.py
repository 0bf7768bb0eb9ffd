"""TRL's `completions/completions_<step>.parquet`: one file a step, read when asked for."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np

from firstbad.tools.errors import UserError
from firstbad.tools.paths import File, Root
from firstbad.tools.readers.answers import GOLD, Answers
from firstbad.tools.readers.arrow import first_part, float_values
from firstbad.tools.readers.grouping import group_rows
from firstbad.tools.readers.log import number, step_number
from firstbad.tools.readers.repeats import Repeats
from firstbad.tools.readers.rows import first_rows, repeated
from firstbad.tools.readers.shelf import shelve
from firstbad.tools.readers.step_names import NUMBER, without_ranks
from firstbad.tools.readers.steps import step_key
from firstbad.tools.readers.texts import answer_text, column_texts, tidy
from firstbad.tools.run import FloatArray, RolloutBatch, Rollouts

ROLLOUTS = "rollouts"
"""Kind of these files as sources."""
EVALUATION = "evaluation"
"""Code of the note on rollouts that no step was trained on."""
_NAME = rf"(?:.*/)?completions/[^/]*?(?<!\d){NUMBER}\.parquet"
_TRL_STEM = re.compile(rf"\D*{NUMBER}")
_MIN_BYTES = 12  # magic, footer length, magic
_UNREADABLE = (UserError, ValueError, NotImplementedError)
"""Arrow's errors are of the latter two kinds."""
_BLOCK_STEPS, _BLOCK_BYTES = 64, 4_000_000
_ADVANTAGE = ("advantage", "advantages")


def read_completions(
    root: Root,
    *,
    group_size: int | None,
    reward_names: Sequence[str],
    answers: Answers,
    evaluated: Collection[int] = (),
) -> tuple[Rollouts, Rollouts]:
    """Rollouts by step of the file name: those of training, and those of evaluations.

    `evaluated`: steps at which an evaluation was logged. TRL writes its rollouts over those of
    training. How many of a prompt there are is not known of them, so groups follow the prompts.
    """
    found: list[File] = []
    for file in root.matching(_NAME):
        if file.size < _MIN_BYTES:
            root.note("file_skipped", f"`{file.name}` is empty")
        else:
            found.append(file)
    files = _one_a_step(root, found)
    if files is None:
        return shelve(root, found, group_size, answers), shelve(root, (), None)
    if over := sorted(files.keys() & set(evaluated)):
        some = ", ".join(map(str, over[:5])) + (", ..." if len(over) > 5 else "")
        text = f"rollouts at evaluations (step {some}) are those of the evaluation, which TRL "
        root.note(EVALUATION, text + "writes over those of training: left out")
    apart = {step: files.pop(step) for step in over}
    return (
        _rollouts(root, files, _Completions(root, files, answers, group_size, reward_names)),
        _rollouts(root, apart, _Completions(root, apart, answers, None, reward_names)),
    )


def _one_a_step(root: Root, found: Sequence[File]) -> dict[int, File] | None:
    """Files by step, where they are named as TRL names them; None where that is not sure.

    Other numbers in a name, or rows of another step in most of the files that are looked into, are
    those of files that a rank or a worker wrote.
    """
    files: dict[int, File] = {}
    for file in found:
        if without_ranks(file.stem) != file.stem or not (match := _TRL_STEM.fullmatch(file.stem)):
            return None
        files[int(match[1])] = file
    ordered = sorted(files)
    looked_at = ordered[:: max(1, len(ordered) // 5)]
    heads = {step: first_rows(root, files[step], 1) for step in looked_at}
    other = [
        s for s, rows in heads.items() if (k := step_key(rows)) and step_number(rows[0][k]) != s
    ]
    return files if 2 * len(other) < len(looked_at) or not other else None


def _rollouts(root: Root, files: Mapping[int, File], reader: _Completions) -> Rollouts:
    answers = reader.answers
    return Rollouts(
        list(files),
        Repeats(list(files), reader.load).load,
        sources=lambda step: (root.source(files[step], ROLLOUTS),),
        answers=lambda: answers.sources,
    )


class _Completions:
    def __init__(
        self,
        root: Root,
        files: Mapping[int, File],
        answers: Answers,
        group_size: int | None,
        reward_names: Sequence[str],
    ) -> None:
        self._root = root
        self._files = files
        self.answers = answers
        self._group_size = group_size
        self._reward_names = reward_names
        self._once: dict[tuple[str, ...], list[int] | None] = {}
        """Which columns to keep, by the names of all; None for all of them."""
        self._chosen: tuple[object, list[str] | None] | None = None
        """The schema of the last file, and which columns of it are read."""

    def load(self, steps: Sequence[int]) -> Iterator[RolloutBatch]:
        """The batches of these steps; an empty one, with a note, for a file that cannot be read."""
        for block in self._blocks(steps):
            read = [(step, self._table(step)) for step in block]
            # Text columns become Python strings several times faster for many steps at once.
            for _, alike in groupby(read, key=lambda pair: getattr(pair[1], "schema", None)):
                yield from self._converted(list(alike))

    def _blocks(self, steps: Sequence[int]) -> Iterator[list[int]]:
        """Steps to read at a time: few enough for their texts to be small in memory.

        One at first, since often no more is taken.
        """
        block: list[int] = []
        size, most = 0, 1
        for step in steps:
            block.append(step)
            size += self._files[step].size
            if len(block) == most or size > _BLOCK_BYTES:
                yield block
                block, size, most = [], 0, min(2 * most, _BLOCK_STEPS)
        if block:
            yield block

    def _table(self, step: int) -> Any:
        """The table of a step's file, or the error that stands in its way."""
        file = self._files[step]
        try:
            digested = partial(self._root.source, file, ROLLOUTS)  # as it is read, not once more
            table, rows = first_part(file.path, file.name, self._columns, digested)
        except _UNREADABLE as error:
            return error
        names = tuple(table.schema.names)
        if "completion" not in names:
            return UserError(f"`{file.name}` has no column `completion`")
        if table.num_rows < rows:
            text = f"`{file.name}`: the first {table.num_rows:,} of {rows:,} rows were read"
            self._root.note("rows_cut", text)
        if names not in self._once:
            self._once[names] = self._first_of_each(file.name, names)
        kept = self._once[names]
        return table if kept is None else table.select(kept)

    def _columns(self, file: Any) -> list[str] | None:
        """Columns to read; most files of a run have the schema of the one before.

        Arrow writes it into the file as bytes: to make it of them each time takes longer.
        """
        schema = (file.metadata.metadata or {}).get(b"ARROW:schema") or file.schema_arrow
        if self._chosen is None or schema != self._chosen[0]:
            self._chosen = schema, _used(file.schema_arrow)
        return self._chosen[1]

    def _converted(self, read: Sequence[tuple[int, Any]]) -> list[RolloutBatch]:
        """Batches of steps whose tables have the same columns; empty ones for what is no table."""
        try:
            for _, table in read:
                if isinstance(table, Exception):
                    raise table
            return list(self._batches(read))
        except _UNREADABLE as error:
            if len(read) > 1:  # find the file that it is
                return [batch for one in read for batch in self._converted([one])]
            [(step, _)] = read
            self._root.note("file_skipped", f"`{self._files[step].name}`: {error}")
            return [RolloutBatch(step, (), (), np.empty(0, np.int64), {})]

    def _batches(self, read: Sequence[tuple[int, Any]]) -> Iterator[RolloutBatch]:
        import pyarrow as pa

        table = pa.concat_tables([table for _, table in read])
        names = set(table.column_names)
        completions = column_texts(table.column("completion"))
        prompts = column_texts(table.column("prompt")) if "prompt" in names else [""] * len(table)
        rewards = {name: _numbers(table, name) for name in self._rewards(table)}
        advantage = next((_numbers(table, n) for n in _ADVANTAGE if n in names), None)
        gold = self._gold(table, prompts)
        form = table.schema.field("prompt").type if "prompt" in names else None
        start = 0
        for step, part in read:
            rows = slice(start, start := start + len(part))
            asked, said = prompts[rows], completions[rows]
            if shortened := tidy(said) + tidy(asked):
                name = self._files[step].name
                self._root.note("text_cut", f"`{name}`: {shortened} texts shortened")
            group, source = group_rows(asked, self._group_size)
            yield RolloutBatch(
                step=step,
                prompts=asked,
                completions=said,
                group=group,
                group_source=source,
                rewards={name: values[rows] for name, values in rewards.items()},
                advantage=None if advantage is None else advantage[rows],
                gold=None if gold is None else gold[rows],
                messages=None if form is None else pa.types.is_list(form),
            )

    def _first_of_each(self, file: str, names: Sequence[str]) -> list[int] | None:
        """Columns without those whose name another has: Arrow finds neither by that name."""
        twice = repeated(names)
        if not twice:
            return None
        self._root.note("columns_twice", f"`{file}`: several columns {twice}; the first is read")
        return [i for i, column in enumerate(names) if names.index(column) == i]

    def _rewards(self, table: Any) -> list[str]:
        """Columns of reward functions: those that the metrics name, else all floating ones."""
        import pyarrow as pa

        numeric = [
            field.name
            for field in table.schema
            if _holds_scores(field.type) and field.name not in ("step", *_ADVANTAGE)
        ]
        # A reward that no row of the step got is stored as a column of nulls.
        nulls = [f.name for f in table.schema if pa.types.is_null(f.type)]
        whole = [f.name for f in table.schema if pa.types.is_integer(f.type)]
        logged = [n for n in table.column_names if n in self._reward_names]
        if not logged:
            return numeric
        extra = sorted(set(numeric) - set(logged))
        if extra:
            self._root.note("columns_left", f"not logged as rewards: {', '.join(extra)}")
        return [n for n in logged if n in {*numeric, *nulls, *whole}]

    def _gold(self, table: Any, prompts: Sequence[str]) -> list[str | None] | None:
        import pyarrow as pa

        for name in table.column_names:
            if name.lower() in GOLD and not pa.types.is_floating(table.schema.field(name).type):
                return [answer_text(value) for value in table.column(name).to_pylist()]
        return self.answers.of(prompts, _last_messages(table, prompts))


def _used(schema: Any) -> list[str] | None:
    """Columns that are read: texts that nobody asks for may be the largest part of a file.

    None for all of them. The step is that of the file's name.
    """
    import pyarrow as pa

    names = list(schema.names)
    if repeated(names):
        return None
    known = {"prompt", "completion", *GOLD}
    large = (pa.types.is_nested, pa.types.is_string, pa.types.is_large_string, pa.types.is_binary)
    used = [
        field.name
        for field in schema
        if field.name.lower() in known
        or field.name in _ADVANTAGE
        or not (field.name == "step" or any(kind(field.type) for kind in large))
    ]
    return None if len(used) == len(names) else used


def _holds_scores(kind: Any) -> bool:
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    fits = (pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)
    return any(fit(kind) for fit in fits)


def _numbers(table: Any, name: str) -> FloatArray:
    """A column as float64, NaN where a row has no value, or none that is a number."""
    import pyarrow as pa

    column = table.column(name)
    if pa.types.is_boolean(column.type):  # a judgement of right or wrong
        column = column.cast(pa.int8())
    try:
        return float_values(column)
    except (pa.ArrowException, ValueError, NotImplementedError):
        values = (number(value) for value in column.to_pylist())
        return np.array([np.nan if value is None else value for value in values], np.float64)


def _last_messages(table: Any, prompts: Sequence[str]) -> Sequence[str]:
    """The last message of each prompt, for chat prompts of several messages."""
    import pyarrow as pa

    if not any("\n" in prompt for prompt in prompts):
        return prompts
    if not pa.types.is_list(table.schema.field("prompt").type):
        return prompts
    values = table.column("prompt").to_pylist()
    return [
        str(value[-1].get("content") or "") if value and isinstance(value[-1], dict) else ""
        for value in values
    ]
