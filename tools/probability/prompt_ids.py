"""The prompt that the trainer scores under, against the one that the rollouts show."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from os.path import commonprefix
from typing import Literal

import numpy as np

from firstbad.tools.completeness import rows_complete
from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Table
from firstbad.tools.numbers import percent
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import BoolArray, Capture, FloatArray, Run
from firstbad.tools.tokens import completion_end

SHORTEST = 4
"""Fewest characters in which a prompt that was cut is recognised."""
FEW = 0.02
"""Share of the rows of a capture up to which nothing is dated."""
FRAMED = 20
"""Fewest whole prompts that show how the chat template begins."""
_MARK = re.compile(r"<[^<>\s]{1,40}>")
"""A special token, as most tokenizers spell them; logged texts often lack them."""

Held = Literal["whole", "cut", "other"]


class CapturedPrompts(Dated):
    """Captured prompts that hold a prompt of the rollouts, or only a part of one."""

    n_captures: int
    n_rows: int
    """Captured rows whose prompt was read."""
    share_rows_whole: float
    share_rows_cut: float
    """In the captures with such rows: the captured prompt lacks the beginning or the end of one of
    the rollouts, and holds the rest."""
    tokens_kept: int | None
    """The most tokens that a prompt which was cut has left."""
    tokens_whole_fewest: int | None
    """Fewest and most tokens of a captured prompt that is whole."""
    tokens_whole_most: int | None
    begin_lost_share: float | None
    """Of the rows that were cut: the beginning is what is missing, not the end."""
    cut_by_setting: bool
    """That is the longest prompt the settings allow (`max_prompt_length`)."""
    n_tokens_scored: int
    """Completion tokens of those rows with log-prob and entropy."""
    surprise_cut: float | None
    """Mean of -logp - entropy over them, in nats: 0 where they were sampled under this prompt."""
    surprise_whole: float | None
    """The same over the rows whose prompt is whole."""
    surprise_gap: float | None
    """abs(surprise_cut - surprise_whole), or abs(surprise_cut) where no prompt is whole."""
    surprise_gap_z: float | None


@dataclass
class _Read:
    step: int
    held: list[Held]
    tokens: FloatArray
    """(R,) tokens of each captured prompt."""
    surprise: dict[Held, FloatArray]
    """Per completion token of the rows of each kind."""
    begin_lost: int
    """Rows that were cut and lack the beginning."""

    def share(self, kind: Held) -> float:
        return self.held.count(kind) / len(self.held)


@dataclass
class _Frame:
    """What all whole prompts have around the prompt of the rollouts."""

    n: int = 0
    head: str = ""
    tail: str = ""
    fewest: float = np.inf
    """Tokens of the shortest whole prompt."""

    @property
    def known(self) -> bool:
        return self.n >= FRAMED and bool(self.head and self.tail)

    def learn(self, text: str, tokens: float, prompts: Iterable[str]) -> None:
        prompt = max((p for p in prompts if p in text), key=len)
        head, _, tail = text.partition(prompt)
        self.head = commonprefix([self.head, head]) if self.n else head
        self.tail = commonprefix([self.tail[::-1], tail[::-1]])[::-1] if self.n else tail
        self.n += 1
        self.fewest = min(self.fewest, tokens)

    def held(self, text: str, tokens: float) -> Held:
        if text.startswith(self.head):
            return "whole"
        return "cut" if tokens < self.fewest and text.endswith(self.tail) else "other"


@tool
def compare_prompt_ids(run: Run) -> Measured[CapturedPrompts]:
    """Captured prompt ids, as text, against the prompts of the rollouts.

    White space and special tokens are left out of both. A captured prompt that holds one of the
    prompts of its step is whole, whatever a chat template puts around it; one that begins with the
    rest of a prompt, or ends with the first part of one, was cut. Where the rollouts of a step are
    missing, a prompt was cut that is shorter than every whole one before and lacks the beginning
    of a chat template that those have in common, though not its end.

    Cannot tell: whether the sampler saw the whole prompt, except by the surprise of its tokens; a
    prompt of which nothing is left, or that differs in its middle; a template that lost a part.
    """
    if run.vocabulary is None or not len(run.vocabulary.texts):
        raise NoData("no tokenizer to read captured prompt ids with")
    if not run.rollouts or rows_complete(run) is False:
        raise NoData("no rollouts of all rows, which captured prompts could be compared with")
    read: list[_Read] = []
    frame = _Frame()
    for capture in run.captures:
        texts = _captured_texts(run, capture)
        if texts is None or not run.fresh_at(capture.step):
            continue
        rows = list(zip(texts[0], texts[1].tolist(), strict=True))
        if capture.step in run.rollouts.steps:
            prompts = {plain_text(p) for p in set(run.rollouts.batch(capture.step).prompts)} - {""}
            kinds = {text: _held(text, prompts) for text in set(texts[0])}
            held = [kinds[text] for text, _ in rows]
            late = {text for text in kinds if any(_begins_inside(text, p) for p in prompts)}
            begin_lost = sum(kinds[text] == "cut" and text in late for text, _ in rows)
            for (text, tokens), kind in zip(rows, held, strict=True):
                if kind == "whole":
                    frame.learn(text, tokens, prompts)
        elif frame.known:
            held = [frame.held(text, tokens) for text, tokens in rows]
            begin_lost = held.count("cut")
        else:
            continue
        surprises = _surprises(run, capture, held)
        read.append(_Read(capture.step, held, texts[1], surprises, begin_lost))
    if not read:
        raise NoData("no captures that hold prompt ids of a step whose rollouts are there")
    return _measured(run, read)


def _measured(run: Run, read: list[_Read]) -> Measured[CapturedPrompts]:
    bad = [r for r in read if r.share("cut") > FEW]
    good = [r.step for r in read if "whole" in r.held and (not bad or r.step < bad[0].step)]
    rows = sum(len(r.held) for r in read)
    kept = max((int(r.tokens[_of(r.held, "cut")].max()) for r in bad), default=None)
    limit = run.config.number("max_prompt_length")
    cut, whole = (_pooled(r.surprise.get(kind) for r in read) for kind in ("cut", "whole"))
    whole_tokens = np.concatenate([np.empty(0), *(r.tokens[_of(r.held, "whole")] for r in read)])
    n_cut = sum(r.held.count("cut") for r in bad)
    begin_lost = sum(r.begin_lost for r in bad) / n_cut if n_cut else None
    gap, z = _gap(cut, whole)
    share = sum(r.held.count("cut") for r in bad) / max(1, sum(len(r.held) for r in bad))
    metrics = CapturedPrompts(
        n_captures=len(read),
        n_rows=rows,
        share_rows_whole=round(sum(r.held.count("whole") for r in read) / rows, 6),
        share_rows_cut=round(share, 6),
        tokens_kept=kept,
        tokens_whole_fewest=int(whole_tokens.min()) if len(whole_tokens) else None,
        tokens_whole_most=int(whole_tokens.max()) if len(whole_tokens) else None,
        begin_lost_share=None if begin_lost is None else round(begin_lost, 6),
        cut_by_setting=kept is not None and kept == limit,
        n_tokens_scored=len(cut),
        surprise_cut=round(float(cut.mean()), 6) if len(cut) else None,
        surprise_whole=round(float(whole.mean()), 6) if len(whole) else None,
        surprise_gap=gap,
        surprise_gap_z=z,
        last_good_step=good[-1] if good else None,
        first_bad_step=bad[0].step if bad else None,
        from_start=bool(bad) and not good,
        sampled=True,
    )
    text = f"{rows} captured prompts: {percent(metrics.share_rows_whole)} hold one of the rollouts"
    if bad:
        text += f"; from step {bad[0].step} on {percent(share)} hold a part of one, {kept} tokens"
    table = Table(
        title="captured prompts against those of the rollouts",
        columns=("step", "rows", "whole", "cut", "fewest tokens", "most tokens"),
        rows=tuple(
            (
                r.step,
                len(r.held),
                r.held.count("whole"),
                r.held.count("cut"),
                int(r.tokens.min()),
                int(r.tokens.max()),
            )
            for r in read[:60]
        ),
        cut_rows=max(0, len(read) - 60),
    )
    return Measured(
        metrics,
        text,
        tables=(table,),
        window=(read[0].step, read[-1].step),
        signal="captured prompts against those of the rollouts",
        quote=_which_end(begin_lost),
    )


def _which_end(begin_lost: float | None) -> str:
    """What is missing, as a sentence; empty where both ends are."""
    if begin_lost is None or 0.1 < begin_lost < 0.9:
        return ""
    return f"The {'beginning' if begin_lost > 0.5 else 'end'} of the prompt was lost."


def captured_prompts(run: Run, capture: Capture) -> list[str] | None:
    """Plain text of each captured prompt, R rows; None where it holds none."""
    texts = _captured_texts(run, capture)
    return None if texts is None else texts[0]


def _captured_texts(run: Run, capture: Capture) -> tuple[list[str], FloatArray] | None:
    """Plain text and (R,) number of tokens of each captured prompt; None where it holds none."""
    ids, mask = capture.arrays.get("prompt_token_id"), capture.mask("prompt_mask")
    if ids is None or mask is None or mask.shape != ids.shape or not mask.any():
        return None
    assert run.vocabulary is not None
    known = run.vocabulary.texts
    rows = [
        plain_text("".join(known.get(token, "\ufffd") for token in np.asarray(row)[real].tolist()))
        for row, real in zip(ids, mask, strict=True)
    ]
    return rows, mask.sum(axis=1).astype(np.float64)


def plain_text(text: str) -> str:
    """Without special tokens and white space, which logged text and ids rarely share."""
    return "".join(_MARK.sub("", text).split())


def _held(text: str, prompts: Iterable[str]) -> Held:
    """Whether a captured prompt holds one of the prompts, a part of one, or neither."""
    if any(prompt in text for prompt in prompts):
        return "whole"
    if len(text) < SHORTEST:
        return "other"
    cut = any(_begins_inside(text, p) or _ends_inside(text, p) for p in prompts)
    return "cut" if cut else "other"


def _begins_inside(text: str, prompt: str) -> bool:
    """Whether a text begins with the last part of a prompt."""
    head = text[:SHORTEST]
    at = prompt.find(head)
    while at >= 0:
        if text.startswith(prompt[at:]):
            return True
        at = prompt.find(head, at + 1)
    return False


def _ends_inside(text: str, prompt: str) -> bool:
    """Whether a text ends with the first part of a prompt."""
    return _begins_inside(text[::-1], prompt[::-1])


def _of(held: list[Held], kind: Held) -> BoolArray:
    found: BoolArray = np.array([h == kind for h in held], bool)
    return found


def _surprises(run: Run, capture: Capture, held: list[Held]) -> dict[Held, FloatArray]:
    """-logp - entropy of the completion tokens, by what the row's prompt holds."""
    logp, entropy = capture.numbers("logp_new"), capture.numbers("entropy")
    if logp is None or entropy is None or "token_id" not in capture.arrays:
        return {}
    if not logp.shape == entropy.shape == capture.arrays["token_id"].shape:
        return {}
    use = completion_end(run, capture).real & np.isfinite(logp) & np.isfinite(entropy)
    surprise = -logp - entropy
    kinds: tuple[Held, ...] = ("whole", "cut")
    return {kind: surprise[use & _of(held, kind)[:, None]] for kind in kinds}


def _pooled(parts: Iterable[FloatArray | None]) -> FloatArray:
    return np.concatenate([np.empty(0), *(p for p in parts if p is not None)])


def _gap(cut: FloatArray, whole: FloatArray) -> tuple[float | None, float | None]:
    """Distance of the means and its z; where nothing is whole, against the 0 expected."""
    if len(cut) < 2:
        return None, None
    gap = abs(float(cut.mean()) - (float(whole.mean()) if len(whole) else 0.0))
    error = np.sqrt(sum(float(np.var(v)) / len(v) for v in (cut, whole) if len(v)))
    return round(gap, 6), round(gap / float(error), 4) if error > 0 else 0.0
