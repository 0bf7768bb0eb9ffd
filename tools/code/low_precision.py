"""Log-probs that were rounded to 16 bits before they are subtracted."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from firstbad.tools.code.finding import Found, Pattern
from firstbad.tools.code.syntax import CONVERTS, SELECTS, Module, Op
from firstbad.tools.code.values import LOGPS_MADE, SUMS, identifier, is_logp

LOW = frozenset({"bfloat16", "half", "float16", "bf16", "fp16"})
CONVERTING = CONVERTS | {"asarray", "array", "cast"}


def low_dtype(module: Module, op: Op) -> str | None:
    """The 16-bit type that an operation converts to; empty for another type; None for none."""
    if op.name in ("half", "bfloat16"):
        return "float16" if op.name == "half" else "bfloat16"
    if op.name in ("float", "double"):
        return ""
    if op.name not in CONVERTING and op.name not in LOGPS_MADE:
        return None
    given = [op.keywords[k] for k in ("dtype",) if k in op.keywords]
    given += op.args if op.name in CONVERTING else ()
    for each in given:
        for value in module.trace(each):
            name = _type_name(value)
            if name in LOW:
                return "float16" if name in ("half", "float16", "fp16") else "bfloat16"
            if name in ("float", "float32", "float64", "double", "fp32"):
                return ""
    return None


def _type_name(node: ast.AST) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value.rpartition(".")[2]
    return identifier(node) if isinstance(node, (ast.Name, ast.Attribute)) else ""


def rounded(module: Module, node: ast.AST) -> tuple[str, ast.Call] | None:
    """Type and place at which log-probs were rounded; None where they were not.

    Logits of 16 bits are what a model gives: they count only where log-probs are made of them
    without widening them before.
    """
    logits = False
    for each in module.trace(
        node, SELECTS | SUMS | CONVERTS | LOGPS_MADE | {"detach", "masked_fill"}
    ):
        if (op := module.op(each)) is None:
            continue
        kind = low_dtype(module, op)
        if kind:
            return kind, op.node
        if op.name in LOGPS_MADE:
            logits = True
        if kind == "" and logits:
            return None  # widened before log_softmax
    return None


def find(module: Module) -> Iterator[Found]:
    """A difference of log-probs of which one was converted to bfloat16 or float16."""
    for node in module.nodes(ast.BinOp):
        if not isinstance(node.op, ast.Sub):
            continue
        where = rounded(module, node.left) or rounded(module, node.right)
        if where is None or not (is_logp(module, node.left) and is_logp(module, node.right)):
            continue
        kind, at = where
        yield Found(
            node,
            "num.low_precision_logprob",
            f"log-probs are rounded to {kind} (`{module.written(at, 60)}`, line {at.lineno}) "
            "before they are subtracted; convert to float32 first, or the difference alone",
            _shown(kind),
        )


def to_bfloat16(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Rounded to 8 significant bits, ties to even."""
    bits = x.view(np.uint32)
    up = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (up & np.uint32(0xFFFF0000)).view(np.float32)


def _shown(kind: str) -> str:
    new, old = np.array([-1.503], np.float32), np.array([-1.5], np.float32)
    if kind == "float16":
        new, old = np.array([-9.503], np.float32), np.array([-9.5], np.float32)
        narrow = [v.astype(np.float16).astype(np.float32) for v in (new, old)]
    else:
        narrow = [to_bfloat16(new), to_bfloat16(old)]
    exact, got = float((new - old)[0]), float((narrow[0] - narrow[1])[0])
    return f"{new[0]:.3f} - {old[0]:.3f} = {exact:.4f} in float32 and {got:.4f} from {kind}"


LOW_PRECISION = Pattern("low_precision", find)
