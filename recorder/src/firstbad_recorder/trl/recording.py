"""What is recorded of a TRL training: the state of one, and what is made of what passes."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from firstbad_recorder.recorder import Recorder
from firstbad_recorder.ring import MOST_BASELINES
from firstbad_recorder.sources import SAMPLED, TOOL
from firstbad_recorder.trl import passes, rows, step, weights
from firstbad_recorder.trl.aside import needs_all
from firstbad_recorder.trl.figures import numbers_of
from firstbad_recorder.trl.gradients import Gradients, loss_scale
from firstbad_recorder.trl.micro import Micro, Pass, settings_of_loss, weighed
from firstbad_recorder.trl.replay import facts, first_nonfinite, told
from firstbad_recorder.trl.wrap import named

MOST_REPLAYS = 2
"""Steps whose gradient is not finite that are gone through again."""
_OWN = {
    "loss": "loss",
    "reward": "reward_mean",
    "kl": "kl_ref",
    "entropy": "entropy",
    "grad_norm": "grad_norm",
    "learning_rate": "learning_rate",
    "step_time": "step_time",
    "completions/mean_length": "completion_length_mean",
    "completions/max_length": "completion_length_max",
    "completions/clipped_ratio": "truncation_rate",
    "clip_ratio": "clip_frac_total",
    "clip_ratio/region_mean": "clip_frac_total",
    "sampling/sampling_logp_difference/mean": "logprob_diff_mean",
}
"""What TRL logs, and under which name a record has it of every step where it is measured."""
_SCORED = ("model", "input_ids", "attention_mask", "logits_to_keep")


class Recording:
    """State of one training, and what each part of it adds to the record."""

    loss_of: Callable[..., Any]
    """The trainer's own loss of a micro-batch."""

    def __init__(self, trainer: Any, recorder: Recorder) -> None:
        """`trainer`: as TRL has it."""
        self.trainer = trainer
        self.rank = int(trainer.accelerator.process_index)
        self.world = int(trainer.accelerator.num_processes)
        self.scored = rows.Scored()
        self.generation = rows.Generation(0, [])
        self.micro: Micro | None = None
        self.step = step.Step()
        self.gradients = Gradients(self.quietly)
        self.paused = False
        """Whether what runs now is no training, such as a preflight."""
        self.replays = 0
        self.making: int | None = None
        """The step that is being made; None between steps."""
        self.first = 1
        """The first step of this training."""
        self.began = time.monotonic()
        self.use(recorder, None, 0, 0)

    def use(
        self,
        recorder: Recorder,
        engine: Callable[[], Mapping[str, Any]] | None,
        check_rows: int,
        baseline_every: int,
    ) -> None:
        """Record into this one from here on."""
        self.recorder, self.engine = recorder, engine
        self.check_rows, self.baseline_every = check_rows, baseline_every
        self.measured: set[str] = set()
        """Scalars of its own that this record has."""
        self.said: set[str] = set()
        """What is missing and was counted."""

    def quietly(self, function: Callable[..., Any], *args: Any, **more: Any) -> Any:
        """Call a part of the recording; what it raises is counted and goes no further."""
        try:
            return function(*args, **more)
        except Exception as error:
            self.recorder.lost(error)
            return None

    def missing(self, what: str) -> None:
        """Count what cannot be recorded of this run, once."""
        if what not in self.said:
            self.said.add(what)
            self.recorder.lost(LookupError(what))

    def trains(self) -> bool:
        """Whether what runs now is the training that is recorded."""
        return not self.paused and not self.recorder.closed and bool(self.trainer.model.training)

    def begin(self, optimizer: Any) -> None:
        """A training begins; its optimizer exists from here on."""
        self.began = time.monotonic()
        self.first = int(self.trainer.state.global_step) + 1
        self.gradients.watch(optimizer, self._parameters)

    def end(self) -> None:
        """A training is over, in whatever way."""
        self.micro, self.step, self.making = None, step.Step(), None
        self.scored = rows.Scored()
        self.gradients.close()

    def _parameters(self) -> dict[str, Any]:
        model = self.trainer.accelerator.unwrap_model(self.trainer.model)
        return dict(model.named_parameters())

    def compare_engine(self) -> None:
        """Digests of a few tensors on both sides, as the engine has just generated with them."""
        if self.engine is None:
            return
        version = int(self.trainer.state.global_step)
        tensors = weights.compared(self._parameters(), self.engine())
        if not tensors:
            self.missing("parameters are spread over processes, so that the engine has others")
            return
        self.recorder.sync(version, version=version, tensors=tensors)

    def generated(self, inputs: Sequence[dict[str, Any]], output: dict[str, Any]) -> None:
        """Keep the rows of a generation batch, and number them."""
        import torch

        for text in self.scored.warnings:
            self.recorder.event("warning", int(self.trainer.state.global_step) + 1, text)
        number = self._next_number()
        found = rows.rows_of(self.trainer, number, inputs, output, self.scored)
        n = len(output["completion_ids"])
        if len(found) != n:  # TRL would shuffle by numbers that do not fit
            raise LookupError(f"{n} rows were generated, and {len(found)} scored")
        source = rows.sources(self.trainer, output, self.scored)
        if bool((source == TOOL).any()):
            for row, sampled in zip(found, (source == SAMPLED).sum(dim=1).tolist()):
                row["n_sampled"] = sampled
        self.generation = rows.Generation(number, found)
        output[rows.ROW] = torch.arange(n, device=output["completion_ids"].device)
        output[rows.SOURCE] = source

    def begin_micro(self, inputs: dict[str, Any]) -> Micro | None:
        """The micro-batch whose loss is computed now."""
        numbers = inputs.get(rows.ROW)
        if numbers is None:
            self.missing("rows of a micro-batch lost their numbers")
            return None
        if self.step.scale is None:
            self.step.scale = loss_scale(self.trainer)
        made = self.generation
        micro = Micro(dict(inputs), made, numbers.tolist(), made.uses, len(self.step.micros))
        micro.scale = self.step.scale
        if self._due():
            model = self.trainer.accelerator.unwrap_model(self.trainer.model)
            micro.heard = self.gradients.listen(model)
        return micro

    def passed(
        self,
        micro: Micro,
        found: Any,
        original: Callable[..., Any],
        args: Sequence[Any],
        more: Mapping[str, Any],
    ) -> None:
        """The pass that is differentiated, and a hook for what flows back into it."""
        logp, entropy = found[0], found[1]
        if micro.passed is not None or not logp.requires_grad:
            return
        given = named(_SCORED, original, args, more)
        model, ids, attended, _ = (given.pop(name) for name in _SCORED)
        if model is getattr(self.trainer, "model_wrapped", None):
            model = self.trainer.model  # without joining its processes, where that is possible
        rest = args[len(_SCORED) :]
        width = int(logp.shape[1])
        passed = micro.passed = Pass(
            ids,
            attended,
            width,
            logp.detach(),
            None if entropy is None else entropy.detach(),
            functools.partial(original, model, ids, attended, width, *rest, **given),
            scale=micro.scale,
        )
        if not getattr(self.trainer, "_is_vlm", False) and not _has_tensors(
            [*rest, *given.values()]
        ):
            passed.alone = functools.partial(original, model, compute_entropy=True)
        logp.register_hook(lambda gradient: self.quietly(passed.take, gradient))

    def end_micro(self, micro: Micro, loss: Any) -> None:
        """Its loss, and further passes where they are due."""
        micro.loss = loss.detach()
        if loss.requires_grad:
            loss.register_hook(lambda gradient: self.quietly(micro.take_factor, gradient))
        if micro.passed is None:
            self.missing("a loss without log-probs of its own")
            return
        self.step.micros.append(micro)
        if self.check_rows and self._due() and len(self.step.micros) == 1:
            for check in passes.CHECKS:
                self.quietly(check, micro, self.trainer, self.check_rows)

    def _due(self) -> bool:
        """Whether the step is looked at more closely; the same in all processes."""
        number = int(self.trainer.state.global_step) + 1
        if self.world == 1:
            return self.recorder.is_sample(number)
        every = self.baseline_every  # a folder tells each process of its own only
        while every and number > MOST_BASELINES * every:
            every *= 2
        return bool(every) and (number == self.first or (number - 1) % every == 0)

    def clipped(self, norm: Any, most: Any) -> None:
        """Gradient norm on both sides of clipping."""
        before = float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)
        after = before if most is None or before <= float(most) else float(most)
        self.step.norms.append({"before_clip": before, "after_clip": after, "clip_value": most})
        if not math.isfinite(before) and self.replays < MOST_REPLAYS:
            self.replays += 1
            self.quietly(self.replay)

    def replay(self) -> None:
        """Once more through the micro-batches, watched: which operation left the finite numbers?"""
        if needs_all(self.trainer):
            self.missing("a step whose gradient is not finite is not gone through with shards")
            return
        found = first_nonfinite(self.trainer, self.loss_of, self.step.micros)
        if found is not None:
            first, self.step.trail = found
            self.step.first_nonfinite = facts(first)
            self.recorder.event("warning", int(self.trainer.state.global_step) + 1, told(first))

    def logged(self, logs: Mapping[str, Any]) -> None:
        """TRL's own numbers, as far as the record does not have them of every step."""
        if self.paused or self.recorder.closed:
            return
        new = {
            key: value
            for key, value in logs.items()
            if key != "step"
            and _OWN.get(key) not in self.measured
            and isinstance(value, (int, float))
        }
        if new:
            self.recorder.scalars(int(self.trainer.state.global_step), new)

    def _next_number(self) -> int:
        """Number of a generation batch: it begins with that of the step, also after a resume."""
        return max(self.generation.number + 1, int(self.trainer.state.global_step) + 1)

    def end_step(self, number: int) -> None:
        """Write the step that has just been made."""
        seen, self.step = self.step, step.Step()
        rate, parameters = self.gradients.taken()
        now = time.monotonic()
        seconds, self.began = now - self.began, now
        scalars: dict[str, object] = {"step_time": seconds}
        if seen.norms:
            scalars["grad_norm"] = seen.norms[-1]["before_clip"]
        if rate is not None:
            scalars["learning_rate"] = rate
        if seen.micros:
            self._write(number, seen, scalars, parameters)
        else:
            self.missing("a step without a micro-batch: no tokens, no ledger, no ratios")
            self._scalars(number, scalars)

    def _write(
        self,
        number: int,
        seen: step.Step,
        scalars: dict[str, object],
        parameters: list[dict[str, object]],
    ) -> None:
        own = settings_of_loss(self.trainer)
        parts = [weighed(micro, own) for micro in seen.micros]
        made = {m.generation.number: m.generation for m in seen.micros}
        generated = [line for one in made.values() for line in one.rows]
        # A mean over one of several processes is none of the run: TRL's own are logged then.
        numbers = {} if self.world > 1 else numbers_of(parts, own, generated)
        self._scalars(number, {**numbers, **scalars})
        kept = step.kept_of(seen, parts, own, generated, rank=self.rank, world=self.world)
        kept["numerics"]["parameters"] = parameters
        self.recorder.hold(
            number,
            **kept,
            whole_groups=_whole(generated, int(self.trainer.num_generations)),
            policy_version=number - 1,
            seeds={"seed": self.trainer.args.seed},
        )
        for micro in seen.micros:
            micro.generation.used += len(micro.rows)

    def _scalars(self, number: int, scalars: dict[str, object]) -> None:
        self.recorder.scalars(number, scalars)
        self.measured |= scalars.keys()


def _has_tensors(values: Sequence[Any]) -> bool:
    return any(hasattr(value, "shape") for value in values)


def _whole(lines: Sequence[Mapping[str, object]], size: int) -> bool:
    counts: dict[object, int] = {}
    for row in lines:
        counts[row["group"]] = counts.get(row["group"], 0) + 1
    return all(n == size for n in counts.values())
