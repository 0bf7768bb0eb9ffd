"""Does a part that pays for tags read them as they are written?"""

from __future__ import annotations

import re

import numpy as np

from firstbad.tools.answers import LONGEST
from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Scalar, Table
from firstbad.tools.numbers import percent
from firstbad.tools.outcome import outcome_part
from firstbad.tools.registry import Measured, tool
from firstbad.tools.row_table import RowTable
from firstbad.tools.run import BoolArray, Run
from firstbad.tools.stats import raised_stretch

NAMED = re.compile(r"form(?:at)?|tag|xml|structure", re.IGNORECASE)
WELL_FORMED = re.compile(
    r"\s*<(think|reasoning)>(?P<a>[^<]*(?:<(?!/\1>\s*<answer>)[^<]*)*)</\1>"
    r"\s*<answer>(?P<b>.*)</answer>\s*",
    re.IGNORECASE | re.DOTALL,
)
OPENING = re.compile(r"<(think|reasoning)>\s*$", re.IGNORECASE)
SURE_GAIN = 10.0


class FormPart(Dated):
    """Rows in the form `<think>...</think><answer>...</answer>`, and what the form part pays them.

    Well formed: the whole text is of that form, lines breaking or not, with the opening tag in the
    completion or at the end of the prompt. Refused: it gets nothing, or less than the largest value
    of its step.
    """

    n_well_formed: int
    n_refused: int
    refused_share: float
    """Of well-formed rows, in the stretch where it is raised."""
    refused_broken_share: float | None
    """Of refused ones: a line breaks inside the tags. None without any."""
    accepted_broken_share: float | None
    """Of accepted ones."""
    refused_opened_by_prompt: float | None
    """Of refused ones: the opening tag stands in the prompt."""
    accepted_opened_by_prompt: float | None
    separated: bool
    """One of the two properties tells refused rows from accepted ones in at least 95 % of both, or
    all rows are refused and nearly all have it."""


@tool
def check_form_part(run: Run) -> Measured[FormPart]:
    """Well-formed rows that a form part refuses, and whether line breaks or the prompt explain it.

    A pattern whose dot stops at line breaks refuses tags that hold several lines; one that wants
    the opening tag in the completion refuses all rows of a template that writes it.

    Cannot tell: a form part that asks for another form.
    """
    batches = [b for b in run.rollouts.batches() if b.rewards]
    outcome = outcome_part(run, batches) if batches else ""
    names = [n for n in (batches[0].rewards if batches else ()) if n != outcome and NAMED.search(n)]
    if not names:
        raise NoData("no reward part is named like one that pays for form")
    name = names[0]
    rows = RowTable.of(run, batches)
    texts = [text for b in batches for text in b.completions]
    prompts = [text for b in batches for text in b.prompts]
    values = rows.part(name)
    finite = np.isfinite(values)
    opened = np.array([OPENING.search(prompt[-40:]) is not None for prompt in prompts], bool)
    found = [_formed(text, lead) for text, lead in zip(texts, opened.tolist(), strict=True)]
    formed = np.array([each is not None for each in found], bool) & finite
    broken = np.array([each is not None and "\n" in each["a"] + each["b"] for each in found], bool)
    accepted = formed & (values > 0) & (values >= rows.highest(values)[rows.step] - 1e-6)
    refused = formed & ~accepted
    stretch = raised_stretch(rows.count(refused), np.maximum(rows.count(formed), 0))
    if stretch is not None and stretch.gain < SURE_GAIN:
        stretch = None
    inside = np.ones(len(rows.step), bool)
    if stretch is not None:
        inside = (rows.step >= stretch.first) & (rows.step < stretch.stop)
    shares = [_share(mask, of) for mask in (broken, opened) for of in (refused, accepted)]
    steps = rows.steps.tolist()
    first = stretch.first if stretch else 0
    metrics = FormPart(
        n_well_formed=int(formed.sum()),
        n_refused=int(refused.sum()),
        refused_share=_share(refused, formed & inside) or 0.0,
        refused_broken_share=shares[0],
        accepted_broken_share=shares[1],
        refused_opened_by_prompt=shares[2],
        accepted_opened_by_prompt=shares[3],
        separated=_separated(*shares[:2]) or _separated(*shares[2:]),
        last_good_step=steps[first - 1] if refused.any() and first else None,
        first_bad_step=steps[first] if refused.any() else None,
        from_start=bool(refused.any()) and first == 0,
    )
    some = np.flatnonzero(refused)
    shown: list[tuple[Scalar, ...]] = [
        (int(rows.steps[rows.step[i]]), texts[i][-300:], float(values[i]))
        for i in some[:: max(1, len(some) // 6)][:6].tolist()
    ]
    table = Table(
        title=f"well-formed rows that `{name}` pays less",
        columns=("step", "completion", "score"),
        rows=tuple(shown),
        cut_rows=len(some) - len(shown),
    )
    return Measured(
        metrics,
        f"`{name}` pays {percent(metrics.refused_share)} of {metrics.n_well_formed} well-formed "
        "rows less than its most",
        tables=(table,) if shown else (),
        window=(steps[0], steps[-1]),
        signal=f"well-formed rows that `{name}` refuses",
    )


def _formed(text: str, opened: bool) -> re.Match[str] | None:
    """The parts of a well-formed text; with the tag in the prompt, it may be repeated or not."""
    text = text[-LONGEST:]
    if not text.rstrip().endswith(">"):
        return None
    found = WELL_FORMED.fullmatch("<think>" + text) if opened else None
    return found or WELL_FORMED.fullmatch(text)


def _separated(refused: float | None, accepted: float | None) -> bool:
    return refused is not None and refused >= 0.95 and (accepted is None or accepted <= 0.05)


def _share(marked: BoolArray, rows: BoolArray) -> float | None:
    return round(float(marked[rows].mean()), 6) if rows.any() else None
