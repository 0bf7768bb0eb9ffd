from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from firstbad_recorder.probes.trail import replay
from recorder_probes.models import V, forward, small_model

torch = pytest.importorskip("torch")

FIELDS = {"name", "place", "dtype", "n", "n_nonfinite", "n_nonfinite_masked", "largest"}


def batch() -> tuple[Any, Any]:
    ids = torch.randint(1, V, (3, 6), generator=torch.Generator().manual_seed(0))
    return ids, torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 1, 0, 0, 0]])


def policy_loss(model: Any, away: Callable[[Any], Any]) -> Any:
    """Token mean of `away` of the log-probs."""
    ids, mask = batch()
    logp = forward(model, ids).log_softmax(-1)[:, :-1].gather(-1, ids[:, 1:, None])[..., 0]
    return (away(logp) * mask).sum() / mask.sum()


def test_a_finite_pass_needs_no_second_one() -> None:
    model = small_model()
    calls = []

    def loss() -> Any:
        calls.append(1)
        return policy_loss(model, lambda logp: -logp)

    found = replay(model, loss)
    assert found["finite"]
    assert found["grad_norm"] > 0
    assert len(calls) == 1
    assert [entry["place"] for entry in found["trail"]] == ["loss", "grad"]
    assert all(p.grad is None for p in model.parameters())


def test_an_exp_that_overflows_is_named_with_its_largest_operand() -> None:
    model = small_model()
    found = replay(model, lambda: policy_loss(model, lambda logp: (logp + 200.0).exp()), batch()[1])
    first = found["first"]
    assert (first["operation"], first["phase"], first["module"]) == ("exp", "forward", "")
    assert found["spoiled"] == "loss"
    assert "test_trail.py:" in first["where"]
    assert first["given"] is None
    assert first["operands"][0]["n_nonfinite"] == 0
    places = [entry["place"] for entry in found["trail"]]
    assert places[:3] == ["log_ratio", "exp", "loss"]
    assert 100 < found["trail"][0]["largest"] < 200
    assert found["trail"][1]["n_nonfinite"] == 15
    assert found["trail"][1]["n_nonfinite_masked"] == 5
    assert set(found["trail"][1]) == FIELDS


def test_a_clamp_after_exp_spoils_the_gradient_alone_and_exp_is_named() -> None:
    model = small_model()

    def after(logp: Any) -> Any:
        return (logp - logp.detach() + 200.0).exp().clamp(max=10.0)

    found = replay(model, lambda: policy_loss(model, after))
    assert found["spoiled"] == "gradient"
    assert found["loss"] == pytest.approx(10.0)
    assert found["first"]["operation"] == "exp"
    bad = [entry["name"] for entry in found["trail"] if entry["n_nonfinite"]]
    assert bad[0] == "exp"
    assert "head.weight" in bad


def test_a_clamp_before_exp_is_finite() -> None:
    model = small_model()

    def before(logp: Any) -> Any:
        return (logp - logp.detach() + 200.0).clamp(max=2.3).exp()

    assert replay(model, lambda: policy_loss(model, before))["finite"]


def test_a_gradient_that_is_first_bad_in_backward_names_its_step_and_line() -> None:
    model = small_model()
    found = replay(model, lambda: policy_loss(model, lambda logp: (logp - logp.detach()).sqrt()))
    assert found["loss"] == 0.0
    assert found["first"]["phase"] == "backward"
    assert found["first"]["node"] == "SqrtBackward0"
    assert "test_trail.py:" in found["first"]["where"]
    assert found["trail"][0]["place"] == "grad"


def test_an_operation_inside_the_model_has_the_path_of_its_module() -> None:
    square = type("Square", (torch.nn.Module,), {"forward": lambda self, x: x * x * 1e30})
    model = small_model(deep=3)
    model["mix"][1][1] = square()
    with torch.no_grad():
        model["mix"][1][0].bias.fill_(1e10)
    found = replay(model, lambda: policy_loss(model, lambda logp: -logp))
    assert found["first"]["module"] == "mix.1.1"
    assert found["first"]["operation"] == "mul"
    assert found["trail"][0]["place"] == "logits"


