"""Table files as rows: CSV, JSON lines, JSON and Parquet."""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from firstbad.tools.errors import UserError
from firstbad.tools.paths import File, Root
from firstbad.tools.readers.arrow import (
    column_values,
    first_part,
    open_parquet,
    portions,
    read_parquet,
)
from firstbad.tools.readers.jsonish import decode, flatten, lines, parse

Row = dict[str, object]
SUFFIXES: Mapping[str, tuple[str, ...]] = {
    "csv": (".csv", ".tsv"),
    "jsonl": (".jsonl", ".ndjson", ".json"),
    "parquet": (".parquet",),
}
ALL_SUFFIXES = tuple(itertools.chain(*SUFFIXES.values()))
# Files of these names hold settings, state or tokens, never rows.
NOT_TABLES = re.compile(
    r"(^|/)(trainer_state|args|training_args|train_args|run|certificate|.*config|tokenizer|vocab|"
    r"special_tokens_map|added_tokens|.*\.index|firstbad)\.json$|"
    r"(^|/)(checkpoint-\d+|tokenizer|wandb)/|(^|/)completions/[^/]*\d\.parquet$"
)
_MAX_CELL = 2**31 - 1
_HEAD_BYTES = 64 * 2**20


def read_rows(root: Root, file: File) -> Iterable[Row]:
    """All rows of a table file; what was repaired or left out is noted.

    Raises:
        UserError: not readable, or no table.
    """
    if file.suffix == ".parquet":
        return _parquet_rows(read_parquet(file.path, file.name))
    return _text_rows(root, file, root.read(file))


def rollout_rows(root: Root, file: File) -> Iterable[Row]:
    """The rows of a file of rollouts of one step, not more than any step has.

    Raises:
        UserError: not readable, or no table.
    """
    if file.suffix != ".parquet":
        return read_rows(root, file)
    table, rows = first_part(file.path, file.name)
    if table.num_rows < rows:
        cut = f"the first {table.num_rows:,} of {rows:,} rows were read"
        root.note("rows_cut", f"`{file.name}`: {cut}")
    return _parquet_rows(table)


def first_rows(root: Root, file: File, count: int = 50) -> list[Row]:
    """The first few rows, to see what a file holds; empty when it cannot be read."""
    try:
        if file.suffix == ".parquet":
            opened = open_parquet(file.path, file.name)
            batch = next(portions(opened), None)
            return [] if batch is None else list(_parquet_rows(batch[:count]))
        if file.suffix == ".json":
            return list(itertools.islice(read_rows(Root(root.path), file), count))
        with file.path.open("rb") as stream:
            data = stream.readline(_HEAD_BYTES)
            if count > 1:
                data += b"".join(stream.readlines(2**16))
        silent = Root(root.path)  # what is wrong with the file is noted when it is read as a whole
        rows = list(itertools.islice(_text_rows(silent, file, data), count))
        if not rows and file.suffix in SUFFIXES["csv"]:  # the first row has cells of many lines
            rows = list(itertools.islice(read_rows(silent, file), count))
        return rows
    except (UserError, OSError, ValueError):
        return []


def _text_rows(root: Root, file: File, data: bytes) -> Iterable[Row]:
    text, encoding = decode(data)
    if not text.strip("\0 \r\n\t"):
        raise UserError(f"`{file.name}` is empty")
    if encoding:
        root.note("encoding", f"`{file.name}` is not UTF-8; read as {encoding}")
    if file.suffix in SUFFIXES["csv"]:
        return _csv_rows(root, file, text)
    if file.suffix == ".json":
        return _json_rows(file, data)
    return _json_lines(root, file, text)


def _json_lines(root: Root, file: File, text: str) -> Iterator[Row]:
    bad: list[int] = []
    number = 0
    for number, row in lines(text):
        if row is None:
            bad.append(number)
        else:
            yield from _columns_as_rows(row)
    if bad and bad[-1] == number:
        root.note("line_cut", f"`{file.name}`: the last line is cut off and was left out")
        bad.pop()
    if bad:
        text = f"{len(bad)} lines are no JSON objects, the first is line {bad[0]}"
        root.note("lines_skipped", f"`{file.name}`: {text}")


