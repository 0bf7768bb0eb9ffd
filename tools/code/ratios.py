"""exp of a log-ratio: what limits it, and what only limits its result."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import numpy as np

from firstbad.tools.code.finding import Found, Pattern
from firstbad.tools.code.syntax import CONVERTS, SELECTS, Module, Op
from firstbad.tools.code.values import (
    FIXED,
    LOG_RATIO,
    SUMS,
    constant,
    identifier,
    is_logp,
    without_gradient,
)

THROUGH = SELECTS | CONVERTS | SUMS | {"detach", "nan_to_num", "masked_fill", "where", "clamp"}
LIMITS = frozenset({"clamp", "minimum", "tanh", "hardtanh", "sigmoid", "logsigmoid", "fmin"})
LARGEST = float(np.log(np.finfo(np.float32).max))
"""Where exp overflows in float32: 88.7."""
TIGHT = 1.0
"""A limit on the log-ratio within this works as a clip, not as a guard against overflow."""


def limit_of(module: Module, op: Op) -> float | None:
    """The upper limit that an operation sets, as far as it is stated; None where it sets none."""
    if op.name == "clamp":
        function = identifier(op.node).rstrip("_")
        if function == "clamp_max":
            high = op.argument(0, "max")
        else:
            high = op.argument(1, "max", "a_max", "clip_value_max")
            if high is None and not {"min", "a_min"} & set(op.keywords) and op.args:
                return None  # a lower limit alone
        if high is None or (isinstance(high, ast.Constant) and high.value is None):
            return None
        value = constant(module, high)
        return 0.0 if value is None else value
    if op.name == "min" and op.args and not isinstance(op.args[0], ast.Constant):
        return 0.0  # of two tensors, not along an axis
    return 0.0 if op.name in LIMITS else None


def _is_ratio(module: Module, node: ast.expr) -> bool:
    """Whether a difference is a log-ratio that a gradient goes through."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Sub):
        return False
    sides = (node.left, node.right)
    if not all(is_logp(module, side) for side in sides):
        return False
    if all(_is_fixed(module, side) for side in sides):
        return False
    return len({_plain(side) for side in sides}) == 2  # `logp - logp.detach()` is 0


def _is_fixed(module: Module, node: ast.AST) -> bool:
    for each in module.trace(node, SELECTS | CONVERTS | {"detach"}):
        if FIXED.search(identifier(each)):
            return True
        if (op := module.op(each)) is not None and op.name == "detach":
            return True
    return False


def _plain(node: ast.expr) -> str:
    """A name for an expression; `detach` changes no value."""
    while (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "detach"
    ):
        node = node.func.value
    return ast.dump(node) if isinstance(node, (ast.Name, ast.Attribute)) else str(id(node))


def _exps(module: Module) -> Iterator[tuple[Op, list[ast.expr], bool]]:
    """Each exp of a log-ratio, what its argument is made of, and whether its making is seen."""
    for op, _ in module.ops("exp", "expm1"):
        if op.of is None or op.library in ("math", "numpy") or without_gradient(module, op.node):
            continue
        behind = list(module.trace(op.of, THROUGH, arithmetic="*/"))
        made = [module.op(each) for each in behind]
        if any(each is not None and each.name == "detach" for each in made):
            continue
        seen = any(_is_ratio(module, each) for each in behind)
        differs = any(
            isinstance(each, ast.BinOp) and isinstance(each.op, ast.Sub) for each in behind
        )
        if seen or (not differs and any(LOG_RATIO.search(identifier(each)) for each in behind)):
            yield op, behind, seen


def _limits(module: Module, behind: list[ast.expr]) -> list[float]:
    """Upper limits on the way to an exponent; 0 for one that is not stated as a number."""
    found: list[float] = []
    for each in behind:
        if (op := module.op(each)) is None:
            continue
        if op.name == "where" and isinstance(op.of, ast.Compare):
            found.append(0.0)  # `where(x > 20, 20, x)`; `where(mask, x, 0)` limits nothing
        elif (limit := limit_of(module, op)) is not None:
            found.append(limit)
    return found


