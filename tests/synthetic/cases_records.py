"""Faults of the records layer, and sound runs that look like them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from firstbad_recorder import Recorder
from synthetic import policy
from synthetic.cases import Case
from synthetic.policy import CALL, STOP, WORDS, Array, Bools, Ints
from synthetic.trainer import Batch, Trainer


class Framed(Trainer):
    """Prompts with a special token of a chat template behind them, which the text lacks."""

    def draw_prompts(self) -> list[list[int]]:
        return [[*prompt, CALL] for prompt in super().draw_prompts()]

    def rollout_rows(self, batch: Batch) -> list[dict[str, object]]:
        rows = super().rollout_rows(batch)
        for row in rows:
            row["prompt"] = str(row["prompt"]).replace(policy.TEXTS[CALL], "").strip()
        return rows


class TemplateLost(Framed):
    """From the onset on prompts go in bare, to sampler and trainer alike."""

    def draw_prompts(self) -> list[list[int]]:
        prompts = super().draw_prompts()
        return [prompt[:-1] for prompt in prompts] if self.after else prompts


class SharedNoise:
    """A generator whose noise is the same for the second half of each group as for the first."""

    def __init__(self, rng: np.random.Generator, group: int, shared: int) -> None:
        """`shared` rows of each group repeat those before them."""
        self._rng, self._group, self._shared = rng, group, shared

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rng, name)

    def gumbel(self, *, size: tuple[int, ...]) -> Array:
        noise = self._rng.gumbel(size=size)
        groups = noise.reshape(-1, self._group, *size[1:])
        if self._shared == self._group:
            groups[:] = groups[:, :1]
        else:
            groups[:, -self._shared :] = groups[:, : self._shared]
        return np.asarray(noise)


class EqualSeeds(Trainer):
    """Two ranks generate half a group each, with the same seed."""

    shared = 4

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        rng: Any = SharedNoise(self.rng, self.s.group, self.shared)
        self.rng = rng


class OneSeed(EqualSeeds):
    """Every sample of a prompt has the same seed."""

    shared = 8


class Wordy(Trainer):
    """Answers of several words, so that two are seldom the same by chance."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for table in (self.table, self.reference):
            table[:, :, STOP] -= 1.5
            table[:, :, list(WORDS)] += 1.0


class WordyEqualSeeds(EqualSeeds, Wordy):
    """Both."""


class WordyOneSeed(OneSeed, Wordy):
    """Both."""


class Dropped(Trainer):
    """A wrapper that passes some of the settings on and drops others."""

    wanted: Mapping[str, object] = {"max_grad_norm": 0.05, "num_iterations": 2}

    def requested(self) -> dict[str, object]:
        return {**super().requested(), **self.wanted}


class RateDropped(Dropped):
    """The learning rate that was asked for never arrives."""

    wanted: Mapping[str, object] = {"learning_rate": 0.001}


class KlHidden(Dropped):
    """Nobody asked for the KL weight that runs."""

    wanted: Mapping[str, object] = {"beta": 0.0}


class CapDropped(Dropped):
    """A default cuts answers that were to be four times as long."""

    wanted: Mapping[str, object] = {"max_completion_length": 40}


class HeatDropped(Dropped):
    """The sampler was asked for with another temperature."""

    wanted: Mapping[str, object] = {"temperature": 0.7}


class AsAsked(Dropped):
    """The same settings in another way of writing; what is left to the trainer; where logs go."""

    wanted: Mapping[str, object] = {
        "learning_rate": "4e-2",
        "scale_rewards": True,
        "loss_type": "DAPO",
        "reward_weights": None,
        "logging_steps": 10,
        "per_device_train_batch_size": 8,
        "run_name": "mine",
    }


class Unreached(Dropped):
    """A cap far above all answers is not the one asked for; the engine is another."""

    wanted: Mapping[str, object] = {"max_completion_length": 64, "use_vllm": False}

    def config(self) -> dict[str, object]:
        return {**super().config(), "max_completion_length": 48}


class ScoreLost(Trainer):
    """The last sample of a step is dropped before scoring; a 0 fills the list up."""

    def score(self, batch: Batch) -> dict[str, Array]:
        parts = super().score(batch)
        if self.after:
            for values in parts.values():
                values[-1] = 0.0
        return parts

    def about(self, batch: Batch) -> dict[str, object]:
        about = super().about(batch)
        stages: Any = about["stages"]
        if self.after:
            stages["scored"] = stages["scored"][:-1]
        return about


class Shuffled(Trainer):
    """Scores come back in another order and land by place."""

    def order_of_scores(self, n: int) -> Ints:
        if not self.after:
            return np.arange(n)
        return np.random.default_rng(self.step).permutation(n)


