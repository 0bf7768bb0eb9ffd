"""Which charts a memo shows: what the leading finding cites first, then what moved, then the rest.

Points come from the run's signals and from per-step tables of the evidence; nothing is smoothed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from markupsafe import Markup

from firstbad.agent.memo.svg import Chart, Marker, Series, draw, legend
from firstbad.agent.memo.text import brief, one_line
from firstbad.playbooks.results import Onset, Verdict
from firstbad.tools.evidence import Evidence, Table
from firstbad.tools.numbers import is_step, number
from firstbad.tools.run import FloatArray, Run, Signal

MOST = 8
"""Charts in a memo."""
LEAD = 3
"""Charts on the first page."""
MOST_SERIES = 6
"""Series in a chart."""
FEWEST_ROWS = 5
"""Rows that make a table worth drawing."""


@dataclass(frozen=True)
class Plot:
    """A drawn chart with what the page says around it."""

    title: str
    svg: Markup
    narrow: Markup | None
    """The same in the size of the others, for a page too narrow for a wide one."""
    legend: Markup | None
    wide: bool
    source: str
    """Evidence id, or the key under which the framework logs the signal."""


@dataclass(frozen=True)
class Panel:
    """Signals that belong on one chart."""

    key: str
    title: str
    y_label: str
    names: tuple[str, ...]
    under: str = ""
    """Prefix whose signals are drawn too."""
    words: tuple[str, ...] = ()
    """Words of a complaint that ask for it, besides the key."""


PANELS = (
    Panel("reward", "Reward and its parts", "reward", ("reward_mean",), "reward_part"),
    Panel(
        "length",
        "Completion length",
        "tokens",
        ("completion_length_mean",),
        words=("long", "short"),
    ),
    Panel("kl", "KL divergence", "nats per token", ("kl_ref", "kl_old")),
    Panel("entropy", "Entropy", "nats per token", ("entropy",)),
    Panel("norm", "Gradient norm", "norm", ("grad_norm_preclip",), words=("gradient", "grad")),
    Panel("step_time", "Step time", "seconds", ("step_time",), words=("slow", "time", "stall")),
    Panel("lr", "Learning rate", "rate", ("learning_rate",), words=("learning",)),
    Panel("loss", "Loss", "loss", ("loss",)),
    Panel("engine", "Log-probability, engine against trainer", "nats", ("logprob_diff_mean",)),
    Panel(
        "clip",
        "Share of clipped tokens",
        "share",
        ("clip_frac_total", "clip_frac_high", "clip_frac_low"),
        words=("clipped", "clipping"),
    ),
    Panel("ratio", "Largest probability ratio", "ratio", ("ratio_max",)),
    Panel("contrast", "Spread of rewards", "reward", ("reward_std",)),
    Panel("zero_std", "Groups with equal rewards", "share", ("frac_zero_variance_groups",)),
    Panel("staleness", "Policy staleness", "versions", ("staleness",)),
    Panel(
        "truncation",
        "Answers cut at the cap",
        "share",
        ("truncation_rate",),
        words=("truncated", "cut"),
    ),
)
_BY_CAUSE: Mapping[str, tuple[str, ...]] = {
    "opt.data_reuse": ("kl", "clip", "reward", "ratio"),
    "opt.kl_constraint": ("kl", "clip", "reward"),
    "opt.step_too_large": ("kl", "norm", "reward", "entropy"),
    "opt.state_mismatch": ("kl", "norm", "reward"),
    "opt.lr_jump": ("lr", "kl", "reward"),
    "opt.entropy_bonus": ("entropy", "loss", "reward"),
}
"""Panels with the signals that a cause is told by, where no evidence has a table of them."""
_EVERYWHERE = ("reward", "length", "kl", "entropy", "norm", "step_time")
_BY_LAYER: Mapping[str, tuple[str, ...]] = {
    "records": ("reward", "step_time", "length", "truncation"),
    "probability": ("engine", "staleness", "kl", "clip", "ratio", "entropy"),
    "accumulation": ("loss", "norm"),
    "masks": ("length", "truncation"),
    "numerics": ("norm", "loss", "kl"),
    "optimizer": ("kl", "norm", "ratio", "lr"),
    "reward": ("reward", "step_time"),
    "samples": ("zero_std", "contrast", "reward"),
    "shaping": ("contrast", "clip", "length", "entropy"),
    "prompt": ("entropy", "length"),
}


def build_plots(
    verdict: Verdict, evidence: Mapping[str, Evidence], run: Run | None
) -> tuple[Plot, ...]:
    """The memo's charts, the first one wide."""
    parts = set(run.signals.under("reward_part")) if run is not None else set()
    charts = [(c, id_) for c, id_ in _from_tables(verdict, evidence) if not _shows_only(c, parts)]
    shown = {chart.title for chart, _ in charts}
    charts += [(c, key) for c, key in _from_signals(verdict, evidence, run) if c.title not in shown]
    if verdict.leading is not None:
        _reward_among_the_first(charts)
    return tuple(
        _drawn(replace(chart, id=f"plot-{i}", wide=i == 1), source)
        for i, (chart, source) in enumerate(charts[:MOST], 1)
    )


