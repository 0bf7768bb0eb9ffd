"""What a pickle describes, read off without carrying anything out: plain values and inert stubs.

The operations are listed, as a disassembler does, and followed on a stack of plain values. What
would be imported stays a name, what would be called keeps its arguments, and nothing else happens.
"""

from __future__ import annotations

import pickletools
import struct
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

MAX_BYTES = 2**20
"""Of one pickle: saved arguments of a trainer have some 7 kB."""
MAX_OPERATIONS = 200_000
MAX_DEPTH = 6
MAX_PARTS = 50_000
"""Values and pieces of 64 characters that may come out: references can stand for billions."""
MAX_WHOLE = 2**63
_HARMLESS = frozenset(
    {
        *("collections.OrderedDict", "copyreg._reconstructor", "_codecs.encode"),
        *("builtins.set", "builtins.frozenset", "builtins.object", "builtins.getattr"),
        *("datetime.timedelta", "pathlib.Path", "pathlib.PosixPath", "pathlib.WindowsPath"),
    }
)
"""All that settings and states need of the standard library."""


class Refused(ValueError):
    """Not what it should be, or more than that is; the text says what."""


@dataclass(frozen=True)
class Name:
    """What would have been imported."""

    text: str


@dataclass
class Made:
    """What would have been made: a class or function, its arguments, and the state set on it."""

    of: object
    args: object = ()
    state: dict[str, object] = field(default_factory=dict)


class _Opaque:
    """A value that is of no use here."""


_OPAQUE = _Opaque()
Stub = Callable[[object], object]
"""Gives what stands for something that lies outside the pickle, by what the pickle calls it."""
_OLD_NAMES = {"__builtin__": "builtins", "copy_reg": "copyreg"}
"""Modules as protocols 0 to 2 call them."""
_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: dict[str, Callable[[], Any]] = {
    "EMPTY_TUPLE": tuple, "EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_SET": list
}  # fmt: skip
_NUMBERS = frozenset(
    ("BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT")
)
_TEXTS = frozenset(("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE", "STRING"))
_BYTES = frozenset(("BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"))
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_BROKEN = (ValueError, IndexError, KeyError, TypeError, OverflowError, struct.error)


def settings_in(pickled: bytes, skip: int = 0) -> dict[str, object]:
    """Fields of the object that a pickle describes: numbers, texts, and lists and maps of them.

    An enum is its value, a class or a dtype its dotted name; other values are left out.

    Args:
        pickled: one pickle, or several one after the other.
        skip: how many of those to pass over.

    Raises:
        Refused: cut off, too large, naming what no settings need, or no object with fields.
    """
    if len(pickled) > MAX_BYTES:
        raise Refused(f"it has {len(pickled):,} bytes, more than settings take")
    stream = BytesIO(pickled)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of an odd escape in a text; it would be printed
            for _ in range(skip):
                follow(stream)
            found = follow(stream)
    except Refused:
        raise
    except _BROKEN:
        raise Refused("it is cut off, or no pickle") from None
    state = found.state if isinstance(found, Made) else None
    plain = _Plain().of(state) if state else None
    if not isinstance(plain, dict) or not plain:
        raise Refused("it holds no object with fields")
    return plain


OLD_TORCH = 0x1950A86A20F9469CFC6C
"""First pickle of what torch saved before 1.6: that, a version and the machine come first."""


