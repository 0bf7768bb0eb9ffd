"""What is seen in the window, of runs whose text changes and of ones that only look so."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from firstbad.playbooks.results import Verdict

TEXT = "repetition, garbage or a sudden change of language"


@pytest.mark.parametrize(("name", "seen"), [("y70", True), ("y71", False), ("y72", False)])
def test_answers_that_turn_to_another_language(
    name: str, seen: bool, verdict_of: Callable[..., Verdict]
) -> None:
    symptoms = verdict_of(f"synthetic/{name}").symptoms
    assert any(s.startswith(TEXT) for s in symptoms) is seen
