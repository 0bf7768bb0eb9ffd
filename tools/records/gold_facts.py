"""Gold answers against what needs no policy: another one of the same prompt, and arithmetic."""

from __future__ import annotations

import ast
import operator
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from firstbad.tools.answers import agree, extract, likely_extractor, loose, normalise
from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Scalar, Table
from firstbad.tools.numbers import percent
from firstbad.tools.outcome import outcome_part
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import Run

STRONG = 0.6
"""Share of a group that must give one answer."""
LONGEST = 400
"""Characters of a prompt that is read as a sum."""
_SUM = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:\s*[-+*/x×÷]\s*\(?-?\d+(?:\.\d+)?\)?)+(?!\w|\.\d)")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_VALUE = re.compile(r"(-?\d+(?:\.\d+)?)(?:/(\d+(?:\.\d+)?))?(%)?")
_ASKS = re.compile(r"[=?:]\s*$|what is|calculate|compute|evaluate|how much", re.IGNORECASE)
_OPERATIONS = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip


class GoldFacts(Dated):
    """Prompts whose gold answer cannot be right, or is not the same each time."""

    n_prompts: int
    """Distinct prompts with a gold answer."""
    n_twice: int
    """... that come in two groups or more."""
    n_conflicting: int
    """... with another gold answer at one time than at another, the samples of the one agreeing on
    the gold of the other."""
    conflicting_share: float
    """Of those that come twice."""
    n_sums: int
    """Prompts that ask for one sum of numbers and nothing else."""
    sums_wrong: int
    """... whose gold answer is another number than the sum, on which the samples of a group agree:
    of words around it that ask for something else, as for a remainder, the samples know more."""
    sums_wrong_share: float


@dataclass
class _Prompt:
    """What is known of one prompt."""

    golds: list[tuple[int, str, str | None]] = field(default_factory=list)
    """Step, gold answer and the samples' consensus, group by group."""


@tool
def check_gold_facts(run: Run) -> Measured[GoldFacts]:
    """Gold answers of the same prompt against each other, and against arithmetic.

    A prompt that has one gold answer in one group and another one in the next is wrong in one of
    them; it counts where the samples of the one agree on the gold answer of the other, so that a
    picture or a context that the prompt's text lacks does not. A prompt that asks for one sum has
    one right answer.

    Cannot tell: gold answers that are wrong in the same way each time.
    """
    batches = [b for b in run.rollouts.batches() if b.gold is not None]
    if not batches:
        raise NoData("no rollouts whose right answers are known")
    extractor = likely_extractor(batches)
    part = outcome_part(run, batches)
    prompts: dict[str, _Prompt] = defaultdict(_Prompt)
    for batch in batches:
        members: dict[int, list[int]] = defaultdict(list)
        for row, group in enumerate(batch.group.tolist()):
            members[group].append(row)
        for rows in members.values():
            gold = batch.gold[rows[0]] if batch.gold else None
            if gold is not None:
                said = [extract(extractor, batch.completions[row]) for row in rows]
                agreed = _agreed(said)
                score = batch.rewards.get(part)
                if score is not None and agreed is not None and not agree(agreed, gold, "loose"):
                    gave = [row for row, answer in zip(rows, said, strict=True) if answer == agreed]
                    known = score[np.isfinite(score)]
                    if len(known) and np.ptp(known) > 0 and (score[gave] == known.max()).all():
                        agreed = None  # paid as right: one of several answers that are accepted
                prompts[batch.prompts[rows[0]]].golds.append((batch.step, gold, agreed))
    twice = {text: p for text, p in prompts.items() if len(p.golds) > 1}
    conflicts = {text: at for text, p in twice.items() if (at := list(_conflicts(p)))}
    sums = {text: value for text in prompts if (value := _value(text)) is not None}
    wrong = {
        text: [
            (s, g, c)
            for s, g, c in prompts[text].golds
            if not _is(g, value) and c is not None and _number(c) is not None and _is(c, value)
        ]
        for text, value in sums.items()
    }
    wrong = {text: at for text, at in wrong.items() if at}
    bad = sorted(step for found in (conflicts, wrong) for at in found.values() for step, *_ in at)
    steps = [batch.step for batch in batches]
    metrics = GoldFacts(
        n_prompts=len(prompts),
        n_twice=len(twice),
        n_conflicting=len(conflicts),
        conflicting_share=_share(len(conflicts), len(twice)),
        n_sums=len(sums),
        sums_wrong=len(wrong),
        sums_wrong_share=_share(len(wrong), len(sums)),
        last_good_step=max((s for s in steps if bad and s < bad[0]), default=None),
        first_bad_step=bad[0] if bad else None,
        from_start=bool(bad) and bad[0] <= steps[min(4, len(steps) - 1)],
    )
    shown: list[tuple[Scalar, ...]] = [
        (step, text[:200], gold, said, str(sums.get(text, "")))
        for found in (wrong, conflicts)
        for text, at in found.items()
        for step, gold, said in at[:1]
    ]
    table = Table(
        title="gold answers that cannot be right, or are others at other times",
        columns=("step", "prompt", "gold", "consensus of the samples", "sum"),
        rows=tuple(shown[:12]),
        cut_rows=max(0, len(shown) - 12),
    )
    return Measured(
        metrics,
        f"{metrics.n_conflicting} of {metrics.n_twice} prompts that come again have another gold "
        f"answer then; {metrics.sums_wrong} of {metrics.n_sums} plain sums "
        f"({percent(metrics.sums_wrong_share)}) have a gold answer that is not their value",
        tables=(table,) if shown else (),
        sources=tuple(run.rollouts.answers()),
        signal="gold answers against each other and against arithmetic",
    )


