"""YAML as people write it, and not what a few lines of it can stand for."""

from __future__ import annotations

from firstbad.tools.errors import UserError
from firstbad.tools.readers.jsonish import decode

MAX_BYTES = 2**19
"""Settings with all their defaults take a fifth of it, and the parser is slow."""
MAX_VALUES = 100_000


def parse_yaml(data: bytes, name: str) -> object:
    """The value of a YAML file, of plain types alone.

    Raises:
        UserError: not YAML, or more values than settings have: references can stand for billions.
    """
    import yaml

    if len(data) > MAX_BYTES:
        raise UserError(f"`{name}` has more than {MAX_BYTES // 1024:,} KiB of YAML")
    try:
        value = yaml.safe_load(decode(data)[0])
    # A date that is none, or an endless number, comes as an error of Python's own.
    except (yaml.YAMLError, RecursionError, ArithmeticError, LookupError, TypeError, ValueError):
        raise UserError(f"`{name}` is not YAML") from None
    waiting, seen = [value], 0
    while waiting:
        item = waiting.pop()
        seen += 1
        if isinstance(item, dict):
            waiting += item.values()
        elif isinstance(item, (list, tuple, set)):
            waiting += item
        if seen + len(waiting) > MAX_VALUES:
            raise UserError(f"`{name}` stands for more than {MAX_VALUES:,} values")
    return value