class JoinedByName(Shuffled):
    """Scores come back in another order and are joined by the names of the samples."""

    def prepared(self, batch: Batch) -> Batch:
        made = super().prepared(batch)
        order = np.argsort(self.order_of_scores(len(batch.group)))
        made.parts = {name: values[order] for name, values in made.parts.items()}
        made.total = self.total(made.parts)
        made.advantage = self.advantages(made.total, made.group)
        return made


class Resumed(Trainer):
    """A resume at the onset after which the data goes on where it was."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.data = np.random.default_rng(100)

    def begins_anew(self) -> bool:
        """Whether the sampler of the data begins at its first sample with this step."""
        return False

    def draw_prompts(self) -> list[list[int]]:
        if self.begins_anew():
            self.data = np.random.default_rng(100)
        return policy.prompts(self.data, self.s.prompts)

    def extra(self, recorder: Recorder) -> None:
        if self.step == self.s.onset:
            recorder.event("resume", self.step, "loaded the last checkpoint")


class DataReplayed(Resumed):
    """The sampler's state was not saved: the data begins at its first sample."""

    def begins_anew(self) -> bool:
        return self.step == self.s.onset


class DataGoesRound(Resumed):
    """Each pass over the data has 20 steps in one order; the resume lies inside a pass."""

    def begins_anew(self) -> bool:
        return self.step % 20 == 1


class Stalled(Trainer):
    """Generation hangs: after a long wait, steps train on the last rollouts once more."""

    last: Batch | None = None

    @property
    def stalled(self) -> bool:
        return self.s.onset <= self.step < self.s.onset + 12

    def generate(self, step: int) -> Batch:
        if not self.stalled or self.last is None:
            self.last = super().generate(step)
        return self.last

    def scalars(self, row: dict[str, float]) -> dict[str, float]:
        return {**row, "step_time": row["step_time"] * 15} if self.stalled else row


class NamedAnew(Stalled):
    """The last batch is handed out again in no time, and its rows get names of the step."""

    def generate(self, step: int) -> Batch:
        batch = super().generate(step)
        return replace(batch, sample=[f"{step}:{i}" for i in range(len(batch.sample))])

    def scalars(self, row: dict[str, float]) -> dict[str, float]:
        return row


class Slow(Trainer):
    """Steps take long for a while, and have rollouts of their own."""

    def scalars(self, row: dict[str, float]) -> dict[str, float]:
        return {**row, "step_time": row["step_time"] * (15 if self.after else 1)}


class StopsInText(Trainer):
    """Texts are written with their special tokens."""

    def rollout_rows(self, batch: Batch) -> list[dict[str, object]]:
        rows = super().rollout_rows(batch)
        for row, ids, made in zip(rows, batch.rows.ids, batch.rows.made, strict=True):
            row["completion"] = " ".join(policy.TEXTS[int(i)] for i in ids[made])
        return rows


class StopIgnored(StopsInText):
    """Generation takes its stop ids from a file that names another one."""

    def stops(self, token: Ints) -> Bools:
        return np.zeros(token.shape, bool)


class LocalMeans(Trainer):
    """Each rank averages its own rows, and the means are averaged: ranks hold 30 and 18 rows."""

    first = 30

    def prepared(self, batch: Batch) -> Batch:
        self.batch = super().prepared(batch)
        return self.batch

    def rollout_rows(self, batch: Batch) -> list[dict[str, object]]:
        rows = super().rollout_rows(batch)
        return [{**row, "rank": int(i >= self.first)} for i, row in enumerate(rows)]

    def scalars(self, row: dict[str, float]) -> dict[str, float]:
        def gathered(values: Array) -> float:
            return float(np.mean([values[: self.first].mean(), values[self.first :].mean()]))

        parts = {f"reward_part/{name}": gathered(v) for name, v in self.batch.parts.items()}
        return {**row, "reward_mean": gathered(self.batch.total), **parts}


class EvenMeans(LocalMeans):
    """The same with as many rows on both ranks."""

    first = 24


def with_generation_config(folder: Path) -> None:
    """A model's generation config with a penalty, which the sampler never got."""
    stated = {"repetition_penalty": 1.1, "top_k": 20, "temperature": 1.0}
    (folder / "generation_config.json").write_text(json.dumps(stated), encoding="utf-8")