def _agreed(answers: list[str | None]) -> str | None:
    """The answer that most samples give."""
    given = [a for a in answers if a is not None]
    top = max(sorted(set(given)), key=given.count, default=None)
    return top if top is not None and given.count(top) >= STRONG * len(answers) else None


def _conflicts(prompt: _Prompt) -> Iterator[tuple[int, str, str | None]]:
    """Groups whose samples agree on the gold answer of another group of the prompt."""
    plain = {gold for _, gold, _ in prompt.golds}
    for step, gold, said in prompt.golds:
        others = [g for g in plain if g != gold and not _same(g, gold)]
        other = any(agree(said, each, "loose") for each in others)
        if other and not agree(said, gold, "loose"):
            yield step, gold, said


def _value(prompt: str) -> Fraction | None:
    """What a prompt that asks for one sum, and holds no other number, comes to."""
    text = prompt.strip()
    found = list(_SUM.finditer(text)) if len(text) <= LONGEST else []
    if len(found) != 1 or not _ASKS.search(text):
        return None
    if _NUMBER.search(text[: found[0].start()]) or _NUMBER.search(text[found[0].end() :]):
        return None
    plain = found[0][0].replace("x", "*").replace("×", "*").replace("÷", "/")
    try:
        return _compute(ast.parse(plain, mode="eval").body)
    except (SyntaxError, ZeroDivisionError, ValueError, RecursionError):
        return None


def _compute(node: ast.expr) -> Fraction:
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        return Fraction(_OPERATIONS[type(node.op)](_compute(node.left), _compute(node.right)))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_compute(node.operand)
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return Fraction(str(node.value))
    raise ValueError("no sum")


def _is(gold: str, value: Fraction) -> bool:
    """Whether a gold answer is a value; what is no plain number may be it in another form."""
    number = _number(gold)
    return number is None or abs(number - value) <= Fraction(6, 1000) * max(Fraction(1), abs(value))


def _number(answer: str) -> Fraction | None:
    """The value of an answer that is a number, a fraction or a percentage, and nothing else."""
    text = normalise(answer).replace(",", "").replace(" ", "")
    found = _VALUE.fullmatch(text)
    if found is None or len(text) > LONGEST:
        return None
    below = Fraction(found[2] or 1)
    return Fraction(found[1]) / below / (100 if found[3] else 1) if below else None


def _same(one: str, other: str) -> bool:
    """Whether two gold answers are one in two forms."""
    a, b = _number(one), _number(other)
    return loose(normalise(one)) == loose(normalise(other)) or (a is not None and a == b)


def _share(part: int, whole: int) -> float:
    return round(part / whole, 6) if whole else 0.0
