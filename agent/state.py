"""The state of the graph: plain data, saved after each node; artefacts lie in files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

from firstbad.agent.trail import Trail
from firstbad.playbooks.results import CheckResult, LayerResult, Waiver

GRAPH_VERSION = 1
"""Raised whenever a node is renamed or the meaning of the state changes: an incident that an older
graph left unfinished would otherwise end silently, or wrongly, in the new one."""


class State(TypedDict):
    """What the nodes pass on. No reducers: an update replaces, so a walk can start anew."""

    graph_version: int
    position: int
    """Index of the layer that is looked at."""
    aliases: dict[str, str]
    layers: list[dict[str, Any]]
    checks: list[dict[str, Any]]
    waivers: list[dict[str, str]]


def fresh(waivers: Sequence[Waiver]) -> State:
    """The state before the first node."""
    return {
        "graph_version": GRAPH_VERSION,
        "position": 0,
        "aliases": {},
        "layers": [],
        "checks": [],
        "waivers": [w.model_dump() for w in waivers],
    }


def trail_of(state: State) -> Trail:
    """The walk so far, as records."""
    layers = [LayerResult.model_validate(r) for r in state["layers"]]
    return Trail(
        aliases=dict(state["aliases"]),
        layers={r.id: r for r in layers},
        checks=[CheckResult.model_validate(c) for c in state["checks"]],
    )


def update_of(trail: Trail) -> dict[str, Any]:
    """The walk so far, as plain data."""
    return {
        "aliases": dict(trail.aliases),
        "layers": [r.model_dump(mode="json") for r in trail.layers.values()],
        "checks": [c.model_dump(mode="json") for c in trail.checks],
    }


def waivers_of(state: State) -> list[Waiver]:
    """The waivers of this walk."""
    return [Waiver.model_validate(w) for w in state["waivers"]]
