"""log of a softmax or a sigmoid, with or without a constant added."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import numpy as np

from firstbad.tools.code.finding import Found, Pattern
from firstbad.tools.code.syntax import CONVERTS, SELECTS, Module
from firstbad.tools.code.values import constant, identifier, without_gradient

EPS = re.compile(r"eps|tiny|small|delta")
LARGEST_EPS = 1e-3
USUAL_EPS = 1e-8
INSTEAD = {"softmax": "log_softmax", "sigmoid": "logsigmoid"}


def find(module: Module) -> Iterator[Found]:
    """`log(softmax(x) + eps)`, `log(softmax(x))`, and the same of a sigmoid."""
    for op, _ in module.ops("log", "log2", "log10"):
        if op.of is None or op.library == "math":
            continue
        made, eps = _softmax_behind(module, op.of)
        if made == "sigmoid" and without_gradient(module, op.node):
            continue  # a cost for matching or a metric
        if made:
            added = "a probability that underflows to 0 has the logarithm -Inf"
            if eps is not None:
                added = f"a floor of {eps:g} is put under the probabilities"
            yield Found(
                op.node,
                "num.log_softmax_eps",
                f"log of a {made}: {added}; `{INSTEAD[made]}` is exact",
                _shown(eps),
            )


def _softmax_behind(module: Module, node: ast.AST) -> tuple[str, float | None]:
    """`softmax` or `sigmoid` where the expression is one, and the constant that was added."""
    eps: float | None = None
    stack = [node]
    while stack:
        for each in module.trace(stack.pop(), SELECTS | CONVERTS):
            op = module.op(each)
            if op is not None and op.name in INSTEAD:
                return op.name, eps
            if op is not None and op.name in ("clamp", "maximum") and op.of is not None:
                low = constant(module, op.argument(0, "min", "a_min"))
                eps = low if low and low <= LARGEST_EPS else eps
                stack.append(op.of)
            elif isinstance(each, ast.BinOp) and isinstance(each.op, ast.Add):
                for side, other in ((each.left, each.right), (each.right, each.left)):
                    if (value := _eps(module, other)) is not None:
                        eps = value
                        stack.append(side)
    return "", None


def _eps(module: Module, node: ast.AST) -> float | None:
    """A small constant, or one whose name says so."""
    value = constant(module, node)
    if value is not None:
        return value if 0 < value <= LARGEST_EPS else None
    return USUAL_EPS if EPS.search(identifier(node)) else None


def _shown(eps: float | None) -> str:
    with np.errstate(all="ignore"):
        if eps is None:
            x = np.array([0.0, 110.0], np.float32)
            shifted = np.exp(x - x.max())
            return (
                f"float32, logits 0 and 110: log(softmax) = {np.log(shifted / shifted.sum())[0]}, "
                f"log_softmax = {(x - x.max() - np.log(shifted.sum()))[0]:.1f}"
            )
        p = np.float32(1e-12)
        got, right = np.log(p + np.float32(eps)), np.log(p)
        return (
            f"float32, p = 1e-12: log(p + {eps:g}) = {got:.2f} instead of {right:.2f}; no value is "
            f"below {np.log(np.float32(eps)):.2f}"
        )


LOG_OF_SOFTMAX = Pattern("log_of_softmax", find)
