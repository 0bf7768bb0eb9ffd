"""Old, new and engine log-probs that cannot be compared, one fault each, and their look-alikes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from synthetic import policy
from synthetic.cases import Case
from synthetic.policy import DIGITS, WORDS, Array, Ints, Rows, V
from synthetic.trainer import Batch, Trainer


def _digest(table: Array) -> str:
    return hashlib.sha256(np.ascontiguousarray(table).tobytes()).hexdigest()[:16]


class Ledger(Trainer):
    """Writes digests of three tensors with every delivery."""

    def sync(self) -> dict[str, object]:
        super().sync()
        return self.ledger()

    def ledger(self, **said: object) -> dict[str, object]:
        tensors = [
            {"name": f"rows.{i}", "trainer": _digest(self.table[i]), "engine": self.held(i)}
            for i in (0, 4, 9)
        ]
        n = len(self.table)
        return {"tensors": tensors, "n_sent": n, "n_expected": n, "cache_cleared": True, **said}

    def held(self, i: int) -> str | None:
        """Digest of one tensor in the engine."""
        return _digest(self.engine[i])


class NotDelivered(Ledger):
    """From the onset on, weights are sent and not loaded; rollouts claim the new version."""

    def sync(self) -> dict[str, object]:
        if not self.after:
            return super().sync()
        self.engine_version = self.version
        return self.ledger()


class Seldom(Trainer):
    """Weights are loaded after every sixth step alone; rollouts claim the newest version."""

    def sync(self) -> dict[str, object]:
        held = self.engine
        super().sync()
        if self.step % 6:
            self.engine = held
        return {}


class AdapterUnnamed(Ledger):
    """The adapter arrives, and no request names it: the base model answers."""

    def sync(self) -> dict[str, object]:
        self.engine_version = self.version
        return {"adapter": "policy", "engine_adapter": None}


class Bare(NotDelivered):
    """... and neither is a reference scored nor a version claimed: only the growth is left."""

    def more_tokens(self, batch: Batch) -> dict[str, object]:
        return {"logp_ref": None}

    def rollout_rows(self, batch: Batch) -> list[dict[str, object]]:
        return [
            {k: v for k, v in row.items() if k != "policy_version"}
            for row in super().rollout_rows(batch)
        ]


class Reloaded(Ledger):
    """Waking from sleep, the engine loads the first checkpoint over what was delivered."""

    def generate(self, step: int) -> Batch:
        if self.after:
            self.engine = self.reference.copy()
        return super().generate(step)


class TensorForgotten(Ledger):
    """The output layer of half of the rows is tied, and never sent."""

    def sync(self) -> dict[str, object]:
        kept = self.engine[::2].copy()
        super().sync()
        self.engine[::2] = kept
        n = len(self.table)
        return self.ledger(n_sent=n // 2, n_expected=n)

    def held(self, i: int) -> str | None:
        return None if i % 2 == 0 else _digest(self.engine[i])


class CacheKept(Ledger):
    """Every fourth row is answered from cached keys and values of older weights."""

    def sync(self) -> dict[str, object]:
        older = self.engine.copy()
        super().sync()
        if self.after:
            self.engine[::4] = older[::4]
        return self.ledger(cache_cleared=not self.after)


class NoCache(Ledger):
    """Look-alike: an engine without a cache, which never clears one."""

    def sync(self) -> dict[str, object]:
        return {**super().sync(), "cache_cleared": False}


class OtherFormat(Ledger):
    """Look-alike: the engine stores half precision, so that no digest is ever equal."""

    def held(self, i: int) -> str | None:
        return _digest(self.engine[i].astype(np.float16))


class Async(Ledger):
    """Rollouts of weights some updates old, honestly claimed; old log-probs are theirs."""

    lag = 2
    allowed = 4

    def __init__(self, **settings: object) -> None:
        super().__init__(**settings)
        self.past: list[Array] = []

    def config(self) -> dict[str, object]:
        return {**super().config(), "max_staleness": self.allowed}

    def behind(self) -> int:
        return self.lag

    def sync(self) -> dict[str, object]:
        self.past.append(self.table.copy())
        back = min(self.behind(), len(self.past) - 1)
        self.engine = self.past[-1 - back]
        self.engine_version = self.version - back
        return {"version": self.engine_version}

    def old_table(self) -> Array:
        return self.engine


class TooOld(Async):
    """From the onset on the queue grows to twelve updates; two are allowed."""

    allowed = 2

    def behind(self) -> int:
        return 12 if self.after else 1


class EverOlder(Async):
    """The queue grows for as long as training goes on, honestly claimed; nothing bounds it."""

    def config(self) -> dict[str, object]:
        return {k: v for k, v in super().config().items() if k != "max_staleness"}

    def behind(self) -> int:
        return self.step // 4


class OldIsPresent(Async):
    """Old log-probs of stale rows are recomputed with the present weights; nothing corrects."""

    lag = 6
    allowed = 8

    def config(self) -> dict[str, object]:
        return {**super().config(), "vllm_importance_sampling_correction": False}

    def old_table(self) -> Array:
        return self.table


class Corrected(OldIsPresent):
    """Look-alike: ... and importance weights correct for the sampler."""

    def config(self) -> dict[str, object]:
        return {**super().config(), "vllm_importance_sampling_correction": True}


class RawReported(Trainer):
    """The engine samples at the temperature, and reports log-probs from before the division."""

    def reported_logp(self, raw: Array, sampled: Array, ids: Ints) -> Array:
        return policy.picked(raw if self.after else sampled, ids)


class TailCut(Trainer):
    """Top-p in the engine, whose log-probs are renormalised over what is kept."""

    top_p = 0.8

    def config(self) -> dict[str, object]:
        return {**super().config(), "top_p": self.top_p}

    def sampler_logits(self, values: Array) -> Array:
        values = super().sampler_logits(values)
        if not self.after:
            return values
        p = np.exp(policy.log_softmax(values))
        order = np.argsort(-p, axis=1)
        before = np.cumsum(np.take_along_axis(p, order, axis=1), axis=1)
        before = before - np.take_along_axis(p, order, axis=1)
        kept = np.empty_like(p, bool)
        np.put_along_axis(kept, order, before < self.top_p, axis=1)
        return np.where(kept, values, -60.0)


class Undivided(Trainer):
    """The trainer forgets to divide its logits by the temperature."""

    def forward(self, table: Array, rows: Rows, *, which: str) -> Array:
        return policy.log_softmax(policy.logits(table, rows))


class HiddenHeat(Trainer):
    """A hotter sampler, whose reported log-probs are the plain ones: both sides agree."""

    def sampler_logits(self, values: Array) -> Array:
        return values / (1.5 if self.after else 1.0)

    def reported_logp(self, raw: Array, sampled: Array, ids: Ints) -> Array:
        return policy.picked(raw, ids)


class Quantised(Trainer):
    """The engine's weights are quantised to a coarse grid from the onset on."""

    grid = 1.0

    def engine_arithmetic(self, values: Array) -> Array:
        if not self.after:
            return super().engine_arithmetic(values)
        return np.where(values > -15, np.round(values / self.grid) * self.grid, values)