def _reward_among_the_first(charts: list[tuple[Chart, str]]) -> None:
    """What became of the reward is seen beside the finding's own signals."""
    reward = PANELS[0].title
    at = next((i for i, (chart, _) in enumerate(charts) if chart.title == reward), 0)
    if at >= LEAD:
        charts.insert(LEAD - 1, charts.pop(at))


def _shows_only(chart: Chart, names: set[str]) -> bool:
    """Whether a table's chart repeats series that the run's own signals show."""
    return all(series.label in names for series in chart.series)


def _drawn(chart: Chart, source: str) -> Plot:
    several = len(chart.series) > 1
    narrow = draw(replace(chart, id=f"{chart.id}-narrow", wide=False)) if chart.wide else None
    key = legend(chart.series) if several else None
    return Plot(chart.title, draw(chart), narrow, key, chart.wide, source)


# ------------------------------------------------------------------------------------------ window


def _marked(chart: Chart, verdict: Verdict) -> Chart:
    """The chart with the onset and the noticed step on it."""
    onset = verdict.first_bad
    markers = []
    if onset.first_bad is not None and not onset.from_start:
        step = number(onset.first_bad, step=True)
        markers.append(
            Marker(onset.first_bad, f"first bad {step}", "bad")
            if verdict.outcome == "incident"
            else Marker(onset.first_bad, f"first change {step}", "change")
        )
    noticed = verdict.noticed_step
    if noticed is not None and (noticed != onset.first_bad or not markers):
        markers.append(Marker(noticed, f"noticed {number(noticed, step=True)}", "noticed"))
    return replace(
        chart,
        good_until=None if onset.from_start else onset.last_good,
        bracket=_bracket(onset),
        markers=tuple(markers),
    )


def _bracket(onset: Onset) -> tuple[float, float] | None:
    start = onset.bracket_start
    if not onset.sampled or start is None or onset.first_bad is None:
        return None
    return start, onset.first_bad


# ------------------------------------------------------------------------------------------ tables


def _from_tables(verdict: Verdict, evidence: Mapping[str, Evidence]) -> Iterator[tuple[Chart, str]]:
    leading = verdict.leading
    cited = leading.supports if leading else ()
    for id_ in dict.fromkeys(cited):
        if (found := evidence.get(id_)) is not None:
            for table in found.tables:
                if (chart := table_chart(table, verdict)) is not None:
                    yield chart, id_


