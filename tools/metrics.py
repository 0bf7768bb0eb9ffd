"""What a tool measures: named plain numbers, checked when they are written down."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import EllipsisType
from typing import Any, ClassVar, Self, dataclass_transform

Plain = bool | int | float | None
_KINDS: Mapping[str, type[bool | int | float]] = {"bool": bool, "int": int, "float": float}


@dataclass(frozen=True)
class Metric:
    """What one field of Metrics holds."""

    name: str
    kind: type[bool | int | float]
    optional: bool
    default: Plain | EllipsisType
    """`...` where there is none."""

    @property
    def annotation(self) -> Any:
        """The type as it is written."""
        return self.kind | None if self.optional else self.kind

    def of(self, value: object) -> Plain:
        """The value as a plain number; numpy's own kinds become Python's.

        Raises:
            ValueError: it is of another kind, or not finite.
        """
        if value is None and self.optional:
            return None
        make: Callable[[Any], Plain] = self.kind
        try:
            plain = make(value)
        except (TypeError, ValueError, OverflowError):
            plain = None
        if isinstance(plain, float) and not math.isfinite(plain):
            told = f"`{self.name}` is {plain}: count non-finite values, never store them"
            raise ValueError(told)
        if plain is None or isinstance(value, str) or (self.kind is not float and plain != value):
            raise ValueError(f"`{self.name}` is {value!r}, which is no {self.kind.__name__}")
        return plain


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Metrics:
    """Base of what a tool measures: bool, int, finite float, or None for "cannot be had".

    Subclasses name their fields; a gate may use these names and no others. Frozen and closed, and
    spelled like a pydantic model, but made in a hundredth of its time: there is one for each tool,
    and all are made when the tools are loaded.
    """

    model_fields: ClassVar[Mapping[str, Metric]] = {}

    def __init_subclass__(cls) -> None:
        """Read the fields from the annotations, behind those of the base."""
        own = (
            _metric(name, kind, cls) for name, kind in vars(cls).get("__annotations__", {}).items()
        )
        cls.model_fields = {**cls.model_fields, **{metric.name: metric for metric in own}}

    def __init__(self, **values: object) -> None:
        """Every field by name; those with a default may be left out.

        Raises:
            ValueError: a field is missing, not known, of another kind, or not finite.
        """
        fields = type(self).model_fields
        if extra := values.keys() - fields.keys():
            raise ValueError(
                f"{type(self).__name__} has no `{min(extra)}`: extra fields are refused"
            )
        for name, field in fields.items():
            value = values.get(name, field.default)
            if value is ...:
                raise ValueError(f"{type(self).__name__}: `{name}` is missing")
            vars(self)[name] = field.of(value)

    def __setattr__(self, name: str, value: object) -> None:
        """Refused."""
        raise AttributeError(f"`{name}` can't be set: {type(self).__name__} is frozen")

    def __repr__(self) -> str:
        """As it is made."""
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in vars(self).items())})"

    def __eq__(self, other: object) -> bool:
        """Of the same class, with the same numbers."""
        return type(self) is type(other) and vars(self) == vars(other)

    def model_dump(self) -> dict[str, Plain]:
        """The fields by name, in their order."""
        return dict(vars(self))

    def model_copy(self, *, update: Mapping[str, Plain]) -> Self:
        """The same with some fields changed."""
        return type(self)(**{**vars(self), **update})


def _metric(name: str, annotation: object, owner: type[Metrics]) -> Metric:
    text = (
        annotation
        if isinstance(annotation, str)
        else getattr(annotation, "__name__", str(annotation))
    )
    kind, _, none = text.partition(" | ")
    if kind not in _KINDS or none not in ("", "None"):
        raise TypeError(
            f"{owner.__name__}.{name}: a metric is a bool, int, float, or None, not {text}"
        )
    return Metric(name, _KINDS[kind], bool(none), vars(owner).get(name, ...))