def _json_rows(file: File, data: bytes) -> Iterator[Row]:
    """An array of objects, an object with such an array, or an object of columns."""
    value = parse(data, file.name)
    if isinstance(value, dict):
        if {"columns", "data"} <= value.keys():  # a W&B table
            names = [str(name) for name in value["columns"]]
            value = [dict(zip(names, cells, strict=False)) for cells in value["data"]]
        elif isinstance(value.get("log_history"), list):
            value = value["log_history"]
        elif rows := [v for v in value.values() if isinstance(v, list) and v and _objects(v)]:
            value = rows[0]
        else:
            value = list(_columns_as_rows(value))
    if not isinstance(value, list):
        raise UserError(f"`{file.name}` holds no table")
    return (row for row in value if isinstance(row, dict))


def _objects(values: list[object]) -> bool:
    return all(isinstance(value, dict) for value in values)


def _columns_as_rows(row: Row) -> Iterable[Row]:
    """A row whose every text is a list of texts is a whole table, a column a key."""
    if list not in map(type, row.values()):
        return (row,)
    lists = {key: value for key, value in row.items() if isinstance(value, list)}
    lengths = {len(value) for value in lists.values()}
    is_table = (
        len(lists) >= 2
        and len(lengths) == 1
        and not any(isinstance(v, dict) for cells in lists.values() for v in cells[:1])
        and (len(lists) == len(row) or {"completion", "completions", "responses"} & lists.keys())
    )
    if not is_table:
        return (row,)
    length = lengths.pop()
    rest = {key: value for key, value in row.items() if key not in lists}
    return [{**rest, **{key: cells[i] for key, cells in lists.items()}} for i in range(length)]


def _csv_rows(root: Root, file: File, text: str) -> Iterator[Row]:
    text = text.replace("\0", "")
    if "\n" not in text:
        text = text.replace("\r", "\n")
    header_line = text.lstrip("\r\n").split("\n", 1)[0]
    delimiter = max(",;\t|", key=header_line.count)
    before = csv.field_size_limit(_MAX_CELL)
    try:
        reader = csv.reader(io.StringIO(text), delimiter=delimiter, skipinitialspace=True)
        cells = [row for row in reader if row]
    except csv.Error as error:
        raise UserError(f"`{file.name}` is no CSV file: {error}") from None
    finally:
        csv.field_size_limit(before)
    header = [name.strip() for name in cells[0]]
    if all(_is_number(name) for name in header):
        raise UserError(f"`{file.name}` has no header line")
    if twice := repeated(header):
        root.note("columns_twice", f"`{file.name}`: several columns {twice}; the first is read")
    width = len(header)
    if len(cells[-1]) < width and len(cells) > 1:
        cells.pop()
        root.note("line_cut", f"`{file.name}`: the last line is cut off and was left out")
    ragged = sum(len(row) != width for row in cells)
    if ragged:
        root.note("lines_ragged", f"`{file.name}`: {ragged} lines have other than {width} cells")
    if twice:  # of pairs with one key a dict keeps the last
        return (dict([*zip(header, row, strict=False)][::-1]) for row in cells[1:])
    return (dict(zip(header, row, strict=False)) for row in cells[1:])


def repeated(names: Iterable[str]) -> str:
    """Names that stand more than once, listed; empty when there are none."""
    counts = Counter(names)
    return ", ".join(f"`{name}`" for name, count in counts.items() if count > 1)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _parquet_rows(table: object) -> Iterator[Row]:
    names = table.schema.names  # type: ignore[attr-defined]
    columns = [column_values(column) for column in table.columns]  # type: ignore[attr-defined]
    if repeated(names):  # the first of a name counts
        names, columns = names[::-1], columns[::-1]
    return (dict(zip(names, cells, strict=True)) for cells in zip(*columns, strict=True))


def flat(row: Row) -> Row:
    """A metrics row without nesting; verl keeps its metrics under `data`."""
    if dict in map(type, row.values()):
        data = row.get("data")
        if isinstance(data, dict) and len(row) <= 3:
            row = {**data, **{key: value for key, value in row.items() if key != "data"}}
        return flatten(row)
    return row
