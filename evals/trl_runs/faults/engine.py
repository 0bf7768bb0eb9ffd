"""A rollout engine apart from the trainer: a second copy of the model, to which weights go.

It generates, and scores what it generated: it stands for a served engine, which needs a GPU.

Faults are in the delivery, in how the engine samples, and in what is done with its tool tokens.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from firstbad.evals.trl_runs.trainer import LoggedGRPOTrainer

TOOL_TEXT = "ok check ok"
FIRST_TURN = 6
"""Tokens before the tool answers."""


class SecondCopy(LoggedGRPOTrainer):
    """Sound: weights are delivered before every generation, log-probs are those sampled with."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take TRL's arguments."""
        super().__init__(*args, **kwargs)
        self.engine = copy.deepcopy(self.accelerator.unwrap_model(self.model)).eval()
        # The forward that the trainer patched in would still call the live weights.
        self.engine.__dict__.pop("forward", None)

    def engine_weights(self) -> Mapping[str, Any]:
        """Parameters that the engine serves, by name."""
        return dict(self.engine.named_parameters())

    def delivered(self) -> Sequence[str]:
        """Names of the parameters that are delivered now."""
        return list(self.engine_weights())

    def temperature_of_engine(self) -> float:
        """What the engine divides its logits by."""
        return float(self.args.temperature)

    def deliver(self) -> None:
        """Copy the trainer's weights into the engine."""
        own = dict(self.accelerator.unwrap_model(self.model).named_parameters())
        theirs = self.engine_weights()
        with torch.no_grad():
            for name in self.delivered():
                theirs[name].copy_(own[name])

    def _generate_single_turn(self, prompt_ids: Any, *args: Any, **kwargs: Any) -> Any:
        self.deliver()
        return self.sample(prompt_ids, self.args.max_completion_length)

    def sample(self, prompts: Sequence[Sequence[int]], most: int) -> tuple[Any, Any]:
        """Completions of up to `most` tokens, and the log-prob of each token as it was sampled."""
        pad, ends = self._tokenizer.pad_token_id, {int(i) for i in self.eos_token_ids}
        width = max(map(len, prompts))
        ids = torch.tensor([[pad] * (width - len(p)) + list(p) for p in prompts])
        seen = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
        how = copy.deepcopy(self.generation_config)
        how.update(temperature=self.temperature_of_engine(), max_new_tokens=most, use_cache=True)
        with torch.no_grad():
            out = self.engine.generate(
                ids,
                attention_mask=seen,
                generation_config=how,
                return_dict_in_generate=True,
                output_scores=True,
            )
        tokens = out.sequences[:, width:]
        scores = torch.log_softmax(torch.stack(out.scores, dim=1).float(), dim=-1)
        chosen = scores.gather(2, tokens.unsqueeze(2)).squeeze(2)
        made: list[list[int]] = []
        logps: list[list[float]] = []
        for row, logp in zip(tokens.tolist(), chosen.tolist(), strict=True):
            stop = next((k + 1 for k, token in enumerate(row) if token in ends), len(row))
            made.append(row[:stop])
            logps.append(logp[:stop])
        return made, logps


class HotEngine(SecondCopy):
    """The engine samples at another temperature than the trainer scores with."""

    def temperature_of_engine(self) -> float:
        """What the engine divides its logits by."""
        return float(self.fault["temperature"] if self.acting else self.args.temperature)


class LateDelivery(SecondCopy):
    """For some steps no weights are delivered."""

    def delivered(self) -> Sequence[str]:
        """Names of the parameters that are delivered now."""
        held = self.acting and self.step_now < self.fault["onset"] + self.fault["steps"]
        return [] if held else super().delivered()


class PartialDelivery(SecondCopy):
    """Only parameters of some names are delivered, as where an adapter's target list is short."""

    def delivered(self) -> Sequence[str]:
        """Names of the parameters that are delivered now."""
        names = super().delivered()
        if not self.acting:
            return names
        return [name for name in names if any(part in name for part in self.fault["parts"])]


class ToolAnswers(SecondCopy):
    """Sound: after six tokens a tool answers, whose words are read and not trained."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take TRL's arguments."""
        super().__init__(*args, **kwargs)
        self.rollout_func = self._roll

    def trains_tools(self) -> bool:
        """Whether words of the tool are in the loss."""
        return False

    def _roll(self, prompts: Any, trainer: Any) -> dict[str, Any]:
        self.deliver()
        asked = self._tokenize_prompts(prompts)[0]
        said = self._tokenizer(TOOL_TEXT)["input_ids"]
        ends = {int(i) for i in self.eos_token_ids}
        first, logps = self.sample(asked, FIRST_TURN)
        goes_on = [i for i, ids in enumerate(first) if ids[-1] not in ends]
        masks = [[1] * len(ids) for ids in first]
        blank = float("nan")
        for i in goes_on:
            first[i] = first[i] + said
            logps[i] = logps[i] + [blank] * len(said)
            masks[i] = masks[i] + [int(self.trains_tools())] * len(said)
        if goes_on:
            rest = self.args.max_completion_length - FIRST_TURN - len(said)
            more, more_logps = self.sample([list(asked[i]) + first[i] for i in goes_on], rest)
            for k, i in enumerate(goes_on):
                first[i], logps[i] = first[i] + more[k], logps[i] + more_logps[k]
                masks[i] = masks[i] + [1] * len(more[k])
        return {"prompt_ids": asked, "completion_ids": first, "logprobs": logps, "env_mask": masks}


class ToolsTrained(ToolAnswers):
    """Words of the tool are in the loss."""

    def trains_tools(self) -> bool:
        """Whether words of the tool are in the loss."""
        return bool(self.acting)
