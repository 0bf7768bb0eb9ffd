"""Charts as inline SVG: no script, no network, same input same bytes.

Colours and fonts come from the page's style sheet by class, so that a chart follows dark mode and
print. Every text is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from markupsafe import Markup, escape

from firstbad.agent.memo.text import column
from firstbad.tools.numbers import number
from firstbad.tools.run import BoolArray, FloatArray

Kind = Literal["line", "points", "area"]
LEFT, RIGHT, TOP, BOTTOM = 58.0, 14.0, 26.0, 40.0
"""Margins in pixels: tick labels (at least), nothing, marker labels, axis label."""
GAP, FEWEST = 5.0, 4
"""Distance of two steps, in usual ones, that is a hole; and distances from which one is usual."""
CHARACTER = 8.0
"""Width of a character of the labels, in pixels, on the safe side: on a phone they are larger."""


@dataclass(frozen=True)
class Series:
    """One line, cloud or band of a chart."""

    label: str
    x: FloatArray
    y: FloatArray
    kind: Kind = "line"
    colour: int = 0
    """Index into the style sheet's colours."""
    nonfinite: tuple[int, ...] = ()
    """Places on the x axis where NaN or Inf was logged."""
    dashed: bool = False


@dataclass(frozen=True)
class Marker:
    """A vertical line with a label."""

    x: float
    label: str
    kind: Literal["bad", "change", "noticed"]


@dataclass(frozen=True)
class Chart:
    """What is drawn; `good_until` and `bracket` shade parts of the x axis."""

    id: str
    title: str
    about: str
    """What the chart shows, in a sentence, for those who can't see it."""
    series: tuple[Series, ...]
    x_label: str = "step"
    y_label: str = ""
    good_until: float | None = None
    bracket: tuple[float, float] | None = None
    markers: tuple[Marker, ...] = ()
    diagonal: bool = False
    """Draw y = x."""
    wide: bool = False


def draw(chart: Chart) -> Markup:
    """The chart as an `<svg>` element."""
    width, height = (1100.0, 250.0) if chart.wide else (540.0, 226.0)
    log = _wants_log(chart)
    y_axis = _Axis(_span(chart, "y", log), height - BOTTOM, TOP, log)
    y_ticks = _y_ticks(y_axis, log)
    left = max(LEFT, 28 + CHARACTER * max((len(name) for _, name in y_ticks), default=0))
    x_axis = _Axis(_span(chart, "x", False), left, width - RIGHT, False)
    parts = [
        Markup('<svg id="{}" class="chart" viewBox="0 0 {} {}" role="img">').format(
            chart.id, int(width), int(height)
        ),
        Markup("<title>{}</title><desc>{}</desc>").format(chart.title, chart.about),
        *_shading(chart, x_axis, height),
        *_grid(chart, x_axis, y_axis, y_ticks, log),
    ]
    if chart.diagonal:
        low, high = max(x_axis.low, y_axis.low), min(x_axis.high, y_axis.high)
        parts.append(
            Markup('<path class="diagonal" d="M{} {}L{} {}"/>').format(
                _px(x_axis.at(low)), _px(y_axis.at(low)), _px(x_axis.at(high)), _px(y_axis.at(high))
            )
        )
    below: FloatArray | None = None
    for series in chart.series:
        parts += _draw_series(series, below, x_axis, y_axis, height)
        below = series.y if series.kind == "area" else None
    parts += _markers(chart, x_axis, width, height)
    parts.append(Markup("</svg>"))
    return Markup("\n").join(parts)


# ------------------------------------------------------------------------------------------ axes


class _Axis:
    """Maps values to pixels."""

    def __init__(self, span: tuple[float, float], start: float, end: float, log: bool) -> None:
        self.low, self.high = span
        self._log = log
        self.start, self.end = start, end
        self._from, self._to = (math.log10(v) for v in span) if log else span

    def at(self, value: float) -> float:
        """Pixel of a value."""
        place = math.log10(value) if self._log else value
        return self.start + (place - self._from) / (self._to - self._from) * (self.end - self.start)

    def all(self, values: FloatArray) -> FloatArray:
        """Pixels of many values."""
        places = np.log10(values) if self._log else values
        pixels = self.start + (places - self._from) / (self._to - self._from) * (
            self.end - self.start
        )
        return np.asarray(pixels, np.float64)


