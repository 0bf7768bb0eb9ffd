"""Standard deviations of rewards: over the wrong axis, or as a bare divisor."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import numpy as np

from firstbad.tools.code.finding import Found, Pattern
from firstbad.tools.code.syntax import CONVERTS, SELECTS, Module, Op
from firstbad.tools.code.values import axis_of, constant, identifier

SCORES = re.compile(r"(^|_)(rewards?|scores?|returns?|advantages?|adv|r)(_|\d|$)")
GROUP = re.compile(
    r"(^|_)(groups?|group_size|num_generations|n_generations|rollout_n|num_samples|n_samples"
    r"|num_return_sequences|generations|samples_per_prompt|g|k)$"
)
KEEPS = SELECTS | CONVERTS | {"detach"}
RESHAPES = frozenset({"view", "reshape"})


def find_wrong_axis(module: Module) -> Iterator[Found]:
    """Rewards divided by a standard deviation that is taken over other samples than their mean."""
    for node, op in _divided(module):
        axis = axis_of(module, op.node)
        if op.of is None or axis is ...:
            continue
        mean = _mean_taken_off(module, node.left, op.of)
        why = ""
        if _is_grouped(module, op.of) and axis in (None, 0):
            over = "all groups at once" if axis is None else "the groups instead of within them"
            why = f"the rows are groups, and this spread is taken over {over}"
        elif mean is not ... and mean is not None and axis != mean:
            over = "all samples" if axis is None else f"axis {axis}"
            why = f"the mean is taken over axis {mean}, and the spread over {over}"
        if why:
            yield Found(op.node, "reward.wrong_group", why, _axis_shown(axis))


def find_bare_divisor(module: Module) -> Iterator[Found]:
    """Rewards divided by a standard deviation without a constant added: 0 by 0 in a flat group."""
    for node, op in _divided(module, bare=True):
        if op.of is None or not _is_about(module, op.of) or _is_guarded(module, node, op):
            continue
        yield Found(
            node,
            "reward.near_zero_sigma",
            "nothing is added to the standard deviation: a group of equal rewards is divided by 0, "
            "or by what rounding leaves",
            _bare_shown(),
        )


def _divided(module: Module, *, bare: bool = False) -> Iterator[tuple[ast.BinOp, Op]]:
    """Each quotient by a standard deviation, with it; `bare`: with nothing added to it."""
    through = KEEPS if bare else KEEPS | {"clamp", "maximum", "where"}
    for node in module.nodes(ast.BinOp):
        if not isinstance(node.op, ast.Div):
            continue
        for each in module.trace(node.right, through, arithmetic="" if bare else "+"):
            op = module.op(each)
            if op is not None and op.name == "std":
                yield node, op
                break


def _mean_taken_off(module: Module, node: ast.AST, of: ast.expr) -> object:
    """Axis of the mean of the same tensor that was subtracted; `...` where there is none."""
    for each in module.trace(node, KEEPS):
        if isinstance(each, ast.BinOp) and isinstance(each.op, ast.Sub):
            for inner in module.trace(each.right, KEEPS):
                op = module.op(inner)
                if op is not None and op.name == "mean" and op.of is not None:
                    same = ast.dump(op.of) == ast.dump(of)
                    return axis_of(module, op.node) if same else ...
    return ...


def _is_grouped(module: Module, node: ast.AST) -> bool:
    """Rewards in the form (prompts, samples of each): `rewards.view(-1, G)`."""
    for each in module.trace(node, KEEPS):
        op = module.op(each)
        if op is None or op.name not in RESHAPES:
            continue
        shape: list[ast.expr] = list(op.args)
        if len(shape) == 1 and isinstance(shape[0], (ast.Tuple, ast.List)):
            shape = shape[0].elts
        if len(shape) != 2 or constant(module, shape[1]) == -1:
            continue
        if GROUP.search(identifier(shape[1])) or (
            constant(module, shape[0]) == -1 and _is_about(module, node)
        ):
            return True
    return False


def _is_about(module: Module, node: ast.AST) -> bool:
    return any(SCORES.search(identifier(each)) for each in module.trace(node, KEEPS))


def _is_guarded(module: Module, node: ast.BinOp, op: Op) -> bool:
    """Whether a flat group is seen to: by a comparison, a choice, or a repair afterwards."""
    names = {each.id for each in module.trace(node.right, KEEPS) if isinstance(each, ast.Name)}
    scope = module.scope_of[node]
    for each in module.nodes(ast.Compare):
        if module.scope_of[each] is scope:
            sides = (each.left, *each.comparators)
            if any(
                (isinstance(e, ast.Name) and e.id in names) or module.op(e) is op
                for side in sides
                for e in module.trace(side, KEEPS)
            ):
                return True
    for above in module.path(node):
        if isinstance(above, ast.Call):
            outer = module.op(above)
            if outer is not None and outer.name in ("where", "nan_to_num", "masked_fill"):
                return True
    return False


def _axis_shown(axis: object) -> str:
    rewards = np.array([[1.0, 0, 0, 0], [1, 1, 1, 0]])
    own = rewards.std(axis=1, ddof=1, keepdims=True)
    wrong = rewards.std(axis=None if axis is None else 0, ddof=1, keepdims=axis is not None)
    right = (rewards - rewards.mean(axis=1, keepdims=True)) / own
    with np.errstate(all="ignore"):
        got = (rewards - rewards.mean(axis=1, keepdims=True)) / wrong
    last = float(np.sqrt(4 / 3))
    return (
        f"groups 1 0 0 0 and 1 1 1 0: spread of the first {own[0, 0]:.3f}, this one "
        f"{np.ravel(wrong)[0]:.3f}, so its right answer gets {got[0, 0]:.3f} instead of "
        f"{right[0, 0]:.3f}; torch divides by n - 1 and numpy by n, a factor of "
        f"{last:.3f} at 4 samples"
    )


def _bare_shown() -> str:
    with np.errstate(all="ignore"):
        flat = np.full(4, 0.5, np.float32)
        exact = ((flat - flat.mean()) / flat.std(ddof=1))[0]
        near = np.array([0.5, 0.5, 0.5, np.nextafter(np.float32(0.5), np.float32(1))], np.float32)
        wide = near.astype(np.float64)
        odd = ((wide - wide.mean()) / wide.std(ddof=1))[-1]
    return (
        f"four rewards of 0.5: 0 / 0 = {exact}; with one of them {wide[-1] - wide[0]:.1g} larger "
        f"its advantage is {odd:.2f}"
    )


WRONG_AXIS = Pattern("std_axis", find_wrong_axis)
BARE_DIVISOR = Pattern("bare_std", find_bare_divisor)
