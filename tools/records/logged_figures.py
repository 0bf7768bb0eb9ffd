"""Logged lengths, truncation, entropy and KL, held against rollouts and captured tokens."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass

import numpy as np

from firstbad.tools.completeness import rows_complete
from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Table
from firstbad.tools.numbers import number
from firstbad.tools.readers.aliases import UNKNOWN
from firstbad.tools.records.logging_window import readings
from firstbad.tools.registry import Measured, tool
from firstbad.tools.row_table import RowTable
from firstbad.tools.run import COMPLETION, CUT, TOOL, BoolArray, Capture, FloatArray, IntArray, Run
from firstbad.tools.tokens import completion_end, sources
from firstbad.tools.updates import mixes_batches, updates_per_batch

OF_TOKENS = 0.1
"""Part of a figure up to which two that are computed alike over tokens may differ: rounding, and a
mean of the means of micro-batches instead of one over all tokens."""
OF_ROWS = 0.05
"""... over rows, which weigh the same in all of these."""
ERRORS = 4.0
"""... and this many standard errors, where only part of the rows was captured."""
SMALL = {"completion_length_mean": 0.1, "truncation_rate": 0.02, "entropy": 0.02, "kl_ref": 1e-3}
"""What is no difference at any size: tokens, fraction, nats."""
CALLED = {
    "completion_length_mean": "length",
    "truncation_rate": "truncation",
    "entropy": "entropy",
    "kl_ref": "kl",
}
BITS = "entropy in bits"
STOPPED = ("stop", "eos", "eos_token", "end_turn", "completed", "stop_sequence")
"""Finish reasons of a completion that ended by itself."""
PARTLY = ("completion_length_mean", "entropy")
"""Signals that a part of the rows can speak for: no few of them carry the mean."""
FEWEST_ROWS = 8
SHIFTS = (0, 1, -1)
"""Steps by which the label of a logged row may be late: loggers count before or after a step."""
FITS = 0.2
"""Share of steps that may differ where a plain reading is kept, rather than a shifted one."""
DOUBT = 0.1
"""Share of the steps up to which a reading may differ and still be the one that is logged."""
PER_SEQUENCE, WEIGHED = "mean of the sums over tokens", "times its weight"
SHOWN = 20


class Figures(Dated):
    """Logged against recomputed, over the steps that have both.

    A share is that of the steps which differ, for the reading of the name that fits best, such as
    a mean over tokens or over sequences; None where the two cannot be compared fairly. A factor is
    the median of logged over recomputed at the steps that differ.
    """

    n_compared: int
    """Pairs of logged and recomputed values."""
    n_signals: int
    length_differs: float | None
    length_factor: float | None
    truncation_differs: float | None
    truncation_off: float | None
    """Logged less recomputed share, the median of the steps that differ."""
    entropy_differs: float | None
    entropy_factor: float | None
    kl_differs: float | None
    kl_factor: float | None
    n_shifted: int
    """Signals that fit with the step label one off, and not as it stands."""
    entropy_in_bits: bool
    """The logged entropy fits in bits, and not in nats."""
    n_asked: int
    """Of the compared signals: those that the complaint is about."""
    asked_differs: float | None
    """Largest share among these; None where there are none."""
    most_differs: float
    """Largest share of all."""


@tool
def recompute_figures(
    run: Run,
    *,
    length: bool = False,
    truncation: bool = False,
    entropy: bool = False,
    kl: bool = False,
) -> Measured[Figures]:
    """Logged length, truncation, entropy and KL against the same figures of rows and tokens.

    Length and truncation from the rows of each step, where these are all that the log speaks of;
    else, and for entropy and KL, from captured steps. Names mean different things: a mean over
    tokens, sequences or sums of sequences, with a stop token or without, k1, k2 or k3, in bits, a
    step late. The reading that fits best counts, so that what differs fits none. Two figures differ
    where they are more than 10 % apart (over whole rows 5 %, truncation 0.02), and where only part
    of the rows was captured by four standard errors besides.
    KL is compared only where a capture holds all rows of its step: a few tokens carry it.

    `length`, `truncation`, `entropy`, `kl`: the complaint is about these; the date is then theirs.

    Cannot tell: which of the two is wrong; a figure that several updates inside a step moved.
    """
    asked = {
        name for name, said in zip(SMALL, (length, truncation, entropy, kl), strict=True) if said
    }
    best = [min(found, key=_plainest) for found in _compared(run).values()]
    if not best:
        raise NoData("no length, truncation, entropy or KL is logged that could be recomputed")
    spoken_of = [c for c in best if c.name in asked]
    worst = max(spoken_of or best, key=lambda c: c.share)
    by_name = {CALLED[c.name]: c for c in best}
    differ = worst.differ
    first = int(worst.step[differ.argmax()]) if differ.any() else None
    good = worst.step[: differ.argmax()] if differ.any() else worst.step
    metrics = Figures(
        n_compared=sum(len(c.step) for c in best),
        n_signals=len(best),
        length_differs=_share(by_name.get("length")),
        length_factor=_factor(by_name.get("length")),
        truncation_differs=_share(by_name.get("truncation")),
        truncation_off=_off(by_name.get("truncation")),
        entropy_differs=_share(by_name.get("entropy")),
        entropy_factor=_factor(by_name.get("entropy")),
        kl_differs=_share(by_name.get("kl")),
        kl_factor=_factor(by_name.get("kl")),
        n_shifted=sum(c.late != 0 for c in best),
        entropy_in_bits=any(c.reading.startswith(BITS) for c in best),
        n_asked=len(spoken_of),
        asked_differs=max((c.share for c in spoken_of), default=None),
        most_differs=max(c.share for c in best),
        last_good_step=int(good[-1]) if len(good) else None,
        first_bad_step=first,
        from_start=first is not None and not len(good),
        sampled=worst.captured,
    )
    rows = [row for c in best for row in c.rows()]
    table = Table(
        title="logged figures that differ from the recomputed ones",
        columns=("step", "signal", "logged", "recomputed", "read as"),
        rows=tuple(rows[:SHOWN]),
        cut_rows=max(0, len(rows) - SHOWN),
    )
    said = "; ".join(f"`{c.name}` {int(c.differ.sum())} of {len(c.step)}" for c in best)
    return Measured(
        metrics,
        f"logged figures that differ from the recomputed ones, in steps: {said}",
        tables=(table,) if rows else (),
        signal=f"logged {worst.name}" if first is not None else "",
        quote=worst.said(run) if worst.share else "",
    )


@dataclass(frozen=True)
class _Compared:
    """A signal beside one reading of its name, at the steps that have both. N steps."""

    name: str
    reading: str
    step: IntArray
    logged: FloatArray
    value: FloatArray
    error: FloatArray
    """(N,) standard error of the value, 0 where all rows are there."""
    captured: bool
    """Read off captured tokens, not off the rows of every step."""
    late: int = 0
    """Steps by which the label of the logged row is late."""

    @property
    def differ(self) -> BoolArray:
        """(N,)."""
        largest = np.maximum(np.abs(self.logged), np.abs(self.value))
        relative = OF_TOKENS if self.captured else OF_ROWS
        if self.name == "truncation_rate":
            relative = 0.0
        allowed = SMALL[self.name] + relative * largest + ERRORS * self.error
        found: BoolArray = np.abs(self.logged - self.value) > allowed
        return found

    @property
    def share(self) -> float:
        """Of the steps: those that differ."""
        return round(float(self.differ.mean()), 6)

    def rows(self) -> Iterator[tuple[int, str, float, float, str]]:
        """Rows of the table."""
        for i in np.flatnonzero(self.differ).tolist():
            pair = (round(float(v[i]), 6) for v in (self.logged, self.value))
            yield int(self.step[i]), self.name, *pair, self.reading  # type: ignore[misc]

    def said(self, run: Run) -> str:
        """What differs, in a sentence."""
        signal = run.signals.get(self.name)
        key = signal.source_key if signal is not None else self.name
        logged, value = (
            number(float(np.median(v[self.differ]))) for v in (self.logged, self.value)
        )
        where = "the captured tokens" if self.captured else "the rollouts"
        return (
            f"`{key}` is logged as {logged} where {where} give {value} ({self.reading}; "
            f"medians), in {int(self.differ.sum())} of {len(self.step)} steps that were compared."
        )


def _plainest(one: _Compared) -> tuple[bool, int, bool, float]:
    """The key by which readings are chosen: what fits, a plain one first."""
    return one.share > FITS, abs(one.late), one.reading.startswith(BITS), one.share


def _compared(run: Run) -> dict[str, list[_Compared]]:
    """By signal: every reading of it that can be compared at five steps or more."""
    found: dict[str, list[_Compared]] = {}
    for one in (*_of_rows(run), *_of_captures(run)):
        if len(one.step) >= 5:
            found.setdefault(one.name, []).append(one)
    return found


# ---- from the rows of every step


def _of_rows(run: Run) -> Iterator[_Compared]:
    batches = list(run.rollouts.batches())
    if not batches or not _rows_are_all(run, RowTable.of(run, batches)):
        return
    rows = RowTable.of(run, batches)
    try:
        ways = readings(run, rows.steps)
    except NoData:
        return
    shifts = (0,) if mixes_batches(run) else SHIFTS
    for name, said, value in _row_figures(run, rows):
        for way in ways:
            for late in shifts:
                yield _beside(run, rows.steps, name, said, way(value), late)


def _beside(
    run: Run, steps: IntArray, name: str, said: str, told: FloatArray, late: int
) -> _Compared:
    signal = run.signals.get(name)
    logged = np.full(len(steps), np.nan) if signal is None else signal.on(steps + late)
    both = np.isfinite(logged) & np.isfinite(told)
    none = np.zeros(int(both.sum()))
    return _Compared(name, said, steps[both], logged[both], told[both], none, False, late)


def _row_figures(run: Run, rows: RowTable) -> Iterator[tuple[str, str, FloatArray]]:
    """Signal, reading, and its figure of each step, (S,)."""
    tokens = rows.n_tokens
    trained = np.abs(np.nan_to_num(rows.advantage)) > 1e-6
    told = rows.count(~np.isfinite(tokens)) == 0
    figures: dict[str, FloatArray] = {"tokens of a row": tokens}
    for said, values in figures.items():
        for among, kept in (("all rows", None), ("rows with an advantage", trained)):
            mean = np.where(told, rows.mean(values, kept), np.nan)
            for by, stop in ((0, ""), (-1, " less the stop token"), (1, " and a stop token")):
                yield "completion_length_mean", f"{said}{stop}, mean over {among}", mean + by
    if run.framework == "trl":
        return  # counts every last token that is no stop token, whatever ended the row
    reasons = [reason for b in rows.batches for reason in b.finish or [None] * len(b)]
    known = rows.count(np.array([reason is None for reason in reasons])) == 0
    cut = [reason is not None and reason.lower() in CUT for reason in reasons]
    stopped = [reason is not None and reason.lower() in STOPPED for reason in reasons]
    ends = {"cut by its finish reason": np.array(cut), "not stopped": ~np.array(stopped)}
    if told.all():
        ends["as long as the longest"] = tokens >= rows.highest(tokens)[rows.step]
        if (cap := run.config.number("max_completion_length")) is not None:
            ends["as long as the cap"] = tokens >= cap
    for said, flags in ends.items():
        for among, kept in (("all rows", None), ("rows with an advantage", trained)):
            share = rows.mean(flags.astype(np.float64), kept)
            yield "truncation_rate", f"share {said} of {among}", np.where(known, share, np.nan)


def _rows_are_all(run: Run, rows: RowTable) -> bool:
    """Whether the rows are those that the log speaks of: by the settings, or by another mean."""
    complete = rows_complete(run)
    if complete is not None:
        return complete
    for name in rows.parts:
        logged, mean = (
            rows.logged(run.signals.get(f"reward_part/{name}")),
            rows.mean(rows.part(name)),
        )
        both = np.isfinite(logged) & np.isfinite(mean)
        apart = np.abs(logged[both] - mean[both]) > 0.002 * (1 + np.abs(mean[both]))
        if both.sum() >= 5 and np.ptp(mean[both]) > 0.02 and apart.mean() <= 0.05:
            return True
    return False


# ---- from captured tokens


def reading_that_fits(run: Run, name: str) -> str | None:
    """How a logged figure is computed, by the steps that can be compared; None where none fits."""
    found = _compared(run).get(name, [])
    best = min(found, key=lambda c: c.share, default=None)
    return None if best is None or best.share > DOUBT else best.reading


def _of_captures(run: Run) -> Iterator[_Compared]:
    plain = run.framework in ("trl", UNKNOWN)  # a step is one update
    if not run.captures or mixes_batches(run) or not (plain or updates_per_batch(run) == 1):
        return
    found: dict[tuple[str, str, int], list[tuple[int, float, float, float]]] = {}
    for capture in run.captures:
        for figure in _fair_figures(run, capture, PARTLY if not plain else tuple(SMALL)):
            for late in SHIFTS:
                if (logged := _logged(run, figure[0], capture.step + late)) is not None:
                    pair = (capture.step, logged, *figure[2:])
                    found.setdefault((*figure[:2], late), []).append(pair)
    for (name, said, late), pairs in found.items():
        step, logs, values, errors = (np.array(v) for v in zip(*pairs, strict=True))
        yield _Compared(name, said, step.astype(np.int64), logs, values, errors, True, late)


def _fair_figures(
    run: Run, capture: Capture, names: tuple[str, ...]
) -> Iterator[tuple[str, str, float, float]]:
    """Signal, reading, recomputed value and its standard error."""
    share = _share_of_rows(run, capture)
    again = capture.step in run.flight.steps and run.flight.at(capture.step).first_pass is False
    if share is None or again:
        return
    names = tuple(n for n in names if share == 1 or n in PARTLY)
    logged = [n for n in names if run.signals.get(n) is not None]
    for name, said, sums, counts in _token_figures(run, capture, logged):
        total = float(counts.sum())
        if total <= 0 or not np.isfinite(sums).all() or (share < 1 and len(sums) < FEWEST_ROWS):
            continue
        value = float(sums.sum()) / total
        error = 0.0 if share == 1 else _error(sums, counts, value)
        yield name, said, value, error


def _logged(run: Run, name: str, step: int) -> float | None:
    signal = run.signals.get(name)
    return None if signal is None else signal.at(step)


def _share_of_rows(run: Run, capture: Capture) -> float | None:
    """Part of the step's rows that a capture holds; None where nothing says how many there are."""
    n = len(capture.arrays["token_id"]) if "token_id" in capture.arrays else None
    generated = run.config.number("generation_batch_size")
    if generated is None and capture.step in run.rollouts.steps:
        generated = float(len(run.rollouts.batch(capture.step)))
    return None if n is None or not generated else min(1.0, n / generated)


