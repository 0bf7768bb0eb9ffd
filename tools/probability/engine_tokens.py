"""Token ids of the engine against those of the trainer: prompt, border, completion."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Table
from firstbad.tools.numbers import number, percent
from firstbad.tools.probability.sides import samples_of
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import PADDING, BoolArray, Capture, Run

Ids = tuple[int, ...]
Edits = tuple[tuple[Ids, Ids], ...]
Where = Literal["prompt", "completion", "end"]
LOOKED_AT = 400
"""Prompts that differ and are compared token by token."""
LONGER = 32
"""Tokens that the engine's prompt is looked for beyond the trainer's, where answers differ too."""
LONGEST = 4000
"""Prompt tokens that are compared: beyond, only whether they are equal is known."""
ALIKE = 0.8
"""Share of the differing rows that an edit must stand in to count as one of the template."""
SHOWN = 12


class EngineTokens(Dated):
    """Rows by whether both sides had the same ids; the onset is the first step with other ones."""

    n_rows: int
    share_differs: float
    """In the prompt or the answer."""
    share_end_differs: float
    """One side alone has a token more, or another one, at the very end: a stop token that was put
    or taken away. Not counted in `share_differs`."""
    share_prompt_differs: float
    share_completion_differs: float
    """Prompts are equal there and the answer is not: text that was tokenised again."""
    share_by_template: float | None
    """Of the rows whose prompts differ: those whose edits stand in most of the others as well, so
    that they are the template's or special tokens. None where no prompt differs."""
    share_by_content: float | None
    """... those with an edit of their own: other words in the prompt."""
    share_first_doubled: float
    """Rows in which one side begins with its first token twice and the other does not."""
    share_same_text: float | None
    """Of the rows that differ: those whose ids spell the same text. None without a tokenizer."""
    differs_since: float | None
    """`share_differs` from the onset on; None, like the next ones, where none differs."""
    prompt_differs_since: float | None
    completion_differs_since: float | None
    first_doubled_since: float | None
    edit_tokens: float | None
    """Mean number of prompt tokens that one side lacks or has others for."""


@dataclass(frozen=True)
class _Row:
    step: int
    ours: Ids
    theirs: Ids
    prompt: int
    """Tokens of the trainer's prompt."""
    where: Where


@tool
def compare_engine_tokens(run: Run) -> Measured[EngineTokens]:
    """Token ids that the engine read and wrote against those that the trainer scores.

    An edit that is the same in most prompts is the template's, or a special token such as a doubled
    begin of text; one that differs from prompt to prompt is content that one side did not see.

    Cannot tell: inputs that are no tokens, such as pixels.
    """
    if not any("engine_token_id" in c.arrays for c in samples_of(run)):
        raise NoData("no captures with the token ids of the engine")
    rows: list[_Row] = []
    total: dict[int, int] = {}
    for capture in run.captures:
        if (pairs := _pairs(capture)) is not None:
            total[capture.step] = len(pairs)
            rows += [r for p in pairs if (r := _differs(capture.step, *p)) is not None]
    n = sum(total.values())
    if not n:
        raise NoData("no captures with the token ids of the engine")
    ends = [r for r in rows if r.where == "end"]
    rows = [r for r in rows if r.where != "end"]
    bad = {r.step for r in rows}
    steps = list(total)
    first = next((i for i, s in enumerate(steps) if s in bad), None)
    of_prompt = [r for r in rows if r.where == "prompt"][:LOOKED_AT]
    edits = [_edits(r) for r in of_prompt]
    template = _template(edits)
    texts = run.vocabulary.texts if run.vocabulary else None
    same = None
    if texts is not None and rows:
        same = sum(_text(r.ours, texts) == _text(r.theirs, texts) for r in rows) / len(rows)
    n_since = None if first is None else sum(total[s] for s in steps[first:])

    def since(count: int) -> float | None:
        return None if n_since is None else _r(count / n_since)

    metrics = EngineTokens(
        n_rows=n,
        share_differs=_r(len(rows) / n),
        share_end_differs=_r(len(ends) / n),
        share_prompt_differs=_r(sum(r.where == "prompt" for r in rows) / n),
        share_completion_differs=_r(sum(r.where == "completion" for r in rows) / n),
        share_by_template=_r(np.mean(template)) if of_prompt else None,
        share_by_content=_r(1 - np.mean(template)) if of_prompt else None,
        share_first_doubled=_r(sum(_doubled(r) for r in rows) / n),
        differs_since=since(len(rows)),
        prompt_differs_since=since(sum(r.where == "prompt" for r in rows)),
        completion_differs_since=since(sum(r.where == "completion" for r in rows)),
        first_doubled_since=since(sum(_doubled(r) for r in rows)),
        share_same_text=None if same is None else _r(same),
        edit_tokens=(
            _r(np.mean([sum(max(len(a), len(b)) for a, b in row) for row in edits]))
            if edits
            else None
        ),
        first_bad_step=None if first is None else steps[first],
        last_good_step=None if not first else steps[first - 1],
        from_start=first == 0,
        sampled=True,
    )
    return Measured(
        metrics,
        f"{percent(metrics.share_differs)} of {number(n)} captured rows have other token ids in "
        f"the engine than in the trainer ({percent(metrics.share_prompt_differs)} in the prompt)",
        tables=(_table(rows, texts or {}),) if rows else (),
        window=(steps[0], steps[-1]),
        signal="token ids of engine and trainer",
    )


