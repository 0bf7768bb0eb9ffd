"""A bound: an operator and a number, three-valued against what was observed."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import core_schema

Number = bool | int | float

PATTERN = r"^\s*(<=|>=|==|!=|<|>)\s*(-?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?)\s*$"
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}


@dataclass(frozen=True)
class Bound:
    """Parsed from text such as `> 3`; there is no other form."""

    op: str
    limit: float

    @classmethod
    def parse(cls, text: object) -> Bound:
        """Read a bound.

        Raises:
            ValueError: the text is not one operator followed by one number.
        """
        match = re.match(PATTERN, text) if isinstance(text, str) else None
        if match is None:
            raise ValueError(f"expected an operator and a number such as `> 3`, found {text!r}")
        limit = float(match[2])
        if not math.isfinite(limit):
            raise ValueError(f"expected a finite number, found {match[2]!r}")
        return cls(match[1], limit)

    def holds(self, observed: Number | None) -> bool | None:
        """True, False, or None when nothing was observed."""
        return None if observed is None else _OPERATORS[self.op](float(observed), self.limit)

    def __str__(self) -> str:
        """The text form."""
        return f"{self.op} {self.limit:.15g}"

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: type[Any], handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        """Validate from text; write back as text."""
        return core_schema.no_info_plain_validator_function(
            lambda value: value if isinstance(value, cls) else cls.parse(value),
            serialization=core_schema.plain_serializer_function_ser_schema(str),
        )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """The pattern, so that editors underline a bad bound."""
        return {"type": "string", "pattern": PATTERN}
