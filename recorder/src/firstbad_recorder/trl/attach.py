"""Wrapping TRL's trainer: what passes through its methods becomes the record of each step."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from firstbad_recorder.preflight import preflight_key
from firstbad_recorder.recorder import Recorder
from firstbad_recorder.surroundings import surroundings
from firstbad_recorder.trl import rows
from firstbad_recorder.trl.aside import ATTACHED
from firstbad_recorder.trl.preflight import loss_code
from firstbad_recorder.trl.recording import Recording
from firstbad_recorder.trl.settings import device_of, save_tokenizer, settings_of
from firstbad_recorder.trl.wrap import named, wrap

CHECK_ROWS = 8
BASELINE_EVERY = 100
_REWARDED = ("inputs", "prompts", "completions", "completion_ids_list")


def attach(
    trainer: Any,
    path: str | os.PathLike[str] | None = None,
    *,
    engine: Callable[[], Mapping[str, Any]] | None = None,
    requested: Mapping[str, object] | None = None,
    check_rows: int = CHECK_ROWS,
    baseline_every: int = BASELINE_EVERY,
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
        baseline_every: Steps between those that are kept as healthy samples; 0: none.
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
    errors: list[Exception] = []
    made = Recorder(
        folder,
        **{
            "config": _had(errors, settings_of, trainer),
            "requested": requested,
            "framework": "trl",
            "device": _had(errors, device_of, trainer),
            "preflight_key": _had(errors, _key, trainer),
            "rank": rank,
            "baseline_every": baseline_every,
            **(_had(errors, surroundings) or {}),
            **recorder,
        },
    )
    if known is None:
        found = trainer.__dict__[ATTACHED] = _Attachment(trainer, made)
    else:
        found = known  # the methods are wrapped already
    found.use(made, engine, check_rows, baseline_every)
    for error in errors:
        made.lost(error)
    made.keep_on_signal()
    if rank == 0:
        found.quietly(save_tokenizer, trainer, folder)
    return made


def _had(errors: list[Exception], function: Callable[..., Any], *args: Any) -> Any:
    """What a function gives; None, and the error in the list, where it raises."""
    try:
        return function(*args)
    except Exception as error:
        errors.append(error)
        return None


def _key(trainer: Any) -> dict[str, str]:
    model = trainer.accelerator.unwrap_model(trainer.model)
    return preflight_key(model, loss_code(trainer))


class _Attachment(Recording):
    """The wrapped methods of one trainer."""

    def __init__(self, trainer: Any, recorder: Recorder) -> None:
        super().__init__(trainer, recorder)
        self.quietly(self._wrap)

    def _wrap(self) -> None:
        from transformers import TrainerCallback

        trainer = self.trainer
        for owner, name, made in (
            (trainer, "_generate_and_score_completions", self._around_generation),
            (trainer, "_calculate_rewards", self._around_rewards),
            (trainer, "_get_per_token_logps_and_entropies", self._around_scoring),
            (trainer, "_compute_loss", self._around_loss),
            (trainer, "log", self._around_log),
            (trainer, "train", self._around_train),
            (trainer.accelerator, "clip_grad_norm_", self._around_clipping),
        ):
            if not wrap(owner, name, made):
                self.missing(f"this trainer has no `{name}` to record")
        if (generation := getattr(trainer, "vllm_generation", None)) is not None:
            wrap(generation, "sync_weights", self._around_sync)
        self.quietly(rows.time_rewards, trainer, lambda: self.scored)
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

    def _around_train(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def train(*args: Any, **more: Any) -> Any:
            self.quietly(lambda: self.recorder.reopen(settings_of(self.trainer)))
            try:
                result = original(*args, **more)
            except BaseException as error:
                self.recorder.failed(error, self.making, self.scored.raised_by(error))
                raise
            finally:
                self.quietly(self.end)
            self.recorder.close()
            return result

        return train

    def _around_generation(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def generate(*args: Any, **more: Any) -> Any:
            if not self.quietly(self.trains):
                return original(*args, **more)
            self.scored = rows.Scored()
            output = original(*args, **more)
            self.quietly(self.compare_engine)
            given = self.quietly(named, ("inputs",), original, args, more) or {}
            self.quietly(self.generated, given.get("inputs", ()), output)
            return output

        return generate

    def _around_rewards(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def rewards(*args: Any, **more: Any) -> Any:
            found = original(*args, **more)
            given = self.quietly(named, _REWARDED, original, args, more) or {}
            scored = self.scored
            _, scored.prompts, scored.completions, scored.ids = (
                given.get(n, ()) for n in _REWARDED
            )
            scored.rewards = found
            return found

        return rewards

    def _around_scoring(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def score(*args: Any, **more: Any) -> Any:
            found = original(*args, **more)
            if self.micro is not None:
                self.quietly(self.passed, self.micro, found, original, args, more)
            return found

        return score

    def _around_loss(self, original: Callable[..., Any]) -> Callable[..., Any]:
        self.loss_of = original

        def loss_of(*args: Any, **more: Any) -> Any:
            if not self.quietly(self.trains):
                return original(*args, **more)
            given = self.quietly(named, ("model", "inputs"), original, args, more) or {}
            micro = self.micro = self.quietly(self.begin_micro, given.get("inputs", {}))
            try:
                loss = original(*args, **more)
            finally:
                self.micro = None
            if micro is not None:
                self.quietly(self.end_micro, micro, loss)
            return loss

        return loss_of

    def _around_clipping(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def clip(*args: Any, **more: Any) -> Any:
            norm = original(*args, **more)
            given = self.quietly(named, ("parameters", "max_norm"), original, args, more) or {}
            if norm is not None and self.quietly(self.trains):
                self.quietly(self.clipped, norm, given.get("max_norm"))
            return norm

        return clip

    def _around_log(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def log(*args: Any, **more: Any) -> Any:
            logged = getattr(self.trainer.state, "log_history", [])
            before = len(logged)
            found = original(*args, **more)
            given = self.quietly(named, ("logs",), original, args, more) or {}
            # TRL joins its own numbers into what it is given, in other versions into a copy.
            last = logged[-1] if len(logged) > before else {}
            self.quietly(lambda: self.logged({**last, **given.get("logs", {})}))
            return found

        return log

    def _around_sync(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def sync(*args: Any, **more: Any) -> Any:
            found = original(*args, **more)
            if not self.recorder.closed:
                version = int(self.trainer.state.global_step)
                self.recorder.sync(version, version=version, cache_cleared=True)
            return found

        return sync
