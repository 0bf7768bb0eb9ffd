"""The stop tokens that files state, and completions that go on behind one in their text."""

from __future__ import annotations

import re

from firstbad.tools.errors import NoData
from firstbad.tools.evidence import Dated, Table
from firstbad.tools.numbers import percent
from firstbad.tools.registry import Measured, tool
from firstbad.tools.run import Run, Vocabulary
from firstbad.tools.stats import first_of_run

USUAL = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<end_of_turn>", "</s>")
"""Stop tokens that are looked for where no file names the run's own."""
OFTEN = 0.3
"""Share of the completions of a step that dates the fault."""
_PADDING = re.compile(r"(?:\s|<\|?/?(?:pad|endoftext|unk|s)\|?>)*", re.IGNORECASE)
_TURN = re.compile(r"\s*<(?:\|im_start\||\|start_header_id\||start_of_turn|\|?(?:user|tool))")


class StopIds(Dated):
    """Stop tokens by the file that states them, and in the texts."""

    n_files: int
    """Of tokenizer, model and generation config: those that state a stop token."""
    conflict: bool
    """The tokenizer's stop token is not among those of the generation config, or of the model
    config where there is none."""
    n_rows: int
    """Completions that were read."""
    holds_share: float
    """Of them: a stop token stands in the text. 0 where the texts were written without."""
    goes_on_share: float
    """Of them: more text follows a stop token, other than padding and another turn."""


@tool
def check_stop_ids(run: Run) -> Measured[StopIds]:
    """Stop tokens of tokenizer, model and generation config; completions that do not end at one.

    Which file a stack reads decides where generation ends. What follows a stop token is padding, a
    further turn of a dialogue, or a generation that did not stop there.

    Cannot tell: anything of texts that were written without special tokens.
    """
    known = run.vocabulary
    if known is None and not run.rollouts:
        raise NoData("neither a file that names stop tokens nor rollouts")
    marks = _marks(known)
    ends = re.compile("|".join(map(re.escape, sorted(marks, key=len, reverse=True))))
    steps, share = [], []
    rows = holding = going = 0
    for batch in run.rollouts.batches():
        whole = "\n".join(batch.completions)
        there = any(mark in whole for mark in marks)
        first = [ends.search(text) for text in batch.completions] if there else []
        on = [_more(match.string, match.end(), ends) for match in first if match is not None]
        rows += len(batch)
        holding += len(on)
        going += sum(on)
        steps.append(batch.step)
        share.append(sum(on) / max(1, len(batch)))
    at = first_of_run([s > OFTEN for s in share], length=min(3, len(share))) if share else None
    by_file = dict(known.eos_by_file) if known is not None else {}
    metrics = StopIds(
        n_files=len(by_file),
        conflict=_conflict(by_file),
        n_rows=rows,
        holds_share=round(holding / max(1, rows), 6),
        goes_on_share=round(going / max(1, rows), 6),
        last_good_step=steps[at - 1] if at else None,
        first_bad_step=None if at is None else steps[at],
        from_start=at == 0,
    )
    texts = known.texts if known is not None else {}
    table = Table(
        title="stop tokens by file",
        columns=("file", "ids", "texts"),
        rows=tuple(
            (
                name,
                " ".join(map(str, sorted(ids))),
                " ".join(texts.get(i, "?") for i in sorted(ids)),
            )
            for name, ids in by_file.items()
        ),
    )
    text = f"{len(by_file)} files state stop tokens"
    text += ", which differ" if metrics.conflict else ""
    if rows:
        text += (
            f"; {percent(metrics.holds_share)} of {rows} completions hold one in their text, and "
            f"{percent(metrics.goes_on_share)} go on behind it"
        )
    return Measured(
        metrics, text, tables=(table,) if by_file else (), signal="text behind a stop token"
    )


def _marks(known: Vocabulary | None) -> set[str]:
    """Texts of the run's own stop tokens, else the usual ones."""
    own = set()
    if known is not None:
        own = {text for i in known.eos_ids if len(text := known.texts.get(i, "")) > 2}
    return own or set(USUAL)


def _more(text: str, end: int, ends: re.Pattern[str]) -> bool:
    """Whether text of the completion follows, behind further stop tokens and padding."""
    while True:
        padding = _PADDING.match(text, end)
        end = padding.end() if padding else end
        again = ends.match(text, end)
        if again is None:
            return end < len(text) and not _TURN.match(text, end)
        end = again.end()


def _conflict(by_file: dict[str, frozenset[int]]) -> bool:
    wanted = by_file.get("tokenizer")
    honoured = by_file.get("generation", by_file.get("model"))
    return bool(wanted and honoured and not wanted <= honoured)
