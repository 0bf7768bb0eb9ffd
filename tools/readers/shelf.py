"""Rollout rows of one or many table files, found by step and read when asked for."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from firstbad.tools.errors import UserError
from firstbad.tools.paths import File, Root
from firstbad.tools.readers.answers import Answers
from firstbad.tools.readers.arrow import (
    MAX_ROWS,
    column_values,
    open_parquet,
    portions,
    up_to,
)
from firstbad.tools.readers.jsonish import decode, loads
from firstbad.tools.readers.log import step_number
from firstbad.tools.readers.repeats import Repeats
from firstbad.tools.readers.rollout_rows import batch_of
from firstbad.tools.readers.rows import Row, first_rows, read_rows, rollout_rows
from firstbad.tools.readers.step_names import counted_above, named_for_steps, steps_of_names
from firstbad.tools.readers.steps import step_key
from firstbad.tools.run import RolloutBatch, Rollouts

Fetch = Callable[[], Iterable[Row]]


def shelve(
    root: Root,
    files: Sequence[File],
    group_size: int | None,
    answers: Answers | None = None,
) -> Rollouts:
    """Rollouts of these files; rows of one step may lie in several."""
    of_step: dict[int, list[tuple[File, Fetch]]] = defaultdict(list)
    for siblings in _siblings(files):
        by_name = _all_by_name(root, siblings)
        lost: list[File] = []
        for file in siblings:
            try:
                steps = by_name[file] if by_name else _by_column(root, file, siblings)
            except UserError as error:
                root.note("file_skipped", str(error))
                continue
            for step, fetch in steps.items():
                of_step[step].append((file, fetch))
            if not steps and step_key(first_rows(root, file)) is None:
                lost.append(file)
        if lost:
            more = f" and {len(lost) - 1} more like it" if len(lost) > 1 else ""
            text = "no step in their rows, and which number of their names is it can't be told"
            root.note("file_skipped", f"`{lost[0].name}`{more}: {text}; left out")

    shelf = _told_apart(root, of_step)

    def load(step: int) -> RolloutBatch:
        rows: list[Row] = []
        for _, fetch in shelf[step]:
            try:
                rows.extend(fetch())
            except (UserError, OSError, ValueError) as error:
                root.note("file_skipped", f"step {step}: {error}")
        if len(rows) > MAX_ROWS:
            root.note(
                "rows_cut", f"step {step}: the first {MAX_ROWS:,} of {len(rows):,} rows are used"
            )
            del rows[MAX_ROWS:]
        batch = batch_of(root, step, rows, group_size)
        return batch if answers is None else answers.beside(batch)

    def load_all(steps: Sequence[int]) -> Iterator[RolloutBatch]:
        return map(load, steps)

    return Rollouts(
        list(shelf),
        Repeats(list(shelf), load_all).load,
        sources=lambda step: [root.source(file, "rollouts") for file, _ in shelf[step]],
        answers=lambda: () if answers is None else answers.sources,
    )


def _told_apart(
    root: Root, of_step: dict[int, list[tuple[File, Fetch]]]
) -> dict[int, list[tuple[File, Fetch]]]:
    """Without the files of attempts that were redone, and of epochs that count their own steps."""
    above = {f: counted_above(f.name) for found in of_step.values() for f, _ in found}
    kept, redone = dict[int, list[tuple[File, Fetch]]](), list[int]()
    for step, found in of_step.items():
        last = max(above[f][1] for f, _ in found)
        kept[step] = [(f, fetch) for f, fetch in found if above[f][1] == last]
        if len(kept[step]) < len(found):
            redone.append(step)
    if redone:
        root.note(
            "file_skipped",
            f"{_steps(redone)} in the files of several attempts: the rows of the last one are used",
        )
    again = [s for s, found in kept.items() if len({above[f][0] for f, _ in found}) > 1]
    # A step may lie across the end of an epoch; one that comes again besides is another step.
    if len(again) < max(2, len({anew for anew, _ in above.values()})):
        return kept
    files = [f for f, (anew, _) in above.items() if anew]
    root.note(
        "file_skipped",
        f"`{files[0].name}` and {len(files) - 1} more like it: {_steps(again)} in several of the "
        "epochs, phases or runs of their names, which count steps of their own; left out",
    )
    rest = {s: [one for one in found if not above[one[0]][0]] for s, found in kept.items()}
    return {s: found for s, found in rest.items() if found}


def _steps(steps: Sequence[int]) -> str:
    if len(steps) == 1:
        return f"step {steps[0]} is"
    return f"{len(steps)} steps from {min(steps)} to {max(steps)} are"


def _siblings(files: Sequence[File]) -> list[list[File]]:
    """Files whose names differ only in numbers."""
    groups: dict[tuple[str, str], list[File]] = defaultdict(list)
    for file in files:
        groups[file.folder, re.sub(r"\d+", "#", file.path.name)].append(file)
    return list(groups.values())


def _all_by_name(root: Root, files: Sequence[File]) -> dict[File, dict[int, Fetch]]:
    """Steps from the names, if no file's rows say otherwise (a number may be that of a rank)."""
    found: dict[File, dict[int, Fetch]] = {}
    for file, named in zip(files, steps_of_names([f.stem for f in files]), strict=True):
        whole = len(files) < 4 or file in (files[0], files[-1])
        head = first_rows(root, file, 200 if whole else 1)
        key = step_key(head)
        if named is None or not named_for_steps(file.stem):
            return {}
        if key and any(step_number(row.get(key)) != named for row in head):
            return {}
        found[file] = {named: partial(rollout_rows, root, file)}
    return found