def find_overflow(module: Module) -> Iterator[Found]:
    """Exp of a log-ratio that nothing limits, or whose result alone is limited."""
    clamped = _clamped_results(module)
    for op, behind, seen in _exps(module):
        limits = _limits(module, behind)
        if limits and min(limits) <= LARGEST:
            continue
        after = clamped.get(op.node)
        if not seen and (after is None or _is_clip(module, after)):
            continue  # it may have been limited where it was made
        why = "nothing limits the log-ratio before exp"
        if limits:
            why = f"the log-ratio is limited to {min(limits):g}, beyond where exp is finite"
        if after is not None:
            why += (
                f"; `{module.written(after, 60)}` (line {after.lineno}) limits only the result, "
                "and the gradient through what overflowed is 0 times Inf"
            )
        yield Found(op.node, "num.exp_overflow", why, _overflow_shown())


def _clamped_results(module: Module) -> dict[ast.AST, ast.Call]:
    """The clamp that is applied to the result of an exp, by the exp."""
    found: dict[ast.AST, ast.Call] = {}
    for op, _ in module.ops("clamp", "minimum"):
        outer = module.parents.get(op.node)
        if isinstance(outer, ast.Attribute) and outer.attr == "detach":
            continue  # no gradient goes through it
        for side in (op.of, *op.args[:1]) if op.name == "minimum" else (op.of,):
            if side is None:
                continue
            for each in module.trace(side, SELECTS | CONVERTS | {"nan_to_num"}):
                inner = module.op(each)
                if inner is not None and inner.name in ("exp", "expm1"):
                    found.setdefault(inner.node, op.node)
    return found


def _is_clip(module: Module, call: ast.Call) -> bool:
    """Whether a limit is the clip of the objective: `1 - eps` to `1 + eps`, and no guard."""
    op = module.op(call)
    given = [] if op is None else [*op.args, *op.keywords.values()]
    return any(
        isinstance(each, ast.BinOp) and constant(module, each.left) == 1
        for side in given
        for each in module.trace(side)
    )


def _overflow_shown() -> str:
    with np.errstate(all="ignore"):
        ratio = np.exp(np.float32(100))
        passed = np.float32(ratio < 10)  # the gradient of a clamp: 0 where it holds
        gradient = passed * ratio
        still = np.exp(np.float32(88))
    return (
        f"float32: exp(88) = {still:.3g}, exp(100) = {ratio}; clamped to 10 afterwards its "
        f"gradient is {passed:.0f} x {ratio} = {gradient}"
    )


def find_tight_limit(module: Module) -> Iterator[Found]:
    """A limit on the log-ratio so tight that it works as a clip, whatever the advantage's sign."""
    for op, behind, _ in _exps(module):
        stated = [limit for limit in _limits(module, behind) if 0 < limit < TIGHT]
        if not stated:
            continue
        limit = min(stated)
        low, high = np.exp(np.float32(-limit)), np.exp(np.float32(limit))
        yield Found(
            op.node,
            "num.clamp_in_objective",
            f"a log-ratio held within {limit:g} changes the objective on both signs of the "
            "advantage; a guard against overflow is far outside of what healthy steps reach",
            f"exp(-{limit:g}) = {low:.4f} and exp({limit:g}) = {high:.4f} bound every ratio",
        )


def find_log_of_sum(module: Module) -> Iterator[Found]:
    """Log of a sum of exps, where logsumexp would not overflow."""
    for op, _ in module.ops("log"):
        if op.of is None:
            continue
        for each in module.trace(op.of):
            total = module.op(each)
            if total is None or total.name != "sum" or total.of is None:
                continue
            for inner in module.trace(total.of):
                exp = module.op(inner)
                if exp is None or exp.name != "exp" or exp.of is None:
                    continue
                if any(
                    isinstance(e, ast.BinOp) for e in module.trace(exp.of, THROUGH, arithmetic="*/")
                ):
                    continue  # `x - x.max()` is sound, and whatever else is computed there
                with np.errstate(all="ignore"):
                    x = np.array([100.0, 99.0], np.float32)
                    direct = np.log(np.exp(x).sum())
                    stable = float(x.max() + np.log(np.exp(x - x.max()).sum()))
                yield Found(
                    op.node,
                    "num.exp_overflow",
                    "log of a sum of exps overflows at logits of 89; `logsumexp` does not",
                    f"float32, logits 100 and 99: {direct} instead of {stable:.4f}",
                )


OVERFLOW = Pattern("exp_before_clamp", find_overflow)
TIGHT_LIMIT = Pattern("tight_limit", find_tight_limit)
LOG_OF_SUM = Pattern("log_of_sum", find_log_of_sum)