def _wants_log(chart: Chart) -> bool:
    if chart.diagonal or any(s.kind == "area" for s in chart.series):
        return False
    values = np.concatenate([s.y for s in chart.series])
    return bool(len(values) and values.min() > 0 and values.max() / values.min() > 300)


def _span(chart: Chart, axis: Literal["x", "y"], log: bool) -> tuple[float, float]:
    found: Iterable[FloatArray] = [s.x if axis == "x" else s.y for s in chart.series]
    if chart.diagonal:
        found = [v for s in chart.series for v in (s.x, s.y)]
    values = np.concatenate(list(found))
    if axis == "x" and not chart.diagonal:
        extra = [n for s in chart.series for n in s.nonfinite]
        values = np.concatenate([values, np.array(extra, np.float64)])
    if not len(values):
        return 0.0, 1.0
    low, high = float(values.min()), float(values.max())
    if log:
        return 10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high) + 1e-9)
    if low == high:
        room = abs(low) * 0.1 or 0.5
        return low - room, high + room
    if axis == "x" and not chart.diagonal:
        return low, high
    if any(s.kind == "area" for s in chart.series):
        return 0.0, max(high, 1.0)
    room = (high - low) * 0.06
    bottom = 0.0 if 0 <= low < (high - low) * 0.35 else low - room
    return bottom, high + room


