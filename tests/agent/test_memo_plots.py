"""Charts: thinning, ticks, what is drawn from tables and signals, and what text may do."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstbad.agent.memo.svg import Chart, Marker, Series, draw, stretches, thin, ticks
from firstbad.agent.memo.tables import grid
from firstbad.tools.evidence import Table


def series(values: list[float], **fields: object) -> Series:
    x = np.arange(1, len(values) + 1, dtype=np.float64)
    made: dict[str, object] = {"label": "a", "x": x, "y": np.array(values, np.float64), **fields}
    return Series(**made)  # type: ignore[arg-type]  # keyword overrides of a test


def chart(*parts: Series, **fields: object) -> Chart:
    made: dict[str, object] = {
        "id": "plot-1",
        "title": "Reward",
        "about": "Reward step by step.",
        "series": parts,
        **fields,
    }
    return Chart(**made)  # type: ignore[arg-type]  # keyword overrides of a test


def path_of(svg: str, css: str) -> str:
    found = re.search(rf'<path class="{css}[^"]*" d="([^"]*)"', svg)
    assert found is not None
    return found[1]


def test_chart_is_well_formed_and_says_what_it_shows() -> None:
    svg = draw(chart(series([1.0, 2.0, 3.0]), y_label="reward"))
    root = ElementTree.fromstring(str(svg))
    assert root.attrib["role"] == "img"
    assert [child.text for child in root][:2] == ["Reward", "Reward step by step."]


def test_hostile_labels_stay_text() -> None:
    bad = '"><script>alert(1)</script>'
    svg = draw(chart(series([1.0, 2.0], label=bad), title=bad, about=bad, y_label=bad, x_label=bad))
    root = ElementTree.fromstring(str(svg))
    assert {e.tag for e in root.iter()} <= {"svg", "title", "desc", "path", "text", "rect"}


def test_short_series_keep_every_point() -> None:
    svg = str(draw(chart(series([float(i % 7) for i in range(120)]))))
    assert path_of(svg, "line").count("L") == 119


def test_thinning_keeps_ends_and_extremes_of_each_pixel() -> None:
    x = np.linspace(0, 500, 50_000)
    y = np.sin(np.arange(50_000) * 0.37)
    y[31_234] = 40.0
    y[12_345] = -40.0
    kept = thin(x, y)
    assert kept.sum() <= 4 * 501
    assert kept[0]
    assert kept[-1]
    assert kept[31_234]
    assert kept[12_345]


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=400),
    st.integers(min_value=1, max_value=30),
)
def test_thinning_never_loses_an_extreme(values: list[float], width: int) -> None:
    y = np.array(values)
    x = np.linspace(0, width, len(values))
    kept = thin(x, y)
    assert y[kept].max() == y.max()
    assert y[kept].min() == y.min()
    for column in range(width + 1):
        inside = np.floor(x) == column
        if inside.any():
            assert y[kept & inside].max() == y[inside].max()


@given(
    st.floats(-1e9, 1e9, allow_nan=False),
    st.floats(1e-9, 1e9, allow_nan=False),
    st.integers(min_value=2, max_value=10),
)
def test_ticks_lie_inside_and_are_few(low: float, size: float, count: int) -> None:
    high = low + size
    if high - low < 1e-12 * max(abs(low), abs(high)):
        return
    found = ticks(low, high, count)
    room = (high - low) * 1e-6 + abs(low) * 1e-9
    assert len(found) <= 2 * count + 1
    assert all(low - room <= t <= high + room for t in found)


@pytest.mark.parametrize(
    "values", [[0.0], [5.0, 5.0, 5.0], [0.0, 0.0], [-1e-12, 1e-12], [1e300, -1e300]]
)
def test_flat_single_and_extreme_series_are_drawn(values: list[float]) -> None:
    ElementTree.fromstring(str(draw(chart(series(values)))))


def test_series_over_many_orders_gets_a_log_scale() -> None:
    svg = str(draw(chart(series([0.5, 0.8, 900.0, 40_000.0]), y_label="norm")))
    assert "norm (log scale)" in svg
    assert "log scale" not in str(draw(chart(series([0.0, 40_000.0]), y_label="norm")))


def test_nonfinite_steps_are_marked_even_without_values() -> None:
    svg = str(draw(chart(series([], nonfinite=(3, 9)))))
    assert svg.count('class="nonfinite"') == 2


def test_labels_of_near_markers_do_not_overlap() -> None:
    marks = (Marker(66, "first bad 66", "bad"), Marker(67, "noticed 67", "noticed"))
    svg = str(draw(chart(series([1.0] * 120), markers=marks)))
    places = re.findall(r'class="marklabel \w+" x="([\d.]+)" y="([\d.]+)" text-anchor="(\w+)"', svg)
    assert len(places) == 2
    assert places[0][1:] != places[1][1:]


def test_marker_outside_of_the_steps_is_left_out() -> None:
    svg = str(draw(chart(series([1.0, 2.0]), markers=(Marker(900, "noticed 900", "noticed"),))))
    assert "noticed 900" not in svg


def test_same_chart_gives_the_same_bytes() -> None:
    one = chart(series([1.0, 4.0, 2.0]), markers=(Marker(2, "first bad 2", "bad"),), good_until=1)
    assert draw(one) == draw(one)


# ------------------------------------------------------------------------------------------- tables


def test_grid_of_a_per_step_table_shows_the_rows_around_the_onset() -> None:
    rows = tuple((step, step / 7) for step in range(1, 121))
    shown = grid(Table(title="per step: x", columns=("step", "x"), rows=rows), 66)
    assert [row[0].text for row in shown.rows] == [str(s) for s in range(63, 73)]
    assert shown.marked == (False,) * 3 + (True,) * 7
    assert shown.left_out == "10 of 120 rows"


def test_grid_counts_what_the_tool_cut() -> None:
    table = Table(title="t", columns=("a",), rows=(("x",),) * 3, cut_rows=997)
    assert grid(table).left_out == "3 of 1,000 rows"
    assert grid(table.model_copy(update={"cut_rows": 0})).left_out == ""


def test_grid_cuts_long_cells_and_aligns_numbers() -> None:
    table = Table(
        title="t", columns=("text", "n", "x"), rows=(("y" * 900, 1234, 0.5), ("z", None, 2.25))
    )
    shown = grid(table)
    assert len(shown.rows[0][0].text) <= 161
    assert [c.is_number for c in shown.columns] == [False, True, True]
    assert [row[1].text for row in shown.rows] == ["1,234", "–"]
    assert [row[2].text for row in shown.rows] == ["0.50", "2.25"]


def test_nothing_is_drawn_over_steps_that_were_not_measured() -> None:
    kept = np.array([1.0, 31, 32, 33, 37, 38, 39, 40])
    assert [kept[part].tolist() for part in stretches(kept)] == [[1.0], kept[1:].tolist()]
    every = np.arange(0.0, 100, 10)
    assert stretches(every) == [slice(0, 10)]
    assert stretches(np.array([1.0, 50])) == [slice(0, 2)], "too few to tell what is usual"
    made = Chart("a", "t", "t", (Series("s", kept, np.ones(8), "area"),))
    drawn = re.search(r'class="area f0" d="([^"]*)"', str(draw(made)))
    assert drawn is not None
    assert drawn[1].count("M") == drawn[1].count("Z") == 2