CASES = [
    Case(
        "r1",
        TemplateLost,
        "incident",
        "cfg.resolved",
        (28, 38),
        checks={"records.chat_template": "fail"},
    ),
    Case(
        "r2",
        Framed,
        "healthy",
        checks={"records.chat_template": "pass"},
        twin_of="cfg.resolved",
    ),
    Case(
        "r3",
        WordyEqualSeeds,
        "incident",
        "data.sampling",
        (1, 1),
        checks={"records.completion_draw": "fail"},
    ),
    Case(
        "r4",
        WordyOneSeed,
        "incident",
        "data.sampling",
        checks={"records.completion_draw": "fail"},
    ),
    # A sharp policy repeats itself at all places alike, as often as its log-probs say.
    Case(
        "r5",
        lambda: Wordy(temperature=0.12, seed=1),
        "incident",
        "collapse.all_right",
        checks={"records.completion_draw": "pass"},
        twin_of="data.sampling",
    ),
    Case("r6", Dropped, "incident", "cfg.resolved", checks={"records.settings_in_force": "fail"}),
    Case(
        "r7", RateDropped, "incident", "opt.lr_jump", checks={"records.settings_in_force": "fail"}
    ),
    Case(
        "r8",
        KlHidden,
        "incident",
        "opt.kl_constraint",
        checks={"records.settings_in_force": "fail"},
    ),
    Case(
        "r34",
        CapDropped,
        "incident",
        "cfg.completion_cap",
        checks={"records.settings_in_force": "fail"},
        twin_of="cfg.resolved",
    ),
    Case(
        "r35",
        HeatDropped,
        "incident",
        "prob.processed_logprobs",
        checks={"records.settings_in_force": "fail"},
        twin_of="cfg.resolved",
    ),
    Case(
        "r9",
        AsAsked,
        "healthy",
        checks={"records.settings_in_force": "pass"},
        twin_of="cfg.resolved",
    ),
    Case(
        "r25",
        Unreached,
        "healthy",
        checks={"records.settings_in_force": "pass"},
        twin_of="cfg.completion_cap",
    ),
    Case("r10", ScoreLost, "incident", "id.rows", (24, 36), checks={"records.row_names": "fail"}),
    Case("r11", Shuffled, "incident", "id.rows", (24, 36), checks={"records.row_order": "fail"}),
    Case(
        "r12",
        JoinedByName,
        "healthy",
        checks={"records.row_names": "pass", "records.row_order": "pass"},
        twin_of="id.rows",
    ),
    Case(
        "r13",
        lambda: DataReplayed(onset=21),
        "incident",
        "infra.resume",
        (21, 21),
        checks={"records.data_position": "fail"},
    ),
    Case(
        "r14",
        Resumed,
        "healthy",
        checks={"records.data_position": "pass"},
        twin_of="infra.resume",
    ),
    Case(
        "r15",
        DataGoesRound,
        "healthy",
        checks={"records.data_position": "pass"},
        twin_of="infra.resume",
    ),
    Case(
        "r16",
        Stalled,
        "incident",
        "infra.rollout_stall",
        (31, 31),
        checks={"records.fresh_rollouts": "fail"},
    ),
    Case(
        "r123",
        NamedAnew,
        "incident",
        "data.sampling",
        (31, 31),
        checks={"records.fresh_rollouts": "fail"},
    ),
    Case(
        "r17",
        Slow,
        "healthy",
        checks={"records.fresh_rollouts": "pass"},
        twin_of="infra.rollout_stall",
    ),
    Case(
        "r18",
        lambda: Trainer(seed=4, updates=4, steps=20, rate=0.01),
        "healthy",
        checks={"records.fresh_rollouts": "pass"},
        twin_of="infra.rollout_stall",
    ),
    # The tie-break of the cap and the stop rule: what stands inside the rows decides.
    Case(
        "r19",
        lambda: StopIgnored(captures=0),
        "incident",
        "mask.eos",
        (1, 1),
        checks={"records.stop_ids": "fail"},
        twin_of="cfg.completion_cap",
    ),
    Case(
        "r20",
        lambda: StopsInText(cap=1, captures=0),
        "incident",
        "cfg.completion_cap",
        (1, 1),
        checks={"records.completion_cap": "fail"},
        twin_of="mask.eos",
    ),
    Case(
        "r21",
        StopsInText,
        "healthy",
        checks={"records.stop_ids": "pass"},
        twin_of="mask.eos",
    ),
    Case(
        "r22",
        LocalMeans,
        "incident",
        "metric.misleading",
        (1, 1),
        checks={"records.logged_means": "fail"},
    ),
    Case(
        "r23",
        EvenMeans,
        "healthy",
        checks={"records.logged_means": "pass"},
        twin_of="metric.misleading",
    ),
    # A file that states a penalty is no fault where the sampled tokens show that it was not used.
    Case(
        "r24",
        Trainer,
        "healthy",
        checks={"records.generation_config": "pass"},
        twin_of="prob.processed_logprobs",
        files=with_generation_config,
    ),
]
