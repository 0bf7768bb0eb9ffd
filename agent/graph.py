"""The graph of an investigation, top to bottom as it is walked.

    intake -> gather -> gate -+-> gather (next layer)
                              +-> ask    (way would close for want of evidence; a person decides)
                              +-> facts  (way closed: independent facts of the later layers)
                              +-> conclude -> memo

Whether a later layer is read is decided in `after_gate`, by outcomes alone.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from firstbad.agent.nodes import Nodes
from firstbad.agent.state import State

if TYPE_CHECKING:
    from langgraph.checkpoint.base import BaseCheckpointSaver
    from langgraph.graph.state import CompiledStateGraph

_TRACING = (
    "LANGSMITH_TRACING",
    "LANGCHAIN_TRACING",
    "LANGSMITH_TRACING_V2",
    "LANGCHAIN_TRACING_V2",
)


def build(nodes: Nodes, saver: BaseCheckpointSaver[Any]) -> CompiledStateGraph[State]:
    """The graph over one incident's nodes."""
    # langgraph brings langsmith, which would send run data out where a user traces other programs.
    os.environ.update(dict.fromkeys(_TRACING, "false"))
    from langgraph.graph import END, START, StateGraph

    graph = StateGraph(State)
    graph.add_node("intake", nodes.intake)
    graph.add_node("gather", nodes.gather)
    graph.add_node("gate", nodes.gate)
    graph.add_node("ask", nodes.ask)
    graph.add_node("facts", nodes.facts)
    graph.add_node("conclude", nodes.conclude)
    graph.add_node("memo", nodes.memo)

    graph.add_edge(START, "intake")
    graph.add_edge("intake", "gather")
    graph.add_edge("gather", "gate")
    graph.add_conditional_edges("gate", nodes.after_gate, ["gather", "ask", "facts", "conclude"])
    graph.add_conditional_edges("ask", nodes.after_ask, ["gather", "facts", "conclude"])
    graph.add_edge("facts", "conclude")
    graph.add_edge("conclude", "memo")
    graph.add_edge("memo", END)
    return graph.compile(checkpointer=saver)


def steps_allowed(layers: int) -> int:
    """Node runs that a walk may take: three a layer and the ends, with room for a few repeats."""
    return 3 * layers + 20
