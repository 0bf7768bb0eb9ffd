"""When to keep a step: rules over the numbers of each step, cheap enough to run at every one.

A rule only keeps evidence; it says nothing about a cause. Level rules fire at the third breach in a
row, since single spikes pass; what is not finite, and a part of the reward that stops varying, fire
at once. Each signal fires MOST_ALARMS times at most, so that one that is wrong for a run does not
fill the disk.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

IN_A_ROW = 3
"""Breaches of a level rule in a row that fire it."""
MOST_ALARMS = 4
FIRST = 10
"""Values from which a rule takes what is usual."""
WINDOW = 50
"""Values that the median is taken of."""
REWARD_STEPS, REWARD_BACK, REWARD_FALL = 20, 100, 0.2
"""A mean of so many steps, held against one up to so many steps earlier; the share it falls by."""

KL = (
    "kl", "kl_ref", "actor/kl_loss", "actor/reward_kl_penalty", "critic/kl", "kl_loss",
    "kl_penalty", "objective/kl", "policy/policy_kl",
)  # fmt: skip
CLIPPED = (
    "clip_frac_total", "clip_fraction", "clip_ratio", "clip_ratio/region_mean", "actor/clipfrac",
    "actor/pg_clipfrac", "pg_clipfrac", "policy/loss_metrics/clip_ratio", "ppo_clip_ratio",
)  # fmt: skip
ENTROPY = (
    "entropy", "entropy_mean", "entropy/mean", "entropy/all/mean", "entropy_loss", "actor/entropy",
    "actor/entropy_loss", "approx_entropy", "critic/entropy/mean", "policy/policy_entropy",
)  # fmt: skip
NORM = (
    "grad_norm", "grad_norm_preclip", "actor/grad_norm", "actor_grad_norm", "actor_train/grad_norm",
    "optim/grad_norm", "policy/grad_norm",
)  # fmt: skip
REWARD = (
    "reward", "reward_mean", "mean_reward", "reward/mean", "critic/rewards/mean",
    "critic/score/mean", "objective/scores", "reward/avg_raw_reward", "rollout/raw_reward",
    "rollout/reward_mean", "score",
)  # fmt: skip
LENGTH = (
    "completion_length_mean", "completion_length", "completions/mean_length",
    "gen_tokens_per_sample/mean", "generate/avg_num_tokens", "mean_gen_tokens_per_sample",
    "response_length", "response_length/mean", "rollout/response_len/mean",
    "rollout/response_length_mean", "tokens/response_length/mean",
)  # fmt: skip
"""What a record and the frameworks call each; trackers may put `train/` before it."""
PARTS = (("rewards/", "/std"), ("reward_part_std/", ""))
"""How names of the spread of a part of the reward begin and end."""
_TRACKED = "train/"
MOST_KL, MOST_CLIPPED, LEAST_ENTROPY, MOST_NORM, MOST_LENGTH = 0.5, 0.4, 0.3, 10.0, 2.0


@dataclass(frozen=True)
class Alarm:
    """A rule that fired."""

    first: int
    """Step of the first breach in the row."""
    step: int
    why: str


class _Level:
    """One signal against a bound, or against what was usual of it."""

    def __init__(self, text: str, limit: float, usual: str | None = None) -> None:
        """`usual`: the limit is times what was usual at the `start`, or times the `median`.

        Breached is what lies above it, or below a share of the start. `text` says the breach, `{}`
        is the bound.
        """
        self._text, self._limit, self._usual = text, limit, usual
        self.restart()

    def restart(self) -> None:
        """Forget what was usual."""
        self._row: list[int] = []
        self._values: list[float] = []  # ascending
        self._order: deque[float] = deque()

    def observe(self, step: int, value: float) -> Alarm | None:
        """An alarm where this breach makes the row long enough."""
        bound = self._bound()
        breached = bound is not None and (value > bound if self._over() else value < bound)
        if not breached:
            self._row.clear()
            self._learn(value)
            return None
        if len(self._row) == IN_A_ROW or self._row[-1:] == [step]:  # it has fired, or said so
            return None
        self._row.append(step)
        if len(self._row) < IN_A_ROW:
            return None
        said = self._text.format(f"{bound:.3g}")
        return Alarm(self._row[0], step, f"{said} since step {self._row[0]}")

    def _over(self) -> bool:
        return self._usual != "start"

    def _bound(self) -> float | None:
        if self._usual is None:
            return self._limit
        if len(self._values) < FIRST:
            return None
        usual = self._values[len(self._values) // 2]
        return self._limit * usual if usual > 0 else None

    def _learn(self, value: float) -> None:
        if self._usual is None or (self._usual == "start" and len(self._values) >= FIRST):
            return
        insort(self._values, value)
        self._order.append(value)
        if len(self._order) > WINDOW:
            del self._values[bisect_left(self._values, self._order.popleft())]


class _Fall:
    """The mean of the last steps against the best earlier one, where that was above 0."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Forget what was usual."""
        self._last: deque[float] = deque(maxlen=REWARD_STEPS)
        self._means: deque[float] = deque(maxlen=REWARD_BACK)
        self._fired = False

    def observe(self, step: int, value: float) -> Alarm | None:
        """An alarm where the mean falls below its bound for the first time."""
        self._last.append(value)
        if len(self._last) < REWARD_STEPS:
            return None
        mean = sum(self._last) / REWARD_STEPS  # a running sum would never forget a huge value
        self._means.append(mean)
        best = max(self._means)
        fell = best > 0 and mean < (1 - REWARD_FALL) * best
        fired, self._fired = fell and not self._fired, fell
        if not fired:
            return None
        text = f"reward: mean of {REWARD_STEPS} steps {mean:.3g}, {best:.3g} before"
        return Alarm(step, step, text)


