"""Faults between sampler and trainer, and of the prompts drawn: real changes in TRL's sampling."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from trl.trainer.utils import RepeatSampler

from firstbad.evals.trl_runs.trainer import LoggedGRPOTrainer


class HotSampler(LoggedGRPOTrainer):
    """The sampler draws at another temperature than the trainer scores with."""

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        hot = self.fault["temperature"] if self.acting else self.args.temperature
        self.generation_config.temperature = hot
        return super()._generate_single_turn(*args, **kwargs)


class NarrowSampler(LoggedGRPOTrainer):
    """The sampler cuts to top-p or top-k, which the trainer's log-probs do not mirror."""

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        for name in {"top_p", "top_k"} & set(self.fault):
            value = self.fault[name] if self.acting else getattr(self.args, name)
            setattr(self.generation_config, name, value)
        return super()._generate_single_turn(*args, **kwargs)


class UnsyncedSampler(LoggedGRPOTrainer):
    """The sampler draws from a copy of the weights that is no longer updated."""

    frozen: Any = None
    model_wrapped: Any

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        if not self.acting:
            return super()._generate_single_turn(*args, **kwargs)
        if self.frozen is None:
            self.frozen = copy.deepcopy(self.model_wrapped)
            # The forward that the trainer patched in would still call the live weights.
            self.frozen.__dict__.pop("forward", None)
        live, self.model_wrapped = self.model_wrapped, self.frozen
        try:
            return super()._generate_single_turn(*args, **kwargs)
        finally:
            self.model_wrapped = live


class StuckSampler(LoggedGRPOTrainer):
    """The prompt sampler is re-seeded per batch: one prompt fills a batch and comes back."""

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        dataset = self.train_dataset if dataset is None else dataset
        return _RepeatingPrompts(dataset, self.args, self.fault)


class TiledGroups(LoggedGRPOTrainer):
    """Prompts are repeated as a list, not one by one, while groups are still cut by position."""

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        dataset = self.train_dataset if dataset is None else dataset
        return _TiledPrompts(dataset, self.args, self.fault)


class _ChangedSampler(RepeatSampler):
    """TRL's sampler of a run without a fault."""

    def __init__(self, dataset: Any, args: Any, fault: dict[str, Any]) -> None:
        super().__init__(
            dataset,
            args.num_generations,
            args.generation_batch_size // args.num_generations,
            args.num_iterations * args.steps_per_generation,
            True,
            args.seed,
        )
        self.rows_per_step = args.generation_batch_size * self.repeat_count
        self.fault = fault


class _RepeatingPrompts(_ChangedSampler):
    """From the onset on every group gets the same prompt, for `keep` steps each."""

    def __iter__(self) -> Iterator[Any]:
        onset, held = self.fault["onset"], None
        for place, index in enumerate(super().__iter__()):
            step = place // self.rows_per_step + 1
            if step < onset:
                yield index
                continue
            starts = place % self.rows_per_step == 0 and (step - onset) % self.fault["keep"] == 0
            if held is None or starts:
                held = index
            yield held


class _TiledPrompts(_ChangedSampler):
    """From the onset on prompts come as a b c a b c ... where a a ... b b ... c c ... is meant."""

    def __iter__(self) -> Iterator[Any]:
        size = self.mini_repeat_count
        batches = zip(*[super().__iter__()] * (self.batch_size * size), strict=True)
        for number, batch in enumerate(batches):
            step = number * len(batch) // self.rows_per_step + 1
            acting = step >= self.fault["onset"]
            yield from (row for i in range(size) for row in batch[i::size]) if acting else batch