def _error(sums: FloatArray, counts: FloatArray, value: float) -> float:
    """Standard error of a ratio of sums over rows, (R,) each."""
    left = sums - value * counts
    return float(np.sqrt((left**2).sum() * len(sums) / max(len(sums) - 1, 1)) / counts.sum())


Figure = tuple[str, str, FloatArray, FloatArray]
"""Signal, reading, and (R,) sums and counts whose ratio of totals is the figure."""


def _token_figures(run: Run, capture: Capture, names: Container[str]) -> Iterator[Figure]:
    if "token_id" not in capture.arrays:
        return
    cap = run.config.number("max_completion_length")
    values = [v for v in _token_values(run, capture) if v[0] in names]
    for said, inside in _masks(run, capture):
        n = inside.sum(axis=1).astype(np.float64)
        ones = np.ones(len(n))
        if "completion_length_mean" in names:
            yield "completion_length_mean", f"tokens {said}", n, ones
        for name, of, value in values:
            if value.shape != inside.shape:
                continue
            sums = np.where(inside, value, 0.0).sum(axis=1)
            means = np.divide(sums, n, out=np.zeros_like(sums), where=n > 0)
            yield name, f"{of}, mean over tokens {said}", sums, n
            yield name, f"{of}, mean over sequences of tokens {said}", means, (n > 0) * 1.0
            if run.framework == "trl":
                continue  # takes means alone
            yield name, f"{of}, {PER_SEQUENCE} {said}", sums, ones
            if cap and run.config.text("loss_type") == "dr_grpo":
                yield name, f"{of}, sum over tokens {said} by the cap", sums, cap * ones
    ends = completion_end(run, capture)
    if "truncation_rate" in names and not ends.guessed:
        flags = (ends.stop_at < 0).astype(np.float64)
        yield "truncation_rate", "share without a stop token", flags, np.ones(len(flags))


