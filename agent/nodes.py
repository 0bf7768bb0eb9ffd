"""The nodes of the graph and the functions that choose the way between them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from firstbad.agent.code import with_code
from firstbad.agent.complaint import told_back
from firstbad.agent.evidence_store import EvidenceStore
from firstbad.agent.files import write_atomic
from firstbad.agent.incident import Incident, IncidentRecord
from firstbad.agent.judge import with_judge
from firstbad.agent.progress import OnProgress, Progress
from firstbad.agent.reading import remarks_in
from firstbad.agent.runs import open_ref
from firstbad.agent.state import State, trail_of, update_of, waivers_of
from firstbad.agent.trail import gather, judge, reach_verdict, refusals, walk_all
from firstbad.playbooks.conclude import Ask
from firstbad.playbooks.gate import Seen
from firstbad.playbooks.loader import Loaded
from firstbad.playbooks.requests import requests_of
from firstbad.playbooks.results import LayerResult, Verdict, Waiver
from firstbad.tools.errors import UserError
from firstbad.tools.run import Run


@dataclass
class Nodes:
    """The nodes over one incident. What they hold is not saved; what they return is."""

    incident: Incident
    record: IncidentRecord
    loaded: Loaded
    tell: OnProgress
    interactive: bool
    opened: Run | None = None
    """The run, where it has been opened already."""

    @cached_property
    def run(self) -> Run:
        """The run, opened when first needed."""
        if self.opened is not None:
            return self._with_what_was_given(self.opened)
        try:
            record = self.record
            opened = open_ref(record.run_at, shown=record.run, replays=record.replays)
        except UserError as error:
            raise UserError(
                f"{error}; a run that was moved is investigated anew: firstbad investigate RUN"
            ) from error
        return self._with_what_was_given(opened)

    def _with_what_was_given(self, run: Run) -> Run:
        return with_judge(self.incident, with_code(self.record, run), self.tell)

    @cached_property
    def store(self) -> EvidenceStore:
        """The evidence of the incident."""
        return EvidenceStore(self.incident, self.run, self.tell)

    # ------------------------------------------------------------------------------------ nodes

    def intake(self, state: State) -> dict[str, Any]:
        """Say what is walked."""
        self.tell(Progress("started", self.incident.handle))
        return {"position": 0}

    def gather(self, state: State) -> dict[str, Any]:
        """Get the evidence of the layer that is looked at; each tool's result is saved at once."""
        layer = self.loaded.playbook.layers[state["position"]]
        self.tell(Progress("layer", layer.asks, layer=layer.id, number=layer.number))
        trail = trail_of(state)
        said = self.record
        gather(self.loaded, layer, trail, self.store, said.noticed_step, said.symptoms)
        return {"aliases": trail.aliases}

    def gate(self, state: State) -> dict[str, Any]:
        """Judge the layer that is looked at."""
        layer = self.loaded.playbook.layers[state["position"]]
        trail = trail_of(state)
        self._judged(judge(self.loaded, layer, trail, self.store, waivers_of(state)))
        return {"position": state["position"] + 1, **update_of(trail)}

    def ask(self, state: State) -> dict[str, Any]:
        """Put an undecided layer before a person: give evidence later, or waive with a reason."""
        from langgraph.types import interrupt

        trail = trail_of(state)
        layer = self.loaded.playbook.layers[state["position"] - 1]
        asked = ask_of(self.record)
        seen = trail.seen(self.store)
        answer = interrupt(question(self.loaded, trail.layers[layer.id], state, seen, asked))
        reason = str(answer.get("waive") or "").strip()
        if not reason:
            return {}
        waiver = Waiver(layer=layer.id, reason=reason)
        waivers = [*state["waivers"], waiver.model_dump()]
        self.incident.change(waivers=waivers)
        self.incident.log("waiver", layer=layer.id, reason=reason)
        del trail.layers[layer.id]
        trail.checks = [c for c in trail.checks if c.layer != layer.id]
        self._judged(judge(self.loaded, layer, trail, self.store, [waiver]))
        return {"waivers": waivers, **update_of(trail)}

    def facts(self, state: State) -> dict[str, Any]:
        """The way is closed: read only what stands whatever the closed layer turns out to be."""
        trail = trail_of(state)
        closed = trail.closed_by
        self.tell(Progress("facts", "independent facts", layer=closed.id if closed else None))
        rest = self.loaded.playbook.layers[state["position"] :]
        said, waivers = self.record, waivers_of(state)
        walk_all(self.loaded, rest, trail, self.store, said.noticed_step, said.symptoms, waivers)
        for refusal in refusals(self.loaded, trail):
            self.incident.log("refusal", **refusal)
        return {"position": len(self.loaded.playbook.layers), **update_of(trail)}

    def conclude(self, state: State) -> dict[str, Any]:
        """Reach the verdict and write it down, with what was refused on the way."""
        trail = trail_of(state)
        verdict = reach_verdict(
            self.loaded,
            ask_of(self.record),
            trail,
            self.store,
            waivers=waivers_of(state),
            checkpoint_steps=[c.step for c in self.run.checkpoints],
            versions=self.record.versions,
        )
        called = [r for r in self.incident.record().refusals if "tool" in r]
        self.incident.change(refusals=[*refusals(self.loaded, trail), *called])
        write_atomic(self.incident.verdict_file, verdict.model_dump_json(indent=1) + "\n")
        return update_of(trail)

    def memo(self, state: State) -> dict[str, Any]:
        """Write the memo."""
        from firstbad.agent.memo.build import build_memo

        verdict = Verdict.model_validate_json(self.incident.verdict_file.read_text("utf-8"))
        evidence = {i: self.store.by_id(i) for i in trail_of(state).evidence_ids()}
        memo = build_memo(
            verdict, evidence, self.run, self.loaded, remarks_in(self.incident.record())
        )
        write_atomic(self.incident.html_file, memo.html)
        write_atomic(self.incident.markdown_file, memo.markdown)
        self.incident.log("finished", outcome=verdict.outcome)
        self.tell(Progress("concluded", verdict.headline, outcome=verdict.outcome))
        return {}

    # ---------------------------------------------------------------------------------- routing

    def after_gate(self, state: State) -> Literal["gather", "ask", "facts", "conclude"]:
        """The refusal: past a layer that has not passed only facts are read."""
        closed = trail_of(state).closed_by
        if closed is not None and closed.outcome == "inconclusive" and self.interactive:
            return "ask"
        return self.after_ask(state)

    def after_ask(self, state: State) -> Literal["gather", "facts", "conclude"]:
        """The next layer where the way is open; the facts where it is closed."""
        if state["position"] >= len(self.loaded.playbook.layers):
            return "conclude"
        return "gather" if trail_of(state).closed_by is None else "facts"

    def _judged(self, result: LayerResult) -> None:
        self.tell(
            Progress(
                "judged",
                result.reason,
                layer=result.id,
                number=result.number,
                outcome=result.outcome,
                strength=result.strength,
            )
        )


def ask_of(record: IncidentRecord) -> Ask:
    """What was asked, in the form that a verdict carries."""
    return Ask(
        incident=record.id,
        run=record.run,
        framework=record.framework,
        recorded=record.recorded,
        complaint=record.complaint,
        noticed_step=record.noticed_step,
        symptoms=tuple(record.symptoms),
        not_understood=told_back(record.not_understood),
    )


def question(
    loaded: Loaded, layer: LayerResult, state: State, seen: Seen, ask: Ask
) -> dict[str, Any]:
    """What a person is asked about a layer that could not be decided."""
    undecided = {
        c["check"]
        for c in state["checks"]
        if c["layer"] == layer.id and c["outcome"] == "inconclusive" and c["required"]
    }
    open_ = [
        check
        for each in loaded.playbook.layers
        for check in each.checks
        if each.id == layer.id and check.id in undecided
    ]
    requests = [
        request.model_dump(exclude={"layer"})
        for check in open_
        for request in requests_of(
            check,
            seen,
            layer=layer.id,
            dialects=ask.dialects,
            run=ask.run,
            longer=loaded.playbook.longer,
        )
    ]
    return {"layer": layer.id, "reason": layer.reason, "requests": requests}
