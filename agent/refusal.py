"""The lock on tools of layers that the walk has not reached: for whoever else may call tools."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from firstbad.agent.incident import Incident
from firstbad.agent.trail import Trail
from firstbad.playbooks.loader import Loaded, call_parts
from firstbad.playbooks.walk import OPEN, blocked_by
from firstbad.tools.errors import UserError


@dataclass(frozen=True)
class Refusal:
    """A tool that was not run, and the layer that has not passed."""

    layer: str
    blocked_by: str
    tool: str

    @property
    def text(self) -> str:
        """What the caller is told."""
        return (
            f"`{self.tool}` belongs to layer `{self.layer}`, which may not be read: "
            f"layer `{self.blocked_by}` has not passed. Only evidence, or a person's waiver of "
            f"`{self.blocked_by}`, opens it."
        )


def refuse(
    loaded: Loaded, trail: Trail, incident: Incident, *, layer: str, tool: str
) -> Refusal | None:
    """Refuse a tool of a layer behind one that has not passed, and keep the refusal.

    None where the tool may run: every layer before has passed, or the tool measures a fact that
    stands whatever the layers before turn out to be.

    Raises:
        UserError: the playbook has no such layer.
    """
    order = [each.id for each in loaded.playbook.layers]
    if layer not in order:
        raise UserError(f"no layer `{layer}`; there are: {', '.join(order)}")
    before = order[: order.index(layer)]
    outcomes = {name: result.outcome for name, result in trail.layers.items()}
    blocking = next((name for name in before if outcomes.get(name) not in OPEN), None)
    if blocking is None or _is_fact(loaded, trail, layer, tool):
        return None
    refusal = Refusal(layer=layer, blocked_by=blocking, tool=tool)
    known = incident.record().refusals
    if asdict(refusal) not in known:
        incident.change(refusals=[*known, asdict(refusal)])
    incident.log("refusal", **asdict(refusal))
    return refusal


def _is_fact(loaded: Loaded, trail: Trail, layer: str, tool: str) -> bool:
    (found,) = (each for each in loaded.playbook.layers if each.id == layer)
    return any(
        tool == call_parts(call)[0]
        for check in found.checks
        if not blocked_by(check, trail.layers, trail.checks)
        for call in check.evidence.values()
    )
