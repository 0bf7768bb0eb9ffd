"""What happened beside the curves: resumes, errors, warnings that name the scoring service."""

from __future__ import annotations

import re
from collections import Counter

from firstbad.tools.evidence import Dated, Table
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import Event, Run

SCORING = re.compile(
    r"verif|reward|judge|grader|grading|scor(?:e|ing)|sandbox|checker|rubric", re.IGNORECASE
)
FAILURE = re.compile(
    r"time[d]?[ -]?out|deadline|unavailable|refused|unreachable|fallback|failed|failure|exception"
    r"|error|connection|(?<![\d.])(?:50[0-4]|429)(?!\d|\.\d)|retry|dead|killed|reset by peer",
    re.IGNORECASE,
)
QUOTED = 160
"""Characters of an error that are quoted."""
DIGITS = re.compile(r"\d+")

CHANGED = re.compile(r"([\w./-]+): [^,]* -> ")
BOOKS = re.compile(r"logging|save|eval|output|report|run_name|resume|max_steps|epochs|hub|seed")
"""Settings that the computation of a step does not depend on."""


class Events(Dated):
    """Counts of events; the onset is that of scoring failures in the log."""

    n_events: int
    n_resumes: int
    first_resume_step: int | None
    last_resume_step: int | None
    n_settings_changed: int
    """Changes of settings or versions at a step inside the run, without those that only keep books
    (how often is logged, saved or evaluated, and where to)."""
    n_errors: int
    n_warnings: int
    scoring_failure_steps: int
    """Steps at which the log speaks of a failure of verifier, judge or reward service."""
    ended: bool
    """The log or the metrics hold the row that ends a run."""


@tool
def list_events(run: Run) -> Measured[Events]:
    """Resumes, errors and warnings of the run, and failures of scoring that the log speaks of.

    An event is a fact of the record; none fails a layer by itself.

    Cannot tell: what was never logged. A silent log is no proof of a healthy service.
    """
    resumes = sorted(e.step for e in run.events if e.kind == "resume" and e.step is not None)
    failures = sorted({e.step for e in run.events if e.step is not None and _scoring_failure(e)})
    metrics = Events(
        n_events=len(run.events),
        n_resumes=sum(e.kind == "resume" for e in run.events),
        first_resume_step=resumes[0] if resumes else None,
        last_resume_step=resumes[-1] if resumes else None,
        n_settings_changed=sum(map(_changes_training, run.events)),
        n_errors=sum(e.kind == "error" for e in run.events),
        n_warnings=sum(e.kind == "warning" for e in run.events),
        scoring_failure_steps=len(failures),
        ended=any(e.kind == "end" for e in run.events),
        first_bad_step=failures[0] if failures else None,
        last_good_step=failures[0] - 1 if failures and failures[0] > 1 else None,
        from_start=bool(failures) and failures[0] <= 1,
    )
    rows = _by_template(run.events)
    table = Table(
        title="events by kind and text",
        columns=("kind", "text", "times", "first step", "last step"),
        rows=tuple(rows[:20]),
        cut_rows=max(0, len(rows) - 20),
    )
    said = f"; {len(failures)} steps with a scoring failure in the log" if failures else ""
    return Measured(
        metrics,
        f"{metrics.n_resumes} resumes, {metrics.n_errors} errors, "
        f"{metrics.n_warnings} warnings{said}",
        tables=(table,) if rows else (),
        signal="scoring failures in the log" if failures else "",
        quote=_last_error(run.events),
    )


def _last_error(events: tuple[Event, ...]) -> str:
    """The last error of the log, which is what ended the run where one did; empty without any."""
    errors = [e for e in events if e.kind == "error" and e.text.strip()]
    if not errors:
        return ""
    said = "".join(c for c in " ".join(errors[-1].text.split()) if c.isprintable() and c != "`")
    cut = said if len(said) <= QUOTED else said[:QUOTED].rpartition(" ")[0] + " …"
    return f"The log says: `{cut}`."


def _scoring_failure(event: Event) -> bool:
    return (
        event.kind in ("warning", "error")
        and SCORING.search(event.text) is not None
        and FAILURE.search(event.text) is not None
    )


def _by_template(events: tuple[Event, ...]) -> list[tuple[str, str, int, int | None, int | None]]:
    """Events counted by their text with the digits blotted out, most frequent first."""
    count: Counter[tuple[str, str]] = Counter()
    example: dict[tuple[str, str], Event] = {}
    steps: dict[tuple[str, str], list[int]] = {}
    for event in events:
        key = (event.kind, DIGITS.sub("#", event.text))
        count[key] += 1
        example.setdefault(key, event)
        if event.step is not None:
            steps.setdefault(key, []).append(event.step)
    return [
        (
            key[0],
            example[key].text[:200],
            n,
            min(steps[key]) if key in steps else None,
            max(steps[key]) if key in steps else None,
        )
        for key, n in count.most_common()
    ]


def _changes_training(event: Event) -> bool:
    """Whether an event says that a setting of training, or a version, is another from a step on."""
    names = CHANGED.findall(event.text)
    books = bool(names) and all(BOOKS.search(name) for name in names)
    return event.kind == "config_change" and event.step is not None and not books
