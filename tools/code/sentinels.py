"""Stand-ins at masked places, such as -Inf or -1e9, that enter arithmetic."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from firstbad.tools.code.finding import Found, Pattern
from firstbad.tools.code.syntax import CONVERTS, SELECTS, Module
from firstbad.tools.code.values import constant, is_logp, is_mask

LARGE = 1e3
SMALL = 1e-4
FILLS = frozenset({"masked_fill", "where"})
REDUCTIONS = frozenset({"sum", "mean", "masked_mean", "masked_sum", "std", "var", "cumsum"})
THROUGH = SELECTS | CONVERTS | {"detach"}
CAUSE = "num.inf_sentinel"


@dataclass(frozen=True)
class Filled:
    """A tensor whose masked places hold a stand-in."""

    value: float
    at: ast.expr


def filled(module: Module, node: ast.AST) -> Filled | None:
    """The stand-in that an expression holds, where it holds one."""
    for each in module.trace(node, THROUGH):
        if (found := _fill(module, each, LARGE, math.inf)) is not None:
            return found
        op = module.op(each)
        if op is not None and op.name == "log" and op.of is not None:
            for inner in module.trace(op.of, THROUGH):
                if (small := _fill(module, inner, 0, SMALL)) is not None and small.value > 0:
                    return Filled(math.log(small.value), small.at)
    return None


def _fill(module: Module, node: ast.expr, least: float, most: float) -> Filled | None:
    values: list[ast.expr | None] = []
    if (op := module.op(node)) is not None and op.name in FILLS:
        values = [op.argument(1, "value")] if op.name == "masked_fill" else [*op.args[:2]]
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        for side in (node.left, node.right):  # `x * mask + (1 - mask) * -1e9`
            if isinstance(side, ast.BinOp) and isinstance(side.op, ast.Mult):
                values += [v for v, m in _sides(side) if is_mask(module, _inverse(m))]
    for each in values:
        value = constant(module, each)
        if value is not None and least <= abs(value) <= most and value != 0:
            return Filled(value, node)
    return None


def _sides(node: ast.BinOp) -> tuple[tuple[ast.expr, ast.expr], tuple[ast.expr, ast.expr]]:
    return (node.left, node.right), (node.right, node.left)


def _inverse(node: ast.expr) -> ast.expr:
    """The mask in `1 - mask`."""
    return node.right if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) else node


def find(module: Module) -> Iterator[Found]:
    """Stand-ins that are summed, subtracted from log-probs, or multiplied by a mask."""
    for op, _ in module.ops(*REDUCTIONS):
        if op.of is None:
            continue
        if (found := filled(module, op.of)) is not None:
            yield Found(
                op.node,
                CAUSE,
                f"{_named(module, found)} enters a {op.name.replace('_', ' ')}",
                _sum_shown(found.value),
            )
    for node in module.nodes(ast.BinOp):
        if isinstance(node.op, ast.Mult):
            for side, other in _sides(node):
                found = filled(module, side) if is_mask(module, other) else None
                if found is not None and math.isinf(found.value):
                    why = f"{_named(module, found)} is multiplied by a mask; select instead"
                    yield Found(node, CAUSE, why, _product_shown())
        elif isinstance(node.op, ast.Sub):
            yield from _difference(module, node)


def _difference(module: Module, node: ast.BinOp) -> Iterator[Found]:
    left, right = filled(module, node.left), filled(module, node.right)
    found = left or right
    if found is None or not (is_logp(module, node.left) and is_logp(module, node.right)):
        return
    alike = left is not None and right is not None and left.value == right.value
    if alike and not math.isinf(found.value):
        return  # the difference is 0
    if _is_chosen_from(module, node):
        return
    why = f"{_named(module, found)} enters a difference of log-probs"
    yield Found(
        node,
        CAUSE,
        why,
        _difference_shown(found.value, both=left is not None and right is not None),
    )


def _is_chosen_from(module: Module, node: ast.BinOp) -> bool:
    """Whether masked places are overwritten after the difference was taken."""
    module.spend(len(module.scope_of[node].ops))
    for op in module.scope_of[node].ops:
        tensors = [op.of, *op.args[:2]] if op.name in FILLS else []
        if any(node in module.trace(t, THROUGH) for t in tensors if t is not None):
            return True
    outer = (module.op(each) for each in module.path(node))
    return any(op is not None and op.name in FILLS for op in outer)


def _named(module: Module, found: Filled) -> str:
    line = getattr(found.at, "lineno", 0)
    return f"the stand-in {found.value:g} of `{module.written(found.at, 60)}` (line {line})"


def _product_shown() -> str:
    with np.errstate(all="ignore"):
        return (
            f"-inf x 0 = {np.float32(-np.inf) * np.float32(0)}, and the sum over all tokens with it"
        )


def _sum_shown(value: float) -> str:
    with np.errstate(all="ignore"):
        tokens = np.array([-0.5, -1.5, value], np.float32)
        return f"mean of -0.5 and -1.5 with one masked place: {tokens.mean():g} instead of -1"


def _difference_shown(value: float, *, both: bool) -> str:
    with np.errstate(all="ignore"):
        fill = np.float32(value)
        other = fill if both else np.float32(-1.5)
        return (
            f"float32: {other:g} - {fill:g} = {other - fill:g}, exp of it {np.exp(other - fill):g}"
        )


SENTINELS = Pattern("sentinel", find)
