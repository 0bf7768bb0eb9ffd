"""TRL's `completions/completions_<step>.parquet`: one file a step, read when asked for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from firstbad.tools.errors import UserError
from firstbad.tools.evidence import Source
from firstbad.tools.paths import File, Root
from firstbad.tools.readers.answers import GOLD, Answers
from firstbad.tools.readers.arrow import first_part
from firstbad.tools.readers.grouping import group_rows
from firstbad.tools.readers.log import number
from firstbad.tools.readers.repeats import Repeats
from firstbad.tools.readers.rows import repeated
from firstbad.tools.readers.texts import answer_text, column_texts, tidy
from firstbad.tools.run import FloatArray, RolloutBatch, Rollouts

_NAME = r"(?:.*/)?completions/[^/]*?(\d+)\.parquet"
_MIN_BYTES = 12  # magic, footer length, magic
_ADVANTAGE = ("advantage", "advantages")


def read_completions(
    root: Root,
    *,
    group_size: int | None,
    reward_names: Sequence[str],
    answers: Answers,
) -> Rollouts:
    """Rollouts by step of the file name."""
    files: dict[int, File] = {}
    for file in root.matching(_NAME):
        if file.size < _MIN_BYTES:
            root.note("file_skipped", f"`{file.name}` is empty")
        elif match := re.fullmatch(_NAME, file.name):
            files[int(match[1])] = file
    reader = _Completions(root, files, answers, group_size, reward_names)
    folders = sorted({file.folder for file in files.values()})
    sources = [Source(kind="rollouts", ref=f"{folder}/") for folder in folders]
    return Rollouts(list(files), Repeats(list(files), reader.load).load, sources=sources)


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
        self._answers = answers
        self._group_size = group_size
        self._reward_names = reward_names

    def load(self, step: int) -> RolloutBatch:
        """The batch of one step; empty, with a note, when its file cannot be read."""
        file = self._files[step]
        try:
            table, rows = first_part(file.path, file.name)
            if table.num_rows < rows:
                text = f"`{file.name}`: the first {table.num_rows:,} of {rows:,} rows were read"
                self._root.note("rows_cut", text)
            return self._batch(step, table)
        except (UserError, ValueError, NotImplementedError) as error:  # Arrow's are the latter two
            self._root.note("file_skipped", f"`{file.name}`: {error}")
            return RolloutBatch(step, (), (), np.empty(0, np.int64), {})

    def _batch(self, step: int, table: Any) -> RolloutBatch:
        table = self._once(step, table)
        names = set(table.column_names)
        if "completion" not in names:
            raise UserError(f"`{self._files[step].name}` has no column `completion`")
        completions = column_texts(table.column("completion"))
        rows = len(completions)
        prompts = column_texts(table.column("prompt")) if "prompt" in names else [""] * rows
        if shortened := tidy(completions) + tidy(prompts):
            self._root.note("text_cut", f"`{self._files[step].name}`: {shortened} texts shortened")
        group, source = group_rows(prompts, self._group_size)
        return RolloutBatch(
            step=step,
            prompts=prompts,
            completions=completions,
            group=group,
            group_source=source,
            rewards={name: _numbers(table, name) for name in self._rewards(table)},
            advantage=next((_numbers(table, n) for n in _ADVANTAGE if n in names), None),
            gold=self._gold(table, prompts),
        )

    def _once(self, step: int, table: Any) -> Any:
        """Without columns whose name another one has: Arrow finds neither by that name."""
        twice = repeated(table.column_names)
        if not twice:
            return table
        name = self._files[step].name
        self._root.note("columns_twice", f"`{name}`: several columns {twice}; the first is read")
        names = table.column_names
        return table.select([i for i, name in enumerate(names) if names.index(name) == i])

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
        return self._answers.of(prompts, _last_messages(table, prompts))


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
        return np.asarray(column.cast(pa.float64()).to_numpy(), np.float64)
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
