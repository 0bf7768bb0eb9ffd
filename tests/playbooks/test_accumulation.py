"""What is said of the gradient path beside its cause."""

from __future__ import annotations

from pathlib import Path

import pytest

from firstbad.agent.investigate import Finished, investigate
from firstbad.playbooks.results import Verdict
from synthetic.cases import all_cases


def verdict_of(name: str, folder: Path) -> Verdict:
    run = all_cases()[name].write(folder / "run")
    done = investigate(str(run), out=folder / "incidents")
    assert isinstance(done, Finished)
    return done.verdict


def test_a_uniform_factor_under_adam_is_called_nearly_harmless(tmp_path: Path) -> None:
    verdict = verdict_of("a3", tmp_path)
    assert verdict.leading is not None
    assert verdict.leading.cause == "grad.accumulation_scale"
    assert any("4 times" in note and "nearly harmless" in note for note in verdict.notes)


def test_own_counts_by_design_are_said_to_be_so(tmp_path: Path) -> None:
    verdict = verdict_of("a19", tmp_path)
    assert any("divided by its own tokens" in note for note in verdict.notes)


@pytest.mark.parametrize("check", ["whole_gradient", "objective"])
def test_without_a_record_the_probe_is_asked_for(repo: Path, tmp_path: Path, check: str) -> None:
    done = investigate(str(repo / "tests" / "runs" / "siskin"), out=tmp_path)
    assert isinstance(done, Finished)
    assert done.verdict.outcome == "healthy"
    (left,) = (n for n in done.verdict.not_checked if n.check == check)
    assert "Recorder.probe(step" in left.needs
