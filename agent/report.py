"""The JSON object of an investigation: a contract for scripts (docs: `investigate --json`)."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from firstbad.agent.incident import Incident
from firstbad.agent.memo.head import first_page
from firstbad.agent.reading import saved_evidence
from firstbad.playbooks.results import Verdict

EXIT_CODES = {"healthy": 0, "incident": 1, "undetermined": 3}
"""Exit codes by outcome; 2 is what the user can fix, 70 a bug."""


def report(incident: Incident, verdict: Verdict) -> dict[str, Any]:
    """The object that `investigate --json` prints."""
    leading, onset = verdict.leading, verdict.first_bad
    page = first_page(verdict, {e.id: e for e in saved_evidence(incident)})
    return {
        "schema": 1,
        "incident": verdict.incident,
        "outcome": verdict.outcome,
        "headline": verdict.headline,
        "ended": verdict.ended,
        "window": verdict.window,
        "first_bad": {
            "last_good": None if onset.from_start else onset.last_good,
            "first_bad": None if onset.from_start else onset.first_bad,
            "from_start": onset.from_start,
            "signal": verdict.first_bad.signal,
        },
        "complaint": verdict.complaint,
        "noticed_step": verdict.noticed_step,
        "answers": list(verdict.answers),
        "layers": [
            {"id": r.id, "outcome": r.outcome, "strength": r.strength, "reason": r.reason}
            for r in verdict.layers
        ],
        "cause": None
        if leading is None
        else {"id": leading.cause, "layer": leading.layer, "confidence": leading.confidence},
        "findings": [f.model_dump(mode="json") for f in verdict.findings],
        "conditional_on": list(verdict.conditional_on),
        "waivers": [w.model_dump() for w in verdict.waivers],
        "not_checked": [n.model_dump() for n in verdict.not_checked],
        "requests": [r.model_dump() for r in verdict.requests],
        "do_now": [asdict(row) for row in page.actions],
        "resume_from": verdict.resume_from,
        "passed_over": list(verdict.passed_over),
        "least_bad": None if verdict.least_bad is None else verdict.least_bad.model_dump(),
        "reading": [dict(r) for r in incident.record().reading],
        "usage": verdict.usage.model_dump(),
        "memo": {"md": str(incident.markdown_file), "html": str(incident.html_file)},
    }