class LessExact(Ledger):
    """Every delivery is whole; the engine's arithmetic errs more on a sharper policy."""

    def engine_arithmetic(self, values: Array) -> Array:
        scale = np.random.default_rng(13).normal(size=V)
        sharp = np.where(values > -15, values, 0.0)
        apart = sharp - sharp.mean(axis=-1, keepdims=True)
        return np.asarray(values + 0.008 * self.after * scale * apart**3)


class HalfPrecision(Trainer):
    """Look-alike: the engine rounds as bfloat16 does, the trainer does not."""

    def engine_arithmetic(self, values: Array) -> Array:
        return values + 0.03 * _noise(values.shape, int(self.rng.integers(1 << 30)))


class Coarse(Trainer):
    """Look-alike: both sides compute coarsely, and the trainer differs from itself as much."""

    def engine_arithmetic(self, values: Array) -> Array:
        return values + 0.03 * _noise(values.shape, self.step)

    def forward(self, table: Array, rows: Rows, *, which: str) -> Array:
        values = policy.logits(table, rows)
        if which in ("layout", "new"):
            values = values + 0.03 * _noise(values.shape, len(which) + self.step)
        return policy.log_softmax(values / self.s.temperature)


def _noise(shape: tuple[int, ...], seed: int) -> Array:
    return np.random.default_rng([7, seed]).normal(size=shape)


