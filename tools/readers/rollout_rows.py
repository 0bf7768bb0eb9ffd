"""Rows with completion text as a batch of rollouts, whatever their columns are called."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np

from firstbad.tools.paths import Root
from firstbad.tools.readers.answers import GOLD, PROMPT
from firstbad.tools.readers.grouping import GroupSource, group_rows, numbered
from firstbad.tools.readers.log import number
from firstbad.tools.readers.rows import Row
from firstbad.tools.readers.steps import STEP_KEYS
from firstbad.tools.readers.texts import answer_text, as_text, canonical_text, tidy
from firstbad.tools.run import FloatArray, IntArray, RolloutBatch

COMPLETION = (
    "completion", "completions", "output", "response", "responses", "generated_text",
    "generation", "output_response", "content",
)  # fmt: skip
PROMPTS = ("prompt", "prompts", "input_prompt", *PROMPT)
_GROUP = ("group", "group_id", "group_index", "prompt_id", "problem_id", "uid")
_ADVANTAGE = ("advantage", "advantages")
_TOTAL = ("reward", "total_reward", "score", "scores", "rewards")
_FINISH = ("finish_reason", "stop_reason", "finish")
_TOKENS = ("n_tokens", "num_tokens", "completion_tokens", "completion_length", "response_length")
_SAMPLE = ("sample", "sample_id")
_VERSION = ("policy_version", "weight_version")
_PART = re.compile(r"reward|score|correct|format|acc\b|accuracy|penalty|bonus", re.I)
_NO_PART = re.compile(
    r"logp|log_p|logits?$|prob|entropy|kl\b|time|latency|length|tokens?$|temperature|weight|epoch",
    re.I,
)
_UID = re.compile(r"(.+)_\d+_\d+")  # verl: <prompt uid>_<session>_<index>


def holds_rollouts(rows: Sequence[Row]) -> bool:
    """Whether rows have completion texts rather than metrics."""
    for row in rows:
        row = _turns(row)
        name = _name(row, COMPLETION)
        if name is None or row[name] is None:
            continue
        value = row[name]
        is_text = isinstance(value, list) or (isinstance(value, str) and number(value) is None)
        # An answer may be a bare number: then a prompt beside it tells.
        if is_text or (isinstance(value, str) and _name(row, PROMPTS)):
            return True
    return False


def batch_of(root: Root, step: int, rows: Sequence[Row], group_size: int | None) -> RolloutBatch:
    """The batch of one step's rows."""
    rows = [_turns(row) for row in rows]
    names = {key: None for row in rows for key in row}
    columns = _Columns(rows, names)
    completions = [canonical_text(value) for value in columns.of(COMPLETION) or []]
    asked = columns.of(PROMPTS) or [""] * len(rows)
    prompts = [canonical_text(value) for value in asked]
    if shortened := tidy(completions) + tidy(prompts):
        root.note("text_cut", f"step {step}: {shortened} texts shortened")
    group, source = _groups(columns.of(_GROUP), prompts, group_size)
    gold = columns.of(GOLD)
    finish = columns.of(_FINISH)
    advantage = columns.numbers(_ADVANTAGE)
    n_tokens = columns.numbers(_TOKENS)
    parts, total = _rewards(columns, names)
    named = columns.of(_SAMPLE)
    about = {name: columns.of((name,)) for name in ("prompt_id", "seed")}
    prompt_ids, seeds = about["prompt_id"], about["seed"]
    rank, version = columns.numbers(("rank",)), columns.numbers(_VERSION)
    errors, latency = columns.of(("errors",)), columns.of(("latency_seconds",))
    left = sorted(set(names) - columns.used - set(parts) - set(STEP_KEYS))
    if left:
        root.note("columns_left", f"columns of rollouts not used: {', '.join(left[:20])}")
    return RolloutBatch(
        step=step,
        prompts=prompts,
        completions=completions,
        group=group,
        group_source=source,
        rewards=parts,
        total=total,
        advantage=advantage,
        gold=[answer_text(value) for value in gold] if gold else None,
        finish=[v if isinstance(v, str) else None for v in finish] if finish else None,
        n_tokens=_whole(n_tokens),
        n_sampled=_whole(columns.numbers(("n_sampled",))),
        sample=None if named is None else [as_text(value) for value in named],
        prompt_id=None if prompt_ids is None else [as_text(value) for value in prompt_ids],
        policy_version=version if version is not None and np.isfinite(version).any() else None,
        seed=None if seeds is None else [None if v is None else as_text(v) for v in seeds],
        rank=_whole(rank),
        errors={
            part: [None if value is None else as_text(value, 500) for value in values]
            for part, values in _by_part(errors).items()
        },
        latency_seconds={part: _floats(values) for part, values in _by_part(latency).items()},
        # A text may be what the template made of messages, so that only lists tell.
        messages=True if rows and all(isinstance(value, list) for value in asked) else None,
    )


