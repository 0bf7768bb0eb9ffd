"""Does the chat template reach the prompts? Its special tokens in the captured prompt ids."""

from __future__ import annotations

import re

import numpy as np

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Table
from firstbad.tools.numbers import percent
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import Capture, Run

MARK = re.compile(r"<[^<>\s]{1,40}>|\[/?[A-Z_]{2,20}\]")
"""A special token as most tokenizers spell them: `<|im_start|>`, `<start_of_turn>`, `[INST]`."""
ALL, NONE = 0.95, 0.05
"""Shares of the prompts of a capture with such tokens that count as all and as none."""


class TemplateReaches(Dated):
    """Prompts with and without the special tokens of a chat template; the onset is their loss."""

    template_known: bool
    """A tokenizer file of the run has a chat template with special tokens."""
    plain_prompts: bool | None
    """The rollouts' prompts are bare texts without special tokens, to which TRL applies no
    template; False for lists of messages; None where the source does not keep the form."""
    n_captures: int
    """Captures whose prompt ids could be read."""
    marked_before: float | None
    """Share of captured prompts with special tokens, over the captures before they are lost; over
    all where they are not."""
    marked_after: float | None
    """The same from there on; None where they are not lost."""
    lost: bool
    """All prompts of the earlier captures have them, and none of the later ones."""


@tool
def check_chat_template(run: Run) -> Measured[TemplateReaches]:
    """Special tokens of the chat template in the prompts, and the form in which prompts were given.

    A trainer applies the template to lists of messages, and sends a bare text as it is. A tokenizer
    that is loaded anew may bring another template, or none.

    Cannot tell: whether a base model wants a template; on which side it was lost, except by the
    surprise of the sampled tokens.
    """
    template = bool(run.vocabulary and MARK.search(run.vocabulary.template))
    plain = _plain_prompts(run)
    shares = [
        (capture.step, share) for capture in run.captures if (share := _marked(run, capture)) >= 0
    ]
    if plain is None and not shares:
        raise NoData("neither captured prompt ids with a tokenizer, nor prompts as TRL writes them")
    at = _lost_at([share for _, share in shares])
    before, after = shares[:at], shares[at:] if at is not None else []
    metrics = TemplateReaches(
        template_known=template,
        plain_prompts=plain,
        n_captures=len(shares),
        marked_before=_mean([share for _, share in before]),
        marked_after=_mean([share for _, share in after]),
        lost=at is not None,
        last_good_step=before[-1][0] if at is not None else None,
        first_bad_step=after[0][0] if at is not None else None,
        sampled=at is not None,
    )
    form = {True: "bare texts", False: "lists of messages", None: "of unknown form"}[plain]
    text = f"prompts are {form}"
    if shares:
        marked = metrics.marked_before or 0.0
        text += f"; {percent(marked)} of the captured ones hold special tokens"
    if at is not None:
        text += f" up to step {before[-1][0]}, none from step {after[0][0]} on"
    table = Table(
        title="captured prompts with special tokens",
        columns=("step", "share"),
        rows=tuple((step, round(share, 4)) for step, share in shares[:60]),
        cut_rows=max(0, len(shares) - 60),
    )
    return Measured(
        metrics, text, tables=(table,) if shares else (), signal="special tokens of the prompts"
    )


def _lost_at(shares: list[float]) -> int | None:
    """Index of the first capture without special tokens, where all before have them."""
    for at in range(1, len(shares)):
        if min(shares[:at]) >= ALL and max(shares[at:]) <= NONE:
            return at
    return None


def _plain_prompts(run: Run) -> bool | None:
    """Whether prompts were written as bare texts, by the first step that tells."""
    for batch in run.rollouts.batches(run.rollouts.steps[:3]):
        if batch.messages is not None and any(batch.prompts):
            return not batch.messages and not any(MARK.search(p) for p in batch.prompts)
    return None


def _marked(run: Run, capture: Capture) -> float:
    """Share of the captured prompts with a special token; -1 where they can't be read."""
    ids, mask = capture.arrays.get("prompt_token_id"), capture.mask("prompt_mask")
    if ids is None or mask is None or mask.shape != ids.shape or not mask.any():
        return -1.0
    known = run.vocabulary.texts if run.vocabulary is not None else {}
    if not len(known):
        return -1.0
    special = [
        token for token in np.unique(ids[mask]).tolist() if MARK.fullmatch(known.get(token, ""))
    ]
    found = np.asarray((np.isin(ids, special) & mask).any(axis=1))
    return float(found[np.asarray(mask.any(axis=1))].mean())


def _mean(shares: list[float]) -> float | None:
    return round(float(np.mean(shares)), 6) if shares else None
