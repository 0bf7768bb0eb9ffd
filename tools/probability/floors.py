"""A floor that log-probs are pressed against: a point mass at the least value."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated
from firstbad.tools.numbers import number, percent
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import Capture, FloatArray, Run
from firstbad.tools.tokens import completion_end

NEAR = 0.02
"""Nats above the least log-prob of a capture that count as that value."""
FEWEST = 5
"""Tokens at the least value from which a capture has a point mass, ..."""
SHARE = 0.01
"""... and share of its tokens."""
SENTINEL = -50.0
"""Log-prob, in nats, that no token is sampled with."""
SAME = 2e-3
"""Relative distance within which other values count as one, ..."""
CERTAIN = -1e-3
"""... but for those of tokens without an alternative, in nats: rounding makes them equal."""
OFTENER = 2
"""Times the most frequent other value that a point mass comes, at least."""


class Floors(Dated):
    """What the log-probs of trained tokens do not go below."""

    n_captures: int
    n_tokens: int
    n_captures_at_floor: int
    """Captures with many tokens at one least log-prob, which is the same in all of these."""
    floor: float | None
    """That log-prob, in nats."""
    floor_share: float
    """Share of the tokens of those captures that lie on it."""
    floor_is_power_of_ten: bool
    """exp(floor) is 1e-3, 1e-4, ...: an eps that was added before the logarithm."""
    floor_is_sentinel: bool
    """The floor is below -50 nats: a stand-in, no log-prob."""


@dataclass(frozen=True)
class _Least:
    step: int
    tokens: int
    value: float
    hits: int

    @property
    def many(self) -> bool:
        return self.hits >= FEWEST and self.hits >= SHARE * self.tokens


@tool
def find_floor(run: Run) -> Measured[Floors]:
    """A point mass at the least log-prob of captured tokens.

    Log-probs of sampled tokens have a thin tail, and each update moves it: no value comes twice. A
    clamp, or log(softmax + eps), piles up what lies below it, at the same value in every capture. A
    choice among a few equally likely tokens piles up too, and there the entropy is the surprise.
    Where a few tokens are all there is, or rows are copies, other values come as often.

    Cannot tell: a limit that hardly any token reaches; one that is applied after what is captured;
    one on a policy that has few values to give.
    """
    found = [least for c in run.captures if (least := _least(run, c)) is not None]
    if not found:
        raise NoData("no captures that hold log-probs of completion tokens")
    piled = [least for least in found if least.many]
    common = max(piled, key=lambda a: sum(_same(a, b) for b in piled), default=None)
    at = [] if common is None else [least for least in piled if _same(common, least)]
    floor = common.value if common is not None and len(at) >= 2 else None
    bad = at if floor is not None else []
    good = [least.step for least in found if bad and least.step < bad[0].step]
    tokens = sum(least.tokens for least in bad)
    metrics = Floors(
        n_captures=len(found),
        n_tokens=sum(least.tokens for least in found),
        n_captures_at_floor=len(bad),
        floor=None if floor is None else round(floor, 6),
        floor_share=round(sum(least.hits for least in bad) / tokens, 6) if tokens else 0.0,
        floor_is_power_of_ten=floor is not None and _is_power_of_ten(floor),
        floor_is_sentinel=floor is not None and floor < SENTINEL,
        last_good_step=good[-1] if good else None,
        first_bad_step=bad[0].step if bad else None,
        from_start=bool(bad) and not good,
        sampled=True,
    )
    text = f"{metrics.n_tokens} captured log-probs: no value that many of the least ones share"
    if floor is not None:
        text = (
            f"{percent(metrics.floor_share)} of the captured log-probs from step {bad[0].step} on "
            f"are {number(floor, digits=4)}, and none is below"
        )
    steps = [least.step for least in found]
    return Measured(
        metrics,
        text,
        window=(steps[0], steps[-1]),
        signal="least log-prob of the captured tokens",
    )


def _least(run: Run, capture: Capture) -> _Least | None:
    """The least log-prob of the trained tokens of a capture, and how many share it."""
    logp, ids = capture.numbers("logp_new"), capture.arrays.get("token_id")
    if logp is None or ids is None or logp.shape != ids.shape:
        return None
    use = completion_end(run, capture).real & np.isfinite(logp)
    mask = capture.mask("loss_mask")
    # Without a mask nothing tells whether a stand-in takes part in the loss.
    use &= mask if mask is not None and mask.shape == use.shape else logp > SENTINEL
    values = logp[use]
    if not len(values):
        return None
    least = float(values.min())
    at = values <= least + NEAR
    others = ~at & (values < CERTAIN)
    entropy = capture.numbers("entropy")
    if entropy is not None and entropy.shape == logp.shape:
        # Where k tokens are equally likely, each has -log k, which is the entropy as well.
        chosen = np.abs(entropy[use] + values) > 2 * NEAR
        at, others = at & chosen, others & chosen
    hits = int(at.sum())
    if values.max() - least < 10 * NEAR or hits <= OFTENER * _most_frequent(values[others], hits):
        hits = 0
    return _Least(capture.step, len(values), least, hits)


def _most_frequent(values: FloatArray, none: int) -> int:
    """How often the most frequent of the negative values comes; `none` where there are none."""
    if not len(values):
        return none
    return int(np.unique(np.round(np.log(-values) / SAME), return_counts=True)[1].max())


def _same(a: _Least, b: _Least) -> bool:
    """Whether two captures have one least value, up to the precision that they are stored in."""
    return abs(a.value - b.value) <= NEAR / 10 + 1e-3 * abs(a.value) * (abs(a.value) > 1)


def _is_power_of_ten(floor: float) -> bool:
    exponent = -floor / np.log(10.0)
    return bool(exponent > 2.5 and abs(exponent - round(exponent)) < 0.01)
