"""What names and constants in loss code say: log-probs, masks, numbers."""

from __future__ import annotations

import ast
import math
import re

from firstbad.tools.code.syntax import CONVERTS, SELECTS, Module

LOGP = re.compile(r"(^|_|per_token)(log_?p(i|robs?|s)?|log_?likelihoods?|lps?)(_|\d|$)")
LOG_RATIO = re.compile(
    r"(^|_)(log_?(ratios?|rho|diff|weights?|w|importance_weights?|is_weights?)|logr"
    r"|approx_kl|log_?p(robs?|s)?_(ratios?|diffs?))(_|\d|$)"
)
FIXED = re.compile(r"(^|_)(old|ref|reference|sampl\w*|rollout|engine|infer\w*|vllm|behav\w*)(_|$)")
"""Policies that no gradient reaches."""
MASK = re.compile(r"mask|valid|keep|is_(real|token|trained)")
LOGPS_MADE = frozenset({"log_softmax", "log_prob", "selective_log_softmax", "logsigmoid"})
SUMS = frozenset({"sum", "mean", "masked_mean", "masked_sum", "cumsum"})


def identifier(node: ast.AST | None) -> str:
    """The last name of an expression, in lower case: of an attribute, a key, or what is called."""
    if isinstance(node, ast.Name):
        return node.id.lower()
    if isinstance(node, ast.Attribute):
        return node.attr.lower()
    if isinstance(node, ast.Call):
        return identifier(node.func)
    if isinstance(node, ast.Subscript):
        key = node.slice
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            return key.value.lower()
        return identifier(node.value)
    return ""


def is_logp(module: Module, node: ast.AST) -> bool:
    """Whether an expression is log-probs, by what it is called or made of."""
    for each in module.trace(node, SELECTS | CONVERTS | SUMS | {"detach", "masked_fill", "where"}):
        if (op := module.op(each)) is not None and op.name in LOGPS_MADE:
            return True
        if LOGP.search(identifier(each)) and not LOG_RATIO.search(identifier(each)):
            return True
    return False


def is_mask(module: Module, node: ast.AST) -> bool:
    """Whether an expression is a mask: by its name, or a comparison."""
    return any(
        isinstance(each, ast.Compare) or MASK.search(identifier(each))
        for each in module.trace(node)
    )


def constant(module: Module, node: ast.AST | None) -> float | None:
    """A number that the code states, also through a name; infinite ones and `finfo.min` too."""
    if node is None:
        return None
    sign = 1.0
    for _ in range(8):
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
            sign, node = (-sign if isinstance(node.op, ast.USub) else sign), node.operand
        elif isinstance(node, ast.Name):
            if (known := module.value_of(node)) is None:
                return sign * math.inf if module.dotted(node).endswith(".inf") else None
            node = known
        else:
            break
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        try:
            return sign * float(node.value)
        except OverflowError:
            return None
    if isinstance(node, ast.Attribute) and node.attr in ("inf", "min", "max"):
        if node.attr == "inf":
            return sign * math.inf
        limits = module.op(node.value)
        if limits is None or limits.name != "finfo":
            return None
        return sign * (-3.4028234663852886e38 if node.attr == "min" else 3.4028234663852886e38)
    if isinstance(node, ast.Call) and identifier(node) == "float" and len(node.args) == 1:
        text = node.args[0]
        if isinstance(text, ast.Constant) and isinstance(text.value, str):
            try:
                value = float(text.value)
            except ValueError:
                return None
            return None if math.isnan(value) else sign * value
    return None


def axis_of(module: Module, node: ast.Call) -> object:
    """Axis of a reduction: an int, None where it takes all, `...` where it can't be known."""
    op = module.op(node)
    if op is None:
        return ...
    given = op.argument(0, "dim", "axis")
    if given is None or (isinstance(given, ast.Constant) and isinstance(given.value, bool)):
        return None  # `std(False)` says unbiased
    if isinstance(given, ast.Constant) and given.value is None:
        return None
    value = constant(module, given)
    whole = value is not None and math.isfinite(value) and value.is_integer()
    return int(value) if value is not None and whole else ...


def without_gradient(module: Module, node: ast.AST) -> bool:
    """Whether a place stands under `no_grad` or `inference_mode`."""
    for above in module.path(node):
        given: list[ast.expr] = []
        if isinstance(above, (ast.With, ast.AsyncWith)):
            given = [item.context_expr for item in above.items]
        elif isinstance(above, (ast.FunctionDef, ast.AsyncFunctionDef)):
            given = above.decorator_list
        if any(identifier(each) in ("no_grad", "inference_mode") for each in given):
            return True
    return False
