"""GRPO in numpy on the table policy, written down with the recorder. A fault overrides one method.

The methods are the places where training pipelines go wrong, in the order in which a step uses
them. Everything that is written follows from what they return.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np

from firstbad_recorder import Recorder
from synthetic import policy, probes
from synthetic.policy import PAD, STOP, Array, Bools, Ints, Rows, V


@dataclass
class Settings:
    """What a configuration file would say."""

    seed: int = 0
    steps: int = 60
    prompts: int = 6
    group: int = 8
    cap: int = 10
    """Completion tokens at most."""
    accumulation: int = 2
    ranks: int = 1
    updates: int = 1
    """Updates on each rollout batch."""
    rate: float = 0.04
    beta: float = 0.02
    clip: float = 0.2
    clip_norm: float = 1.0
    temperature: float = 1.0
    weights: tuple[float, float] = (1.0, 0.2)
    captures: int = 12
    """Steps whose tokens are kept."""
    onset: int = 31
    """First step at which a fault that starts later is there."""
    probes: tuple[int, ...] = ()
    """Steps after which the gradient path is probed: see probes.py."""
    tools: bool = False
    """The policy may call a tool, which answers in the row; then it goes on."""

    def config(self) -> dict[str, object]:
        """The settings under common names."""
        return {
            "beta": self.beta,
            "bf16": False,
            "epsilon": self.clip,
            "gradient_accumulation_steps": self.accumulation,
            "learning_rate": self.rate,
            "logging_steps": 1,
            "loss_type": "dapo",
            "lr_scheduler_type": "constant",
            "max_completion_length": self.cap,
            "max_grad_norm": self.clip_norm,
            "max_steps": self.steps * self.updates,
            "num_generations": self.group,
            "num_iterations": self.updates,
            "per_device_train_batch_size": self.prompts * self.group // self.accumulation,
            "reward_weights": list(self.weights),
            "scale_rewards": "group",
            "temperature": self.temperature,
            "use_vllm": True,
        }


@dataclass
class Batch:
    """The rollouts of one step."""

    step: int
    rows: Rows
    engine_logp: Array
    group: Ints
    digit: list[int | None]
    """Right answer of each row."""
    sample: list[str]
    finish: list[str]
    version: Ints
    """(R,) weights that sampled each row."""
    parts: dict[str, Array] = field(default_factory=dict)
    errors: dict[str, list[str | None]] = field(default_factory=dict)
    latency: dict[str, Array] = field(default_factory=dict)
    total: Array = field(default_factory=lambda: np.empty(0))
    advantage: Array = field(default_factory=lambda: np.empty(0))
    loss_mask: Bools = field(default_factory=lambda: np.empty(0, bool))
    old: Array = field(default_factory=lambda: np.empty(0))
    ref: Array = field(default_factory=lambda: np.empty(0))


@dataclass
class Microbatch:
    """Rows of one micro-batch and how its loss is scaled."""

    rank: int
    index: int
    rows: Ints
    denominator: float
    scale: float = 1.0


class Trainer:
    """A sound trainer. Subclasses override what they break."""

    def __init__(self, **settings: Any) -> None:
        """Settings by name."""
        self.s = Settings(**settings)
        self.rng = np.random.default_rng(self.s.seed)
        self.table = policy.first_table(np.random.default_rng(3))
        if self.s.tools:
            self.table = policy.that_calls(self.table)
        self.reference = self.table.copy()
        self.engine = self.table.copy()
        self.version = self.engine_version = 0
        self.moments = np.zeros_like(self.table), np.zeros_like(self.table)
        self.count = 0
        self.step = 0

    @property
    def after(self) -> bool:
        """Whether a fault with an onset is there."""
        return self.step >= self.s.onset

    # ---- settings and records

    def config(self) -> dict[str, object]:
        """Settings in force."""
        return self.s.config()

    def requested(self) -> dict[str, object]:
        """Settings as asked for."""
        return self.config()

    # ---- sampling

    def draw_prompts(self) -> list[list[int]]:
        """Prompts of the step, one for each group."""
        return policy.prompts(self.rng, self.s.prompts)

    def sampler_logits(self, values: Array) -> Array:
        """(R, V) what the engine samples from, given its logits."""
        return values / self.s.temperature

    def delivers(self) -> bool:
        """Whether a delivery is made, and written down, before the rollouts of the step."""
        return True

    def sync(self) -> dict[str, object]:
        """Deliver the weights to the engine; what the ledger says of it."""
        self.engine = self.table.copy()
        self.engine_version = self.version
        return {}

    def engine_arithmetic(self, values: Array) -> Array:
        """Logits as the engine has them: it computes in half precision."""
        return np.asarray(values.astype(np.float16).astype(np.float64))

    def engine_prompt(self, prompt: list[int]) -> list[int]:
        """The prompt as the engine gets it."""
        return prompt

    def reported_logp(self, raw: Array, sampled: Array, ids: Ints) -> Array:
        """(R,) log-prob that the engine reports of its token; both (R, V) are normalised."""
        return policy.picked(sampled, ids)

    def stops(self, token: Ints) -> Bools:
        """Whether generation ends after this token."""
        return np.asarray(token == STOP)

    def tool_answer(self, digit: int) -> list[int]:
        """Tokens that the tool returns to a call for this task."""
        return [policy.RESULT, policy.DIGITS[digit % len(policy.DIGITS)], policy.COLON]

    def generate(self, step: int) -> Batch:
        """Sample a group of completions for each prompt, token by token."""
        s = self.s
        asked = self.draw_prompts()
        group = np.repeat(np.arange(len(asked)), s.group)
        width = max(map(len, asked))
        n = len(group)
        ids = np.full((n, width + s.cap), PAD)
        source = np.zeros_like(ids)
        seen = ids.copy()
        for row, g in enumerate(group):
            prompt, given = asked[g], self.engine_prompt(asked[g])[-width:]
            ids[row, width - len(prompt) : width] = prompt
            source[row, width - len(prompt) : width] = 2
            seen[row, width - len(given) : width] = given
        logp = np.full(ids.shape, np.nan)
        alive = np.ones(n, bool)
        returned: list[list[int]] = [[] for _ in range(n)]
        tasks = policy.task_of(ids[:, :width])
        given_tasks = policy.task_of(seen[:, :width])
        asked_tokens = (source[:, :width] > 0).sum(axis=1)
        for at in range(width, ids.shape[1]):
            position = asked_tokens + (at - width)
            values = self.engine_arithmetic(
                self.engine[given_tasks, seen[:, at - 1]]
                + policy.BIAS[np.minimum(position, len(policy.BIAS) - 1)]
            )
            raw = policy.log_softmax(values)
            sampled = policy.log_softmax(self.sampler_logits(values))
            token = (sampled + self.rng.gumbel(size=sampled.shape)).argmax(axis=1)
            reported = self.reported_logp(raw[:, None], sampled[:, None], token[:, None])[:, 0]
            told = np.array([left.pop(0) if left else -1 for left in returned])
            made = alive & (told < 0)
            ids[made, at] = seen[made, at] = token[made]
            logp[made, at] = reported[made]
            source[made, at] = 3
            ids[told >= 0, at] = seen[told >= 0, at] = told[told >= 0]
            source[told >= 0, at] = 4
            ended = made & self.stops(token)
            called = ended & (ids[:, at - 1] == policy.CALL)
            if s.tools:
                ended &= ~called
                for caller in np.flatnonzero(called).tolist():
                    returned[caller] = self.tool_answer(int(tasks[caller]))
            alive &= ~ended
        attention = np.asarray(source > 0).astype(np.int64)
        rows = Rows(ids, attention, np.maximum(attention.cumsum(axis=1) - 1, 0), source)
        return Batch(
            step,
            rows,
            logp,
            group,
            tasks.tolist(),
            [f"s{step}-{i}" for i in range(n)],
            ["length" if going else "stop" for going in alive],
            np.full(n, self.engine_version),
        )

    # ---- reward

    def score(self, batch: Batch) -> dict[str, Array]:
        """Reward parts, (R,) each."""
        answers = [policy.said(row[made]) for row, made in self._made(batch)]
        right = [a is not None and a == gold for a, gold in zip(answers, batch.digit, strict=True)]
        ended = [reason == "stop" for reason in batch.finish]
        return {"correct": np.array(right, float), "format": np.array(ended, float)}

    def order_of_scores(self, n: int) -> Ints:
        """Row whose score lands on each row."""
        return np.arange(n)

    def total(self, parts: Mapping[str, Array]) -> Array:
        """(R,) weighted sum of the parts."""
        weights = dict(zip(parts, self.s.weights, strict=False))
        return np.asarray(sum(w * np.nan_to_num(parts[name]) for name, w in weights.items()))

    def advantages(self, total: Array, group: Ints) -> Array:
        """(r - mean) / (standard deviation + 1e-4) inside each group."""
        out = np.zeros(len(total))
        for g in np.unique(group):
            own = total[group == g]
            out[group == g] = (own - own.mean()) / (own.std(ddof=1) + 1e-4)
        return out

    # ---- probability

    def trainer_rows(self, rows: Rows) -> Rows:
        """Token rows as the trainer's forward pass gets them."""
        return rows

    def forward(self, table: Array, rows: Rows, *, which: str) -> Array:
        """(R, L, V) log-probs; `which`: old, new, recheck, layout or ref."""
        return policy.log_softmax(policy.logits(table, rows) / self.s.temperature)

    def old_table(self) -> Array:
        """Weights that old log-probs are computed with."""
        return self.table

    def reference_table(self) -> Array:
        """Weights of the reference."""
        return self.reference

    # ---- masks and loss

    def loss_mask(self, batch: Batch) -> Bools:
        """(R, L) tokens in the loss."""
        return batch.rows.made

    def microbatches(self, batch: Batch) -> Iterator[Microbatch]:
        """Rows of each micro-batch; all are divided by the trained tokens of the whole step."""
        n = self.s.accumulation * self.s.ranks
        total = float(batch.loss_mask.sum())
        for i, rows in enumerate(np.array_split(np.arange(len(batch.group)), n)):
            yield Microbatch(i % self.s.ranks, i // self.s.ranks, rows, total)

    def reaches(self, microbatch: Microbatch) -> bool:
        """Whether its gradient reaches the sum."""
        return True

    def reduced(self, ranks: list[Array]) -> Array:
        """The gradient of the step, from that of each rank."""
        return np.asarray(sum(ranks[1:], start=ranks[0]))

    def reduction(self) -> str | None:
        """What the ledger says of it: `sum`, `mean`, or nothing."""
        return None

    def ratio(self, new: Array, old: Array) -> Array:
        """Ratio of new to old probability."""
        return np.asarray(np.exp(new - old))

    def ratio_slope(self, ratio: Array, log_ratio: Array) -> Array:
        """Derivative of the ratio with respect to the new log-prob."""
        return ratio

    def policy_terms(self, ratio: Array, advantage: Array) -> tuple[Array, Array]:
        """Objective of each token, and its derivative with respect to the ratio."""
        low, high = 1 - self.s.clip, 1 + self.s.clip
        plain, clipped = ratio * advantage, np.clip(ratio, low, high) * advantage
        cut = (plain > clipped) & ((ratio < low) | (ratio > high))
        return np.minimum(plain, clipped), np.where(cut, 0.0, advantage)

    def loss_sum(self, values: Array, mask: Bools) -> float:
        """Sum of the loss of the tokens in the mask; all arrays (R, L)."""
        return float(values[mask].sum())

    def in_loss(self, values: Array, mask: Bools) -> Array:
        """(R, L) the values of the tokens in the mask, 0 elsewhere."""
        return np.where(mask, values, 0.0)

    def kl_sign(self) -> float:
        """Sign and size of the KL term against the configured one."""
        return 1.0

    # ---- optimizer

    def rate(self) -> float:
        """Learning rate of the step."""
        return self.s.rate

    def update(self, grad: Array) -> Array:
        """Adam: what is added to the weights."""
        self.count += 1
        first, second = self.moments
        first[:] = 0.9 * first + 0.1 * grad
        second[:] = 0.999 * second + 0.001 * grad**2
        a, b = first / (1 - 0.9**self.count), second / (1 - 0.999**self.count)
        return -self.rate() * a / (np.sqrt(b) + 1e-8)

    def stored(self, table: Array) -> Array:
        """Weights as they are kept after an update."""
        return table

    # ---- what is written beside

    def about(self, batch: Batch) -> dict[str, object]:
        """Fields of step.json."""
        return {
            "kept": "baseline",
            "whole_groups": True,
            "in_order": True,
            "filters": "none",
            "first_pass": True,
            "policy_version": self.version - 1,  # before the update of this step
            "seeds": {"sampler": self.s.seed},
            "stages": {
                "generated": batch.sample,
                "scored": [batch.sample[i] for i in self.order_of_scores(len(batch.sample))],
                "trained": batch.sample,
            },
        }

    def groups(self) -> dict[str, slice]:
        """Named groups of parameters: blocks of the table by task."""
        return {"table": slice(None)}

    def parameters(self, grad: Array, before: Array) -> list[dict[str, object]]:
        """Figures of each group, given the gradient as applied and the weights before."""
        out: list[dict[str, object]] = []
        for name, part in self.groups().items():
            g, old, new = grad[part], before[part], self.table[part]
            moved = new != old
            out.append({
                "name": name, "grad_norm": float(np.linalg.norm(g)),
                "update_norm": float(np.linalg.norm(new - old)),
                "weight_norm": float(np.linalg.norm(old)),
                "moved_share": float(moved[g != 0].mean()) if (g != 0).any() else 0.0,
                "dtype": "float64",
            })  # fmt: skip
        return out

    def numerics(self, batch: Batch, found: Mapping[str, Any]) -> dict[str, object]:
        """Fields of numerics.json."""
        trail = []
        for place in ("logits", "log_softmax", "logp", "log_ratio", "exp", "objective", "kl"):
            values = found[place]
            finite = np.isfinite(values)
            trail.append({
                "name": place, "place": place, "dtype": str(values.dtype), "n": values.size,
                "n_nonfinite": int((~finite).sum()), "n_nonfinite_masked": 0,
                "largest": float(np.abs(values[finite]).max(initial=0.0)),
            })  # fmt: skip
        return {"trail": trail, "norms": found["norms"], "parameters": found["parameters"]}

    def tokens(self, found: dict[str, Any]) -> dict[str, Any]:
        """Token arrays that are captured, given all that there are."""
        return found

    def scalars(self, row: dict[str, float]) -> dict[str, float]:
        """What is logged, given the sound figures."""
        return row

    def extra(self, recorder: Recorder) -> None:
        """Records of a step besides, such as probes or events."""

    # ---- the loop

    def run(self, folder: Path) -> Path:
        """Train, and leave a record in the folder."""
        s = self.s
        keep = set(np.linspace(1, s.steps, s.captures).round().astype(int).tolist())
        with Recorder(folder, config=self.config(), requested=self.requested()) as recorder:
            for self.step in range(1, s.steps + 1):
                if self.delivers():
                    said = self.sync()
                    recorder.sync(
                        (self.step - 1) * s.updates,
                        **{"version": self.version, "engine_version": self.engine_version, **said},
                    )
                batch = self.prepared(self.generate(self.step))
                for update in range(s.updates):
                    self.train(recorder, batch, update, self.step in keep)
                if self.step in s.probes:
                    probes.make(self, recorder, batch)
                self.extra(recorder)
        (folder / "tokenizer.json").write_text(_tokenizer(), encoding="utf-8")
        return folder

    def prepared(self, batch: Batch) -> Batch:
        """Scores, advantages, masks and old log-probs."""
        rows = self.trainer_rows(batch.rows)
        batch.parts = self.score(batch)
        order = self.order_of_scores(len(batch.group))
        batch.parts = {name: values[order] for name, values in batch.parts.items()}
        batch.total = self.total(batch.parts)
        batch.advantage = self.advantages(batch.total, batch.group)
        batch.loss_mask = self.loss_mask(batch)
        batch.old = policy.picked(self.forward(self.old_table(), rows, which="old"), rows.ids)
        batch.ref = policy.picked(self.forward(self.reference_table(), rows, which="ref"), rows.ids)
        return batch

    def train(self, recorder: Recorder, batch: Batch, update: int, keep: bool) -> None:
        """One optimizer step, and what is written of it."""
        s, rows = self.s, self.trainer_rows(batch.rows)
        raw = policy.logits(self.table, rows)
        log_probs = self.forward(self.table, rows, which="new")
        new = policy.picked(log_probs, rows.ids)
        probs = np.exp(log_probs)
        entropy = -(probs * log_probs).sum(axis=-1)
        varentropy = (probs * log_probs**2).sum(axis=-1) - entropy**2
        ratio, objective, kl, value, coefficient = self.token_terms(batch, new)
        advantage = np.broadcast_to(batch.advantage[:, None], new.shape)
        mask = batch.loss_mask
        grad, loss, ledger = self.backward(batch, rows, probs, ratio, value, coefficient, update)
        norm = float(np.linalg.norm(grad))
        scale = min(1.0, s.clip_norm / norm) if norm > 0 else 1.0
        change = self.update(grad * scale)
        before = self.table
        self.table = self.stored(self.table + change)
        self.version += 1
        made = batch.rows.made
        lengths = made.sum(axis=1)
        step = (self.step - 1) * s.updates + update + 1
        trained = mask if mask.any() else made
        cut = trained & (
            ((ratio > 1 + s.clip) & (advantage > 0)) | ((ratio < 1 - s.clip) & (advantage < 0))
        )
        row = {
            "loss": loss,
            "reward_mean": float(np.nanmean(batch.total)),
            "kl_ref": float(kl[trained].mean()),
            "entropy": float(entropy[trained].mean()),
            "grad_norm": norm,
            "learning_rate": self.rate(),
            "completion_length_mean": float(lengths.mean()),
            "completion_length_max": float(lengths.max()),
            "truncation_rate": float(np.mean([f == "length" for f in batch.finish])),
            "ratio_mean": float(ratio[trained].mean()),
            "ratio_max": float(ratio[trained].max()),
            "clip_frac_total": float(cut[trained].mean()),
            "logprob_diff_mean": float(np.nanmean(np.abs(batch.engine_logp - new)[made])),
            "step_time": 2.0 + 0.05 * float(self.rng.normal()),
            **{f"reward_part/{n}": float(np.nanmean(v)) for n, v in batch.parts.items()},
        }
        recorder.scalars(step, self.scalars(row))
        everywhere = {
            "logits": raw, "log_softmax": log_probs, "logp": new, "log_ratio": new - batch.old,
            "exp": ratio, "objective": objective, "kl": kl, "loss": np.array([loss]), "grad": grad,
        }  # fmt: skip
        found = {
            "everywhere": everywhere,
            "logits": raw[made], "log_softmax": log_probs[made], "logp": new[made],
            "log_ratio": (new - batch.old)[made], "exp": ratio[made], "objective": objective[made],
            "kl": kl[made],
            "norms": [{"before_clip": norm, "after_clip": norm * scale, "clip_value": s.clip_norm}],
            "parameters": self.parameters(grad * scale, before),
        }  # fmt: skip
        tokens = None
        if keep and update == 0:
            recheck = policy.picked(
                self.forward(self.old_table_of(before), rows, which="recheck"), rows.ids
            )
            single = policy.picked(
                self.forward(self.old_table_of(before), _alone(rows), which="layout"), rows.ids
            )
            tokens = {
                "token_id": rows.ids, "position": rows.position, "source": batch.rows.source,
                "attention_mask": rows.attention, "loss_mask": mask,
                "logp_old": batch.old, "logp_new": new, "logp_ref": batch.ref,
                "logp_engine": batch.engine_logp, "logp_recheck": recheck, "logp_layout": single,
                "entropy": entropy, "varentropy": varentropy, "advantage": batch.advantage,
                **self.more_tokens(batch),
            }  # fmt: skip
            tokens = self.tokens({k: v for k, v in tokens.items() if v is not None})
        recorder.capture(
            step,
            rollouts=self.rollout_rows(batch) if update == 0 else None,
            tokens=tokens,
            microbatches=ledger,
            numerics=self.numerics(batch, found),
            **cast("dict[str, Any]", {**self.about(batch), "first_pass": update == 0}),
        )

    def token_terms(self, batch: Batch, new: Array) -> tuple[Array, Array, Array, Array, Array]:
        """(R, L) each: ratio, objective, KL, loss, and its derivative by the token's log-prob."""
        ratio = self.ratio(new, batch.old)
        advantage = np.broadcast_to(batch.advantage[:, None], new.shape)
        objective, slope = self.policy_terms(ratio, advantage)
        away = batch.ref - new
        kl = np.exp(away) - away - 1
        weight = self.kl_sign() * self.s.beta
        value = -objective + weight * kl
        along = slope * self.ratio_slope(ratio, new - batch.old)
        return ratio, objective, kl, value, -along + weight * (1 - np.exp(away))

    def backward(
        self,
        batch: Batch,
        rows: Rows,
        probs: Array,
        ratio: Array,
        value: Array,
        coefficient: Array,
        update: int = 0,
    ) -> tuple[Array, float, list[dict[str, object]]]:
        """Gradient of the step, loss, and the ledger of its micro-batches."""
        s, mask = self.s, batch.loss_mask
        ranks = [np.zeros_like(self.table) for _ in range(s.ranks)]
        loss = 0.0
        ledger: list[dict[str, object]] = []
        for one in self.microbatches(batch):
            own = np.zeros_like(mask)
            own[one.rows] = mask[one.rows]
            part = one.scale * self.loss_sum(value, own) / one.denominator
            gradient = self.gradient(rows, probs, self.in_loss(coefficient, own))
            gradient *= one.scale / one.denominator
            loss += part
            if self.reaches(one):
                ranks[one.rank] += gradient
            spread = ratio[own] if own.any() else np.ones(1)
            p50, p95, p99 = np.quantile(spread, (0.5, 0.95, 0.99)).tolist()
            ledger.append({
                "update": update, "epoch": update, "rank": one.rank, "microbatch": one.index,
                "samples": [batch.sample[i] for i in one.rows], "n_samples": len(one.rows),
                "n_tokens": int(own.sum()), "denominator": one.denominator, "scale": one.scale,
                "loss": part, "grad_norm": float(np.linalg.norm(gradient)),
                "ratio_p50": p50, "ratio_p95": p95, "ratio_p99": p99,
                "ratio_max": float(spread.max()),
                "clip_low_share": float(((spread < 1 - s.clip)).mean()),
                "clip_high_share": float(((spread > 1 + s.clip)).mean()),
                **({} if self.reduction() is None else {"reduction": self.reduction()}),
            })  # fmt: skip
        if self.reduction() == "mean":
            loss /= s.ranks
        return self.reduced(ranks), loss, ledger

    def old_table_of(self, table: Array) -> Array:
        """Weights of the second and third pass of old log-probs, given those before the update."""
        return table

    def more_tokens(self, batch: Batch) -> dict[str, object]:
        """Further token arrays; None takes one away."""
        return {}

    def gradient(self, rows: Rows, probs: Array, coefficient: Array) -> Array:
        """Sum over tokens of coefficient times the gradient of the token's log-prob."""
        out = np.zeros_like(self.table)
        places = np.argwhere(coefficient != 0)
        if not len(places):
            return out
        r, at = places.T
        before = np.where(at > 0, rows.ids[r, at - 1], PAD)
        task = policy.task_of(rows.ids)[r]
        onehot = np.zeros((len(r), V))
        onehot[np.arange(len(r)), rows.ids[r, at]] = 1.0
        np.add.at(out, (task, before), coefficient[r, at][:, None] * (onehot - probs[r, at]))
        return out / self.s.temperature

    def rollout_rows(self, batch: Batch) -> list[dict[str, object]]:
        """Lines of rollouts.jsonl."""
        out: list[dict[str, object]] = []
        for i, (ids, made) in enumerate(self._made(batch)):
            prompt = policy.text(ids[batch.rows.source[i] == 2])
            gold = batch.digit[i]
            out.append({
                "sample": batch.sample[i],
                "group": f"g{batch.step}-{batch.group[i]}",
                "prompt_id": prompt,
                "prompt": prompt,
                "completion": policy.text(ids[made]),
                "finish": batch.finish[i],
                "rewards": {name: float(v[i]) for name, v in batch.parts.items()},
                "reward": float(batch.total[i]),
                "advantage": float(batch.advantage[i]),
                "gold": None if gold is None else str(gold),
                "n_tokens": int(made.sum()),
                "policy_version": int(batch.version[i]),
                **({"errors": {n: e[i] for n, e in batch.errors.items()}} if batch.errors else {}),
                **({"latency_seconds": {n: float(t[i]) for n, t in batch.latency.items()}}
                   if batch.latency else {}),
            })  # fmt: skip
        return out

    def _made(self, batch: Batch) -> Iterator[tuple[Ints, Bools]]:
        return zip(batch.rows.ids, batch.rows.made, strict=True)


def _alone(rows: Rows) -> Rows:
    """The same rows one by one without padding: positions count from the first real token."""
    position = np.maximum(np.asarray(rows.source > 0).cumsum(axis=1) - 1, 0)
    return Rows(rows.ids, rows.attention, position, rows.source)


def _tokenizer() -> str:
    import json

    vocab = {text: i for i, text in policy.TEXTS.items()}
    return json.dumps({
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<pad>"},
        "added_tokens": [
            {"id": PAD, "content": "<pad>", "special": True},
            {"id": STOP, "content": "</s>", "special": True},
        ],
    })  # fmt: skip
