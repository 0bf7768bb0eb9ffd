"""The memo: a verdict and its evidence, arranged for a person who must act at 3 a.m.

Everything is chosen and written out here; the templates only place it. No number is made here
either: each comes from the verdict, from a clause or from evidence.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from firstbad.agent.memo.compiled_templates import CompiledTemplates
from firstbad.agent.memo.glossary import words_used
from firstbad.agent.memo.head import FirstPage, first_page
from firstbad.agent.memo.plots import LEAD, build_plots
from firstbad.agent.memo.record import (
    READS_TEXT,
    both_sides,
    evidence_view,
    focus,
    focus_title,
    other_finding,
    pairs,
)
from firstbad.agent.memo.sources import described, files_of
from firstbad.agent.memo.text import (
    Md,
    block,
    brief,
    code,
    code_html,
    markdown,
    one_line,
    rich,
    visible,
)
from firstbad.agent.memo.view import LayerView, View
from firstbad.agent.memo.walk import layers
from firstbad.agent.memo.words import Row, step
from firstbad.agent.remarks import Remark
from firstbad.playbooks.loader import Loaded
from firstbad.playbooks.results import Verdict
from firstbad.tools.evidence import Evidence
from firstbad.tools.numbers import number
from firstbad.tools.run import Run

_WINDOWS = {
    "onset": "onset found",
    "steady": "steady: nothing leaves its band",
    "bad_from_start": "bad from the start",
}


@dataclass(frozen=True)
class Memo:
    """One memo in two forms with the same content."""

    markdown: str
    html: str


def build_memo(
    verdict: Verdict,
    evidence: Mapping[str, Evidence],
    run: Run | None,
    loaded: Loaded,
    reading: Sequence[Remark] = (),
) -> Memo:
    """The memo of a verdict; the same inputs give the same bytes.

    Args:
        verdict: the conclusion.
        evidence: all evidence of the investigation, by id.
        run: the run, for the plots; None when it can't be read any more.
        loaded: the playbook that judged.
        reading: what was noticed while the run was opened.
    """
    view = _view(verdict, evidence, run, loaded, reading)
    style = environments()[0].get_template("style.css").render()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    page, text = environments()
    known = dict.fromkeys(evidence)
    html = page.get_template("memo.html.j2").render(
        v=view, known=known, style=Markup(style), style_digest=digest
    )
    return Memo(
        markdown=_tidy(text.get_template("memo.md.j2").render(v=view)),
        html=html,
    )


def _window(verdict: Verdict, evidence: Mapping[str, Evidence]) -> str:
    """What the window is; a finding may date an onset that no logged signal shows."""
    steady = any((e.metrics or {}).get("is_steady") is True for e in evidence.values())
    if verdict.window == "onset" and steady:
        return "no logged signal leaves its band; the onset is that of the leading finding"
    return _WINDOWS[verdict.window]


@cache
def environments() -> tuple[Environment, Environment]:
    """Jinja for HTML and for Markdown: in both, what is not marked as safe is escaped."""
    form = {"trim_blocks": True, "lstrip_blocks": True, "keep_trailing_newline": True}
    settings: dict[str, Any] = {
        **form,
        "loader": PackageLoader("firstbad.agent.memo", "templates"),
        "undefined": StrictUndefined,
        "optimized": False,  # folding constants would take longer than it saves: used once
    }
    page = Environment(
        autoescape=True,
        bytecode_cache=CompiledTemplates(("html", form)),
        finalize=lambda value: value if isinstance(value, Markup) else visible(str(value)),
        **settings,
    )
    page.globals.update(lead=LEAD)
    page.filters.update(rich=rich, code=code_html)
    text = Environment(
        autoescape=False,
        bytecode_cache=CompiledTemplates(("markdown", form)),
        finalize=lambda value: value if isinstance(value, Md) else markdown(str(value)),
        **settings,
    )
    text.filters.update(code=code, block=block, written=Md)
    text.globals.update(md=Md)
    return page, text


def _tidy(text: str) -> str:
    """At most one empty line in a row, outside fenced blocks."""
    lines: list[str] = []
    fence = ""
    for line in text.rstrip("\n").split("\n"):
        if fence:
            fence = "" if line == fence else fence
        elif line.startswith("```"):
            fence = "`" * (len(line) - len(line.lstrip("`")))
        elif not line and lines and not lines[-1]:
            continue
        lines.append(line)
    return "\n".join(lines) + "\n"


def _view(
    verdict: Verdict,
    evidence: Mapping[str, Evidence],
    run: Run | None,
    loaded: Loaded,
    reading: Sequence[Remark],
) -> View:
    leading = verdict.leading
    first = first_page(verdict, evidence, reading)
    cited = focus(verdict, evidence)
    shown_pairs, pairs_note = pairs(verdict, evidence, run, cited)
    listed = {id_: evidence_view(e, verdict) for id_, e in evidence.items()}
    walk = tuple(layers(verdict, loaded))
    return View(
        title=f"{first.word}: {one_line(first.cause or verdict.run)}",
        run=f"{brief(verdict.run, 120)} · {brief(verdict.framework, 40)} · "
        f"incident {brief(verdict.incident, 120)}",
        first=first,
        layers=walk,
        window=_window(verdict, evidence),
        focus_title=focus_title(verdict),
        focus=tuple(
            listed[id_]
            for id_ in dict.fromkeys((*cited, *_around_change(verdict, evidence)))
            if id_ in listed
            and evidence[id_].tool != READS_TEXT
            and evidence[id_].status == "measured"
        ),
        plots=build_plots(verdict, evidence, run),
        plots_key=_plots_key(verdict),
        plots_note=(
            ""
            if run is not None
            else "The run's files could not be read when this memo was written: "
            "plots of its signals are left out."
        ),
        pairs=shown_pairs,
        pairs_note=pairs_note,
        others=tuple(other_finding(f, verdict) for f in verdict.findings if f is not leading),
        contradicts=tuple(
            Row(id_, evidence[id_].summary)
            for id_ in (leading.contradicts if leading else ())
            if id_ in evidence
        ),
        ruled_out=leading.ruled_out if leading else (),
        decisions=tuple(
            d
            for d in loaded.playbook.decisions
            if leading is not None
            and leading.cause in d.causes
            and f"{leading.layer}.{leading.check}" in d.found_by
        ),
        evidence=tuple(listed.values()),
        files=tuple(
            (Row(described(s), s.digest or "not read again"), s.kind) for s in files_of(evidence)
        ),
        reading=tuple(r.text for r in reading),
        glossary=words_used(_told(first, walk, evidence)),
        about=tuple(_about(verdict)),
        verify=f"firstbad verify {one_line(verdict.incident)}",
    )


def _told(
    first: FirstPage, walk: Iterable[LayerView], evidence: Mapping[str, Evidence]
) -> Iterator[str]:
    """What a reader meets in running text."""
    yield first.headline
    yield from (row.text for row in (*first.facts, *first.caveats, *first.not_checked))
    yield from first.notes
    yield from (e.summary for e in evidence.values())
    for layer in walk:
        for check in layer.checks:
            yield check.message
            yield "independent fact" if check.is_fact else ""
            yield from (clause.condition for clause in check.clauses)


def _around_change(verdict: Verdict, evidence: Mapping[str, Evidence]) -> Iterable[str]:
    """Evidence of both sides of the window's change; what is bad from the start has none."""
    from_start = verdict.leading is not None and verdict.first_bad.from_start
    return () if from_start else both_sides(evidence)


