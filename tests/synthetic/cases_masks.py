"""Who is trained: masks that are wrong, and sound ones that look alike."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from synthetic import policy
from synthetic.cases import Case
from synthetic.cases_numerics import Trailed
from synthetic.policy import STOP, Array, Bools
from synthetic.trainer import Batch, Trainer


class Masked(Trainer):
    """`wrong` is the mask from the onset on; before, it is the sound one."""

    def wrong(self, batch: Batch) -> Bools:
        """(R, L)."""
        raise NotImplementedError

    def loss_mask(self, batch: Batch) -> Bools:
        """See the class."""
        return self.wrong(batch) if self.after else super().loss_mask(batch)


class PromptTrained(Masked):
    """The last two prompt tokens are in the loss."""

    def wrong(self, batch: Batch) -> Bools:
        """See the class."""
        made = batch.rows.made
        border = np.zeros_like(made)
        first = made.argmax(axis=1)
        for back in (1, 2):
            border[np.arange(len(made)), first - back] = True
        return made | border


class PaddingTrained(Masked):
    """All that stands behind the prompt is in the loss."""

    def wrong(self, batch: Batch) -> Bools:
        """See the class."""
        return np.maximum.accumulate(batch.rows.made, axis=1)


class ToolTrained(Masked):
    """What the tool returned is in the loss."""

    def wrong(self, batch: Batch) -> Bools:
        """See the class."""
        return np.asarray(batch.rows.source >= 3)


class Late(Masked):
    """The mask is moved to the right."""

    by = 1

    def wrong(self, batch: Batch) -> Bools:
        """See the class."""
        out = np.zeros_like(batch.rows.made)
        out[:, self.by :] = batch.rows.made[:, : -self.by]
        return out


class LateByTwo(Late):
    """... by two places."""

    by = 2


class Early(Masked):
    """The mask is moved to the left, into the prompt."""

    def wrong(self, batch: Batch) -> Bools:
        """See the class."""
        out = np.zeros_like(batch.rows.made)
        out[:, :-1] = batch.rows.made[:, 1:]
        return out


class Dropped(Masked):
    """Every third sampled token is outside the loss, stop tokens are not."""

    def wrong(self, batch: Batch) -> Bools:
        """See the class."""
        made = batch.rows.made
        third = made.cumsum(axis=1) % 3 == 2
        return np.asarray(made & ~(third & (batch.rows.ids != STOP)))


class StopUntrained(Masked):
    """The stop token is outside the loss."""

    def wrong(self, batch: Batch) -> Bools:
        """See the class."""
        return np.asarray(batch.rows.made & (batch.rows.ids != STOP))


class RunsOn(Trainer):
    """From the onset on generation does not honour the stop token; all of it is trained."""

    def stops(self, token: policy.Ints) -> Bools:
        """See the class."""
        return np.zeros(len(token), bool) if self.after else super().stops(token)


class RunsOnUntrained(RunsOn):
    """... and only what stands before the first stop token is trained."""

    def loss_mask(self, batch: Batch) -> Bools:
        """See the class."""
        stop = batch.rows.made & (batch.rows.ids == STOP)
        return np.asarray(batch.rows.made & (stop.cumsum(axis=1) - stop == 0))


class Forged(Trainer):
    """The last token of a cut row is overwritten with the stop token."""

    def generate(self, step: int) -> Batch:
        """See the class."""
        batch = super().generate(step)
        cut = np.array([reason == "length" for reason in batch.finish])
        batch.rows.ids[cut, -1] = STOP
        return batch


class StopLost(Trainer):
    """The engine leaves the stop token out of what it returns; padding takes its place."""

    def generate(self, step: int) -> Batch:
        """See the class."""
        batch = super().generate(step)
        stop = batch.rows.made & (batch.rows.ids == STOP)
        batch.rows.source[stop] = 0
        batch.rows.attention[stop] = 0
        return batch


class StopText(StopLost):
    """The text `thus` ends an answer, and no stop token is sampled or needed."""

    def stops(self, token: policy.Ints) -> Bools:
        """See the class."""
        return np.asarray(token == policy.WORDS[-1])

    def __init__(self, **settings: Any) -> None:
        """The policy is one that ends with that word."""
        super().__init__(**settings)
        self.table[:, :, policy.WORDS[-1]] += 2.0
        self.table[:, :, STOP] = -30.0
        self.reference = self.table.copy()


class CutMasked(Trainer):
    """Cut rows are left out of the loss."""

    def config(self) -> dict[str, object]:
        """See the class."""
        return {**super().config(), "mask_truncated_completions": True}

    def requested(self) -> dict[str, object]:
        """See the class."""
        return self.config()

    def loss_mask(self, batch: Batch) -> Bools:
        """See the class."""
        cut = np.array([reason == "length" for reason in batch.finish])
        return np.asarray(batch.rows.made & ~cut[:, None])


class RowsLost(Trainer):
    """Every fourth row has no token in the loss, and nothing says why."""

    def loss_mask(self, batch: Batch) -> Bools:
        """See the class."""
        lost = np.arange(len(batch.group)) % 4 == 3
        return np.asarray(batch.rows.made & ~(lost & self.after)[:, None])


class NoAdvantageMasked(Trainer):
    """Rows of groups without contrast are left out of the loss: they teach nothing."""

    def loss_mask(self, batch: Batch) -> Bools:
        """See the class."""
        return np.asarray(batch.rows.made & (np.abs(batch.advantage) > 1e-9)[:, None])


class SecondObjective(Trainer):
    """A likelihood loss on right answers beside the policy's, with a mask of its own."""

    whole = True

    def more_tokens(self, batch: Batch) -> dict[str, object]:
        """See the class."""
        right = batch.parts["correct"] > 0
        mask = np.asarray(batch.rows.source > 0) & right[:, None]
        if not self.whole:
            border = batch.rows.made.argmax(axis=1)
            mask &= np.arange(mask.shape[1]) >= border[:, None] - 2
        return {"loss_mask.sft": mask}


