"""One file's syntax tree, with what a name was last assigned and what an operation is called.

The same operation is written in many ways: `torch.exp(x)`, `t.exp(x)` after `import torch as t`,
`exp(x)` after `from torch import exp`, `x.exp()`, or through a local variable. Patterns see one.
"""

from __future__ import annotations

import ast
import io
import re
import warnings
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from tokenize import detect_encoding
from typing import TypeVar

from firstbad.tools.code.files import CodeFile

LIBRARIES = frozenset({"torch", "numpy", "jax", "tensorflow", "math", "scipy"})
USUAL = {
    "torch": "torch",
    "F": "torch.nn.functional",
    "nn": "torch.nn",
    "np": "numpy",
    "numpy": "numpy",
    "jnp": "jax.numpy",
    "jax": "jax",
    "math": "math",
}
"""What these names mean where nothing in the file imports them."""
SYNONYMS = {
    "clip": "clamp",
    "clamp_max": "clamp",
    "clip_by_value": "clamp",
    "logsoftmax": "log_softmax",
    "concatenate": "cat",
}
FIRST = ("input", "x", "a")
"""Keywords by which functions take their first tensor."""
SELECTS = frozenset(
    (
        *("gather", "squeeze", "unsqueeze", "view", "reshape", "contiguous", "flatten", "clone"),
        *("transpose", "permute", "expand", "expand_as", "index_select", "take_along_dim"),
        *("take_along_axis", "masked_select", "narrow", "repeat", "repeat_interleave", "cpu"),
        *("cuda", "view_as", "reshape_as", "movedim", "unflatten", "requires_grad"),
    )
)
"""Operations that choose, order or move numbers and change none."""
CONVERTS = frozenset({"float", "double", "half", "bfloat16", "to", "type", "type_as", "astype"})
MOST_NODES = 120_000
"""Of one file; a trainer of 5,000 lines has 40,000."""
MOST_STEPS = 200_000
"""Nodes that are looked at in one file, which bounds the time: names can branch without end."""
ENCODINGS = frozenset({"utf-8", "utf-8-sig", "iso-8859-1", "iso8859-1", "cp1252", "ascii"})
"""A file names its encoding, and some take hours to decode."""
LINE_END = re.compile(r"\r\n|\r|\n")
Place = tuple[int, int]
N = TypeVar("N", bound=ast.AST)


class TooMuch(Exception):
    """A file whose names can't be followed within the limit."""


@dataclass(frozen=True)
class Op:
    """An operation on a tensor, however it is written."""

    name: str
    """In lower case, without the underscore of in-place forms."""
    of: ast.expr | None
    """The tensor it is applied to."""
    args: tuple[ast.expr, ...]
    """Further positional arguments."""
    keywords: Mapping[str, ast.expr]
    node: ast.Call
    library: str = ""
    """First part of the module that the function is from; empty for methods and own functions."""

    def argument(self, place: int, *names: str) -> ast.expr | None:
        """An argument by keyword, else by its place after the tensor."""
        for name in names:
            if name in self.keywords:
                return self.keywords[name]
        return self.args[place] if place < len(self.args) else None