def _plots_key(verdict: Verdict) -> str:
    """What the marks on the plots mean."""
    onset = verdict.first_bad
    told = []
    if onset.last_good is not None and not onset.from_start:
        told.append(f"Shaded: steps up to the last good one, {step(onset.last_good)}.")
    if onset.sampled and onset.bracket_start is not None:
        told.append(
            f"Yellow: after step {step(onset.bracket_start)}, up to the first bad step: "
            "it began here, and these steps were not measured."
        )
    if onset.first_bad is not None and not onset.from_start:
        what = "first bad step" if verdict.outcome == "incident" else "first change"
        told.append(f"Vertical line: {what}, {step(onset.first_bad)}.")
    return " ".join(told)


def _about(verdict: Verdict) -> Iterable[Row]:
    yield Row("incident", verdict.incident)
    yield Row("run", f"{verdict.run} ({verdict.framework})")
    yield Row("playbook", ", ".join(f"{p.name} {p.digest}" for p in verdict.playbooks))
    yield Row("versions", ", ".join(f"{k} {v}" for k, v in sorted(verdict.versions.items())))
    usage = verdict.usage
    model = (
        f"{number(usage.model_calls)} model calls, {number(usage.tokens)} tokens, "
        f"{number(usage.cost_usd)} USD"
        if usage.model_calls
        else "no model"
    )
    yield Row(
        "cost",
        f"{number(usage.tool_calls)} tool calls, {model}, {number(usage.seconds, digits=2)} s",
    )
