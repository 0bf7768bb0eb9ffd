"""The A/B/C test: log-probs of the same tokens on two sides, against the trainer's own floor."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Scalar, Table
from firstbad.tools.numbers import number, percent
from firstbad.tools.probability.sides import Sides, pooled, read_sides
from firstbad.tools.registry import Measured, tool
from firstbad.tools.rewards import group_index
from firstbad.tools.run import BoolArray, FloatArray, IntArray, Run
from firstbad.tools.stats import pearson

Side = Literal["trainer", "old", "new", "recheck", "layout", "engine", "ref"]
CALLED = {
    "trainer": "the trainer",
    "old": "old log-probs",
    "new": "the differentiated pass",
    "recheck": "the repeated pass",
    "layout": "the same rows one by one",
    "engine": "the engine",
    "ref": "the reference",
}
CLIP = 0.2
"""Half-width of the PPO clip where the settings do not say."""
ROUNDING = 2.0**-8
"""Largest relative error of rounding to the 8 significant bits of bfloat16."""
SMALLEST = 1e-5
"""Nats below which no difference is more than rounding in float32."""
LEAST_BACK = 0.001
"""Difference, in nats, below which two sides agree whatever their baseline."""
LEAST = 0.005
"""Nats above the floor from which a capture's mean dates a difference that the whole run shows,"""
LEAST_AGAIN = 0.001
"""... or above 0, for a pass that is repeated,"""
TIMES = 2.5
"""... and times the floor."""
GROWS = 1.3
"""Growth from which a difference is taken to have grown from nothing."""
RARE = 0.1
"""Share of the sampled tokens that the rarest ids make up."""
WORST = 12


class LogprobGap(Dated):
    """abs(left - right) over sampled tokens, in nats; floor: the trainer in another layout.

    Figures are of the captures from `first_bad_step` on, or of all where nothing is dated.
    """

    n_captures: int
    n_tokens: int
    mean: float
    median: float
    p99: float
    p999: float
    largest: float
    bias: float
    """Mean of left - right."""
    beyond_rounding: float
    """Share of tokens that differ by more than storing one side in bfloat16 explains."""
    past_clip: float
    """Share of tokens whose exp(left - right) lies outside the PPO clip."""
    floor_mean: float | None
    """abs(trainer - trainer with one row a pass), over the same captures; None: not captured."""
    floor_p99: float | None
    floor_past_clip: float | None
    over_floor: float | None
    """`p99` over `floor_p99` (at least 0.001 nats)."""
    past_clip_beyond_floor: float
    """`past_clip` less that of the floor."""
    n_bad_captures: int
    """From `first_bad_step` on; 0 where nothing is dated."""
    baseline: float
    """Mean of the capture among the first third that is the cleanest."""
    over_baseline: float
    """`mean` over `baseline` (at least 0.001 nats)."""
    n_back: int
    """Captures after the first bad one in which both sides agree as before it: within three times
    the baseline (at least 0.001 nats), and a tenth of the others."""
    growth: float | None
    """Within the bad captures: mean of their second half over that of the first; None for fewer
    than four. 1 for a setting or a kernel, above for weights that part."""
    first_token_excess: float | None
    """Mean at the first token of an answer over that of the others."""
    first_token_share: float | None
    """Share of the whole difference that lies there."""
    rare_excess: float | None
    """Mean over the rarest ids (a tenth of the tokens) over that of the others."""
    top_share: float
    """Share of the whole difference that a hundredth of the tokens carries."""
    length_correlation: float | None
    """Of a row's mean and its length."""
    padding_correlation: float | None
    """Of a row's mean and its padding, or the offset of its positions, whichever is larger."""
    least_padded: float | None
    """Mean over the rows with the least padding."""
    most_padded: float | None
    padding_excess: float | None
    """`most_padded` over `least_padded` (at least 0.001 nats)."""


@dataclass(frozen=True)
class _Part:
    """One capture."""

    sides: Sides
    use: BoolArray
    delta: FloatArray
    gap: FloatArray
    """(N,) abs of it, of the tokens used."""
    out: FloatArray
    """(N,) 1 for those past the clip."""
    beyond: FloatArray
    """(N,) 1 for those whose difference rounding to 8 significant bits does not explain."""

    @cached_property
    def place(self) -> IntArray:
        """(N,) place of each token among those used of its row."""
        place: IntArray = (self.use.cumsum(axis=1) - 1)[self.use]
        return place