class SecondObjectiveMoved(SecondObjective):
    """... that begins two tokens inside the prompt."""

    whole = False


class DirtySample(Trailed):
    """One prompt comes back every nine steps, with a token that no embedding has."""

    def draw_prompts(self) -> list[list[int]]:
        """See the class."""
        asked = super().draw_prompts()
        if self.step % 9 == 5:
            asked[0] = [policy.WORDS[0], policy.WORDS[0], policy.COPY, policy.COPY, policy.COLON]
        return asked

    def broken(self, rows: policy.Rows) -> Bools:
        """(R,) rows for which the forward pass is not finite."""
        copies = np.asarray(rows.ids == policy.COPY)
        return np.asarray(copies.sum(axis=1) > 1)

    def forward(self, table: Array, rows: policy.Rows, *, which: str) -> Array:
        """See the class."""
        out = super().forward(table, rows, which=which)
        out[self.broken(rows)] = np.nan
        return out

    def numerics(self, batch: Batch, found: Mapping[str, Any]) -> dict[str, object]:
        """Logits are not finite either."""
        logits = np.array(found["everywhere"]["logits"])
        logits[self.broken(batch.rows)] = np.nan
        everywhere = {**found["everywhere"], "logits": logits}
        return super().numerics(batch, {**found, "everywhere": everywhere})


class BrokenAnywhere(DirtySample):
    """The same prompt comes back, and other rows break."""

    def broken(self, rows: policy.Rows) -> Bools:
        """See the class."""
        first = np.arange(len(rows.ids)) == 0
        return np.asarray(first & (self.step in (8, 19, 30, 47, 55)))


