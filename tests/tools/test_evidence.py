"""Records: frozen, closed, finite, and the same after a trip through JSON."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from firstbad.tools.evidence import Dated, Evidence, Metrics, Source, StepWindow, Table

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**53), 2**53),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
)


class Size(Metrics):
    share: float | None
    count: int
    large: bool = False


def evidence(**fields: Any) -> Evidence:
    made: dict[str, Any] = {
        "id": "E1",
        "tool": "check_rows",
        "tool_version": "0.1.0",
        "args": {},
        "status": "measured",
        "metrics": {"share": 0.5, "count": 3, "large": True, "missing": None},
        "tables": (Table(title="t", columns=("a", "b"), rows=((1, "x"), (None, 2.5))),),
        "sources": (Source(kind="metrics", ref="trainer_state.json", digest="sha256:0123"),),
        "window": StepWindow(first=1, last=9),
        "summary": "three rows",
    }
    return Evidence(**{**made, **fields})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_metrics_refuse_what_is_not_finite(value: float) -> None:
    with pytest.raises(ValueError, match="`share` is .*count non-finite values"):
        Size(share=value, count=1)
    assert Size(share=None, count=1).share is None


def test_dates_are_steps_or_nothing() -> None:
    found = Dated()
    assert (found.last_good_step, found.first_bad_step) == (None, None)
    assert not found.from_start
    with pytest.raises(ValueError, match="no int"):
        Dated(first_bad_step=3.5)  # type: ignore[arg-type]


def test_metrics_are_plain_numbers_of_their_kind() -> None:
    found = Size(share=np.float32(0.5), count=np.int64(3), large=np.bool_(True))  # type: ignore[arg-type]
    assert [type(value) for value in found.model_dump().values()] == [float, int, bool]
    for wrong in ({"count": None}, {"count": "3"}, {"count": 2.5}, {"large": 2}, {"share": "0.5"}):
        with pytest.raises(ValueError, match="which is no"):
            Size(**{"share": None, "count": 1, **wrong})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`count` is missing"):
        Size(share=None)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="not str"):
        type("Named", (Metrics,), {"__annotations__": {"name": "str"}})


def test_metrics_are_frozen_and_closed() -> None:
    found = Size(share=1, count=1)
    with pytest.raises(AttributeError, match="frozen"):
        found.count = 2  # type: ignore[misc]
    with pytest.raises(ValueError, match="extra"):
        Size(share=1, count=1, colour="red")  # type: ignore[call-arg]
    assert found.model_copy(update={"count": 2}) == Size(share=1, count=2)


@pytest.mark.parametrize(
    "record",
    [evidence(), Source(kind="log", ref="a"), StepWindow(first=1, last=2)],
)
def test_records_are_frozen_and_closed(record: Any) -> None:
    name = next(iter(type(record).model_fields))
    with pytest.raises(ValidationError, match="frozen"):
        setattr(record, name, getattr(record, name))
    with pytest.raises(ValidationError, match="extra"):
        type(record)(**{**record.model_dump(), "colour": "red"})


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"metrics": None}, "metrics belong to measured"),
        ({"status": "no_data"}, "metrics belong to measured"),
        ({"error": "broke"}, "error text belongs"),
        ({"status": "error", "metrics": None}, "error text belongs"),
        ({"status": "fine"}, "no_data"),
        ({"schema_version": 2}, "schema_version"),
    ],
)
def test_status_metrics_and_error_fit_together(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        evidence(**fields)
    assert evidence(status="no_data", metrics=None).error is None
    assert evidence(status="error", metrics=None, error="ValueError: x").metrics is None


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


@settings(max_examples=40, derandomize=True)
@given(
    st.dictionaries(st.sampled_from("abcd"), st.floats(allow_nan=False, allow_infinity=False)),
    st.lists(st.tuples(SCALARS, SCALARS), max_size=4),
)
def test_evidence_comes_back_from_json_as_it_was(
    metrics: dict[str, float], rows: list[tuple[Any, Any]]
) -> None:
    table = Table(title="t", columns=("a", "b"), rows=tuple(rows), cut_rows=2)
    record = evidence(metrics=metrics, tables=(table,))
    text = record.model_dump_json()
    json.loads(text, parse_constant=refuse)
    back = Evidence.model_validate_json(text)
    assert back == record
    for before, after in zip(rows, back.tables[0].rows, strict=True):
        assert [type(v) for v in before] == [type(v) for v in after]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_table_shows_what_is_not_finite_as_text(value: float) -> None:
    """JSON has no NaN: a number would come back as null."""
    table = Table(title="t", columns=("a",), rows=((value,),))
    assert table.rows == ((str(value),),)
    assert Table.model_validate_json(table.model_dump_json()) == table