@tool
def compare_logprobs(
    run: Run, *, left: Side = "trainer", right: Side = "engine"
) -> Measured[LogprobGap]:
    """Difference of the log-probs of two sides on the same sampled tokens, before any update.

    Sides: `trainer` (A: its own pass, repeated where that was captured), `old`, `new`, `recheck`
    (B), `engine` (C), `layout`, `ref`. Mean, P99, P99.9 and largest; by position, length, token
    frequency and padding; the worst tokens. The floor is what the trainer differs from itself by
    with one row a forward pass. Rows that claim older weights are left out: there a difference is
    legal (see `check_policy_lag`).

    Cannot tell: which side is right. Two sides that agree may both be wrong.
    """
    sides = list(read_sides(run, left, right))
    low, high = clip_of(run)
    parts = [_part(*found, right, low, high) for found in pooled(sides, left, right)]
    if not parts:
        both = f"{CALLED[left]} and {CALLED[right]}"
        raise NoData(f"no captures of fresh rollouts that hold log-probs of {both}")
    floor = [_part(*found, "layout", low, high) for found in pooled(sides, "trainer", "layout")]
    means = np.array([p.gap.mean() for p in parts])
    baseline = float(means[: max(1, len(means) // 3)].min())
    at = _onset(means, _base(left, right, floor, baseline))
    everything, parts = parts, parts[at or 0 :]
    floor = [p for p in floor if p.sides.step >= parts[0].sides.step]
    gap = np.concatenate([p.gap for p in parts])
    rare = _are_rare(np.concatenate([p.sides.ids[p.use] for p in parts]))
    p99 = np.quantile(gap, 0.99)
    past = float(np.concatenate([p.out for p in parts]).mean())
    floor_gap = np.concatenate([p.gap for p in floor]) if floor else None
    floor_past = float(np.concatenate([p.out for p in floor]).mean()) if floor else None
    pads = _by_padding(parts)
    border = _first_tokens(parts)
    metrics = LogprobGap(
        n_captures=len(everything),
        n_tokens=len(gap),
        mean=_r(gap.mean()),
        median=_r(np.median(gap)),
        p99=_r(p99),
        p999=_r(np.quantile(gap, 0.999)),
        largest=_r(gap.max()),
        bias=_r(np.concatenate([p.delta[p.use] for p in parts]).mean()),
        beyond_rounding=_r(np.concatenate([p.beyond for p in parts]).mean()),
        past_clip=_r(past),
        floor_mean=None if floor_gap is None else _r(floor_gap.mean()),
        floor_p99=None if floor_gap is None else _r(np.quantile(floor_gap, 0.99)),
        floor_past_clip=None if floor_past is None else _r(floor_past),
        over_floor=(
            None if floor_gap is None else _r(p99 / max(float(np.quantile(floor_gap, 0.99)), 0.001))
        ),
        past_clip_beyond_floor=_r(max(0.0, past - (floor_past or 0.0))),
        n_bad_captures=0 if at is None else len(parts),
        baseline=_r(baseline),
        over_baseline=_r(gap.mean() / max(baseline, 0.001)),
        n_back=0 if at is None else _back(means[at:], baseline),
        growth=None if at is None else _growth(means[at:]),
        first_token_excess=border[0],
        first_token_share=border[1],
        rare_excess=_rare(gap, rare),
        top_share=_top_share(gap),
        length_correlation=_by_length(parts),
        padding_correlation=pads[0],
        least_padded=pads[1],
        most_padded=pads[2],
        padding_excess=(
            None if pads[1] is None or pads[2] is None else _r(pads[2] / max(pads[1], 0.001))
        ),
        last_good_step=everything[at - 1].sides.step if at else None,
        first_bad_step=None if at is None else parts[0].sides.step,
        from_start=at == 0,
        gradual=at is not None and (_growth(means[at:]) or 0.0) > GROWS,
        sampled=True,
    )
    tables = (
        _spread(metrics, floor_gap),
        _by_capture(everything),
        _by_place(parts, rare),
        _worst(run, parts, left, right),
    )
    return Measured(
        metrics,
        _told(metrics, left, right),
        tables=tables,
        window=(everything[0].sides.step, everything[-1].sides.step),
        signal=f"log-probs of {CALLED[left]} against {CALLED[right]}",
    )


def clip_of(run: Run) -> tuple[float, float]:
    """Ratios at which the PPO clip begins, below and above 1."""
    low = run.config.number("epsilon") or CLIP
    return 1 - low, 1 + (run.config.number("epsilon_high") or low)


def _part(
    sides: Sides, use: BoolArray, delta: FloatArray, right: str, low: float, high: float
) -> _Part:
    chosen = delta[use]
    ratio = np.exp(np.clip(chosen, -50, 50))
    out = ((ratio < low) | (ratio > high)).astype(float)
    other = sides.side(right)
    size = np.abs(chosen if other is None else other[use])
    beyond = (np.abs(chosen) > np.maximum(ROUNDING * size, SMALLEST)).astype(float)
    return _Part(sides, use, delta, np.abs(chosen), out, beyond)


def _base(left: str, right: str, floor: list[_Part], baseline: float) -> float:
    """What the two sides may differ by while nothing is wrong, nats.

    A pass that is repeated may not differ. The floor is that of the cleanest early capture, since
    what spoils the trainer spoils its floor.
    """
    if "recheck" in (left, right):
        return 0.0
    early = floor[: max(1, len(floor) // 3)]
    return min([float(p.gap.mean()) for p in early] or [min(baseline, 0.03)])


def _onset(means: FloatArray, floor: float) -> int | None:
    """Index of the first capture whose difference is above the floor."""
    off = means > (max(TIMES * floor, floor + LEAST) if floor else LEAST_AGAIN)
    return int(np.argmax(off)) if off.any() else None


def _back(means: FloatArray, baseline: float) -> int:
    agree = means <= max(3 * baseline, LEAST_BACK)
    if agree.all() or means[agree].max(initial=0.0) > 0.1 * float(np.median(means[~agree])):
        return 0
    return int(agree.sum())


def _growth(means: FloatArray) -> float | None:
    if len(means) < 4:
        return None
    half = len(means) // 2
    return _r(means[half:].mean() / max(float(means[:half].mean()), 1e-6))


def _rows(part: _Part) -> tuple[FloatArray, FloatArray]:
    """(R,) tokens and mean difference of each row that has any."""
    counts = part.use.sum(axis=1)
    return counts.astype(float), np.abs(part.delta).sum(axis=1) / np.maximum(counts, 1)


def _by_length(parts: list[_Part]) -> float | None:
    found = [_rows(p) for p in parts]
    counts, means = (np.concatenate(x) for x in zip(*found, strict=True))
    r = pearson(counts[counts > 0], means[counts > 0])
    return None if r is None else _r(r)


def _by_padding(parts: list[_Part]) -> tuple[float | None, float | None, float | None]:
    """Correlation of a row's difference with its padding, and the means at both ends."""
    best: tuple[float | None, float | None, float | None] = (None, None, None)
    for name in ("padding", "offset"):
        rows = [(p.sides.pads[name], *_rows(p)) for p in parts if name in p.sides.pads]
        if not rows:
            continue
        pads, counts, means = (np.concatenate(x) for x in zip(*rows, strict=True))
        pads, means = pads[counts > 0], means[counts > 0]
        r = pearson(pads, means)
        if r is not None and (best[0] is None or abs(r) > abs(best[0])):
            least, most = pads == pads.min(), pads == pads.max()
            best = _r(r), _r(means[least].mean()), _r(means[most].mean())
    return best


def _first_tokens(parts: list[_Part]) -> tuple[float | None, float | None]:
    first = np.concatenate([p.place == 0 for p in parts])
    gap = np.concatenate([p.gap for p in parts])
    if not first.any() or first.all() or gap.sum() == 0:
        return None, None
    rest = max(float(gap[~first].mean()), 1e-6)
    return _r(gap[first].mean() / rest), _r(gap[first].sum() / gap.sum())


def _rare(gap: FloatArray, rare: BoolArray) -> float | None:
    if not rare.any() or rare.all():
        return None
    return _r(gap[rare].mean() / max(float(gap[~rare].mean()), 1e-6))


def _are_rare(ids: IntArray) -> BoolArray:
    """(N,) tokens of the least frequent ids, up to a tenth of all."""
    index, counts = group_index(ids)
    order = np.argsort(counts, kind="stable")
    chosen = np.zeros(len(counts), bool)
    chosen[order[np.cumsum(counts[order]) <= RARE * len(ids)]] = True
    return np.asarray(chosen[index])


def _top_share(gap: FloatArray) -> float:
    total = float(gap.sum())
    top = max(1, len(gap) // 100)
    largest = np.sort(np.partition(gap, len(gap) - top)[-top:])
    return _r(largest.sum() / total) if total > 0 else 0.0


def _spread(m: LogprobGap, floor: FloatArray | None) -> Table:
    rows: list[tuple[Scalar, ...]] = [
        ("both sides", m.n_tokens, m.mean, m.p99, m.p999, m.largest, m.past_clip)
    ]
    if floor is not None:
        quantiles = [_r(np.quantile(floor, q)) for q in (0.99, 0.999, 1.0)]
        rows.append(
            ("trainer's own floor", len(floor), m.floor_mean, *quantiles, m.floor_past_clip)
        )
    columns = ("", "tokens", "mean", "P99", "P99.9", "largest", "share past the clip")
    return Table(title="abs difference of log-probs, nats", columns=columns, rows=tuple(rows))


def _by_capture(parts: list[_Part]) -> Table:
    rows = tuple(
        (p.sides.step, len(p.gap), _r(p.gap.mean()), _r(np.quantile(p.gap, 0.99)), _r(p.out.mean()))
        for p in parts
    )
    return Table(
        title="by step",
        columns=("step", "tokens", "mean", "P99", "share past the clip"),
        rows=rows[:60],
        cut_rows=max(0, len(rows) - 60),
    )


def _by_place(parts: list[_Part], rare: BoolArray) -> Table:
    """Where in an answer, in which answers and on which tokens the difference lies."""
    gap = np.concatenate([p.gap for p in parts])
    place = np.concatenate([p.place for p in parts])
    length = np.concatenate(
        [np.broadcast_to(p.use.sum(axis=1)[:, None], p.use.shape)[p.use] for p in parts]
    )
    half = np.median(length)
    last = place == length - 1
    groups = {
        "first token of an answer": place == 0,
        "second to tenth token": (place > 0) & (place < 10),
        "later tokens": place >= 10,
        "last token": last,
        "answers up to the median length": length <= half,
        "longer answers": length > half,
        "the rarest ids": rare,
        "all other ids": ~rare,
    }
    rows = tuple(
        (name, int(of.sum()), _r(gap[of].mean()), _r(gap[of].max()))
        for name, of in groups.items()
        if of.any()
    )
    return Table(title="by place", columns=("tokens", "number", "mean", "largest"), rows=rows)


def _worst(run: Run, parts: list[_Part], left: str, right: str) -> Table:
    texts = run.vocabulary.texts if run.vocabulary else {}
    found = []
    for p in parts:
        rows, places = np.nonzero(p.use)
        least = np.partition(p.gap, -WORST)[-WORST] if len(p.gap) > WORST else 0.0
        at = np.flatnonzero(p.gap >= least)
        for i in at[np.argsort(-p.gap[at], kind="stable")[:WORST]]:
            found.append((float(p.gap[i]), p, int(rows[i]), int(places[i])))
    found.sort(key=lambda f: (-f[0], f[1].sides.step, f[2], f[3]))
    shown = []
    for _, p, row, place in found[:WORST]:
        a, b = p.sides.side(left), p.sides.side(right)
        token = int(p.sides.ids[row, place])
        values = [None if x is None else _r(x[row, place]) for x in (a, b)]
        shown.append((p.sides.step, row, place, texts.get(token, str(token)), *values))
    return Table(
        title="tokens that differ most",
        columns=("step", "row", "place", "token", CALLED[left], CALLED[right]),
        rows=tuple(shown),
    )


def _told(m: LogprobGap, left: str, right: str) -> str:
    floor = "" if m.floor_mean is None else f", the trainer's own floor {number(m.floor_mean)}"
    return (
        f"{CALLED[left]} and {CALLED[right]} differ by {number(m.mean, digits=3)} nats on "
        f"{number(m.n_tokens)} tokens (P99 {number(m.p99, digits=3)}, P99.9 "
        f"{number(m.p999, digits=3)}, largest {number(m.largest, digits=3)}{floor}); "
        f"{percent(m.past_clip)} lie past the clip"
    )


def _r(value: float | np.floating) -> float:
    return round(float(value), 6)
