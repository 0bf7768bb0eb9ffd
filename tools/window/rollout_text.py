"""Read the rollouts: kinds of text before and after a step, and the rows themselves."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from firstbad.tools.errors import NoData, ToolInputError
from firstbad.tools.evidence import Metrics, Table
from firstbad.tools.numbers import percent
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import RolloutBatch, Run
from firstbad.tools.window.languages import LOOKED_AT, grown_script, letters_by_script

NEAR = 10
"""Steps with rollouts that are read on each side."""
TAGS = re.compile(
    r"<(/?)(think|thinking|thought|answer|reasoning|solution|response|tool_call|tool|final)>",
    re.IGNORECASE,
)
ODD = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffd]")
"""Replacement and control characters."""
RUN_OF_ONE = 8
"""Times that a character must come to be most of a text by fault; figures never are."""

INTERVALS = re.compile(r"\[[^][()]*\)|\([^][()]*\]")
"""Half-open, as in `[0, 1)`: no bracket is missing there."""
IN_A_SENTENCE = re.compile(
    r"(?:\w\s*[,(，、（]|\w\s+(?:an|and|but|of|or|than|the|to|which|whose))\s*\Z", re.I
)
"""Ends that no sentence has: a comma, or a word that another must follow."""


class RolloutText(Metrics):
    """Shares of completions by kind, before and after; differences are after less before."""

    n_before: int
    n_after: int
    repetition_before: float
    repetition_after: float
    """One word or short phrase makes more than half of a completion of at least ten words, or one
    character more than half of any."""
    garbage_before: float
    garbage_after: float
    """Replacement or control characters, or letters of three and more scripts."""
    broken_before: float
    broken_after: float
    """A tag, bracket or fence stays open, a sentence breaks off, or no text is there."""
    language_before: float
    language_after: float
    """Written in a script that its prompt is not written in: the one that has come up most."""
    distinct_before: float
    distinct_after: float
    """Distinct completions over completions, within groups."""
    words_before: float
    words_after: float
    worse_by: float
    """Share of the rows by which the kind of trouble that grew most has grown."""
    distinct_kept: float
    """`distinct_after` over `distinct_before`; 1 where nothing was distinct before."""


@tool
def read_rollouts(
    run: Run, *, before: int | None = None, after: int | None = None, rows: int = 20
) -> Measured[RolloutText]:
    """Kinds of completions up to step `before` and from step `after` on, with the rows shown.

    Ten steps with rollouts on each side are read in full; without steps given, the first and last
    ten of the run, or its two halves. The rows shown are those next to the change, or, without
    steps, the first and last of the run. Kinds: repetition, garbage or mixed scripts, another
    language than before (by its script, and not where the prompt is written in it), broken off,
    sameness.

    Cannot tell: reward hacking in well-formed text, or languages of one script; read the rows.
    """
    if not run.rollouts or len(run.rollouts.steps) < 2:
        raise NoData("no rollouts of at least two steps to read")
    steps = run.rollouts.steps
    if rows < 0:
        raise ToolInputError(f"`rows` is a number of rows to show, not {rows}")
    held = f"the rollouts hold steps {steps[0]} to {steps[-1]}"
    if after is None and before is not None and not steps[0] <= before < steps[-1]:
        raise NoData(f"step {before} parts nothing: {held}")
    if after is not None and after > steps[-1]:
        raise NoData(f"nothing lies behind step {after}: {held}")
    parted = before is not None or after is not None
    near = NEAR if parted else min(NEAR, len(steps) // 2)
    late = steps[steps >= after][:near] if after is not None else steps[-near:]
    limit = before if before is not None else (int(late[0]) - 1 if after is not None else None)
    early = steps[steps <= limit][-near:] if limit is not None else steps[:near]
    if not len(early):
        early = steps[:1]
    if not len(late):
        late = steps[-1:]
    a, b = list(run.rollouts.batches(early)), list(run.rollouts.batches(late))
    if not a or not b:
        raise NoData("the rollouts around the step repeat an earlier batch or are empty")
    x, y = _kinds(a), _kinds(b)
    script, x["language"], y["language"] = grown_script(a, b)
    worse = max(y[k] - x[k] for k in ("repetition", "garbage", "language", "broken"))
    metrics = RolloutText(
        n_before=int(x["n"]),
        n_after=int(y["n"]),
        repetition_before=x["repetition"],
        repetition_after=y["repetition"],
        garbage_before=x["garbage"],
        garbage_after=y["garbage"],
        broken_before=x["broken"],
        broken_after=y["broken"],
        language_before=_r(x["language"]),
        language_after=_r(y["language"]),
        distinct_before=x["distinct"],
        distinct_after=y["distinct"],
        words_before=x["words"],
        words_after=y["words"],
        worse_by=round(worse, 6),
        distinct_kept=round(y["distinct"] / x["distinct"], 6) if x["distinct"] else 1.0,
    )
    table = (
        _beside(a[-1], b[0], rows)
        if parted
        else _beside(a[0], b[-1], rows, names=("first", "last"))
    )
    return Measured(
        metrics,
        f"text before and after: repetition {_percent(x, y, 'repetition')}, garbage "
        f"{_percent(x, y, 'garbage')}, broken off {_percent(x, y, 'broken')}, distinct "
        f"{_percent(x, y, 'distinct')}, {x['words']:.1f} -> {y['words']:.1f} words"
        + (f", in {script} letters unasked {_percent(x, y, 'language')}" if script else ""),
        tables=(table,),
        window=(int(early[0]), int(late[-1])),
    )


def rollouts_beside(run: Run, before: int, after: int, rows: int) -> Table | None:
    """Rows of the last rollouts up to `before` beside rows of the first ones from `after` on.

    None where one side has none.
    """
    steps = run.rollouts.steps
    sides = steps[steps <= before][::-1], steps[steps >= after]
    nearest = [next((b for s in side for b in run.rollouts.batches([s])), None) for side in sides]
    left, right = nearest
    return None if left is None or right is None else _beside(left, right, rows)


def _beside(
    left: RolloutBatch, right: RolloutBatch, rows: int, names: tuple[str, str] = ("before", "after")
) -> Table:
    pairs = zip(_sample(left, rows), _sample(right, rows), strict=False)
    return Table(
        title=f"rollouts at step {left.step} and step {right.step}",
        columns=tuple(f"{name}: {text}" for name in names for text in ("prompt", "completion")),
        rows=tuple((*p, *q) for p, q in pairs),
        cut_rows=max(0, len(right) - rows),
    )


def _percent(x: dict[str, float], y: dict[str, float], key: str) -> str:
    return f"{percent(x[key])} -> {percent(y[key])}"


def _sample(batch: RolloutBatch, rows: int) -> list[tuple[str, str]]:
    """Rows spread over the batch, so that several groups are shown."""
    at = np.unique(np.linspace(0, len(batch) - 1, min(rows, len(batch))).astype(int))
    return [(batch.prompts[i][-300:], batch.completions[i][:600]) for i in at]


def _kinds(batches: list[RolloutBatch]) -> dict[str, float]:
    texts = [t[:LOOKED_AT] for b in batches for t in b.completions]
    distinct = [
        len({b.completions[int(i)] for i in np.flatnonzero(b.group == g)})
        / int((b.group == g).sum())
        for b in batches
        for g in np.unique(b.group)
    ]
    n = len(texts)
    return {
        "n": float(n),
        "repetition": _r(sum(map(is_repetitive, texts)) / n),
        "garbage": _r(sum(map(is_garbage, texts)) / n),
        "broken": _r(sum(map(is_broken, texts)) / n),
        "distinct": _r(float(np.mean(distinct))),
        "words": _r(float(np.mean([len(t.split()) for t in texts]))),
    }


def is_repetitive(text: str) -> bool:
    """Whether one word, a phrase of two to four words, or one character makes most of the text."""
    words = text.split()
    written = "".join(words)
    for character, n in Counter(written).most_common(1):
        if n >= RUN_OF_ONE and n > 0.5 * len(written) and not character.isdigit():
            return True
    if len(words) < 10:
        # Long text without spaces: the same few characters over and over.
        return len(text) >= 40 and len(set(text)) <= 3
    longest = 4
    if max(Counter(words).values()) * longest <= 0.5 * len(words):
        return False  # a phrase is not there more often than each of its words
    for size in range(1, longest + 1):
        grams = Counter(zip(*(words[i:] for i in range(size)), strict=False))
        top = max(grams.values())
        if top * size > 0.5 * len(words) and top >= 4:
            return True
    return False


def is_garbage(text: str) -> bool:
    """Whether the text holds replacement or control characters, or mixes three scripts."""
    if not text:
        return False
    if len(ODD.findall(text)) > max(1, len(text) // 100):
        return True
    return sum(n >= 2 for n in letters_by_script(text).values()) >= 3


def is_broken(text: str) -> bool:
    """Whether a text is empty, breaks off in a sentence, or leaves open what it opened.

    What opens: a tag, brace, bracket or code fence.
    """
    if not text.strip():
        return True
    opened: Counter[str] = Counter()
    for slash, name in TAGS.findall(text):
        opened[name.lower()] += -1 if slash else 1
    if any(n > 0 for n in opened.values()):
        return True
    if text.count("```") % 2 == 1 or text.count("{") > text.count("}"):
        return True
    lists = INTERVALS.sub("", text)
    return lists.count("[") > lists.count("]") or IN_A_SENTENCE.search(text) is not None


def _r(value: float) -> float:
    return round(float(value), 6)