def test_infinities_inside_the_model_that_are_taken_back_are_no_fault() -> None:
    model = small_model(deep=3)
    with torch.no_grad():
        model["mix"][1][0].bias.fill_(float("inf"))  # tanh of it is 1
    found = replay(model, lambda: policy_loss(model, lambda logp: -logp))
    assert found["finite"]


def test_infinities_of_a_mask_that_softmax_takes_away_are_no_origin() -> None:
    model = small_model()

    def loss(spoil: bool) -> Any:
        ids, mask = batch()
        logits = forward(model, ids)
        closed = torch.zeros(V, dtype=torch.bool)
        closed[0] = True
        logp = logits.masked_fill(closed, float("-inf")).log_softmax(-1)
        chosen = logp[:, :-1].gather(-1, ids[:, 1:, None])[..., 0]
        away = (chosen + 200.0).exp() if spoil else -chosen
        return (away * mask).sum() / mask.sum()

    assert replay(model, lambda: loss(False))["finite"]
    assert replay(model, lambda: loss(True))["first"]["operation"] == "exp"


def test_a_row_that_is_masked_whole_names_the_softmax_that_it_spoils() -> None:
    model = small_model()

    def loss() -> Any:
        ids, _ = batch()
        scores = forward(model, ids) + torch.full((V,), float("-inf"))
        return scores.softmax(-1).sum()

    first = replay(model, loss)["first"]
    assert first["operation"] == "_softmax"
    assert first["operands"][0]["n_nonfinite"] == 3 * 6 * V


def test_a_sentinel_at_masked_places_names_the_product() -> None:
    model = small_model()
    _, mask = batch()
    found = replay(
        model,
        lambda: policy_loss(model, lambda logp: logp.masked_fill(mask == 0, float("-inf"))),
        mask,
    )
    assert found["first"]["operation"] == "mul"
    assert found["trail"][0]["n_nonfinite"] == found["trail"][0]["n_nonfinite_masked"] == 5


def test_a_parameter_that_was_not_finite_before_is_named() -> None:
    model = small_model()
    with torch.no_grad():
        model["head"].bias[2] = float("nan")
    first = replay(model, lambda: policy_loss(model, lambda logp: -logp))["first"]
    assert first["given"] == "parameter head.bias"
    assert first["module"] == "head"


def test_a_half_precision_cast_that_overflows_is_named() -> None:
    model = small_model()

    def loss() -> Any:
        return policy_loss(model, lambda logp: (logp * 1e5).half().float())

    found = replay(model, loss)
    assert found["first"]["operation"] == "_to_copy"
    assert found["trail"][0]["dtype"] == "float16"


def test_a_large_norm_of_finite_gradients_is_finite() -> None:
    model = small_model()
    found = replay(model, lambda: policy_loss(model, lambda logp: -logp * 1e25))
    assert found["finite"]


def test_the_random_state_of_the_plain_pass_is_used_again() -> None:
    model = small_model(dropout=0.5).train()
    seen = []

    def loss() -> Any:
        value = policy_loss(model, lambda logp: -logp)
        seen.append(float(value.detach()))
        return value * float("inf")

    replay(model, loss)
    assert len(seen) == 2
    assert seen[0] == seen[1]


def test_a_watched_pass_that_is_finite_says_that_it_does_not_repeat_itself() -> None:
    model = small_model()
    calls = []

    def loss() -> Any:
        calls.append(1)
        factor = float("nan") if len(calls) == 1 else 1.0
        return policy_loss(model, lambda logp: -logp * factor)

    found = replay(model, loss)
    assert not found["finite"]
    assert found["first"] is None


def test_hooks_and_gradients_are_put_back() -> None:
    model = small_model()
    policy_loss(model, lambda logp: -logp).backward()
    before = [p.grad for p in model.parameters()]
    replay(model, lambda: policy_loss(model, lambda logp: logp / 0.0))
    assert all(p.grad is g for p, g in zip(model.parameters(), before, strict=False))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
