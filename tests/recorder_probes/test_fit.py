from __future__ import annotations

from typing import Any

import pytest

from firstbad_recorder.probes.fit import fit
from recorder_probes.models import V, forward, small_model

torch = pytest.importorskip("torch")


def nll(model: Any) -> Any:
    ids = torch.randint(1, V, (6, 9), generator=torch.Generator().manual_seed(3))
    logp = forward(model, ids).log_softmax(-1)[:, :-1].gather(-1, ids[:, 1:, None])
    return -logp.mean()


def test_a_sound_model_fits_and_gets_its_weights_back() -> None:
    model = small_model()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    found = fit(model, lambda: nll(model))
    assert found["nll_last"] < 0.95 * found["nll_first"]
    assert 1 <= found["n_updates"] < 10, "it ends when that is told"
    assert found["n_trained"] == len(list(model.parameters()))
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


def test_weights_of_another_size_fit_without_another_setting() -> None:
    model = small_model()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(0.05)
    found = fit(model, lambda: nll(model), n_updates=40)
    assert found["nll_last"] < found["nll_first"]


def test_a_fresh_adapter_fits() -> None:
    model = small_model().requires_grad_(False)
    ends = [m for m in model.modules() if isinstance(m, torch.nn.Linear)]
    for linear in ends:
        torch.manual_seed(len(ends))
        down = torch.nn.Linear(linear.in_features, 2, bias=False)
        up = torch.nn.Linear(2, linear.out_features, bias=False)
        torch.nn.init.zeros_(up.weight)
        linear.adapter = torch.nn.Sequential(down, up)
        linear.register_forward_hook(lambda m, x, y: y + m.adapter(x[0]))
    found = fit(model, lambda: nll(model))
    assert found["n_trained"] == 2 * len(ends)
    assert found["nll_last"] < 0.98 * found["nll_first"]


def test_a_likelihood_that_is_cut_off_does_not_fall() -> None:
    model = small_model()
    found = fit(model, lambda: nll(model).detach())
    assert found["nll_last"] == found["nll_first"]
    assert found["n_trained"] == 0


def test_a_likelihood_with_the_wrong_sign_rises() -> None:
    model = small_model()

    def backwards() -> Any:
        loss = nll(model)
        return 2 * loss.detach() - loss  # the value of one, the gradient of the other

    found = fit(model, backwards)
    assert found["nll_last"] > found["nll_first"]


def test_a_frozen_model_is_refused() -> None:
    model = small_model().requires_grad_(False)
    with pytest.raises(ValueError, match="no parameter"):
        fit(model, lambda: nll(model))