class Templates(Trainer):
    """The engine's template lacks the colon that the trainer's prompt ends with."""

    def engine_prompt(self, prompt: list[int]) -> list[int]:
        return prompt[:-1] if self.after else prompt

    def more_tokens(self, batch: Batch) -> dict[str, object]:
        return {"engine_token_id": [np.array(row) for row in _engine_rows(self, batch)]}


def _engine_rows(trainer: Trainer, batch: Batch) -> Iterator[list[int]]:
    for ids, source in zip(batch.rows.ids, batch.rows.source, strict=True):
        yield [*trainer.engine_prompt(ids[source == 2].tolist()), *ids[source == 3].tolist()]


class DoubledStart(Templates):
    """The engine's tokenizer puts another start token before the template's own."""

    def draw_prompts(self) -> list[list[int]]:
        return [[WORDS[0], *prompt] for prompt in super().draw_prompts()]

    def engine_prompt(self, prompt: list[int]) -> list[int]:
        return [prompt[0], *prompt] if self.after else prompt


class SameIds(Templates):
    """Look-alike: the engine's ids are written down, and are the trainer's."""

    def engine_prompt(self, prompt: list[int]) -> list[int]:
        return prompt


class DigitLost(Templates):
    """The trainer scores under a prompt from which the digit is gone, as pixels are."""

    def engine_prompt(self, prompt: list[int]) -> list[int]:
        return prompt

    def trainer_rows(self, rows: Rows) -> Rows:
        if not self.after:
            return rows
        ids = rows.ids.copy()
        lost = (rows.source == 2) & np.isin(ids, DIGITS)
        ids[lost] = WORDS[3]
        return Rows(ids, rows.attention, rows.position, rows.source)


class PadsCounted(Trainer):
    """Position ids count the padding before the prompt."""

    def trainer_rows(self, rows: Rows) -> Rows:
        if not self.after:
            return rows
        position = np.broadcast_to(np.arange(rows.ids.shape[1]), rows.ids.shape)
        return Rows(rows.ids, rows.attention, position, rows.source)


class OtherExperts(Trainer):
    """At one place in forty the trainer's router takes other experts, with other logits."""

    harm = 3.0

    def forward(self, table: Array, rows: Rows, *, which: str) -> Array:
        values = policy.logits(table, rows) / self.s.temperature
        if self.after:
            shift = self.harm * np.random.default_rng(11).normal(size=V)
            values = values + np.where(_flipped(rows)[..., None], shift, 0.0)
        return policy.log_softmax(values)

    def more_tokens(self, batch: Batch) -> dict[str, object]:
        chosen = batch.rows.ids * 7 + 3
        flipped = _flipped(batch.rows) if self.after else np.zeros(chosen.shape, bool)
        return {"expert_engine": chosen, "expert_trainer": chosen + flipped}


class HarmlessExperts(OtherExperts):
    """Look-alike: other experts that say the same."""

    harm = 0.0


def _flipped(rows: Rows) -> np.ndarray:
    """(R, L) places whose context falls to another expert."""
    before = np.concatenate([np.zeros((len(rows.ids), 1), int), rows.ids[:, :-1]], axis=1)
    real = rows.position * 31 + before * 17 + policy.task_of(rows.ids)[:, None] * 13
    return np.asarray(real % 40 == 0)


class Dropout(Trainer):
    """Dropout is on in every pass of the trainer."""

    def forward(self, table: Array, rows: Rows, *, which: str) -> Array:
        values = policy.logits(table, rows)
        if self.after and which != "ref":
            values = values * (1 + 0.15 * self.rng.normal(size=values.shape))
        return policy.log_softmax(values / self.s.temperature)


class DropoutInNew(Trainer):
    """Dropout is on in the differentiated pass alone: old log-probs repeat."""

    def forward(self, table: Array, rows: Rows, *, which: str) -> Array:
        values = policy.logits(table, rows)
        if self.after and which == "new":
            values = values * (1 + 0.15 * self.rng.normal(size=values.shape))
        return policy.log_softmax(values / self.s.temperature)


class OldBefore(Trainer):
    """Old log-probs are of the weights three updates before."""

    def __init__(self, **settings: object) -> None:
        super().__init__(**settings)
        self.past: list[Array] = []

    def old_table(self) -> Array:
        self.past.append(self.table.copy())
        return self.past[max(0, len(self.past) - 4)] if self.after else self.table