class SeesPadding(Trainer):
    """From the onset on the attention mask covers the padding before the prompt."""

    def trainer_rows(self, rows: policy.Rows) -> policy.Rows:
        """See the class."""
        if not self.after:
            return rows
        seen = np.maximum(rows.attention, np.arange(rows.ids.shape[1]) < 6)
        return policy.Rows(rows.ids, seen, rows.position, rows.source)


LATE = (27, 36)
"""Captures lie five or six steps apart, and the onset is step 31."""
WITH_TOOLS: dict[str, Any] = {"cap": 16, "tools": True}


def _cut_often(kind: type[Trainer]) -> Trainer:
    """With a cap that cuts a fifth of the answers."""
    return kind(cap=5)


def names_stop(folder: Path) -> None:
    """The tokenizer's settings, which name the stop token."""
    text = json.dumps({"eos_token": "</s>", "pad_token": "<pad>"})
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")


CASES = [
    Case("m1", lambda: Trainer(**WITH_TOOLS), "healthy", twin_of="mask.tool"),
    Case("m2", lambda: ToolTrained(**WITH_TOOLS), "incident", "mask.tool", LATE),
    Case("m3", PromptTrained, "incident", "mask.prompt", LATE),
    Case("m4", PaddingTrained, "incident", "mask.padding", LATE),
    Case("m5", Late, "incident", "mask.shifted", LATE, says="one token late"),
    Case(
        "m6",
        lambda: LateByTwo(seed=4),
        "incident",
        "mask.shifted",
        LATE,
        twin_of="mask.padding",
        says="2 tokens late",
    ),
    Case(
        "m7",
        lambda: Early(**WITH_TOOLS),
        "incident",
        "mask.shifted",
        LATE,
        twin_of="mask.prompt",
        says="one token early",
    ),
    Case("m8", Dropped, "incident", "mask.dropped", LATE),
    Case("m9", RunsOnUntrained, "incident", "mask.eos", LATE, {}, "cfg.completion_cap", names_stop),
    Case("m10", StopUntrained, "incident", "mask.eos", LATE, twin_of="mask.dropped"),
    Case("m11", lambda: _cut_often(Forged), "incident", "mask.eos", (1, 1)),
    Case("m12", lambda: StopText(cap=12), "healthy", twin_of="mask.eos", files=names_stop),
    Case("m13", lambda: CutMasked(cap=4), "incident", "mask.truncation"),
    Case("m14", lambda: CutMasked(cap=14), "healthy", twin_of="mask.truncation"),
    Case("m29", lambda: _cut_often(CutMasked), "healthy", twin_of="mask.truncation"),
    Case("m15", lambda: _cut_often(Trainer), "healthy", twin_of="mask.truncation"),
    Case("m16", RowsLost, "incident", "mask.dropped", LATE),
    Case("m17", NoAdvantageMasked, "healthy", twin_of="mask.dropped"),
    Case("m18", SecondObjectiveMoved, "incident", "mask.prompt", (1, 1)),
    Case("m19", SecondObjective, "healthy", twin_of="mask.prompt"),
    Case("m20", DirtySample, "incident", "data.dirty_samples", (5, 5)),
    Case(
        "m21",
        BrokenAnywhere,
        "incident",
        "num.overflow_activations",
        (8, 8),
        twin_of="data.dirty_samples",
    ),
    Case("m22", SeesPadding, "incident", "prob.positions", LATE),
    Case("m23", RunsOn, "incident", "mask.eos", LATE, {}, "cfg.completion_cap", names_stop),
    Case(
        "m25",
        lambda: RunsOnUntrained(onset=1),
        "incident",
        "mask.eos",
        (1, 1),
        {},
        "cfg.completion_cap",
        names_stop,
    ),
    Case(
        "m26",
        lambda: Trainer(cap=2),
        "incident",
        "cfg.completion_cap",
        (1, 1),
        {},
        "mask.eos",
        names_stop,
    ),
    Case("m24", StopLost, "incident", "mask.eos", (1, 1), files=names_stop),
]
