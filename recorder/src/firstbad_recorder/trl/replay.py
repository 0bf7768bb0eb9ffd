"""A step whose gradient is not finite, gone through again before its update is made."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from firstbad_recorder.probes.trail import replay
from firstbad_recorder.trl.aside import alone, as_before
from firstbad_recorder.trl.micro import Micro


def first_nonfinite(
    trainer: Any, loss_of: Callable[..., Any], micros: Iterable[Micro]
) -> tuple[dict[str, Any], list[dict[str, Any]]] | None:
    """The operation that left the finite numbers, and the trail of that pass; None without one.

    The update is not made yet, so that weights and rows are still the same. Processes find what is
    in their own rows, so that they make unequal numbers of passes: none waits for another.
    """
    model = trainer.accelerator.unwrap_model(trainer.model)
    with as_before(trainer), alone(trainer):
        for micro in micros:
            found = replay(model, functools.partial(loss_of, trainer.model, dict(micro.inputs)))
            if first := found.get("first"):
                return first, found["trail"]
    return None


def facts(first: dict[str, Any]) -> dict[str, object]:
    """`first_nonfinite` of numerics.json."""
    operands = [o["largest"] for o in first["operands"] if o["largest"] is not None]
    return {
        **{name: first[name] for name in ("operation", "phase", "module", "where")},
        "dtype": first["result"]["dtype"],
        "largest": max(operands, default=None),
    }


def told(first: dict[str, Any]) -> str:
    """The operation that left the finite numbers, in words."""
    where = ", ".join(part for part in (first["module"], first["where"]) if part)
    operands = "; ".join(f"{o['name']} up to {o['largest']:.4g}" for o in first["operands"][:3])
    return (
        f"first value that is not finite: `{first['operation']}` in the {first['phase']} pass "
        f"({where}), of {first['result']['dtype']}: {operands}"
    )
