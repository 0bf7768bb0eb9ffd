"""Wrapping TRL's trainer: what passes through its methods becomes the record of each step."""

from __future__ import annotations

import functools
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from firstbad_recorder.preflight import preflight_key
from firstbad_recorder.probes.trail import replay
from firstbad_recorder.recorder import Recorder
from firstbad_recorder.surroundings import surroundings
from firstbad_recorder.trl import passes, rows, step, weights
from firstbad_recorder.trl.micro import Micro, Pass, settings_of_loss, trained
from firstbad_recorder.trl.preflight import ATTACHED, as_before, loss_code
from firstbad_recorder.trl.settings import settings_of
from firstbad_recorder.trl.wrap import wrap

CHECK_ROWS = 8
MOST_REPLAYS = 2
"""Steps whose gradient is not finite that are gone through again."""
_OWN = frozenset({
    "loss", "reward", "kl", "entropy", "grad_norm", "learning_rate", "completions/mean_length",
    "completions/max_length", "completions/clipped_ratio", "clip_ratio/region_mean",
})  # fmt: skip
"""What TRL logs and a record has of every step anyway."""
_MOST_TOKENIZER_BYTES = 32 * 2**20


def attach(
    trainer: Any,
    path: str | os.PathLike[str] | None = None,
    *,
    engine: Callable[[], Mapping[str, Any]] | None = None,
    requested: Mapping[str, object] | None = None,
    check_rows: int = CHECK_ROWS,
    **recorder: Any,
) -> Recorder:
    """Record a run of TRL's `GRPOTrainer`, or of a subclass; call it before `train()`.

    A further `train()` goes on with the same record, as a restart would; attach again before it to
    give it another folder. While a training is recorded, attaching again changes nothing.

    Args:
        trainer: The trainer.
        path: Folder of the record; `record` in the trainer's output folder unless given.
        engine: Gives the parameters by name that the rollout engine serves, where there is another
            copy than the trainer's own; a few of them are compared after each generation.
        requested: Settings as they were asked for, where that is known apart from those in force.
        check_rows: Rows on which further forward passes are made in the steps that are kept as
            healthy samples; 0: none.
        recorder: Further settings of `Recorder`, such as `max_bytes` or `ring_steps`.

    Returns:
        The recorder, for events, probes and `keep` of your own.
    """
    known = trainer.__dict__.get(ATTACHED)
    if known is not None and not known.recorder.closed:
        return known.recorder  # type: ignore[no-any-return]
    rank = int(trainer.accelerator.process_index)
    folder = Path(trainer.args.output_dir) / "record" if path is None else Path(path)
    folder = folder.absolute()  # the working folder may change
    made = Recorder(
        folder,
        **{
            "config": settings_of(trainer),
            "requested": requested,
            "framework": "trl",
            "device": _device(trainer),
            "preflight_key": preflight_key(
                trainer.accelerator.unwrap_model(trainer.model), loss_code(trainer)
            ),
            "rank": rank,
            **surroundings(),
            **recorder,
        },
    )
    if known is None:
        found = trainer.__dict__[ATTACHED] = _Attachment(trainer, made, engine, check_rows)
    else:
        found = known  # the methods are wrapped already
        found.recorder, found.engine, found.check_rows = made, engine, check_rows
    made.keep_on_signal()
    if rank == 0:
        found.quietly(_save_tokenizer, trainer, folder)
    return made