def first_number(pickled: bytes) -> int | None:
    """The number that the first of several pickles is; None where it is something else."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = follow(BytesIO(pickled[:64]))
    except _BROKEN:
        return None
    return found if isinstance(found, int) else None


def follow(
    stream: BytesIO,
    *,
    most: int = MAX_OPERATIONS,
    kind: str = "settings",
    outside: Stub = lambda called: _OPAQUE,
) -> object:
    """What one pickle describes, as plain values, `Name`, `Made` and what `outside` gives.

    Maps keep the keys that are text or whole numbers; bytes are left out.

    Args:
        stream: at its beginning; it is left behind its end.
        most: operations beyond which it is refused.
        kind: what it should hold, in the plural, for the refusal.
        outside: gives what stands for a thing that the pickle only names (a persistent id).

    Raises:
        Refused: too many operations, cut off, or naming what no such thing needs.
        ValueError, IndexError, KeyError, TypeError, OverflowError, struct.error: no pickle.
    """
    stack: list[Any] = []
    below: list[list[Any]] = []
    memo: dict[object, Any] = {}

    def since_mark() -> list[Any]:
        nonlocal stack
        found, stack = stack, below.pop()
        return found

    for done, (op, arg, _) in enumerate(pickletools.genops(stream)):
        name = op.name
        if done >= most:
            raise Refused(f"it has more than {most:,} operations")
        if name in ("PROTO", "FRAME"):
            pass
        elif name == "STOP":
            return stack.pop()
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name in _NUMBERS or name in _TEXTS:
            stack.append(arg)
        elif name in _BYTES or name in ("BYTEARRAY8", "PERSID"):
            stack.append(_OPAQUE)
        elif name == "BINPERSID":
            stack[-1] = outside(stack[-1])
        elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
            memo[arg] = stack[-1]
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            stack.append(memo[arg])
        elif name == "MARK":
            below.append(stack)
            stack = []
        elif name == "POP":
            if stack:
                stack.pop()
            else:
                since_mark()
        elif name == "POP_MARK":
            since_mark()
        elif name == "DUP":
            stack.append(stack[-1])
        elif name in _TUPLES:
            count = _TUPLES[name]
            stack[-count:] = [tuple(stack[-count:])]
        elif name in ("TUPLE", "LIST", "FROZENSET"):
            items = since_mark()
            stack.append(tuple(items) if name == "TUPLE" else items)
        elif name == "DICT":
            items = since_mark()
            stack.append(_pairs(items))
        elif name == "APPEND":
            _extend(stack[-2], [stack.pop()])
        elif name in ("APPENDS", "ADDITEMS"):
            items = since_mark()
            _extend(stack[-1], items)
        elif name == "SETITEM":
            value, key = stack.pop(), stack.pop()
            _update(stack[-1], [key, value])
        elif name == "SETITEMS":
            items = since_mark()
            _update(stack[-1], items)
        elif name == "GLOBAL":
            stack.append(_name(*str(arg).split(" ", 1), kind=kind))
        elif name == "STACK_GLOBAL":
            attribute, module = stack.pop(), stack.pop()
            stack.append(_name(module, attribute, kind=kind))
        elif name in ("REDUCE", "NEWOBJ"):
            args = stack.pop()
            stack[-1] = Made(stack[-1], args)
        elif name == "NEWOBJ_EX":
            del stack[-2:]
            stack[-1] = Made(stack[-1])
        elif name == "OBJ":
            made_of, *args = since_mark()
            stack.append(Made(made_of, tuple(args)))
        elif name == "INST":
            args = since_mark()
            stack.append(Made(_name(*str(arg).split(" ", 1), kind=kind), tuple(args)))
        elif name == "BUILD":
            state = stack.pop()
            _build(stack[-1], state)
        else:
            raise Refused(f"it holds the operation {name}, which no {kind} need")
    raise Refused("it is cut off")


def _name(module: object, attribute: object, *, kind: str) -> Name:
    """What would be imported; of the standard library only what settings and states need."""
    text = f"{_OLD_NAMES.get(str(module), module)}.{attribute}"
    if text.partition(".")[0] in sys.stdlib_module_names and text not in _HARMLESS:
        shown = "".join(c for c in text[:80] if c.isprintable() and c != "`")
        raise Refused(f"it names `{shown}`, which no {kind} need")
    return Name(text)


def _extend(target: object, items: Iterable[object]) -> None:
    if isinstance(target, list):
        target.extend(items)


def _pairs(items: list[Any]) -> dict[str | int, object]:
    """Keys and values in turn; settings are named by texts, the states of parameters by numbers."""
    keys, values = items[::2], items[1::2]
    return {k: v for k, v in zip(keys, values, strict=True) if isinstance(k, str | int)}


def _update(target: object, items: list[Any]) -> None:
    found = target.state if isinstance(target, Made) else target
    if isinstance(found, dict):
        found.update(_pairs(items))


def _build(made: object, state: object) -> None:
    """Give an object its fields; the map is not copied, so that many of these take no time."""
    parts = state if isinstance(state, tuple) else (state,)
    fields = next((part for part in parts if isinstance(part, dict) and part), None)
    if isinstance(made, Made) and fields is not None and not made.state:
        made.state = fields


class _Plain:
    """Makes plain values, within one bound for all that comes out."""

    def __init__(self) -> None:
        self.parts = 0

    def of(self, value: object, depth: int = 0) -> object:
        """The plain value, or `_OPAQUE`.

        Raises:
            Refused: nested too deep, or too much in all.
        """
        texts = [value] if isinstance(value, str) else []
        if isinstance(value, dict):
            texts = [name for name in value if isinstance(name, str)]
            self.parts += len(value) - len(texts)
        self.parts += 1 + sum(len(text) // 64 for text in texts)
        if depth > MAX_DEPTH or self.parts > MAX_PARTS:
            raise Refused("its values are nested deeper, or are more, than settings are")
        if value is None or isinstance(value, bool | float | str):
            return value
        if isinstance(value, int):
            return value if abs(value) < MAX_WHOLE else _OPAQUE
        if isinstance(value, Name):
            return value.text
        if isinstance(value, Made):
            return self._object(value, depth)
        if isinstance(value, list | tuple):
            items = [self.of(item, depth + 1) for item in value]
            return _OPAQUE if _OPAQUE in items else items
        if isinstance(value, dict):
            found = {name: self.of(value[name], depth + 1) for name in texts}
            return {k: v for k, v in found.items() if v is not _OPAQUE}
        return _OPAQUE

    def _object(self, value: Made, depth: int) -> object:
        """An enum's value or member, or the fields of an object."""
        if value.state:
            return self.of(value.state, depth + 1)
        args = value.args if isinstance(value.args, tuple) else ()
        if isinstance(value.of, Name) and value.of.text == "builtins.getattr":
            return args[1].lower() if len(args) == 2 and isinstance(args[1], str) else _OPAQUE
        if len(args) == 1 and isinstance(args[0], str | int | float):
            return self.of(args[0], depth + 1)
        return _OPAQUE
