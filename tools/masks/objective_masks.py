"""Loss masks of further objectives (an SFT or auxiliary loss), each for itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Table
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import PROMPT, SYSTEM, TOOL, BoolArray, Capture, Run
from firstbad.tools.tokens import completion_end, sources

PREFIX = "loss_mask."
KINDS = ("prompt", "tool", "padding", "completion")


class ObjectiveMasks(Dated):
    """Tokens in the loss of objectives beside the policy's, over all captures."""

    n_captures: int
    """Captures with a loss mask."""
    n_objectives: int
    padding_trained: int
    """Padding, or what stands behind the stop, in the loss of any of them."""
    prompt_in_part: int
    """Prompt tokens in the loss of an objective that leaves other prompt tokens of its rows out. An
    objective that trains whole texts has all of them."""
    tool_in_part: int
    """The same of what tools returned."""
    prompt_whole: int
    """Objectives that train all prompt tokens of their rows."""
    tool_whole: int
    """Objectives that train all tool tokens of their rows."""


@dataclass
class _Count:
    step: int
    objective: str
    rows: int
    trained: dict[str, int]
    there: dict[str, int]

    def in_part(self, kind: str) -> int:
        trained = self.trained[kind]
        return trained if trained < self.there[kind] else 0

    @property
    def wrong(self) -> bool:
        return bool(self.trained["padding"] or self.in_part("prompt") or self.in_part("tool"))


@tool
def check_objective_masks(run: Run) -> Measured[ObjectiveMasks]:
    """Tokens in the loss of each further objective, by where they come from.

    Padding belongs in no loss. Prompt and tool tokens are in all of an objective's rows or in none:
    a part of them is a mask made for other rows, or moved.

    Cannot tell: whether an objective is meant to train whole texts.
    """
    counts: list[_Count] = []
    captures: list[int] = []
    for capture in run.captures:
        if {"token_id", "loss_mask"} <= capture.arrays.keys():
            captures.append(capture.step)
            counts += _counts(run, capture)
    if not captures:
        raise NoData("no captures that hold token ids and a loss mask")
    names = sorted({c.objective for c in counts})
    bad = sorted({c.step for c in counts if c.wrong})
    good = [c.step for c in counts if not bad or c.step < bad[0]]

    def whole(kind: str) -> int:
        return sum(
            any(c.trained[kind] for c in own) and not any(c.in_part(kind) for c in own)
            for own in ([c for c in counts if c.objective == name] for name in names)
        )

    metrics = ObjectiveMasks(
        n_captures=len(captures),
        n_objectives=len(names),
        padding_trained=sum(c.trained["padding"] for c in counts),
        prompt_in_part=sum(c.in_part("prompt") for c in counts),
        tool_in_part=sum(c.in_part("tool") for c in counts),
        prompt_whole=whole("prompt"),
        tool_whole=whole("tool"),
        last_good_step=good[-1] if good and bad else None,
        first_bad_step=bad[0] if bad else None,
        from_start=bool(bad) and not good,
        sampled=True,
    )
    table = Table(
        title="tokens in the loss of each further objective",
        columns=("step", "objective", "rows", *(f"{kind} trained" for kind in KINDS)),
        rows=tuple(
            (c.step, c.objective, c.rows, *(f"{c.trained[k]} of {c.there[k]}" for k in KINDS))
            for c in counts[:60]
        ),
        cut_rows=max(0, len(counts) - 60),
    )
    text = f"{len(captures)} captures hold no loss mask of a further objective"
    if names:
        text = (
            f"{len(names)} further objectives ({', '.join(names[:5])}): {metrics.padding_trained} "
            f"tokens of padding, {metrics.prompt_in_part} of prompts and {metrics.tool_in_part} of "
            "tools in the loss where others of their kind are not"
        )
    return Measured(
        metrics,
        text,
        tables=(table,) if names else (),
        window=(captures[0], captures[-1]),
        signal="loss masks of further objectives",
    )


def _counts(run: Run, capture: Capture) -> list[_Count]:
    ids = capture.arrays.get("token_id")
    names = sorted(n for n in capture.arrays if n.startswith(PREFIX))
    if ids is None or not names:
        return []
    real = completion_end(run, capture).real
    source = sources(capture)
    tool_ = np.zeros_like(real) if source is None else np.asarray(source == TOOL)
    found = []
    for name in names:
        loss = capture.mask(name)
        if loss is None or loss.shape != real.shape:
            continue
        prompt, given = _prompt(capture, name, len(loss))
        rows = loss.any(axis=1) | prompt.any(axis=1)
        kinds = {"tool": tool_, "padding": ~real & ~tool_, "completion": real}
        trained = {k: int((loss & of)[rows].sum()) for k, of in kinds.items()}
        there = {k: int(of[rows].sum()) for k, of in kinds.items()}
        beyond = int((prompt & ~given)[rows].sum())
        trained |= {"prompt": int((prompt & given)[rows].sum())}
        trained["padding"] += beyond
        there |= {"prompt": int(given[rows].sum())}
        objective = name.removeprefix(PREFIX)
        found.append(_Count(capture.step, objective, int(rows.sum()), trained, there))
    return found


def _prompt(capture: Capture, name: str, n_rows: int) -> tuple[BoolArray, BoolArray]:
    """(R, P) its mask over the prompt, and which places hold prompt tokens; P may be 0."""
    mask, kinds = capture.mask(f"prompt_{name}"), capture.arrays.get("prompt_source")
    if mask is None or kinds is None or kinds.shape != mask.shape:
        return np.zeros((n_rows, 0), bool), np.zeros((n_rows, 0), bool)
    return mask, np.isin(kinds, (SYSTEM, PROMPT))
