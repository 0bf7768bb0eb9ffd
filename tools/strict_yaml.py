"""YAML files of fixed form: a key stands once, unknown keys are refused, every problem is told."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from firstbad.tools.errors import UserError

SAFE = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The safe loader, in C where the library was built with it."""
M = TypeVar("M", bound=BaseModel)


class Strict(BaseModel):
    """Frozen, and unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class _Once(SAFE):  # type: ignore[misc,valid-type]  # the C loader where there is one
    """The safe loader, which refuses a key that stands twice: PyYAML keeps the last in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """A mapping whose keys are all different."""
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = next((k for i, k in enumerate(keys) if k in keys[:i] and k != "<<"), None)
        if twice is not None:
            line = node.start_mark.line + 1
            raise yaml.YAMLError(f"the key `{twice}` stands twice in the mapping of line {line}")
        found: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        return found


def read_strict(raw: bytes, path: str, kind: type[M]) -> M:
    """Read a file as one record.

    Raises:
        UserError: not YAML, or not of that form; the text lists every problem with its place.
    """
    try:
        return kind.model_validate(yaml.load(raw, Loader=_Once))
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not readable as YAML: {str(error).splitlines()[0]}") from error
    except ValidationError as error:
        lines = dict.fromkeys(_misfit(e["loc"], e["msg"]) for e in error.errors())
        raise UserError(f"{path}: " + "\n  ".join(lines)) from error


def _misfit(loc: tuple[int | str, ...], message: str) -> str:
    """Place and problem; a value that fits none of several forms is told once, not once a form."""
    forms = [str(part) for part in loc if _FORM.search(str(part))]
    place = ".".join(str(part) for part in loc if str(part) not in forms)
    return f"{place}: {'fits none of the forms that are allowed there' if forms else message}"


_FORM = re.compile(r"^(?:str|bool|int|float|none|constrained-str)$|\[")
"""Parts of a place that name a form tried, not a key of the file."""
