"""Where two causes look alike: each tie-break, sentence by sentence, with a run for each side.

Runs are recorded ones (tests/runs) or synthetic ones (`synthetic/NAME`, see tests/synthetic).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from firstbad.agent.investigate import Finished, investigate
from firstbad.playbooks.results import Verdict

SYNC, STALE = "prob.weight_sync", "prob.stale_rollouts"
PROCESSED, KERNEL = "prob.processed_logprobs", "prob.engine_mismatch"
ROWS, WRONG_GROUP = "id.rows", "reward.wrong_group"
SWITCHES, CONFLATED = "mask.truncation", "reward.truncation_conflated"
SCALE, REDUCTION = "grad.accumulation_scale", "grad.reduction"
RESOLVED, CAP, EOS = "cfg.resolved", "cfg.completion_cap", "mask.eos"
TOKENS = "prob.tokenization"

SIDES: dict[str, list[tuple[str, str, str]]] = {
    # What decides: (run, cause that leads, cause that it looks like and is not)
    "rollouts claim the new version and the log-probs of an old one fit: not delivered": [
        ("synthetic/p1", SYNC, STALE),
        ("synthetic/p39", SYNC, STALE),
    ],
    "rollouts claim an old version, and one too old: stale": [("synthetic/p5", STALE, SYNC)],
    "rollouts claim an old version, no bound is stated, and they grow ever older: stale": [
        ("synthetic/p50", STALE, SYNC)
    ],
    "growth with the steps: not delivered, or stale; undecidable, so not delivered leads": [
        ("synthetic/p30", SYNC, PROCESSED),
        ("lynx", SYNC, PROCESSED),
    ],
    "growth, and every delivery was whole: the kernel": [("synthetic/p34", KERNEL, SYNC)],
    "apart after some deliveries and not after others: not delivered": [
        ("synthetic/p38", SYNC, KERNEL)
    ],
    "one level since a setting, and a clean function of the log-prob: processed": [
        ("synthetic/p7", PROCESSED, SYNC),
        ("synthetic/p8", PROCESSED, KERNEL),
        ("synthetic/p11", PROCESSED, SYNC),
    ],
    "one level, and no clean function: the kernel": [("synthetic/p12", KERNEL, PROCESSED)],
    "membership or order of the rows is wrong: the rows": [
        ("ferret", ROWS, WRONG_GROUP),
        ("synthetic/r40", ROWS, WRONG_GROUP),
        ("synthetic/r43", ROWS, WRONG_GROUP),
    ],
    "the records layer may use re-judging: scores agree once they are moved": [
        ("tapir", ROWS, "reward.false_negative"),
        ("synthetic/r11", ROWS, WRONG_GROUP),
    ],
    "rows are right, and statistics are taken over another set: the group": [
        ("synthetic/w24", WRONG_GROUP, ROWS),
        ("synthetic/w25", WRONG_GROUP, ROWS),
    ],
    "the switches of cut answers disagree: the switches": [
        ("synthetic/m13", SWITCHES, CONFLATED),
        ("synthetic/w20", SWITCHES, CONFLATED),
    ],
    "the switches agree, and the score mixes reasons: the score": [
        ("synthetic/w14", CONFLATED, SWITCHES)
    ],
    "a factor with one rank, or with several of which one alone has it too: the scale": [
        ("stoat", SCALE, REDUCTION),
        ("synthetic/a3", SCALE, REDUCTION),
        ("synthetic/a13", SCALE, REDUCTION),
    ],
    "several ranks, and the gradient of one rank alone is right: the reduction": [
        ("synthetic/a11", REDUCTION, SCALE),
        ("synthetic/a12", REDUCTION, SCALE),
    ],
    "asked for and in force differ, and no cause names the values: the settings": [
        ("synthetic/r6", RESOLVED, "opt.lr_jump")
    ],
    "they differ in the learning rate": [("synthetic/r7", "opt.lr_jump", RESOLVED)],
    "they differ in the KL weight": [("synthetic/r8", "opt.kl_constraint", RESOLVED)],
    "they differ in the cap": [("synthetic/r34", CAP, RESOLVED)],
    "they differ in the temperature": [("synthetic/r35", PROCESSED, RESOLVED)],
    "prompts are untemplated, on both sides alike: the settings": [
        ("synthetic/r1", RESOLVED, TOKENS)
    ],
    "prompts are templated differently on two sides: the tokens": [
        ("synthetic/p19", TOKENS, RESOLVED),
        ("synthetic/p20", TOKENS, "prob.conditioning"),
    ],
    "answers lie at the cap from the start, and no stop token inside of them: the cap": [
        ("egret", CAP, EOS),
        ("synthetic/r20", CAP, EOS),
        ("synthetic/m26", CAP, EOS),
    ],
    "the model would stop, and its stop token is not honoured: the stop rule": [
        ("synthetic/r19", EOS, CAP),
        ("synthetic/m23", EOS, CAP),
        ("synthetic/m25", EOS, CAP),
    ],
    "... or not trained": [("synthetic/m10", EOS, CAP), ("synthetic/m24", EOS, CAP)],
}


@pytest.mark.parametrize(
    ("what", "run", "cause", "look_alike"),
    [(what, *side) for what, sides in SIDES.items() for side in sides],
    ids=[f"{what}: {side[0]}" for what, sides in SIDES.items() for side in sides],
)
def test_what_decides(
    what: str, run: str, cause: str, look_alike: str, verdict_of: Callable[[str], Verdict]
) -> None:
    verdict = verdict_of(run)
    assert verdict.leading is not None, what
    assert verdict.leading.cause == cause, what
    assert look_alike not in {finding.cause for finding in verdict.findings}, what


def test_what_cannot_be_decided_is_reported_as_a_set(verdict_of: Callable[[str], Verdict]) -> None:
    leading = verdict_of("synthetic/p30").leading
    assert leading is not None
    assert {STALE, KERNEL} <= set(leading.claim.replace("(", " ").replace(")", " ").split())
    assert leading.confidence == "medium"


@pytest.mark.parametrize(("bare", "cause"), [(True, RESOLVED), (False, CAP)])
def test_prompts_that_are_untemplated_because_of_their_type(
    repo: Path, tmp_path: Path, bare: bool, cause: str
) -> None:
    """A recorded run whose cap cuts nearly every answer, with its prompts written as texts."""
    run = Path(shutil.copytree(repo / "tests" / "runs" / "egret", tmp_path / "run"))
    for file in (run / "completions").iterdir() if bare else ():
        table: Any = pq.read_table(file)
        texts = ["".join(m["content"] for m in rows) for rows in table["prompt"].to_pylist()]
        at = table.column_names.index("prompt")
        pq.write_table(table.set_column(at, "prompt", pa.array(texts)), file)
    done = investigate(str(run), out=tmp_path / "incidents")
    assert isinstance(done, Finished)
    leading = done.verdict.leading
    assert leading is not None
    assert leading.cause == cause
    assert TOKENS not in {finding.cause for finding in done.verdict.findings}
