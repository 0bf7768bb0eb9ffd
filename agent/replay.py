"""Replay of a captured step through a model: are these the weights, and is the loss finite?

Needs torch and transformers, which are imported here alone. Weights are read from safetensors of a
local folder; no code of the folder is run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from firstbad.agent.console import table, width, wrap
from firstbad.agent.runs import open_ref
from firstbad.tools.errors import UserError
from firstbad.tools.numbers import number
from firstbad.tools.run import COMPLETION, Capture

if TYPE_CHECKING:
    from collections.abc import Mapping

NEEDS = "pip install 'firstbad[torch]'"
COMPARED = {
    "logp_new": "the pass that was differentiated",
    "logp_old": "old log-probs",
    "logp_engine": "the engine",
    "logp_ref": "the reference",
}
FITS, FITS_16 = 1e-3, 0.02
"""nats; mean difference up to which the weights are those of the step: in 32 bits (or five times
what another layout changes), and where the run computed in 16."""
OWN = {"logp_new", "logp_old"}
"""Log-probs of the trainer itself."""
_NUMBER = re.compile(r"(?:^|[^\d])(\d{1,15})$")
_STEP = re.compile(r"(.*)/(?:steps|ring)/(\d{1,15})/?")


@dataclass(frozen=True)
class Rows:
    """Token rows of a capture without padding, and what was recorded of their completions."""

    ids: list[list[int]]
    n_prompt: list[int]
    recorded: Mapping[str, list[list[float]]]
    """By array: a log-prob for each completion token, NaN where it has none."""


def replay(ref: str, model: str, *, step: int | None, rows: int) -> dict[str, Any]:
    """Compare a captured step with a model's own passes.

    Args:
        ref: A run, or the folder of one captured step.
        model: Folder of a model with `model.safetensors`.
        step: The captured step; the first one unless given.
        rows: Rows that are passed.

    Returns:
        Plain data: `step`, `weights_of_step` (the last update that its weights have seen),
        `captured_steps`, `n_rows`, `passes` (by name the figures of `consistency`), `fits` (the
        recorded arrays that these weights explain), `fit`, `trail`.

    Raises:
        UserError: no such capture, no such model, or torch is not installed.
    """
    folder, inside = _parts(ref)
    run = open_ref(folder)
    step = inside if step is None else step
    captured = [int(s) for s in run.captures.steps]
    if not captured:
        raise UserError(f"`{ref}` holds no captured tokens")
    step = captured[0] if step is None else step
    if step not in captured:
        near = ", ".join(map(str, captured[:10])) + (", ..." if len(captured) > 10 else "")
        raise UserError(f"no capture of step {step}; there are: {near}")
    found = rows_of(run.captures.at(step), rows)
    temperature = run.config.number("temperature") or 1.0
    half = any(run.config.flag(name) for name in ("bf16", "fp16")) or "16" in (
        run.config.text("model_dtype") or ""
    )
    told = _passes(found, model, temperature, FITS_16 if half else FITS)
    return {
        "schema": 1,
        "run": run.ref,
        "step": step,
        "weights_of_step": step - 1,
        "captured_steps": captured,
        **told,
    }


def _parts(ref: str) -> tuple[str, int | None]:
    """The run, and the step where the folder of one is named."""
    match = _STEP.fullmatch(ref)
    return (match[1], int(match[2])) if match else (ref, None)


def rows_of(capture: Capture, most: int) -> Rows:
    """The first rows whose prompt and completion were captured.

    Raises:
        UserError: token ids are missing.
    """
    ids, prompts = capture.arrays.get("token_id"), capture.arrays.get("prompt_token_id")
    if ids is None or prompts is None:
        raise UserError("the capture has no token ids of prompts and completions")
    asked = capture.mask("prompt_mask")
    source = capture.numbers("source")
    made = capture.mask("completion_mask") if source is None else source >= COMPLETION
    assert asked is not None
    assert made is not None
    arrays = {n: a for n in COMPARED if (a := capture.numbers(n)) is not None}
    taken: list[list[int]] = []
    n_prompt: list[int] = []
    recorded: dict[str, list[list[float]]] = {name: [] for name in arrays}
    for i in range(len(ids)):
        if len(taken) == most:
            break
        prompt, said = prompts[i][asked[i]].tolist(), ids[i][made[i]].tolist()
        if prompt and said:
            taken.append([int(t) for t in (*prompt, *said)])
            n_prompt.append(len(prompt))
            for name, values in arrays.items():
                recorded[name].append([float(v) for v in values[i][made[i]]])
    if not taken:
        raise UserError("no captured row has both a prompt and a completion")
    return Rows(taken, n_prompt, recorded)


def _passes(rows: Rows, path: str, temperature: float, fits: float) -> dict[str, Any]:
    try:
        from firstbad_recorder.probes.consistency import consistency, difference
        from firstbad_recorder.probes.fit import fit
        from firstbad_recorder.probes.trail import replay as watched

        model = _model(path)
    except ImportError as missing:
        raise UserError(f"`{missing.name}` is not installed: {NEEDS}") from missing
    found = consistency(model, rows.ids, rows.n_prompt, temperature=temperature)
    own = found["logp"]
    passes = {name: _short(found[name]) for name in ("recheck", "layout")}
    for name, values in rows.recorded.items():
        kept = [
            [(a, b) for a, b in zip(mine, theirs, strict=True) if math.isfinite(b)]
            for mine, theirs in zip(own, values, strict=True)
        ]
        if any(kept):
            passes[name] = _short(
                difference([[a for a, _ in r] for r in kept], [[b for _, b in r] for r in kept])
            )
    fits = max(fits, 5 * passes["layout"].get("mean", 0.0))  # without one, none is finite
    loss = _likelihood(model, rows, temperature)
    plain = watched(model, loss)
    return {
        "model": path,
        "n_rows": len(rows.ids),
        "temperature": temperature,
        "passes": passes,
        "fits": [n for n in COMPARED if n in passes and passes[n].get("mean", math.inf) <= fits],
        "fit": _sound(fit(model, loss)),
        "finite": plain["finite"],
        "first_nonfinite": _sound(plain.get("first")),
    }


def _short(figures: dict[str, Any]) -> dict[str, float | int]:
    return {k: figures[k] for k in ("n", "mean", "mean_signed", "p99", "max") if k in figures}


def _sound(value: Any) -> Any:
    """Plain data with None for what is not finite, as JSON has no word for it."""
    if isinstance(value, dict):
        return {key: _sound(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_sound(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _model(path: str) -> Any:
    folder = Path(path).expanduser()
    if not (folder / "config.json").is_file():
        raise UserError(f"`{path}` is no folder of a model: expected config.json in it")
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # it would stand before the result
    try:
        return AutoModelForCausalLM.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False, use_safetensors=True
        ).eval()
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0][:200]
        raise UserError(f"`{path}` can't be loaded as a language model: {first}") from error


def _likelihood(model: Any, rows: Rows, temperature: float) -> Any:
    """Mean negative log-likelihood of the completions, as a function without arguments."""
    import torch

    def loss() -> Any:
        total, n = 0.0, 0
        for ids, start in zip(rows.ids, rows.n_prompt, strict=True):
            given = torch.tensor([ids])
            logits = model(input_ids=given).logits[0, start - 1 : -1].float() / temperature
            chosen = torch.log_softmax(logits, -1).gather(1, given[0, start:, None])
            total, n = total - chosen.sum(), n + len(chosen)
        return total / n

    return loss


def report(found: dict[str, Any]) -> Iterator[str]:
    """The result for a person, line by line."""
    for text in _told(found):
        yield from wrap(text, width()) if isinstance(text, str) else table(text)


def _told(found: dict[str, Any]) -> Iterator[str | list[tuple[str, str]]]:
    """Paragraphs, and the table of the passes."""
    yield (
        f"step {found['step']}, {found['n_rows']} rows, temperature "
        f"{number(found['temperature'])}, weights of {found['model']}"
    )
    yield ""
    said = {
        "recheck": "the same pass again",
        "layout": "one row a pass, without padding",
        **{name: f"recorded: {text}" for name, text in COMPARED.items()},
    }
    yield [(said[name], _figures(of)) for name, of in found["passes"].items()]
    yield ""
    names = [COMPARED[name] for name in found["fits"]]
    recorded = [name for name in found["passes"] if name in COMPARED]
    if names:
        yield f"These weights give what was recorded of {_listed(names)}."
    if off := [name for name in recorded if name not in found["fits"]]:
        yield (
            f"They do not give what was recorded of {_listed([COMPARED[name] for name in off])}: "
            "other weights, another temperature or tokenizer, or another way to compute it."
        )
        if nothing_fits(found):
            yield from _which_weights(found)
    fit = found["fit"]
    yield (
        f"Fit: likelihood {number(fit['nll_first'])} -> {number(fit['nll_last'])} nats per token "
        f"in {fit['n_updates']} updates."
    )
    if found["finite"]:
        yield "Forward and backward pass of these rows are finite."
    elif found["first_nonfinite"]:
        first = found["first_nonfinite"]
        yield (
            f"Not finite: first `{first['operation']}` in the {first['phase']} pass "
            f"({first['module'] or first['where']})."
        )


def _figures(of: dict[str, Any]) -> str:
    if "mean" not in of:
        return "not finite on any token"
    mean, p99, most = (number(of[name]) for name in ("mean", "p99", "max"))
    return f"mean {mean}, P99 {p99}, largest {most} nats on {of['n']} tokens"


def _which_weights(found: dict[str, Any]) -> Iterator[str]:
    """Which checkpoint belongs to the step: the one before its update."""
    step, before = found["step"], found["weights_of_step"]
    yield f"A capture of step {step} has the weights of step {before}, before its own update."
    match = _NUMBER.search(str(found["model"]).rstrip("/"))
    if match is None or (saved := int(match[1])) == before:
        return
    name = Path(found["model"]).name
    said = f"`{name}` has the weights after the update of step {saved}: give checkpoint {before}"
    if saved + 1 in found["captured_steps"]:
        yield f"{said}, or this one with --step {saved + 1}."
    else:
        yield f"{said}; it belongs to step {saved + 1}, which was not captured."


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]


def nothing_fits(found: dict[str, Any]) -> bool:
    """Whether recorded log-probs of the trainer are there, and these weights give none of them."""
    own = OWN & found["passes"].keys()
    return bool(own) and not own & set(found["fits"])