def _pairs(capture: Capture) -> list[tuple[Ids, Ids, Ids]] | None:
    """Prompt and answer of the trainer, and all that the engine had, of each row."""
    engine, ids = capture.arrays.get("engine_token_id"), capture.arrays.get("token_id")
    prompt, mask = capture.arrays.get("prompt_token_id"), capture.mask("prompt_mask")
    source = capture.arrays.get("source")
    if engine is None or ids is None or len(engine) != len(ids) or source is None:
        return None
    made = np.asarray(source != PADDING)
    before = np.zeros((len(ids), 0), np.int64) if prompt is None or mask is None else prompt
    shown: BoolArray = np.zeros(before.shape, bool) if mask is None else mask
    had = np.asarray(engine).astype(np.int64) >= 0
    return [
        (_ids(before[i], shown[i]), _ids(ids[i], made[i]), _ids(engine[i], had[i]))
        for i in range(len(ids))
    ]


def _ids(values: np.ndarray, use: BoolArray) -> Ids:
    return tuple(np.asarray(values)[use].astype(int).tolist())


def _differs(step: int, asked: Ids, answer: Ids, theirs: Ids) -> _Row | None:
    """The row, where both sides have other ids; some engines write down the answer alone."""
    ours = asked + answer
    if not theirs or theirs in (ours, answer):
        return None
    same_answer = bool(answer) and theirs[-len(answer) :] == answer
    where: Where = "prompt" if same_answer or theirs[: len(asked)] != asked else "completion"
    if ours[:-1] in (theirs, theirs[:-1]) or ours == theirs[:-1]:
        where = "end"
    return _Row(step, ours, theirs, len(asked), where)


def _edits(row: _Row) -> Edits:
    """Of the prompt: ids of the trainer, and ids of the engine in their place."""
    ours, theirs, asked = row.ours, row.theirs, row.prompt
    same = 0  # what both answers share at the end is no part of the prompts
    while same < min(len(ours) - asked, len(theirs)) and ours[-1 - same] == theirs[-1 - same]:
        same += 1
    whole = same == len(ours) - asked
    given = theirs[: len(theirs) - same] if whole else theirs[: asked + LONGER]
    if max(asked, len(given)) > LONGEST:
        return ((ours[:asked], given),)
    codes = SequenceMatcher(None, ours[:asked], given, autojunk=False).get_opcodes()
    return tuple((ours[a:b], given[c:d]) for kind, a, b, c, d in codes if kind != "equal")


def _template(rows: list[Edits]) -> list[bool]:
    """Whether every edit of a row stands in most of the rows."""
    count = Counter(edit for edits in rows for edit in dict.fromkeys(edits))
    return [all(count[e] >= ALIKE * len(rows) for e in edits) for edits in rows]


def _doubled(row: _Row) -> bool:
    ours, theirs = row.ours, row.theirs
    return (len(theirs) > 1 and theirs[0] == theirs[1] and theirs[1:] == ours) or (
        len(ours) > 1 and ours[0] == ours[1] and ours[1:] == theirs
    )


def _text(ids: Ids, texts: Mapping[int, str]) -> str:
    return "".join(texts.get(i, f"<{i}>") for i in ids)


def _table(rows: list[_Row], texts: Mapping[int, str]) -> Table:
    shown = []
    for row in rows[:SHOWN]:
        ours, theirs = _parts(row)
        shown.append((row.step, row.where, _text(ours, texts), _text(theirs, texts)))
    return Table(
        title="rows whose token ids differ",
        columns=("step", "where", "trainer", "engine"),
        rows=tuple(shown),
        cut_rows=max(0, len(rows) - SHOWN),
    )


def _parts(row: _Row) -> tuple[Ids, Ids]:
    """A few tokens of both sides from the first that differs."""
    pairs = zip(row.ours, row.theirs, strict=False)
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(row.ours), len(row.theirs)))
    begin = max(0, at - 2)
    return row.ours[begin : begin + 10], row.theirs[begin : begin + 10]


def _r(value: float | np.floating) -> float:
    return round(float(value), 6)
