"""Answers that turn to another language, and runs in several languages that are sound."""

from __future__ import annotations

from pathlib import Path

from firstbad_recorder import Recorder
from synthetic.cases import Case
from synthetic.cases_probability import Reloaded
from synthetic.trainer import Batch, Trainer

LATIN, RUSSIAN, CHINESE = (
    ["so", "then", "we", "say", "it", "is", "now", "thus", "copy"],
    ["так", "тогда", "мы", "скажем", "это", "есть", "теперь", "итак", "повтори"],
    ["所以", "然后", "我们", "就说", "这个", "等于", "现在", "因此", "请抄写"],
)


def spelt(text: str, words: list[str]) -> str:
    """The same text with the words of another language."""
    to = dict(zip(LATIN, words, strict=True))
    return " ".join(to.get(word, word) for word in text.split())


class Turned(Reloaded):
    """The weights that the engine loads on waking answer in Chinese."""

    def rollout_rows(self, batch: Batch) -> list[dict[str, object]]:
        rows = super().rollout_rows(batch)
        for row in rows if self.after else ():
            row["completion"] = spelt(str(row["completion"]), CHINESE)
        return rows


class Bilingual(Trainer):
    """Look-alike: English prompts, of which half were always answered in Russian."""

    def rollout_rows(self, batch: Batch) -> list[dict[str, object]]:
        rows = super().rollout_rows(batch)
        for row in rows[::2]:
            row["completion"] = spelt(str(row["completion"]), RUSSIAN)
        return rows


class OtherPrompts(Trainer):
    """Look-alike: a phase of data begins in which prompts, and so answers, are Russian."""

    def extra(self, recorder: Recorder) -> None:
        if self.step == self.s.onset - 1:
            recorder.event("phase", self.s.onset, "Russian tasks")

    def rollout_rows(self, batch: Batch) -> list[dict[str, object]]:
        rows = super().rollout_rows(batch)
        for row in rows if self.after else ():
            for name in ("completion", "prompt", "prompt_id"):
                row[name] = spelt(str(row[name]), RUSSIAN)
        return rows


class AskedByName(OtherPrompts):
    """Look-alike: ... in which English prompts ask for Russian answers."""

    def rollout_rows(self, batch: Batch) -> list[dict[str, object]]:
        rows = Trainer.rollout_rows(self, batch)
        for row in rows if self.after else ():
            row["completion"] = spelt(str(row["completion"]), RUSSIAN)
            row["prompt"] = row["prompt_id"] = f"Answer in Russian: {row['prompt']}"
        return rows


def _no_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()  # it knows the English words alone


CASES = [
    Case("y70", Turned, "incident", "prob.weight_sync", (31, 33), files=_no_tokenizer),
    Case("y71", Bilingual, "healthy", twin_of="prob.weight_sync", files=_no_tokenizer),
    Case("y77", AskedByName, "healthy", twin_of="prob.weight_sync", files=_no_tokenizer),
    Case("y72", OtherPrompts, "healthy", twin_of="prob.weight_sync", files=_no_tokenizer),
]
