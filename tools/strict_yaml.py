"""YAML files of fixed form: a key stands once, unknown keys are refused, every problem is told."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from firstbad.tools.compiled import keep, kept
from firstbad.tools.errors import UserError

M = TypeVar("M", bound=BaseModel)
_TEXT = "tag:yaml.org,2002:str"


class Strict(BaseModel):
    """Frozen, and unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


@cache
def _once() -> Any:
    """The safe loader, which refuses a key that stands twice: PyYAML keeps the last in silence."""
    import yaml  # here, since readers that open a run load no YAML

    def _is_text(node: yaml.Node) -> bool:
        return node.tag == _TEXT and isinstance(node, yaml.ScalarNode)

    class Once(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
            # Nearly all of a file is text, which needs none of what other kinds of values do.
            if _is_text(node):
                return node.value
            return super().construct_object(node, deep=deep)

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            texts = {key.value for key, _ in node.value if _is_text(key)}
            if len(texts) < len(node.value):  # else no two keys are the same
                self._refuse_twice(node)
            found: dict[Any, Any] = super().construct_mapping(node, deep=deep)
            return found

        def _refuse_twice(self, node: yaml.MappingNode) -> None:
            keys = [self.construct_object(key, deep=True) for key, _ in node.value]
            twice = next((k for i, k in enumerate(keys) if k in keys[:i] and k != "<<"), None)
            if twice is not None:
                line = node.start_mark.line + 1
                told = f"the key `{twice}` stands twice in the mapping of line {line}"
                raise yaml.YAMLError(told)

    return Once


def read_strict(raw: bytes, path: str, kind: type[M], *, shipped: bool = False) -> M:
    """Read a file as one record; one that is `shipped` with this package is parsed once.

    Raises:
        UserError: not YAML, or not of that form; the text lists every problem with its place.
    """
    import yaml

    try:
        found = kept(Path(path), raw) if shipped else None
        if found is None:
            found = yaml.load(raw, Loader=_once())
            if shipped:
                keep(Path(path), raw, found)
        return kind.model_validate(found)
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