def table_chart(table: Table, verdict: Verdict) -> Chart | None:
    """A chart of a per-step table, or None when it is none."""
    if not table.columns or not is_step(table.columns[0]) or len(table.rows) < FEWEST_ROWS:
        return None
    if any(isinstance(value, (str, bool)) for row in table.rows for value in row):
        return None
    columns = _numeric_columns(table)
    title = _sentence(table.title)
    pair = _identity(columns)
    if pair is not None:
        return _scatter(title, columns, pair, verdict)
    parts = _composition(columns)
    if parts is not None:
        return _marked(_stack(title, columns, parts), verdict)
    drawn = _judged_and_logged(columns) or _alike(columns)
    if not drawn:
        return None
    series = tuple(
        Series(brief(name, 60), *columns[name], colour=i)
        for i, name in enumerate(drawn[:MOST_SERIES])
    )
    about = f"{title}, step by step: {', '.join(drawn)}."
    label = drawn[0] if len(drawn) == 1 else _common_unit(drawn)
    return _marked(Chart("", title, about, series, y_label=label), verdict)


Columns = Mapping[str, tuple[FloatArray, FloatArray]]


def _numeric_columns(table: Table) -> Columns:
    """Steps and values of each column that holds numbers, by name."""
    found: dict[str, tuple[FloatArray, FloatArray]] = {}
    for at, name in enumerate(table.columns[1:], 1):
        if is_step(name):
            continue
        pairs = [
            (float(row[0]), float(value))
            for row in table.rows
            if isinstance(row[0], (int, float))
            and isinstance(value := row[at], (int, float))
            and not isinstance(value, bool)
        ]
        if len(pairs) >= FEWEST_ROWS:
            both = np.array(sorted(pairs), np.float64)
            found[name] = both[:, 0], both[:, 1]
    return found


def _identity(columns: Columns) -> tuple[str, str] | None:
    """Names of a predicted and a logged column, when a loss identity is shown."""
    logged = [n for n in columns if "logged" in n.lower()]
    other = [n for n in columns if any(w in n.lower() for w in ("predicted", "recomputed"))]
    return (other[0], logged[0]) if logged and other else None


def _scatter(title: str, columns: Columns, pair: tuple[str, str], verdict: Verdict) -> Chart:
    (x_steps, x), (y_steps, y) = columns[pair[0]], columns[pair[1]]
    both, at_x, at_y = np.intersect1d(x_steps, y_steps, return_indices=True)
    x, y = x[at_x], y[at_y]
    first_bad = verdict.first_bad.first_bad
    about = f"{title}: {pair[1]} against {pair[0]}, one point a step; equal values lie on the line."
    if first_bad is None or verdict.first_bad.from_start:
        series: tuple[Series, ...] = (Series("steps", x, y, "points"),)
    else:
        before = both < first_bad
        step = number(first_bad, step=True)
        series = (
            Series(f"before step {step}", x[before], y[before], "points", 0),
            Series(f"from step {step} on", x[~before], y[~before], "points", 1),
        )
    series = tuple(s for s in series if len(s.x))
    return Chart("", title, about, series, x_label=pair[0], y_label=pair[1], diagonal=True)


def _composition(columns: Columns) -> tuple[str, ...] | None:
    """Names of the columns that split groups by outcome, worst first."""
    wrong = [n for n in columns if "all wrong" in n.lower().replace("_", " ")]
    right = [n for n in columns if "all right" in n.lower().replace("_", " ")]
    mixed = [n for n in columns if "mixed" in n.lower()]
    return (wrong[0], *mixed[:1], right[0]) if wrong and right else None


def _stack(title: str, columns: Columns, names: Sequence[str]) -> Chart:
    steps = columns[names[0]][0]
    series, height = [], np.zeros_like(steps)
    colours = {0: 1, len(names) - 1: 2}
    for i, name in enumerate(names):
        height = height + np.interp(steps, *columns[name])
        series.append(Series(name, steps, height, "area", colours.get(i, 5)))
    about = f"{title}, stacked step by step: {', '.join(names)}."
    return Chart("", title, about, tuple(series), y_label=_common_unit(names))


def _judged_and_logged(columns: Columns) -> list[str]:
    """Names of a judged and a logged column: the comparison that a person looks at."""
    judged = [n for n in columns if n.lower().startswith("judged")]
    logged = [n for n in columns if n.lower().startswith(("logged", "scored"))]
    return [judged[0], logged[0]] if judged and logged else []