@dataclass
class Scope:
    """A function, or the module: what its names were assigned, in the order of the text."""

    node: ast.AST
    above: Scope | None
    values: dict[str, list[tuple[Place, ast.expr | None]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """End of the assignment and its value; None for what can't be known, such as a parameter."""
    ops: list[Op] = field(default_factory=list)


@dataclass
class Module:
    """A parsed file."""

    name: str
    text: str
    tree: ast.Module
    aliases: dict[str, str] = field(default_factory=dict)
    """Imported names and what they stand for."""
    parents: dict[ast.AST, ast.AST] = field(default_factory=dict)
    scopes: list[Scope] = field(default_factory=list)
    scope_of: dict[ast.AST, Scope] = field(default_factory=dict)
    _ops: dict[ast.AST, Op | None] = field(default_factory=dict)
    by_kind: dict[type[ast.AST], list[ast.AST]] = field(default_factory=lambda: defaultdict(list))
    n_nodes: int = 0
    left: int = MOST_STEPS
    """Steps that may still be taken."""
    at: ast.expr | None = None
    """What a pattern looks at now."""
    odd: dict[ast.AST, str] = field(default_factory=dict)
    """Expressions that a pattern could not be carried through, and why: none looks at them."""

    @cached_property
    def lines(self) -> list[str]:
        """The text, without line ends."""
        return LINE_END.split(self.text)

    def written(self, node: ast.expr, most: int = 160) -> str:
        """An expression as it stands in the file, in one line."""
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        rows = [line.encode() for line in self.lines[first : min(last, first + 8) + 1]]
        if last < first + len(rows):
            rows[-1] = rows[-1][: node.end_col_offset]
        rows[0] = rows[0][node.col_offset :]
        text = " ".join(b" ".join(rows).decode("utf-8", "replace").split())
        return text if len(text) <= most else text[: most - 3] + "..."

    def ops(self, *names: str) -> Iterator[tuple[Op, Scope]]:
        """Every operation of these names with its scope, in the order of the text."""
        for scope in self.scopes:
            for op in scope.ops:
                if op.name in names and op.node not in self.odd:
                    self.at = op.node
                    yield op, scope

    def nodes(self, kind: type[N]) -> Iterator[N]:
        """Every node of a kind, in the order of the text."""
        found, outer = self.by_kind[kind], self.at
        self.spend(len(found))
        for node in found:
            if isinstance(node, kind) and node not in self.odd:
                self.at = node if isinstance(node, ast.expr) else self.at
                yield node
        self.at = outer  # where one loop runs in another

    def spend(self, steps: int) -> None:
        """Count nodes that are looked at.

        Raises:
            TooMuch: the limit of the file is used up.
        """
        self.left -= steps
        if self.left < 0:
            raise TooMuch

    def op(self, node: ast.AST) -> Op | None:
        """The operation that a call is; None for anything else."""
        if node not in self._ops:
            self._ops[node] = self._op(node) if isinstance(node, ast.Call) else None
        return self._ops[node]

    def value_of(self, name: ast.Name) -> ast.expr | None:
        """What a name was last assigned before this place; None where it can't be known."""
        scope, place = self.scope_of.get(name), (name.lineno, name.col_offset)
        while scope is not None:
            if known := scope.values.get(name.id):
                before = bisect_right(known, place, key=lambda each: each[0])
                return known[before - 1][1] if before else None
            scope = scope.above
        return None

    def trace(
        self, node: ast.AST, through: frozenset[str] = SELECTS | CONVERTS, *, arithmetic: str = ""
    ) -> Iterator[ast.expr]:
        """The expression, and what its numbers come from, through names and these operations.

        Args:
            node: where to begin.
            through: operations that are followed to their tensor.
            arithmetic: operators that are followed on both sides, of `+*/`.

        Raises:
            TooMuch: the limit of the file is used up.
        """
        kinds = {"+": ast.Add, "*": ast.Mult, "/": ast.Div}
        followed = tuple(kinds[sign] for sign in arithmetic)
        stack, seen = [node], set[ast.AST]()
        while stack:
            node = stack.pop()
            if node in seen or not isinstance(node, ast.expr):
                continue
            seen.add(node)
            self.spend(1)
            yield node
            if isinstance(node, ast.Name):
                stack += [value] if (value := self.value_of(node)) is not None else []
            elif isinstance(node, (ast.Subscript, ast.NamedExpr)):
                stack.append(node.value)
            elif isinstance(node, ast.UnaryOp):
                stack.append(node.operand)
            elif isinstance(node, ast.IfExp):
                stack += [node.orelse, node.body]
            elif isinstance(node, ast.BinOp) and isinstance(node.op, followed):
                stack += [node.right, node.left]
            elif (op := self.op(node)) is not None and op.name in through:
                # Of `where(chosen, x, y)` the condition gives no numbers.
                stack += op.args[1::-1] if op.name == "where" else [op.of] if op.of else []

    def path(self, node: ast.AST) -> Iterator[ast.AST]:
        """What a node stands in, from the inside to the outside."""
        while (above := self.parents.get(node)) is not None:
            self.spend(1)
            yield above
            node = above

    def dotted(self, node: ast.AST) -> str:
        """`torch.nn.functional.softmax` for what stands for it; empty for what is no such name."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        first = self.aliases.get(node.id) or USUAL.get(node.id, node.id)
        return ".".join([first, *reversed(parts)])

    def _op(self, call: ast.Call) -> Op | None:
        function: ast.expr = call.func
        if isinstance(function, ast.Name):  # `exp = torch.exp` before
            value = self.value_of(function)
            function = value if isinstance(value, ast.Attribute) else function
        keywords = {k.arg: k.value for k in call.keywords if k.arg is not None}
        if isinstance(function, ast.Call):  # `nn.Softmax(dim=-1)(x)`
            inner = {k.arg: k.value for k in function.keywords if k.arg is not None}
            name = self.dotted(function.func).rpartition(".")[2]
            return _made(name, call.args, {**inner, **keywords}, call) if name else None
        dotted = self.dotted(function)
        root = dotted.partition(".")[0]
        if isinstance(function, ast.Attribute):
            of = function.value
            own = isinstance(of, ast.Name) and of.id in ("self", "cls")
            if root in LIBRARIES or own or self._imported(function):
                library = root if root in LIBRARIES else ""
                return _made(function.attr, call.args, keywords, call, library)
            return _made(function.attr, [of, *call.args], keywords, call)
        if isinstance(function, ast.Name):
            library = root if root in LIBRARIES and "." in dotted else ""
            return _made(dotted.rpartition(".")[2], call.args, keywords, call, library)
        return None

    def _imported(self, function: ast.Attribute) -> bool:
        node: ast.expr = function
        while isinstance(node, ast.Attribute):
            node = node.value
        return isinstance(node, ast.Name) and node.id in self.aliases


def _made(
    name: str,
    args: Sequence[ast.expr],
    keywords: Mapping[str, ast.expr],
    node: ast.Call,
    library: str = "",
) -> Op:
    short = name.rstrip("_").lower()
    if args:
        of: ast.expr | None = args[0]
    else:
        of = next((keywords[key] for key in FIRST if key in keywords), None)
    return Op(SYNONYMS.get(short, short), of, tuple(args[1:]), keywords, node, library)


def parse(file: CodeFile) -> Module:
    """The file as a module.

    Raises:
        SyntaxError: it is no Python, or nested beyond what the parser takes.
        TooMuch: it has more than MOST_NODES.
    """
    try:
        encoding, _ = detect_encoding(io.BytesIO(file.data).readline)
        if encoding not in ENCODINGS:
            raise SyntaxError(f"encoding {encoding}")
        text = file.data.decode(encoding)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd escapes and the like, in code that is not ours
            tree = ast.parse(text)
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        raise SyntaxError(str(error) or "nested too deeply") from None
    n_nodes = sum(1 for _ in islice(ast.walk(tree), MOST_NODES + 1))
    if n_nodes > MOST_NODES:
        raise TooMuch
    module = Module(file.name, text, tree, n_nodes=n_nodes)
    _index(module)
    return module


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def _index(module: Module) -> None:
    """Fill in parents, scopes, imports and assignments, without recursion."""
    top = Scope(module.tree, None)
    module.scopes.append(top)
    stack: list[tuple[ast.AST, Scope]] = [(module.tree, top)]
    calls: list[tuple[ast.Call, Scope]] = []
    while stack:
        node, scope = stack.pop()
        module.scope_of[node] = scope
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            _import(module, node)
        elif isinstance(node, ast.Call):
            calls.append((node, scope))
        _assign(module, node, scope)
        if isinstance(node, FUNCTIONS):
            inner = Scope(node, scope)
            module.scopes.append(inner)
            for each in ast.walk(node.args):
                if isinstance(each, ast.arg):
                    inner.values[each.arg].append(((each.lineno, each.col_offset), None))
        else:
            inner = scope
        for child in reversed(list(ast.iter_child_nodes(node))):
            module.parents[child] = node
            stack.append((child, inner))
    for node in module.scope_of:
        module.by_kind[type(node)].append(node)
    for scope in module.scopes:
        for known in scope.values.values():
            known.sort(key=lambda each: each[0])
    for call, scope in calls:
        if (op := module.op(call)) is not None:
            scope.ops.append(op)


def _import(module: Module, node: ast.Import | ast.ImportFrom) -> None:
    for each in node.names:
        if isinstance(node, ast.ImportFrom):
            module.aliases[each.asname or each.name] = f"{node.module or ''}.{each.name}"
        elif each.asname:
            module.aliases[each.asname] = each.name
        else:
            module.aliases[each.name.partition(".")[0]] = each.name.partition(".")[0]


def _assign(module: Module, node: ast.AST, scope: Scope) -> None:
    """Remember what a statement assigns to names; changes in place count as assignments."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            _bind(module, target, node.value, node, scope)
    elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
        _bind(module, node.target, node.value, node, scope)
    elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        before = ast.copy_location(ast.Name(node.target.id, ast.Load()), node.target)
        value = ast.copy_location(ast.BinOp(before, node.op, node.value), node)
        module.parents[before], module.parents[value] = value, node
        module.scope_of[before] = module.scope_of[value] = scope
        _bind(module, node.target, value, node, scope)
    elif isinstance(node, (ast.For, ast.AsyncFor)):
        _bind(module, node.target, None, node.target, scope)
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        _bind(module, node.optional_vars, None, node.optional_vars, scope)
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        function = node.value.func  # `x.clamp_(max=20)`
        if (
            isinstance(function, ast.Attribute)
            and isinstance(function.value, ast.Name)
            and function.attr.endswith("_")
        ):
            _bind(module, function.value, node.value, node, scope)


def _bind(
    module: Module, target: ast.expr, value: ast.expr | None, at: ast.AST, scope: Scope
) -> None:
    place = (getattr(at, "end_lineno", 0) or 0, getattr(at, "end_col_offset", 0) or 0)
    if isinstance(target, ast.Name):
        scope.values[target.id].append((place, value))
    elif isinstance(target, (ast.Tuple, ast.List)):
        same = isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts)
        values = value.elts if same and isinstance(value, (ast.Tuple, ast.List)) else None
        for i, each in enumerate(target.elts):
            _bind(module, each, values[i] if values else None, at, scope)
    elif isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name) and value:
        # `x[chosen] = value` is `x = where(chosen, value, x)`
        before = ast.copy_location(ast.Name(target.value.id, ast.Load()), target)
        where = ast.copy_location(ast.Name("where", ast.Load()), target)
        call = ast.copy_location(ast.Call(where, [target.slice, value, before], []), target)
        module.scope_of[before] = module.scope_of[where] = module.scope_of[call] = scope
        module.parents[call] = at
        scope.values[target.value.id].append((place, call))