def _by_column(root: Root, file: File, siblings: Sequence[File]) -> dict[int, Fetch]:
    """Steps from the step column of a file; none where it is one of several and has no step."""
    key = step_key(first_rows(root, file))
    if key is None:
        if len(siblings) > 1 and named_for_steps(file.stem):
            return {}
        root.note("step_unknown", f"`{file.name}` has no step: its rollouts are shown as step 0")
        return {0: partial(rollout_rows, root, file)}
    if file.suffix == ".parquet":
        return _parquet_index(file, key)
    if file.suffix in (".jsonl", ".ndjson") and (index := _jsonl_index(root, file, key)):
        return index
    by_step: dict[int, list[Row]] = defaultdict(list)
    for row in read_rows(root, file):
        if (step := step_number(row.get(key))) is not None:
            by_step[step].append(row)
    return {step: partial(list, rows) for step, rows in by_step.items()}


def _jsonl_index(root: Root, file: File, key: str) -> dict[int, Fetch]:
    """Places of each step's lines, so that only one step is in memory at a time.

    Empty when the file cannot be taken line by line: a line with a whole table, another encoding.
    """
    places: dict[int, list[tuple[int, int]]] = defaultdict(list)
    skipped = at = 0
    last_bad = False
    with file.path.open("rb") as stream:
        if b"\0" in stream.read(64):  # UTF-16: its bytes cannot be cut into lines
            return {}
        stream.seek(0)
        for line in stream:
            row = _loads(line)
            step = step_number(row.get(key)) if row else None
            if step is not None:
                places[step].append((at, len(line)))
            elif line.strip():
                skipped += 1
            last_bad = step is None and bool(line.strip())
            at += len(line)
    if not places:
        return {}
    if last_bad:
        root.note("line_cut", f"`{file.name}`: the last line is cut off and was left out")
        skipped -= 1
    if skipped:
        root.note("lines_skipped", f"`{file.name}`: {skipped} lines have no step or are no JSON")

    def fetch(step: int) -> list[Row]:
        with file.path.open("rb") as stream:
            rows = []
            for start, length in places[step]:
                stream.seek(start)
                rows.append(_loads(stream.read(length)) or {})
            return rows

    return {step: partial(fetch, step) for step in places}


def _loads(line: bytes) -> Row | None:
    try:
        value = loads(decode(line)[0]) if line.strip() else None
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _parquet_index(file: File, key: str) -> dict[int, Fetch]:
    """Row groups of each step; the rows of one step are read from them."""
    opened = open_parquet(file.path, file.name)
    groups: dict[int, set[int]] = defaultdict(set)
    for group in range(opened.num_row_groups):
        for batch in portions(opened, [key], [group]):
            for value in batch.column(0).unique().to_pylist():
                if (step := step_number(value)) is not None:
                    groups[step].add(group)

    def of_step(step: int) -> Iterator[Any]:
        import pyarrow as pa
        import pyarrow.compute as pc

        for batch in portions(opened, None, sorted(groups[step])):
            column = batch.column(key)
            if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
                column = pa.array([step_number(value) for value in column.to_pylist()], pa.int64())
            yield batch.filter(pc.equal(column, step))

    def fetch(step: int) -> list[Row]:
        table = up_to(MAX_ROWS + 1, opened, of_step(step))
        names = table.column_names
        columns = [column_values(column) for column in table.columns]
        return [dict(zip(names, cells, strict=True)) for cells in zip(*columns, strict=True)]

    return {step: partial(fetch, step) for step in groups}