def _by_part(cells: Sequence[object] | None) -> dict[str, list[object]]:
    """A column of objects, as a list for each of their keys."""
    rows = [cell if isinstance(cell, dict) else {} for cell in cells or ()]
    parts = {str(key): None for row in rows for key in row}
    return {part: [row.get(part) for row in rows] for part in parts}


def _turns(row: Row) -> Row:
    """A scored or stepped chat as prompt and completion: its last turn, if that is the assistant's.

    A chat without score or step is a row of a data set.
    """
    name = _name(row, ("messages", "conversation"))
    turns = None if name is None else row[name]
    if not isinstance(turns, list) or not turns or _name(row, COMPLETION):
        return row
    last = turns[-1]
    if not isinstance(last, dict) or last.get("role") != "assistant":
        return row
    if _name(row, (*_TOTAL, *_ADVANTAGE, *map(str.lower, STEP_KEYS))) is None:
        return row
    rest = {key: value for key, value in row.items() if key != name}
    before = {} if _name(row, ("prompt", "prompts")) else {"prompt": turns[:-1]}
    return {**rest, **before, "completion": last.get("content")}


class _Columns:
    def __init__(self, rows: Sequence[Row], names: Iterable[str]) -> None:
        self._rows = rows
        self._by_lower = {name.lower(): name for name in names}
        self.used: set[str] = set()

    def of(self, spellings: Sequence[str]) -> list[object] | None:
        """The first of these columns that is there and not yet used."""
        for spelling in spellings:
            name = self._by_lower.get(spelling)
            if name is not None and name not in self.used:
                self.used.add(name)
                return self.raw(name)
        return None

    def raw(self, name: str) -> list[object]:
        return [row.get(name) for row in self._rows]

    def numbers(self, spellings: Sequence[str]) -> FloatArray | None:
        values = self.of(spellings)
        return None if values is None else _floats(values)


def _rewards(
    columns: _Columns, names: dict[str, None]
) -> tuple[dict[str, FloatArray], FloatArray | None]:
    """Reward parts and total. A dict of rewards is taken apart."""
    parts: dict[str, FloatArray] = {}
    for name in [name for name in names if name.lower() in _TOTAL]:
        dicts = [value if isinstance(value, dict) else {} for value in columns.raw(name)]
        if any(dicts):
            columns.used.add(name)
            for key in {key: None for one in dicts for key in one}:
                parts[str(key)] = _floats([one.get(key) for one in dicts])
    total = columns.of(_TOTAL)
    for name in names:
        if name in columns.used or name in STEP_KEYS or _NO_PART.search(name):
            continue
        values = columns.raw(name)
        if _is_score(name, values):
            parts[name.removeprefix("rewards/")] = _floats(values)
            columns.used.add(name)
    return parts, None if total is None else _floats(total)


def _is_score(name: str, values: Sequence[object]) -> bool:
    """A floating column, or one of whole numbers that is called a score."""
    if values and set(map(type, values)) == {float}:
        return True
    found = [value for value in values if value is not None and value != ""]
    if any(isinstance(value, (list, dict)) or number(value) is None for value in found):
        return False
    if _PART.search(name):
        return True
    return bool(found) and all(
        isinstance(v, float) or (isinstance(v, str) and re.search(r"[.eE]|nan", v)) for v in found
    )


def _floats(values: Sequence[object]) -> FloatArray:
    if set(map(type, values)) <= {float}:  # nearly always
        return np.array(values, np.float64)
    found = (number(value) for value in values)
    return np.array([np.nan if value is None else value for value in found], np.float64)


def _whole(values: FloatArray | None) -> IntArray | None:
    if values is None or not np.all(np.isfinite(values)):
        return None
    return values.astype(np.int64)


def _groups(
    keys: Sequence[object] | None, prompts: Sequence[str], size: int | None
) -> tuple[IntArray, GroupSource]:
    """By the source's own key; a key that is new in each row is no key of groups."""
    if keys and all(isinstance(key, (str, int, float)) for key in keys):
        texts = [str(key) for key in keys]
        if all(_UID.fullmatch(text) for text in texts):
            texts = [text.rsplit("_", 2)[0] for text in texts]
        if len(set(texts)) < len(texts) or len(texts) == 1:
            return numbered(texts), "key"
    return group_rows(prompts, size)


@lru_cache(maxsize=64)
def _by_lower(names: tuple[str, ...]) -> dict[str, str]:
    """Columns by their names in lower case; one row is like the next."""
    return {name.lower(): name for name in names}


def _name(row: Row, spellings: Sequence[str]) -> str | None:
    by_lower = _by_lower(tuple(row))
    return next((by_lower[s] for s in spellings if s in by_lower), None)
