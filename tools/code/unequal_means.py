"""Token means of micro-batches that are averaged although their token counts differ."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import numpy as np

from firstbad.tools.code.finding import Found, Pattern
from firstbad.tools.code.syntax import CONVERTS, SELECTS, Module, Op, Scope
from firstbad.tools.code.values import MASK, identifier, is_mask

ACCUMULATION = re.compile(r"accum|micro|(^|_)ga_steps")
LOOPED = re.compile(r"micro|(^|_)mb|chunk|mini_?batch")
TOKEN = re.compile(r"(^|_)per_token|token_(loss|level)|(^|_)tok(en)?s?_loss")
OUTPUTS = re.compile(r"^(model_?)?(out|outputs?)$")
MASKED_MEANS = frozenset({"masked_mean", "mean_masked", "masked_average"})
KEEPS = SELECTS | CONVERTS
LENGTHS = (10, 100, 400, 1500)
TERMS = (1.0, -1.0, 0.5, -0.25)
CAUSE = "grad.denominator"


def find(module: Module) -> Iterator[Found]:
    """A token mean divided by the number of micro-batches, or a mean of such means."""
    for node in module.nodes(ast.BinOp):
        loss = _shared_out(module, node)
        if loss is not None and (mean := token_mean(module, loss)) is not None:
            yield _found(module, node, mean)
    for scope in module.scopes:
        yield from _mean_of_list(module, scope)
    yield from _accelerated(module)


def token_mean(module: Module, node: ast.AST) -> ast.expr | None:
    """Where an expression is made of a mean over the tokens of one micro-batch: that mean."""
    for each in module.trace(node, KEEPS, arithmetic="+*"):
        if _is_token_mean(module, each):
            return each
    return None


def _is_token_mean(module: Module, node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return _is_total(module, node.left) and _is_count(module, node.right)
    if isinstance(node, ast.Attribute) and node.attr == "loss":
        return _is_model_output(module, node.value)
    if (op := module.op(node)) is None:
        return False
    if op.name in MASKED_MEANS:
        return len(op.args) == 1 and not {"dim", "axis"} & set(op.keywords)
    if op.name in ("cross_entropy", "nll_loss"):
        return _is_over_tokens(module, op)
    if op.name == "mean" and not op.args and not {"dim", "axis"} & set(op.keywords) and op.of:
        return any(
            _is_by_token(module, each) for each in module.trace(op.of, KEEPS, arithmetic="*")
        )
    return False


def _is_over_tokens(module: Module, op: Op) -> bool:
    """Whether a cross entropy is a mean over tokens: flattened, or with some left out."""
    if op.of is None or not op.library or "reduction" in op.keywords:
        return False
    made = [module.op(each) for each in module.trace(op.of)]
    flat = any(each is not None and each.name in ("view", "reshape", "flatten") for each in made)
    return flat or "ignore_index" in op.keywords


def _is_by_token(module: Module, node: ast.expr) -> bool:
    if isinstance(node, ast.Subscript):
        return is_mask(module, node.slice)
    if (op := module.op(node)) is not None and op.name == "masked_select":
        return True
    return bool(TOKEN.search(identifier(node)))


def _is_total(module: Module, node: ast.expr) -> bool:
    """A sum over all axes."""
    for each in module.trace(node, KEEPS):
        op = module.op(each)
        if op is not None and op.name in ("sum", "masked_sum"):
            return not {"dim", "axis"} & set(op.keywords) and (
                not op.args or op.name == "masked_sum"
            )
    return False


def _is_count(module: Module, node: ast.expr) -> bool:
    """A mask, summed over all axes."""
    for each in module.trace(node, KEEPS | {"clamp", "maximum", "max"}, arithmetic="+"):
        op = module.op(each)
        if op is not None and op.name == "sum" and op.of is not None:
            whole = not op.args and not {"dim", "axis"} & set(op.keywords)
            if whole and is_mask(module, op.of):
                return True
    return False


def _is_model_output(module: Module, node: ast.expr) -> bool:
    """`outputs` of a language model, whose loss is over tokens unless it is told their number."""
    if "CausalLM" not in module.text:
        return False  # a classifier's mean is over samples
    call = node
    if isinstance(node, ast.Name):
        if not OUTPUTS.search(node.id.lower()):
            return False
        call = module.value_of(node) or node
    if not isinstance(call, ast.Call) or "model" not in identifier(call):
        return False
    return "num_items_in_batch" not in {k.arg for k in call.keywords}


def _shared_out(module: Module, node: ast.BinOp) -> ast.expr | None:
    """What is divided by a number of micro-batches, or multiplied by its inverse."""
    if isinstance(node.op, ast.Div):
        return node.left if _counts_micro(module, node.right) else None
    if isinstance(node.op, ast.Mult):
        for loss, factor in ((node.left, node.right), (node.right, node.left)):
            for each in module.trace(factor, KEEPS):
                if isinstance(each, ast.BinOp) and isinstance(each.op, ast.Div):
                    one = isinstance(each.left, ast.Constant)
                    if one and _counts_micro(module, each.right):
                        return loss
    return None


def _counts_micro(module: Module, node: ast.expr) -> bool:
    for each in module.trace(node, KEEPS | {"len", "int", "max"}):
        name = identifier(each)
        if ACCUMULATION.search(name) and not MASK.search(name) and "token" not in name:
            return True
    return False


def _mean_of_list(module: Module, scope: Scope) -> Iterator[Found]:
    """`torch.stack(losses).mean()` where each of `losses` is the token mean of a micro-batch."""
    appended: dict[str, ast.expr] = {}
    for op in scope.ops:
        if op.name != "append" or not isinstance(op.of, ast.Name) or not op.args:
            continue
        if not _in_micro_loop(module, op.node):
            continue
        if (mean := token_mean(module, op.args[0])) is not None:
            appended.setdefault(op.of.id, mean)
    if not appended:
        return
    for op in scope.ops:
        if op.name == "mean" and op.of is not None and not op.args:
            for each in module.trace(op.of, KEEPS | {"stack", "cat", "tensor", "array", "asarray"}):
                if isinstance(each, ast.Name) and each.id in appended:
                    yield _found(module, op.node, appended[each.id])
                    break
    for node in module.nodes(ast.BinOp):
        if isinstance(node.op, ast.Div):
            top, low = module.op(node.left), module.op(node.right)
            names = [o.of.id for o in (top, low) if o is not None and isinstance(o.of, ast.Name)]
            is_mean = (
                top is not None and top.name == "sum" and low is not None and low.name == "len"
            )
            if is_mean and len(names) == 2 and names[0] == names[1] and names[0] in appended:
                yield _found(module, node, appended[names[0]])


def _in_micro_loop(module: Module, node: ast.AST) -> bool:
    for above in module.path(node):
        if isinstance(above, (ast.For, ast.AsyncFor)):
            named = [identifier(each) for each in (above.target, above.iter)]
            if isinstance(above.target, ast.Tuple):
                named += [identifier(each) for each in above.target.elts]
            if any(LOOPED.search(name) for name in named):
                return True
    return False


def _accelerated(module: Module) -> Iterator[Found]:
    """`accelerator.backward(loss)` under `accumulate`: it divides by the micro-batches' number."""
    for op, _ in module.ops("backward"):
        if not op.args or "accelerator" not in identifier(op.of):
            continue
        under = any(
            identifier(item.context_expr) == "accumulate"
            for above in module.path(op.node)
            if isinstance(above, ast.With)
            for item in above.items
        )
        if under and (mean := token_mean(module, op.args[0])) is not None:
            yield _found(module, op.node, mean)


def _found(module: Module, node: ast.expr, mean: ast.expr) -> Found:
    return Found(
        node,
        CAUSE,
        f"`{module.written(mean, 80)}` (line {mean.lineno}) is a mean over the tokens of one "
        "micro-batch: averaged, each micro-batch counts alike, however many tokens it has",
        _shown(),
    )


def _shown() -> str:
    n, x = np.array(LENGTHS, float), np.array(TERMS)
    listed = ", ".join(map(str, LENGTHS))
    return (
        f"{listed} tokens with losses {', '.join(f'{v:g}' for v in TERMS)}: mean of means "
        f"{x.mean():.4f}, over all tokens {(n * x).sum() / n.sum():.4f}; a token of the first "
        f"counts {n[-1] / n[0]:.0f} times one of the last"
    )


UNEQUAL_MEANS = Pattern("mean_of_means", find)