_COUNTS = ("n", "rows", "samples", "count", "groups", "tokens")


def _alike(columns: Columns) -> list[str]:
    """Columns that may share an axis: the first that is no count, and those of like size."""
    names = [
        n for n in columns if n.lower() not in _COUNTS and not n.lower().startswith(("n ", "n_"))
    ]
    if not names:
        return []
    size = _size(columns[names[0]][1])
    return [n for n in names if size / 20 <= _size(columns[n][1]) <= size * 20]


def _size(values: FloatArray) -> float:
    return float(np.abs(values).max()) or 1.0


def _common_unit(names: Sequence[str]) -> str:
    lowered = " ".join(names).lower()
    for word in ("share", "rate", "accuracy", "seconds", "tokens", "nats", "groups"):
        if word in lowered:
            return word
    return ""


# ----------------------------------------------------------------------------------------- signals


def _from_signals(
    verdict: Verdict, evidence: Mapping[str, Evidence], run: Run | None
) -> Iterator[tuple[Chart, str]]:
    if run is None:
        return
    panels = {panel.key: panel for panel in PANELS}
    wanted = dict.fromkeys((*_moved(verdict, evidence, run), *_EVERYWHERE))
    for key in wanted:
        signals = _signals_of(panels[key], run)
        if signals:
            keys = [one_line(s.source_key) for _, s in signals]
            yield _signal_chart(panels[key], signals, verdict), keys[0] if len(keys) == 1 else ""


def _moved(verdict: Verdict, evidence: Mapping[str, Evidence], run: Run) -> Iterator[str]:
    """Keys of the panels that matter for this verdict, the most important first."""
    leading = verdict.leading
    if leading is not None:
        yield from _panels_of(leading.first_bad.signal, run)
        for id_ in leading.supports:
            if id_ in evidence:
                yield from _panels_of(evidence[id_].signal, run)
        yield from _BY_CAUSE.get(leading.cause, ())
        yield from _BY_LAYER.get(leading.layer, ())
    said = set(re.split(r"[^a-z]+", verdict.complaint.lower()))
    yield from (p.key for p in PANELS if said & {p.key, *p.words})
    yield from _panels_of(verdict.first_bad.signal, run)
    for found in evidence.values():
        for table in found.tables:
            if table.title == "signals that moved":
                for row in table.rows:
                    yield from _panels_of(str(row[0]), run)


def _panels_of(text: str, run: Run) -> Iterator[str]:
    """Keys of the panels with a signal that a text names, by canonical or by logged name."""
    head = text.split(",", 1)[0].strip("` ")
    for panel in PANELS:
        for name, signal in _signals_of(panel, run):
            if head in (name, signal.source_key):
                yield panel.key


def _signals_of(panel: Panel, run: Run) -> list[tuple[str, Signal]]:
    found = [(n, s) for n in panel.names if (s := run.signals.get(n)) is not None]
    if panel.under:
        found += run.signals.under(panel.under).items()
    return found[:MOST_SERIES]


def _signal_chart(panel: Panel, signals: Sequence[tuple[str, Signal]], verdict: Verdict) -> Chart:
    series = tuple(
        Series(
            brief(name, 60).replace("_", " "),
            signal.steps.astype(np.float64),
            signal.values,
            colour=i,
            nonfinite=signal.nonfinite_steps,
        )
        for i, (name, signal) in enumerate(signals)
    )
    counted = sum(len(s.nonfinite_steps) for _, s in signals)
    lost = f" NaN or Inf at {number(counted)} points, marked by crosses." if counted else ""
    about = f"{panel.title} step by step: {', '.join(s.label for s in series)}.{lost}"
    return _marked(Chart("", panel.title, about, series, y_label=panel.y_label), verdict)


def _sentence(title: str) -> str:
    """The title of a chart, which is drawn as it is: without the backticks of code."""
    line = brief(one_line(title).removeprefix("per step: ").replace("`", ""), 100)
    return line[:1].upper() + line[1:]
