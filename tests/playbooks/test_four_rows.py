"""Surprise of the sampled tokens against A vs C: the four rows of the table, on whole runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from firstbad.agent.investigate import Finished, investigate
from firstbad.tools.readers import open_run
from firstbad.tools.registry import run_tool
from synthetic.cases import all_cases

# Case, whether surprise is off, whether engine and trainer differ, cause, words of the claim.
ROWS = [
    ("b1", False, False, None, ""),
    ("p6", False, True, "prob.processed_logprobs", "reports log-probs from before the temperature"),
    ("p13", False, True, "prob.engine_mismatch", "surprise of the sampled tokens is"),
    ("p9", True, True, "prob.processed_logprobs", "the ratio is the kept probability"),
    ("p10", True, True, "prob.processed_logprobs", "does not divide its logits"),
    ("p3", True, True, "prob.weight_sync", "an adapter was sent"),
    ("p11", True, False, "prob.processed_logprobs", "than the one whose log-probs it reports"),
]


@pytest.mark.parametrize(("name", "surprised", "apart", "cause", "words"), ROWS)
def test_a_row_of_the_table(
    name: str, surprised: bool, apart: bool, cause: str | None, words: str, tmp_path: Path
) -> None:
    folder = all_cases()[name].write(tmp_path / "run")
    run = open_run(str(folder))
    surprise = run_tool("test_surprise", run, {}, evidence_id="E1").metrics or {}
    gap = run_tool("compare_logprobs", run, {}, evidence_id="E2").metrics or {}
    assert ((surprise["largest"] or 0.0) > 0.1) is surprised
    assert ((gap["mean"] or 0.0) > 0.05) is apart
    done = investigate(str(folder), "", out=tmp_path / "incidents")
    assert isinstance(done, Finished)
    leading = done.verdict.leading
    assert (leading.cause if leading else None) == cause
    assert words in (leading.claim if leading else "")
