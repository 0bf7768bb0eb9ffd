from __future__ import annotations

from typing import Any

import pytest

from firstbad_recorder.probes.consistency import consistency, difference
from recorder_probes.models import forward, small_model

torch = pytest.importorskip("torch")

ROWS = [[3, 4, 5, 6, 7, 1], [2, 9, 8, 1], [5, 5, 6, 11, 12, 2, 3, 1]]
N_PROMPT = [2, 1, 4]


def run(model: Any, **how: Any) -> dict[str, Any]:
    def through(token_id: Any, attention_mask: Any, position: Any) -> Any:
        return forward(model, token_id, attention_mask, position)

    return consistency(model, ROWS, N_PROMPT, forward=how.pop("forward", through), **how)


@pytest.mark.parametrize("left", [True, False])
def test_a_sound_model_repeats_itself_in_any_layout(left: bool) -> None:
    found = run(small_model(), left=left)
    assert found["recheck"]["max"] == 0
    assert found["layout"]["max"] < 1e-5
    assert found["recheck"]["n"] == sum(len(r) - n for r, n in zip(ROWS, N_PROMPT, strict=False))
    assert [len(row) for row in found["logp"]] == [4, 3, 4]


def test_log_probs_are_those_of_each_token_given_what_stands_before_it() -> None:
    model = small_model()
    found = run(model, temperature=0.7)["logp"][1]
    with torch.no_grad():
        logits = forward(model, torch.tensor([ROWS[1]])).double()[0] / 0.7
    expected = logits.log_softmax(-1)[[0, 1, 2], ROWS[1][1:]].tolist()
    assert found == pytest.approx(expected, abs=1e-6)


def test_a_pass_that_is_drawn_anew_does_not_repeat_itself() -> None:
    model = small_model(dropout=0.3).train()
    assert run(model, keep_mode=True)["recheck"]["max"] > 0.01
    assert run(model)["recheck"]["max"] == 0
    assert model["drop"].training


def test_padding_that_is_seen_shows_in_the_other_layout_alone() -> None:
    model = small_model()

    def sees_padding(token_id: Any, attention_mask: Any, position: Any) -> Any:
        return forward(model, token_id, None, position)

    found = run(model, forward=sees_padding)
    assert found["recheck"]["max"] == 0
    assert found["layout"]["max"] > 0.01
    assert found["layout"]["worst"][0]["row"] in (0, 1)  # the longest row has no padding


def test_positions_that_count_padding_show_in_the_other_layout() -> None:
    model = small_model()

    def counts_padding(token_id: Any, attention_mask: Any, position: Any) -> Any:
        return forward(model, token_id, attention_mask, None)

    assert run(model, forward=counts_padding)["layout"]["max"] > 0.01
    assert run(model, forward=counts_padding, left=False)["layout"]["max"] < 1e-5


def test_given_log_probs_are_held_against_the_models() -> None:
    model = small_model()
    own = run(model)["logp"]
    hot = run(model, temperature=1.5)["logp"]
    found = run(model, logp_old=own, logp_engine=hot)
    assert found["old"]["max"] == 0
    assert found["engine"]["mean"] > 0.01
    with pytest.raises(ValueError, match="as long as"):
        run(model, logp_old=own[:2])


def test_figures_of_a_difference() -> None:
    figures = difference([[0.0] * 99 + [-1.0]], [[0.5] + [0.0] * 98 + [-3.0]])
    assert figures["n"] == 100
    assert figures["mean"] == pytest.approx(0.025)
    assert figures["mean_signed"] == pytest.approx(-0.015)
    assert figures["max"] == 2.0
    assert figures["worst"][0] == {"row": 0, "place": 99, "a": -1.0, "other": -3.0}
    spoiled = difference([[0.0, 0.0]], [[float("nan"), 1.0]])
    assert (spoiled["n"], spoiled["n_nonfinite"]) == (1, 1)


def test_a_model_is_called_as_transformers_are() -> None:
    model = small_model()

    class Answer:
        def __init__(self, logits: Any) -> None:
            self.logits = logits

    def call(input_ids: Any, attention_mask: Any, position_ids: Any) -> Answer:
        return Answer(forward(model, input_ids, attention_mask, position_ids))

    model.forward = call
    assert consistency(model, ROWS, N_PROMPT)["logp"] == run(model)["logp"]