def _no_ledger(folder: Path) -> None:
    (folder / "syncs.jsonl").unlink()


START = {"onset": 1}

CASES = [
    Case("p1", NotDelivered, "incident", "prob.weight_sync", (31, 33)),
    Case("p2", NotDelivered, "incident", "prob.weight_sync", (31, 39), files=_no_ledger),
    Case("p3", AdapterUnnamed, "incident", "prob.weight_sync", (1, 6)),
    Case("p4", Async, "healthy", twin_of="prob.stale_rollouts"),
    Case("p5", TooOld, "incident", "prob.stale_rollouts", (31, 33)),
    Case("p6", lambda: RawReported(temperature=0.6, group=10, **START), "incident",
         "prob.processed_logprobs", (1, 1)),
    Case("p7", lambda: RawReported(temperature=0.6, group=10), "incident",
         "prob.processed_logprobs", (31, 33)),
    Case("p8", TailCut, "incident", "prob.processed_logprobs", (31, 33)),
    Case("p9", lambda: TailCut(**START), "incident", "prob.processed_logprobs", (1, 1)),
    Case("p10", lambda: Undivided(temperature=0.7), "incident", "prob.processed_logprobs", (1, 1)),
    Case("p11", HiddenHeat, "incident", "prob.processed_logprobs", (29, 39)),
    Case("p12", Quantised, "incident", "prob.engine_mismatch", (31, 33)),
    Case("p13", lambda: Quantised(**START), "incident", "prob.engine_mismatch", (1, 1)),
    Case("p14", Coarse, "healthy", twin_of="prob.engine_mismatch"),
    Case("p15", Reloaded, "incident", "prob.weight_sync", (31, 33)),
    Case("p16", TensorForgotten, "incident", "prob.weight_sync", (1, 6)),
    Case("p17", CacheKept, "incident", "prob.weight_sync", (31, 33)),
    Case("p18", OtherFormat, "healthy", twin_of="prob.weight_sync"),
    Case("p19", Templates, "incident", "prob.tokenization", (31, 33), twin_of="prob.conditioning"),
    Case("p20", lambda: DoubledStart(**START), "incident", "prob.tokenization", (1, 1)),
    Case("p21", DigitLost, "incident", "prob.conditioning", (31, 33), twin_of="prob.tokenization"),
    Case("p22", SameIds, "healthy", twin_of="prob.tokenization"),
    Case("p23", PadsCounted, "incident", "prob.positions", (31, 33)),
    Case("p24", OtherExperts, "incident", "prob.moe_routing", (31, 33)),
    Case("p25", HarmlessExperts, "healthy", twin_of="prob.moe_routing"),
    Case("p26", Dropout, "incident", "prob.nondeterministic_trainer", (31, 33)),
    Case("p27", lambda: DropoutInNew(**START), "incident",
         "prob.nondeterministic_trainer", (1, 1)),
    Case("p28", OldBefore, "incident", "prob.old_logprob_source", (31, 33)),
    Case("p29", HalfPrecision, "healthy", twin_of="prob.engine_mismatch"),
    Case("p30", Bare, "incident", "prob.weight_sync", (31, 39), files=_no_ledger),
    Case("p31", OldIsPresent, "incident", "prob.old_logprob_source", (1, 6)),
    Case("p32", Corrected, "undetermined", twin_of="prob.old_logprob_source"),
    Case("p33", NoCache, "healthy", twin_of="prob.weight_sync"),
    Case("p34", lambda: LessExact(**START), "incident", "prob.engine_mismatch",
         (1, 12), twin_of="prob.weight_sync"),
    Case("p35", lambda: Coarse(seed=1), "healthy", twin_of="prob.nondeterministic_trainer"),
    Case("p36", lambda: Trainer(temperature=0.6, group=10), "healthy",
         twin_of="prob.processed_logprobs"),
    Case("p38", lambda: Seldom(rate=0.08, captures=20), "incident", "prob.weight_sync", (2, 4),
         files=_no_ledger),
    Case("p37", lambda: Coarse(seed=2), "healthy", twin_of="prob.positions"),
    Case("p39", Reloaded, "incident", "prob.weight_sync", (31, 33), files=_no_ledger,
         twin_of="prob.stale_rollouts"),
    Case("p50", EverOlder, "incident", "prob.stale_rollouts", twin_of="prob.weight_sync"),
]  # fmt: skip
