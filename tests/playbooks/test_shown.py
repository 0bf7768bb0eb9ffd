"""What a verdict shows beside its cause: notes and symptoms."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from firstbad.playbooks.results import Verdict

VerdictOf = Callable[..., Verdict]


@pytest.mark.parametrize(("name", "told"), [("n87", True), ("n12", False)])
def test_a_clamp_behind_exp_is_noted(name: str, told: bool, verdict_of: VerdictOf) -> None:
    """Behind exp without a hit; before exp without a hit."""
    notes = verdict_of(f"synthetic/{name}").notes
    assert any("A numerical clamp sits on the ratio, behind exp." in note for note in notes) is told


@pytest.mark.parametrize(("name", "told"), [("o11", True), ("o41", False)])
def test_an_update_that_leaps_is_a_symptom(name: str, told: bool, verdict_of: VerdictOf) -> None:
    seen = "parameter update suddenly large, gradient norm as before"
    symptoms = verdict_of(f"synthetic/{name}").symptoms
    assert any(symptom.startswith(seen) for symptom in symptoms) is told
    if told:
        assert f"{seen}: suspect accumulation, numerics, optimizer first" in symptoms


@pytest.mark.parametrize(("name", "told"), [("n86", True), ("n85", False)])
def test_updates_that_the_scaler_skipped_are_noted(
    name: str, told: bool, verdict_of: VerdictOf
) -> None:
    notes = verdict_of(f"synthetic/{name}").notes
    assert any("the loss scale goes from" in note for note in notes) is told