def ticks(low: float, high: float, count: int, *, whole: bool = False) -> list[float]:
    """Round values inside a span, about `count` of them."""
    raw = (high - low) / max(count, 1)
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(m * size for m in (1, 2, 2.5, 5, 10) if m * size >= raw * 0.7)
    if whole:
        step = max(1.0, float(round(step)))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [i * step for i in range(first, last + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    first, last = round(math.log10(low)), round(math.log10(high))
    stride = max(1, math.ceil((last - first) / 5))
    return [10.0**i for i in range(first, last + 1, stride)]


def _y_ticks(axis: _Axis, log: bool) -> list[tuple[float, str]]:
    """Places and labels of the horizontal grid lines."""
    marks = _log_ticks(axis.low, axis.high) if log else ticks(axis.low, axis.high, 4)
    names = [number(value) for value in marks] if log else column(marks)
    return list(zip(marks, names, strict=True))


def _grid(
    chart: Chart, x_axis: _Axis, y_axis: _Axis, y_ticks: list[tuple[float, str]], log: bool
) -> list[Markup]:
    parts = []
    left, right, bottom = x_axis.start, x_axis.end, y_axis.start
    for value, label in y_ticks:
        y = y_axis.at(value)
        parts.append(
            Markup(
                '<path class="grid" d="M{0} {1}H{2}"/>'
                '<text class="tick" x="{3}" y="{4}" text-anchor="end">{5}</text>'
            ).format(_px(left), _px(y), _px(right), _px(left - 7), _px(y + 4), label)
        )
    count = 10 if chart.wide else 6
    marks = ticks(x_axis.low, x_axis.high, count, whole=not chart.diagonal)
    names = column(marks) if chart.diagonal else [number(value, step=True) for value in marks]
    for value, label in zip(marks, names, strict=True):
        parts.append(
            Markup(
                '<path class="axis" d="M{0} {1}v4"/>'
                '<text class="tick" x="{0}" y="{2}" text-anchor="middle">{3}</text>'
            ).format(_px(x_axis.at(value)), _px(bottom), _px(bottom + 17), label)
        )
    parts.append(
        Markup('<path class="axis" d="M{} {}H{}"/>').format(_px(left), _px(bottom), _px(right))
    )
    middle = (left + right) / 2
    parts.append(
        Markup('<text class="label" x="{}" y="{}" text-anchor="middle">{}</text>').format(
            _px(middle), _px(bottom + BOTTOM - 5), chart.x_label
        )
    )
    y_label = chart.y_label + (" (log scale)" if log else "")
    if y_label:
        centre = (TOP + bottom) / 2
        parts.append(
            Markup(
                '<text class="label" transform="translate(12 {}) rotate(-90)" '
                'text-anchor="middle">{}</text>'
            ).format(_px(centre), y_label)
        )
    return parts


# ---------------------------------------------------------------------------- shading and markers


def _shading(chart: Chart, x_axis: _Axis, height: float) -> list[Markup]:
    bands = []
    if chart.good_until is not None and chart.good_until > x_axis.low:
        bands.append(("good", x_axis.low, min(chart.good_until, x_axis.high)))
    if chart.bracket is not None and chart.bracket[1] > chart.bracket[0]:
        low, high = (min(max(v, x_axis.low), x_axis.high) for v in chart.bracket)
        bands.append(("bracket", low, high))
    return [
        Markup('<rect class="{}" x="{}" y="{}" width="{}" height="{}"/>').format(
            name,
            _px(x_axis.at(low)),
            _px(TOP),
            _px(x_axis.at(high) - x_axis.at(low)),
            _px(height - BOTTOM - TOP),
        )
        for name, low, high in bands
    ]


def _markers(chart: Chart, x_axis: _Axis, width: float, height: float) -> list[Markup]:
    """Vertical lines, each with its label in the first free place: right, left, one row down."""
    lines: list[Markup] = []
    labels: list[Markup] = []
    taken: list[tuple[int, float, float]] = []
    places = [(row, side) for row in (0, 1, 2) for side in ("start", "end")]
    for marker in chart.markers:
        if not x_axis.low <= marker.x <= x_axis.high:
            continue
        x = x_axis.at(marker.x)
        room = CHARACTER * len(marker.label) + 4
        row, side = next(
            (row, side)
            for row, side in places
            if _is_free(row, _extent(x, room, side), width, taken) or (row, side) == places[-1]
        )
        taken.append((row, *_extent(x, room, side)))
        lines.append(
            Markup('<path class="mark {}" d="M{} {}V{}"/>').format(
                marker.kind, _px(x), _px(TOP - 14 + 15 * row), _px(height - BOTTOM)
            )
        )
        labels.append(
            Markup('<text class="marklabel {}" x="{}" y="{}" text-anchor="{}">{}</text>').format(
                marker.kind,
                _px(x + 4 if side == "start" else x - 4),
                _px(TOP - 6 + 15 * row),
                side,
                marker.label,
            )
        )
    return lines + labels


def _extent(x: float, room: float, side: str) -> tuple[float, float]:
    return (x, x + room) if side == "start" else (x - room, x)


def _is_free(
    row: int, extent: tuple[float, float], width: float, taken: list[tuple[int, float, float]]
) -> bool:
    start, end = extent
    inside = start >= 0 and end <= width
    return inside and all(r != row or end < a or start > b for r, a, b in taken)


# ------------------------------------------------------------------------------------------ series


def _draw_series(
    series: Series, below: FloatArray | None, x_axis: _Axis, y_axis: _Axis, height: float
) -> list[Markup]:
    parts = []
    if len(series.x):
        if series.kind == "points":
            parts.append(_points(series, x_axis, y_axis))
        elif series.kind == "area":
            parts.append(_area(series, below, x_axis, y_axis))
        else:
            parts.append(_line(series, x_axis, y_axis))
    for step in series.nonfinite[:200]:
        x = x_axis.at(step)
        parts.append(
            Markup('<path class="nonfinite" d="M{} {}l6 6m0 -6l-6 6"/>').format(
                _px(x - 3), _px(height - BOTTOM - 9)
            )
        )
    return parts


def _line(series: Series, x_axis: _Axis, y_axis: _Axis) -> Markup:
    path = ""
    for part in stretches(series.x):
        x, y = x_axis.all(series.x[part]), y_axis.all(series.y[part])
        keep = thin(x, y)
        places = zip(x[keep].tolist(), y[keep].tolist(), strict=True)
        path += "M" + "L".join(f"{_px(a)} {_px(b)}" for a, b in places)
        path += "" if keep.sum() > 1 else "h0.01"
    dense = " dense" if len(series.x) > 400 else ""
    dashed = " dashed" if series.dashed else ""
    return Markup('<path class="line c{}{}{}" d="{}"/>').format(series.colour, dense, dashed, path)


def _points(series: Series, x_axis: _Axis, y_axis: _Axis) -> Markup:
    x, y = x_axis.all(series.x), y_axis.all(series.y)
    seen = dict.fromkeys((_px(a), _px(b)) for a, b in zip(x.tolist(), y.tolist(), strict=True))
    places = list(seen)
    stride = max(1, math.ceil(len(places) / 3000))
    path = "".join(f"M{a} {b}h0" for a, b in places[::stride])
    return Markup('<path class="points c{}" d="{}"/>').format(series.colour, path)


def _area(series: Series, below: FloatArray | None, x_axis: _Axis, y_axis: _Axis) -> Markup:
    bottom = np.zeros_like(series.y) if below is None else below
    path = ""
    for part in stretches(series.x):
        steps, high, low = series.x[part], series.y[part], bottom[part]
        if len(steps) == 1:  # one step alone is as wide as a step
            steps = np.concatenate([steps - 0.5, steps + 0.5])
            high, low = np.repeat(high, 2), np.repeat(low, 2)
        x, top, base = x_axis.all(steps), y_axis.all(high), y_axis.all(low)
        keep = thin(x, top)
        up = "L".join(f"{_px(a)} {_px(b)}" for a, b in zip(x[keep], top[keep], strict=True))
        back = zip(x[keep][::-1], base[keep][::-1], strict=True)
        path += f"M{up}L" + "L".join(f"{_px(a)} {_px(b)}" for a, b in back) + "Z"
    return Markup('<path class="area f{}" d="{}"/>').format(series.colour, path)


def stretches(x: FloatArray) -> list[slice]:
    """Parts of a series with holes between them, over which nothing is drawn."""
    apart = np.diff(x)
    if len(apart) < FEWEST:
        return [slice(0, len(x))]
    cuts = np.flatnonzero(apart > GAP * float(np.median(apart))) + 1
    edges = [0, *cuts.tolist(), len(x)]
    return [slice(a, b) for a, b in zip(edges, edges[1:], strict=False)]


def thin(x: FloatArray, y: FloatArray) -> BoolArray:
    """Which points to keep: of each pixel column the first, last, lowest and highest."""
    keep = np.ones(len(x), np.bool_)
    columns = np.floor(x).astype(np.int64)
    if len(x) <= 4 * len(np.unique(columns)):
        return keep
    keep[:] = False
    starts = np.flatnonzero(np.r_[True, columns[1:] != columns[:-1]])
    for first, last in zip(starts, [*starts[1:], len(x)], strict=True):
        part = y[first:last]
        keep[[first, last - 1, first + int(part.argmin()), first + int(part.argmax())]] = True
    return keep


def _px(value: float) -> str:
    text = f"{value:.1f}"
    return text[:-2] if text.endswith(".0") else text


def legend(series: Sequence[Series]) -> Markup:
    """Names of the series with their colours, as an HTML list."""
    items = [
        Markup('<li><svg class="key" viewBox="0 0 18 8" aria-hidden="true">{}</svg>{}</li>').format(
            _key(s), escape(s.label)
        )
        for s in series
    ]
    return Markup('<ul class="legend">{}</ul>').format(Markup("").join(items))


def _key(series: Series) -> Markup:
    if series.kind == "area":
        return Markup('<rect class="area f{}" width="18" height="8"/>').format(series.colour)
    if series.kind == "points":
        return Markup('<path class="points c{}" d="M9 4h0"/>').format(series.colour)
    dashed = " dashed" if series.dashed else ""
    return Markup('<path class="line c{}{}" d="M0 4H18"/>').format(series.colour, dashed)