def _masks(run: Run, capture: Capture) -> Iterator[tuple[str, BoolArray]]:
    """(R, T) different sets of tokens that a figure may be taken over, by what they are called."""
    source, end = sources(capture), completion_end(run, capture)
    named = {
        "in the loss": capture.mask("loss_mask"),
        "of completions": capture.mask("completion_mask"),
        "of completions and tools":
            None if source is None else np.isin(source, (COMPLETION, TOOL)),
        "up to the stop token": None if end.guessed else end.real,
    }  # fmt: skip
    shown: list[BoolArray] = []
    for said, mask in named.items():
        if mask is None or mask.shape != capture.arrays["token_id"].shape or not mask.any():
            continue
        if not any(np.array_equal(mask, other) for other in shown):
            shown.append(mask)
            yield said, mask


def _token_values(run: Run, capture: Capture) -> Iterator[tuple[str, str, FloatArray]]:
    """Signal, what it is computed as, and its value at each token, (R, T)."""
    entropy, new, old, ref = map(capture.numbers, ("entropy", "logp_new", "logp_old", "logp_ref"))
    own = new if new is not None else old
    if entropy is not None:
        yield "entropy", "entropy", entropy
        if run.framework != "trl":
            yield "entropy", BITS, entropy / np.log(2)
            if own is not None:
                yield "entropy", "surprise", -own
    if own is None or ref is None or own.shape != ref.shape:
        return
    beta = run.config.number("beta")
    for said, other in (("", ref), (" against the sampler", capture.numbers("logp_engine"))):
        if other is None or other.shape != own.shape:
            continue
        with np.errstate(over="ignore", invalid="ignore"):
            away = other - own
            kinds = {"k3": np.exp(away) - away - 1, "k1": -away, "k2": away**2 / 2}
            kinds["abs(k1)"] = np.abs(away)
            if new is not None and old is not None and old.shape == new.shape:
                kinds["k3 times the ratio"] = kinds["k3"] * np.exp(new - old)
        for kind, values in kinds.items():
            yield "kl_ref", kind + said, values
            if run.framework == UNKNOWN and beta:
                yield "kl_ref", f"{kind}{said} {WEIGHED}", beta * values


def _share(one: _Compared | None) -> float | None:
    return None if one is None else one.share


def _middle(one: _Compared | None, of: Callable[[_Compared], FloatArray]) -> float | None:
    if one is None or not one.differ.any():
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        values = of(one)[one.differ]
    values = values[np.isfinite(values)]
    return round(float(np.median(values)), 6) if len(values) else None


def _factor(one: _Compared | None) -> float | None:
    return _middle(one, lambda c: c.logged / c.value)


def _off(one: _Compared | None) -> float | None:
    return _middle(one, lambda c: c.logged - c.value)