class _Attachment:
    """State between the wrapped methods of one trainer."""

    def __init__(
        self,
        trainer: Any,
        recorder: Recorder,
        engine: Callable[[], Mapping[str, Any]] | None,
        check_rows: int,
    ) -> None:
        self.trainer, self.recorder, self.engine = trainer, recorder, engine
        self.check_rows = check_rows
        self.rank = int(trainer.accelerator.process_index)
        self.world = int(trainer.accelerator.num_processes)
        self.scored = rows.Scored()
        self.generation = rows.Generation(0, [])
        self.micro: Micro | None = None
        self.step = step.Step()
        self.moves: weights.Moves | None = None
        self.paused = False
        """Whether what runs now is no training, such as a preflight."""
        self.replays = 0
        self.rate: float | None = None
        """Learning rate of the update at hand, as the optimizer has it."""
        self.heard: list[Any] = []
        """Squared norms of the gradients that arrive, of the micro-batch at hand."""
        self.listening: list[Any] = []
        """Hooks that are there in the steps that are looked at more closely."""
        self.on_update: list[Any] = []
        """Hooks of the optimizer."""
        self.making: int | None = None
        """The step that is being made; None between steps."""
        self.began = time.monotonic()
        self._wrap()

    def quietly(self, function: Callable[..., Any], *args: Any, **more: Any) -> Any:
        """Call a part of the recording; what it raises is counted and goes no further."""
        try:
            return function(*args, **more)
        except Exception as error:
            self.recorder.lost(error)
            return None

    def _wrap(self) -> None:
        from transformers import TrainerCallback

        trainer = self.trainer
        wrap(trainer, "_generate_and_score_completions", self._around_generation)
        wrap(trainer, "_calculate_rewards", self._around_rewards)
        wrap(trainer, "_get_per_token_logps_and_entropies", self._around_scoring)
        wrap(trainer, "_compute_loss", self._around_loss)
        wrap(trainer, "log", self._around_log)
        wrap(trainer, "train", self._around_train)
        wrap(trainer.accelerator, "clip_grad_norm_", self._around_clipping)
        if (generation := getattr(trainer, "vllm_generation", None)) is not None:
            wrap(generation, "sync_weights", self._around_sync)
        for i, (name, function) in enumerate(zip(trainer.reward_func_names, trainer.reward_funcs)):
            if callable(function) and not _is_module(function) and not _is_async(function):
                timed = rows.timed(function, name, lambda: self.scored, time.monotonic)
                trainer.reward_funcs[i] = timed
        attachment = self

        class Steps(TrainerCallback):  # type: ignore[misc]
            def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
                attachment.quietly(attachment.begin, more.get("optimizer"))

            def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
                attachment.making = int(state.global_step) + 1

            def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
                attachment.making = None
                attachment.quietly(attachment.end_step, int(state.global_step))

        trainer.add_callback(Steps())

    # ---- wrapped methods

    def _around_train(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def train(*args: Any, **more: Any) -> Any:
            self.quietly(lambda: self.recorder.reopen(settings_of(self.trainer)))
            self.step, self.making = step.Step(), None
            self.scored = rows.Scored()
            try:
                result = original(*args, **more)
            except BaseException as error:
                self.recorder.failed(error, self.making, self.scored.raised_by(error))
                raise
            self.recorder.close()
            return result

        return train

    def _around_generation(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def generate(inputs: Any, *args: Any, **more: Any) -> Any:
            if self.paused or not self.trainer.model.training:
                return original(inputs, *args, **more)
            self.scored = rows.Scored()
            output = original(inputs, *args, **more)
            self.quietly(self.compare_engine)
            self.quietly(self.generated, inputs, output)
            return output

        return generate

    def _around_rewards(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def rewards(inputs: Any, prompts: Any, completions: Any, ids: Any) -> Any:
            found = original(inputs, prompts, completions, ids)
            self.scored.prompts, self.scored.completions = prompts, completions
            self.scored.ids, self.scored.rewards = ids, found
            return found

        return rewards

    def _around_scoring(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def score(model: Any, ids: Any, attended: Any, width: Any, *args: Any, **more: Any) -> Any:
            found = original(model, ids, attended, width, *args, **more)
            if self.micro is not None:
                again = functools.partial(original, model, compute_entropy=True)
                self.quietly(self.passed, self.micro, ids, attended, found, again)
            return found

        return score

    def _around_loss(self, original: Callable[..., Any]) -> Callable[..., Any]:
        self.loss_of = original

        def loss_of(model: Any, inputs: Any, *args: Any, **more: Any) -> Any:
            if self.paused or not self.trainer.model.training:
                return original(model, inputs, *args, **more)
            micro = self.micro = self.quietly(self.begin_micro, inputs)
            try:
                loss = original(model, inputs, *args, **more)
            finally:
                self.micro = None
            if micro is not None:
                self.quietly(self.end_micro, micro, loss)
            return loss

        return loss_of

    def _around_clipping(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def clip(parameters: Any, most: Any, *args: Any, **more: Any) -> Any:
            norm = original(parameters, most, *args, **more)
            self.quietly(self.clipped, norm, most)
            return norm

        return clip

    def _around_log(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def log(logs: Any, *args: Any, **more: Any) -> Any:
            self.quietly(self.logged, dict(logs))
            return original(logs, *args, **more)

        return log

    def _around_sync(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def sync(*args: Any, **more: Any) -> Any:
            found = original(*args, **more)
            version = int(self.trainer.state.global_step)
            self.recorder.sync(version, version=version, cache_cleared=True)
            return found

        return sync

    # ---- what is recorded

    def begin(self, optimizer: Any) -> None:
        """Hooks of the optimizer, which exists from here on."""
        self.began = time.monotonic()
        while self.on_update:
            self.on_update.pop().remove()
        inner = getattr(optimizer, "optimizer", optimizer)
        if inner is not None and hasattr(inner, "register_step_pre_hook"):
            before = inner.register_step_pre_hook(
                lambda own, *_: self.quietly(self.before_update, own)
            )
            after = inner.register_step_post_hook(lambda *_: self.quietly(self.after_update))
            self.on_update = [before, after]

    def compare_engine(self) -> None:
        """Digests of a few tensors on both sides, as the engine has just generated with them."""
        if self.engine is None:
            return
        version = int(self.trainer.state.global_step)
        model = self.trainer.accelerator.unwrap_model(self.trainer.model)
        own = dict(model.named_parameters())
        self.recorder.sync(version, version=version, tensors=weights.compared(own, self.engine()))

    def generated(self, inputs: Sequence[dict[str, Any]], output: dict[str, Any]) -> None:
        """Keep the rows of a generation batch, and number them."""
        import torch

        for text in self.scored.warnings:
            self.recorder.event("warning", int(self.trainer.state.global_step) + 1, text)
        number = self._next_number()
        found = rows.rows_of(self.trainer, number, inputs, output, self.scored)
        self.generation = rows.Generation(number, found)
        device = output["completion_ids"].device
        output[rows.ROW] = torch.arange(len(found), device=device)
        output[rows.SOURCE] = rows.sources(self.trainer, output, self.scored)

    def begin_micro(self, inputs: dict[str, Any]) -> Micro | None:
        """The micro-batch whose loss is computed now."""
        numbers = inputs.get(rows.ROW)
        if numbers is None:
            self.recorder.lost(LookupError("rows of a micro-batch lost their numbers"))
            return None
        made = self.generation
        micro = Micro(dict(inputs), made, numbers.tolist(), made.uses, len(self.step.micros))
        if self._due():
            self.listen()
            micro.squares = self.heard = []
        return micro

    def listen(self) -> None:
        """Hear the gradient of every parameter as it arrives, before it is added to others."""
        if self.listening:
            return
        model = self.trainer.accelerator.unwrap_model(self.trainer.model)
        for parameter in model.parameters():
            if parameter.requires_grad:
                hook = parameter.register_hook(
                    lambda g: self.heard.append(g.detach().double().square().sum())
                )
                self.listening.append(hook)

    def passed(
        self, micro: Micro, ids: Any, attended: Any, found: Any, again: Callable[..., Any]
    ) -> None:
        """The pass that is differentiated, and a hook for what flows back into it."""
        logp, entropy = found[0], found[1]
        if micro.passed is not None or not logp.requires_grad:
            return
        entropy = None if entropy is None else entropy.detach()
        width = int(logp.shape[1])
        micro.passed = Pass(ids, attended, width, logp.detach(), entropy, again)
        logp.register_hook(micro.passed.take)

    def end_micro(self, micro: Micro, loss: Any) -> None:
        """Its loss, and further passes where they are due."""
        micro.loss = loss.detach()
        if loss.requires_grad:
            loss.register_hook(micro.take_factor)
        if micro.passed is None:
            self.recorder.lost(LookupError("a loss without log-probs of its own"))
            return
        self.step.micros.append(micro)
        if self.check_rows and self._due() and len(self.step.micros) == 1:
            for check in passes.CHECKS:
                self.quietly(check, micro, self.trainer, self.check_rows)

    def _due(self) -> bool:
        return self.recorder.is_sample(int(self.trainer.state.global_step) + 1)

    def clipped(self, norm: Any, most: Any) -> None:
        """Gradient norm on both sides of clipping."""
        before = float(norm)
        after = before if most is None or before <= float(most) else float(most)
        self.step.norms.append({"before_clip": before, "after_clip": after, "clip_value": most})
        if not math.isfinite(before) and self.replays < MOST_REPLAYS:
            self.replays += 1
            self.quietly(self.replay)

    def replay(self) -> None:
        """Once more through the micro-batches, watched: which operation left the finite numbers?

        The update is not made yet, so that weights and rows are still the same.
        """
        model = self.trainer.accelerator.unwrap_model(self.trainer.model)
        with as_before(self.trainer):
            for micro in self.step.micros:
                again = functools.partial(self.loss_of, self.trainer.model, dict(micro.inputs))
                found = replay(model, again)
                if first := found.get("first"):
                    self.step.trail = found["trail"]
                    self.step.first_nonfinite = _facts(first)
                    number = int(self.trainer.state.global_step) + 1
                    self.recorder.event("warning", number, _told(first))
                    return

    def before_update(self, optimizer: Any) -> None:
        """The rate that is used, and some parameters before they are moved."""
        self.rate = float(optimizer.param_groups[0]["lr"])
        model = self.trainer.accelerator.unwrap_model(self.trainer.model)
        named = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self.moves = weights.Moves(named)

    def after_update(self) -> None:
        """How far they were moved."""
        if self.moves is not None:
            self.step.parameters, self.moves = self.moves.figures(), None

    def logged(self, logs: dict[str, Any]) -> None:
        """TRL's own numbers, as far as the record does not have them of every step."""
        known = _OWN if self.world == 1 else _OWN & {"grad_norm", "learning_rate"}
        new = {k: v for k, v in logs.items() if k not in known and isinstance(v, (int, float))}
        if new:
            self.recorder.scalars(int(self.trainer.state.global_step), new)

    def _next_number(self) -> int:
        """Number of a generation batch: it begins with that of the step, also after a resume."""
        return max(self.generation.number + 1, int(self.trainer.state.global_step) + 1)

    def end_step(self, number: int) -> None:
        """Write the step that has just been made."""
        seen, self.step = self.step, step.Step()
        while self.listening:
            self.listening.pop().remove()
        now = time.monotonic()
        seconds, self.began = now - self.began, now
        if not seen.micros:
            return
        own = settings_of_loss(self.trainer)
        masks = [trained(m, own) for m in seen.micros]
        used = [(m.generation.number, i) for m in seen.micros for i in m.rows]
        order = sorted(range(len(used)), key=lambda k: used[k])
        trained_lines = [line for m in seen.micros for line in m.lines]
        lines = [trained_lines[k] for k in order]
        # A mean over one of several processes is none of the run: TRL's own are logged then.
        made = {m.generation.number: m.generation for m in seen.micros}
        generated = [line for one in made.values() for line in one.rows]
        scalars = {} if self.world > 1 else step.numbers_of(seen.micros, masks, own, generated)
        scalars["step_time"] = seconds
        if seen.norms:
            scalars["grad_norm"] = seen.norms[-1]["before_clip"]
        scalars["learning_rate"], self.rate = self.rate, None
        self.recorder.scalars(number, scalars)
        names = [str(row["sample"]) for row in generated]
        first_pass = all(m.update == 0 for m in seen.micros)
        self.recorder.hold(
            number,
            rollouts=lines,
            generated=generated if len(lines) < len(generated) else None,
            tokens=_ordered(step.tokens_of(seen.micros, masks), order),
            microbatches=step.ledger_of(seen.micros, masks, own, self.rank, self.world),
            numerics={
                "trail": [*step.trail_of(seen.micros, masks), *seen.trail],
                "norms": seen.norms,
                "parameters": seen.parameters,
                **({"first_nonfinite": seen.first_nonfinite} if seen.first_nonfinite else {}),
            },
            whole_groups=_whole(generated, int(self.trainer.num_generations)),
            in_order=True,
            filters="none",
            first_pass=first_pass,
            policy_version=number - 1,
            seeds={"seed": self.trainer.args.seed},
            stages={
                "generated": names,
                "scored": names,
                "trained": [str(line["sample"]) for line in trained_lines],
            },
        )
        for micro in seen.micros:
            micro.generation.used += len(micro.rows)


def _facts(first: dict[str, Any]) -> dict[str, object]:
    """`first_nonfinite` of numerics.json."""
    operands = [o["largest"] for o in first["operands"] if o["largest"] is not None]
    return {
        **{name: first[name] for name in ("operation", "phase", "module", "where")},
        "dtype": first["result"]["dtype"],
        "largest": max(operands, default=None),
    }


def _told(first: dict[str, Any]) -> str:
    """The operation that left the finite numbers, in words."""
    where = ", ".join(part for part in (first["module"], first["where"]) if part)
    operands = "; ".join(f"{o['name']} up to {o['largest']:.4g}" for o in first["operands"][:3])
    return (
        f"first value that is not finite: `{first['operation']}` in the {first['phase']} pass "
        f"({where}), of {first['result']['dtype']}: {operands}"
    )


def _device(trainer: Any) -> str:
    import torch

    device = trainer.accelerator.device
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def _save_tokenizer(trainer: Any, folder: Path) -> None:
    """The tokenizer's own file, so that tokens can be shown as text."""
    text = trainer._tokenizer.backend_tokenizer.to_str()
    if len(text) <= _MOST_TOKENIZER_BYTES and json.loads(text):
        (folder / "tokenizer.json").write_text(text, encoding="utf-8")


def _ordered(tokens: dict[str, Any], order: Sequence[int]) -> dict[str, Any]:
    """The arrays with their rows in another order."""
    import torch

    ends = tokens.pop("offsets")
    parts = [torch.arange(ends[k], ends[k + 1]) for k in order]
    at = torch.cat(parts)
    offsets = [0]
    for part in parts:
        offsets.append(offsets[-1] + len(part))
    return {"offsets": offsets, **{name: values[at] for name, values in tokens.items()}}


def _whole(lines: Sequence[Mapping[str, object]], size: int) -> bool:
    counts: dict[object, int] = {}
    for row in lines:
        counts[row["group"]] = counts.get(row["group"], 0) + 1
    return all(n == size for n in counts.values())


def _is_module(function: Any) -> bool:
    import torch

    return isinstance(function, torch.nn.Module)


def _is_async(function: Any) -> bool:
    import inspect

    called = type(function).__call__ if not inspect.isfunction(function) else function
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)