_RULES: dict[str, Callable[[], _Level | _Fall]] = {
    **dict.fromkeys(KL, lambda: _Level("KL above {}", MOST_KL)),
    **dict.fromkeys(CLIPPED, lambda: _Level("clip fraction above {}", MOST_CLIPPED)),
    **dict.fromkeys(ENTROPY, lambda: _Level("entropy below {}", LEAST_ENTROPY, "start")),
    **dict.fromkeys(NORM, lambda: _Level("gradient norm above {}", MOST_NORM, "median")),
    **dict.fromkeys(LENGTH, lambda: _Level("length above {}", MOST_LENGTH, "median")),
    **dict.fromkeys(REWARD, _Fall),
}


class Rules:
    """All rules of one run; a signal that is not logged is watched by none."""

    def __init__(self) -> None:
        """Nothing was seen so far."""
        self._levels: dict[str, _Level | _Fall] = {}
        """By signal: two names of one quantity may both be logged."""
        self._fired: Counter[str] = Counter()
        self._finite: dict[str, bool] = {}
        """Whether a signal was finite at last."""
        self._varied: dict[str, int] = {}
        """Steps in a row in which a part of the reward varied."""

    def observe(self, step: int, values: Mapping[str, object]) -> Iterator[Alarm]:
        """Alarms of the numbers of one step, as they stand in a record."""
        broken = []
        fired: list[Alarm] = []
        for name, value in values.items():
            if isinstance(value, str):  # NaN and infinities are texts in a record
                if self._finite.get(name) and self._may("finite: " + name):
                    broken.append(name)
                self._finite[name] = False
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                continue
            self._finite[name] = True
            rule = self._rule(name)
            if rule is None:
                fired += self._part(step, name, float(value))
            elif (alarm := rule.observe(step, float(value))) is not None and self._may(name):
                fired.append(alarm)
        yield from dict.fromkeys(fired)  # one quantity under two names is one alarm
        if broken:
            named = ", ".join(f"`{name[:80]}`" for name in broken[:3])
            more = f" and {len(broken) - 3} more" if len(broken) > 3 else ""
            yield Alarm(step, step, f"not finite: {named}{more}")

    def restart(self) -> None:
        """A new phase of the data: what was usual begins anew."""
        for rule in self._levels.values():
            rule.restart()
        self._varied.clear()

    def _rule(self, name: str) -> _Level | _Fall | None:
        """The rule of a signal."""
        if name not in self._levels:
            made = _RULES.get(name[len(_TRACKED) :] if name.startswith(_TRACKED) else name)
            if made is None:
                return None
            self._levels[name] = made()
        return self._levels[name]

    def _part(self, step: int, name: str, spread: float) -> Iterator[Alarm]:
        """A part of the reward that varied in every step, and in this one does not."""
        plain = name[len(_TRACKED) :] if name.startswith(_TRACKED) else name
        if not any(plain.startswith(start) and plain.endswith(end) for start, end in PARTS):
            return
        before = self._varied.get(name, 0)
        self._varied[name] = before + 1 if spread > 0 else 0
        if spread == 0 and before >= FIRST and self._may(name):
            part = name[:-4] if name.endswith("/std") else name
            yield Alarm(step, step, f"`{part}` no longer varies")

    def _may(self, rule: str) -> bool:
        self._fired[rule] += 1
        return self._fired[rule] <= MOST_ALARMS
