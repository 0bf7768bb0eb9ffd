"""Is the sampler the trainer's policy? Surprise of sampled tokens, and k1 against k3."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Table
from firstbad.tools.probability.drift import Drift, Series, fit_drift, misfit_of_setting
from firstbad.tools.probability.odd_stretch import OddStretch, odd_stretch
from firstbad.tools.probability.sides import claimed_lag
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import BoolArray, Capture, FloatArray, Run
from firstbad.tools.stats import mean_z, pearson
from firstbad.tools.tokens import completion_end

POOL = 1500
"""Fewest tokens a pooled mean is read from: 350 on-policy tokens scatter by up to 0.12 nats."""
FLOOR = 0.1
"""Smallest pooled surprise, in nats, that dates anything."""
SURE = 4.0
"""Standard errors of it."""
TAIL = 3.0
"""k1/k3 beyond which the samples lack the tail that k3 weighs."""
SELDOM = 1e-3
"""Chance below which a stretch too small for a pool of its own dates anything."""
LEAST_VARIANCE = 100.0
"""Least sum of varentropies, nats^2, that a z is divided by the root of: near zero entropy the sum
of so few rare tokens is far from normal."""
FORK = 1.5
"""Entropy, in nats, above which a token is a fork: a hotter sampler shows there as well."""
FEWEST_FORKS = 200
FORKED = 0.25
"""Share of the mean surprise that forks have under older weights; hotter samplers: 0.3 to 0.9."""
FAR = 0.1
"""KL to the reference, in nats, of a policy that moves fast."""
RECENT = 10
"""Steps over which its median is taken."""
NEAR = 0.005
"""Mean k3, in nats, below which the policy is as good as its reference."""


class Surprise(Dated):
    """Pooled surprise, in nats per token, early and late in the run."""

    n_captures: int
    n_tokens: int
    variance: float | None
    """Sum of the varentropies of all tokens, nats^2; None where a capture lacks them."""
    surprise_all: float
    z_all: float
    """Sum of the surprises over the root of that of the varentropies, or of 100 where there is
    less; without varentropies over the spread of tokens or of captures, whichever is wider."""
    surprise_early: float | None
    """Before the change that divides the captures best (or None: no room for two pools)."""
    surprise_late: float | None
    z_late: float | None
    largest: float
    """The largest abs(pooled mean) of: all, early, late."""
    z_largest: float
    signed_largest: float
    growth: float | None
    """Fitted value at the end over that halfway from the onset to the end: 1 for a setting, 2 to 4
    for weights that part. None where nothing is off."""
    fork_surprise: float | None
    """In the bad stretch, over tokens with an entropy above 1.5 nats; None for fewer than 200."""
    fork_share: float | None
    """... over the mean of all tokens there."""
    kl_before: float | None
    """Median logged KL to the reference, nats, in the ten steps before a late stretch begins."""
    follows_speed: bool
    """A late stretch is positive, of one level and not from forks, and KL had passed 0.1 nats
    before it: no setting does that, rollouts of weights some steps old do, which show once the
    policy moves fast. They may have been there before: the bracket opens where KL was half that."""
    entropy_mean: float
    k1_over_k3_early: float | None
    k1_over_k3_late: float | None
    """mean(x) / mean(exp(-x) + x - 1) with x = logp - logp_ref; 1 on-policy, 0 or below when the
    tokens come from another policy. None while mean k3 is below 0.005 nats."""
    k3_late: float | None
    kl_gap_late: float | None
    """mean(k3 - k1) of the late captures, nats: 0 on-policy, grows as sampler and trainer part."""
    kl_gap_z: float | None
    k1_z_late: float | None
    """mean(k1) of the late captures over its standard error. KL is never negative, so a value far
    below 0 shows that the tokens come from another policy, however heavy the tail of k3."""
    drift_onset: float | None
    """Step at which the gap began, where it grows from nothing (weights that part)."""
    padding_dependence: float | None
    """abs(padding_correlation)."""
    padding_correlation: float | None
    """Correlation over rows of abs surprise and number of prompt pad tokens."""
    padding_gap: float | None
    """Surprise of padded rows over that of unpadded ones, 0 unless the former is above 0.1 nats."""
    surprise_padded: float | None
    surprise_unpadded: float | None
    stretch_first: int | None
    """First step of the captures in a row, of 600 tokens or more, whose mean is least likely."""
    stretch_last: int | None
    stretch_tokens: int | None
    stretch_surprise: float | None
    stretch_size: float | None
    """abs(stretch_surprise)."""
    stretch_chance: float | None
    """Of such a stretch anywhere in an on-policy run, from the widest spread that is seen, times
    the stretches that were tried."""
    stretch_k1_over_k3: float | None
    stretch_alone: bool
    """It shows what no pool of 1,500 tokens does."""
    stretch_ends: bool | None
    """Captures follow it."""


@dataclass(frozen=True)
class _Dump:
    step: int
    surprise: FloatArray
    """Per token."""
    variance: float | None
    """Sum of the varentropies of these tokens."""
    fork: BoolArray
    """Per token."""
    row_mean: FloatArray
    row_tokens: FloatArray
    row_pads: FloatArray
    k1: FloatArray | None
    k3: FloatArray | None
    entropy: float


@tool
def test_surprise(run: Run) -> Measured[Surprise]:
    """Mean of -logp - entropy over sampled tokens: 0 when the sampler is the trainer's policy.

    Pooled over captures, at least 1,500 tokens a side, over all tokens up to the first stop; and
    over the captures in a row that stand out most, at least 600 tokens of two or more.
    Positive: sampler broader, or another policy; negative: sharper. `k1/k3` asks the same from
    reference log-probs. Rows that claim older weights are left out. Source: martingale difference
    of sampled tokens.

    Cannot tell: 0 is necessary, not sufficient, so a pass marks no step as good; nothing about old
    log-probs.
    """
    # A second pass over a batch is scored by a policy that no longer sampled it.
    fresh = (c for c in run.captures if run.fresh_at(c.step))
    dumps = [d for c in fresh if (d := read_dump(run, c)) is not None]
    n = sum(len(d.surprise) for d in dumps)
    if n < POOL:
        raise NoData(
            f"{n} captured tokens with log-prob and entropy; at least {POOL} are needed"
            if dumps
            else "no captures of fresh rollouts that hold both token log-probs and entropies"
        )
    cut = _best_cut(dumps)
    gap = _kl_gap(dumps[cut:])
    k1_z = _k1_z(dumps[cut:])
    apart = (gap[1] is not None and gap[1] > 3) or (k1_z is not None and k1_z < -3.5)
    early, late = (dumps[:cut], dumps[cut:]) if cut else ([], dumps)
    pools = {"all": _pool(dumps)}
    if cut:
        pools |= {"early": _pool(early), "late": _pool(late)}
    worst = max(pools, key=lambda k: abs(pools[k][0]))
    if cut and abs(pools["early"][0]) > FLOOR and pools["early"][0] * pools["late"][0] > 0:
        worst = "all"  # off on both sides of the cut: there all along
    speaks = abs(pools[worst][0]) > FLOOR
    odd = odd_stretch([d.surprise for d in dumps])
    inside = dumps[odd.first : odd.stop] if odd else []
    ratio = _stretch_ratio(inside)
    stands_out = _stands_out(odd, ratio)
    lasts = stands_out and inside[-1] is dumps[-1]
    drift = _drift(dumps, speaks=speaks or lasts, apart=apart)
    if odd and stands_out and odd.stop - odd.earliest < 3:
        drift = None  # two captures have no shape
    pads = _padding(dumps)
    # Below the floor a surprise counts where k1/k3 tells the same from other log-probs.
    lacks = (_k_ratio(late) or 0.0) > TAIL and pools[worst][0] < -FLOOR / 2
    sure = speaks and abs(pools[worst][1]) > SURE
    alone = stands_out and not (sure or lacks or drift)
    off = speaks or drift is not None or lacks or alone
    if drift is not None:
        quiet, first = _bracket(drift, dumps)
    elif odd and (alone or (stands_out and odd.earliest > cut)):  # a late pool begins too early
        quiet = dumps[odd.earliest - 1].step if odd.earliest else None
        first = dumps[odd.latest].step if odd.earliest else None
    elif worst == "late":
        quiet, first = early[-1].step, late[0].step
    else:
        quiet, first = None, None
    forks = _fork_surprise(late if worst == "late" else dumps) if off else None
    fork_share = None if forks is None else round(forks / pools[worst][0], 4)
    kl_before = _kl_up_to(run, quiet) if worst == "late" and quiet is not None else None
    follows = (
        drift is None
        and pools[worst][0] > FLOOR
        and fork_share is not None
        and fork_share < FORKED
        and kl_before is not None
        and kl_before > FAR
    )
    if follows:
        quiet = _last_near(run, early)
    variance = _variance(dumps)
    metrics = Surprise(
        n_captures=len(dumps),
        n_tokens=n,
        variance=None if variance is None else round(variance, 4),
        surprise_all=pools["all"][0],
        z_all=pools["all"][1],
        surprise_early=pools["early"][0] if cut else None,
        surprise_late=pools["late"][0] if cut else None,
        z_late=pools["late"][1] if cut else None,
        largest=abs(pools[worst][0]),
        z_largest=abs(pools[worst][1]),
        signed_largest=pools[worst][0],
        growth=None if not off else round(drift.growth, 4) if drift else 1.0,
        fork_surprise=forks,
        fork_share=fork_share,
        kl_before=kl_before,
        follows_speed=follows,
        entropy_mean=round(float(np.mean([d.entropy for d in dumps])), 6),
        k1_over_k3_early=_k_ratio(early or dumps),
        k1_over_k3_late=_k_ratio(late),
        k3_late=_mean_k3(late),
        kl_gap_late=gap[0],
        kl_gap_z=gap[1],
        k1_z_late=k1_z,
        drift_onset=None if drift is None else round(drift.best, 2),
        padding_dependence=None if pads[0] is None else abs(pads[0]),
        padding_correlation=pads[0],
        padding_gap=_padding_gap(pads[1], pads[2]),
        surprise_padded=pads[1],
        surprise_unpadded=pads[2],
        stretch_first=inside[0].step if odd else None,
        stretch_last=inside[-1].step if odd else None,
        stretch_tokens=odd.size if odd else None,
        stretch_surprise=round(odd.mean, 6) if odd else None,
        stretch_size=round(abs(odd.mean), 6) if odd else None,
        stretch_chance=odd.p if odd else None,
        stretch_k1_over_k3=ratio,
        stretch_alone=alone,
        stretch_ends=odd.stop < len(dumps) if odd else None,
        quiet_step=quiet if off else None,
        first_bad_step=(first or dumps[0].step) if off else None,
        from_start=off and first is None,
        gradual=drift is not None or follows,
        sampled=True,
    )
    table = Table(
        title="surprise per capture",
        columns=("step", "tokens", "surprise", "entropy", "k1", "k3"),
        rows=tuple(_row(d) for d in dumps[:60]),
        cut_rows=max(0, len(dumps) - 60),
    )
    return Measured(
        metrics,
        f"{n} captured tokens: surprise {pools['all'][0]:+.3f} nats overall"
        + (
            f", {pools['early'][0]:+.3f} to step {early[-1].step}, "
            f"{pools['late'][0]:+.3f} from step {late[0].step}"
            if cut
            else ""
        )
        + (
            f", {odd.mean:+.3f} in steps {inside[0].step} to {inside[-1].step} ({odd.size} tokens)"
            if odd and stands_out
            else ""
        ),
        tables=(table,),
        window=(dumps[0].step, dumps[-1].step),
        signal="surprise of sampled tokens",
    )


def read_dump(run: Run, capture: Capture) -> _Dump | None:
    """Surprise of the sampled tokens of a capture; None where it lacks what that takes."""
    logp, entropy = capture.numbers("logp_new"), capture.numbers("entropy")
    ids = capture.numbers("token_id")
    if logp is None or entropy is None or ids is None or logp.shape != ids.shape:
        return None
    if entropy.shape != ids.shape:
        return None
    real = completion_end(run, capture).real
    use = real & np.isfinite(logp) & np.isfinite(entropy)
    lag = claimed_lag(run, capture.step)
    if lag is not None and len(lag) == len(ids):
        use &= (lag == 0)[:, None]  # rows that claim another policy prove nothing of this one
    if not use.any():
        return None
    d = np.where(use, -logp - entropy, 0.0)
    counts = use.sum(axis=1)
    prompt = capture.mask("prompt_mask")
    pads = np.zeros(len(ids)) if prompt is None else (~prompt).sum(axis=1).astype(float)
    ref = capture.numbers("logp_ref")
    k1 = k3 = None
    if ref is not None and ref.shape == logp.shape:
        x = (logp - ref)[use & np.isfinite(ref)]
        if len(x):
            k1, k3 = x, np.exp(np.clip(-x, -50, 50)) + x - 1.0
    return _Dump(
        capture.step,
        d[use],
        _sum_of(capture.numbers("varentropy"), use),
        entropy[use] > FORK,
        d.sum(axis=1) / np.maximum(counts, 1),
        counts.astype(float),
        pads,
        k1,
        k3,
        float(entropy[use].mean()),
    )


def _pool(dumps: list[_Dump]) -> tuple[float, float]:
    """Pooled mean, and its z: by the varentropies where captured.

    Without them by the spread over tokens or over captures, whichever is wider: where entropy is
    near 0 the rare tokens are missing from the sample, and the spread over tokens alone makes z
    explode.
    """
    values = np.concatenate([d.surprise for d in dumps])
    variance = _variance(dumps)
    error = float(np.std(values)) / np.sqrt(len(values))
    if variance is not None:
        error = float(np.sqrt(max(variance, LEAST_VARIANCE))) / len(values)
    elif len(dumps) >= 3:
        means = np.array([d.surprise.mean() for d in dumps])
        error = max(error, float(np.std(means, ddof=1)) / np.sqrt(len(dumps)))
    mean = float(values.mean())
    return round(mean, 6), round(mean / error, 4) if error > 0 else 0.0


def _variance(dumps: list[_Dump]) -> float | None:
    """Sum of the varentropies; None where a capture lacks them."""
    known = [d.variance for d in dumps if d.variance is not None]
    return sum(known) if len(known) == len(dumps) else None


def _sum_of(varentropy: FloatArray | None, use: BoolArray) -> float | None:
    if varentropy is None or varentropy.shape != use.shape:
        return None
    values = varentropy[use]
    return float(np.maximum(values, 0).sum()) if np.isfinite(values).all() else None


def _fork_surprise(dumps: list[_Dump]) -> float | None:
    values = np.concatenate([d.surprise[d.fork] for d in dumps])
    return round(float(values.mean()), 6) if len(values) >= FEWEST_FORKS else None


def _kl_up_to(run: Run, step: int) -> float | None:
    kl = run.signals.get("kl_ref")
    recent = kl.between(step - RECENT + 1, step) if kl is not None else ()
    return round(float(np.median(recent)), 6) if len(recent) else None


def _last_near(run: Run, dumps: list[_Dump]) -> int | None:
    """The last capture before the policy moved fast."""
    quiet = None
    for dump in dumps:
        if (_kl_up_to(run, dump.step) or 0.0) > FAR / 2:
            break
        quiet = dump.step
    return quiet


def _stands_out(odd: OddStretch | None, ratio: float | None) -> bool:
    """Whether a stretch is off by itself: beyond the floor, or below it where k1/k3 agrees."""
    if odd is None or odd.p >= SELDOM:
        return False
    return abs(odd.mean) > FLOOR or (odd.mean < -FLOOR / 2 and (ratio or 0.0) > TAIL)


def _stretch_ratio(dumps: list[_Dump]) -> float | None:
    """k1/k3 of a stretch; without its tail k3 is near 0, so k1 tells how far the policy went."""
    k1 = [d.k1 for d in dumps if d.k1 is not None]
    k3 = [d.k3 for d in dumps if d.k3 is not None]
    if not k1 or float(np.concatenate(k1).mean()) <= NEAR:
        return None
    mean = float(np.concatenate(k3).mean())
    return round(float(np.concatenate(k1).mean()) / mean, 4) if mean > 0 else None


def _best_cut(dumps: list[_Dump]) -> int:
    """Index that divides the captures into the two pools that differ most; 0 when none can."""
    sizes = np.cumsum([len(d.surprise) for d in dumps])
    sums = np.cumsum([d.surprise.sum() for d in dumps])
    best, gap = 0, 0.0
    for cut in range(1, len(dumps)):
        left, right = sizes[cut - 1], sizes[-1] - sizes[cut - 1]
        if left < POOL or right < POOL:
            continue
        difference = abs(sums[cut - 1] / left - (sums[-1] - sums[cut - 1]) / right)
        weighted = difference * np.sqrt(left * right / sizes[-1])
        if weighted > gap:
            best, gap = cut, float(weighted)
    return best


def _gap(dump: _Dump) -> FloatArray | None:
    return None if dump.k1 is None or dump.k3 is None else dump.k3 - dump.k1


def _kl_gap(dumps: list[_Dump]) -> tuple[float | None, float | None]:
    """Mean of k3 - k1 and its z over tokens."""
    gaps = [g for d in dumps if (g := _gap(d)) is not None]
    if not gaps or sum(map(len, gaps)) < POOL:
        return None, None
    values = np.concatenate(gaps)
    return round(float(values.mean()), 6), round(mean_z(values), 4)


def _k1_z(dumps: list[_Dump]) -> float | None:
    found = [d.k1 for d in dumps if d.k1 is not None]
    if not found or sum(map(len, found)) < POOL:
        return None
    return round(mean_z(np.concatenate(found)), 4)


def _surprises(dumps: list[_Dump]) -> Series:
    return _series([(d.step, d.surprise) for d in dumps])


def _log_gaps(dumps: list[_Dump]) -> Series:
    """log(1 + mean of k3 - k1), which is log E[exp(-x)].

    Where the sampler stays behind while weights move on, this is for small moves v d (u + d), with
    d the distance from the sampler and u that of the sampler from the reference. Captures at which
    the policy is still its reference tell nothing.
    """
    found = _series([(d.step, g) for d in dumps if _told(d) and (g := _gap(d)) is not None])
    gap = np.maximum(found.value, -0.9)
    return Series(
        found.steps,
        np.log1p(gap),
        np.maximum.accumulate(found.error) / (1 + np.maximum(gap, 0)) if len(gap) else found.error,
    )


def _told(dump: _Dump) -> bool:
    """Whether the policy has left its reference, or there is none."""
    return dump.k3 is None or float(dump.k3.mean()) > NEAR


def _series(samples: list[tuple[int, FloatArray]]) -> Series:
    return Series(
        np.array([step for step, _ in samples], float),
        np.array([values.mean() for _, values in samples]),
        np.array([values.std() / np.sqrt(len(values)) for _, values in samples]),
    )


def _drift(dumps: list[_Dump], *, speaks: bool, apart: bool) -> Drift | None:
    """The drift that is seen, or None where a setting that changed once fits as well.

    Surprise tells the two apart, and where it is too small to speak, the gap. Under both the gap
    grows as training goes on, so it dates the drift and does not tell it from a setting.
    """
    if len(dumps) < 2 or not (speaks or apart):
        return None
    since = 2 * dumps[0].step - dumps[1].step
    gaps = _log_gaps(dumps)
    shape = _surprises(dumps) if speaks else gaps
    seen = fit_drift(shape, since)
    if seen is None or seen[1] >= misfit_of_setting(shape):
        return None
    dated = fit_drift(gaps, since)
    return dated[0] if dated and dated[0].growth > 1 else seen[0]


def _bracket(drift: Drift, dumps: list[_Dump]) -> tuple[int | None, int | None]:
    """Last quiet and first bad capture; neither where too few tokens came before the onset."""
    quiet = max((d.step for d in dumps if d.step <= drift.earliest and _told(d)), default=None)
    if quiet is None and sum(len(d.surprise) for d in dumps if d.step <= drift.best) < POOL:
        return None, None
    return quiet, min(d.step for d in dumps if d.step > drift.latest)


def _k_ratio(dumps: list[_Dump]) -> float | None:
    k1 = [d.k1 for d in dumps if d.k1 is not None]
    k3 = [d.k3 for d in dumps if d.k3 is not None]
    if not k1 or sum(map(len, k1)) < POOL:
        return None
    mean = float(np.concatenate(k3).mean())
    return round(float(np.concatenate(k1).mean()) / mean, 4) if mean > NEAR else None


def _mean_k3(dumps: list[_Dump]) -> float | None:
    k3 = [d.k3 for d in dumps if d.k3 is not None]
    return round(float(np.concatenate(k3).mean()), 6) if k3 else None


def _padding(dumps: list[_Dump]) -> tuple[float | None, float | None, float | None]:
    rows = np.concatenate([d.row_mean for d in dumps])
    pads = np.concatenate([d.row_pads for d in dumps])
    tokens = np.concatenate([d.row_tokens for d in dumps])
    padded, bare = pads > 0, pads == 0
    if padded.sum() < 20 or bare.sum() < 20:
        return None, None, None
    correlation = pearson(pads, rows)

    def pooled(part: BoolArray) -> float:
        # Tokens are pooled: a mean of row means weighs short rows up, whose end is a surprise.
        return round(float((rows * tokens)[part].sum() / tokens[part].sum()), 6)

    return None if correlation is None else round(correlation, 4), pooled(padded), pooled(bare)


def _padding_gap(padded: float | None, bare: float | None) -> float | None:
    if padded is None or bare is None:
        return None
    return round(abs(padded) / max(abs(bare), 0.02), 4) if abs(padded) > 0.1 else 0.0


def _row(d: _Dump) -> tuple[int, int, float, float, float | None, float | None]:
    k1 = None if d.k1 is None else round(float(d.k1.mean()), 4)
    k3 = None if d.k3 is None else round(float(d.k3.mean()), 4)
    return d.step, len(d.surprise), round(float(d.surprise.mean()), 4), round(d.entropy, 4), k1, k3
