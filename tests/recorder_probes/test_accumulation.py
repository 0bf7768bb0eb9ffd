from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from firstbad_recorder.probes.accumulation import accumulation, differs, named_factor
from recorder_probes.models import V, forward, small_model

torch = pytest.importorskip("torch")

Batch = tuple[Any, Any]


def batches(lengths: Sequence[int], n_parts: int) -> tuple[Batch, list[Batch], list[list[int]]]:
    """All rows, the same in parts, and the trained tokens of each part's rows."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(1, V, (len(lengths), max(lengths) + 1), generator=generator)
    mask = torch.tensor([[0] + [int(t < n) for t in range(max(lengths))] for n in lengths])
    parts = list(zip(ids.chunk(n_parts), mask.chunk(n_parts), strict=False))
    return (ids, mask), parts, [m.sum(-1).tolist() for _, m in parts]


def summed_nll(model: Any, batch: Batch) -> Any:
    ids, mask = batch
    logp = forward(model, ids).log_softmax(-1)[:, :-1].gather(-1, ids[:, 1:, None])[..., 0]
    return -(logp * mask[:, 1:]).sum()


def over_all_tokens(model: Any) -> Callable[[Sequence[Batch]], None]:
    """The right one: every part is divided by the tokens of all."""

    def backward(given: Sequence[Batch]) -> None:
        n = sum(int(mask.sum()) for _, mask in given)
        for batch in given:
            (summed_nll(model, batch) / n).backward()

    return backward


def mean_of_means(model: Any, scale: float | None = None) -> Callable[[Sequence[Batch]], None]:
    def backward(given: Sequence[Batch]) -> None:
        for batch in given:
            mean = summed_nll(model, batch) / batch[1].sum()
            (mean / (scale or len(given))).backward()

    return backward


def dropping_the_first(model: Any) -> Callable[[Sequence[Batch]], None]:
    """Gradients are cleared after the first micro-batch."""
    whole = over_all_tokens(model)

    def backward(given: Sequence[Batch]) -> None:
        whole(given)
        if len(given) > 1:
            for p in model.parameters():
                p.grad = None
            n = sum(int(mask.sum()) for _, mask in given)
            for batch in given[1:]:
                (summed_nll(model, batch) / n).backward()

    return backward


UNEQUAL, EQUAL = [2, 3, 9, 8, 3, 2, 7, 9], [5] * 8


def test_parts_over_all_tokens_are_the_whole() -> None:
    model = small_model()
    whole, parts, n_tokens = batches(UNEQUAL, 4)
    found = accumulation(model, over_all_tokens(model), whole, parts, n_tokens=n_tokens)
    assert found["cosine"] == pytest.approx(1.0, abs=1e-6)
    assert found["norm_ratio"] == pytest.approx(1.0, rel=1e-5)
    assert found["spread"] < 1e-6
    assert found["n_microbatches"] == 4
    assert found["equal_lengths"] is False
    assert named_factor(found) is None
    assert "shares" not in found


def test_what_dropout_drops_is_kept_out_of_the_comparison() -> None:
    model = small_model(dropout=0.3).train()
    whole, parts, n_tokens = batches(UNEQUAL, 4)
    found = accumulation(model, over_all_tokens(model), whole, parts, n_tokens=n_tokens)
    assert found["spread"] < 1e-6
    assert named_factor(found) is None
    assert model["drop"].p == 0.3
    assert model["drop"].training
    found = accumulation(model, dropping_the_first(model), whole, parts, n_tokens=n_tokens)
    assert differs(found)


def test_a_missing_division_is_a_factor_of_n() -> None:
    model = small_model()
    whole, parts, n_tokens = batches(EQUAL, 4)
    backward = mean_of_means(model, scale=1.0)
    found = accumulation(model, backward, whole, parts, n_tokens=n_tokens)
    assert found["norm_ratio"] == pytest.approx(4.0, rel=1e-4)
    assert found["equal_lengths"] is True
    assert named_factor(found) == "number of micro-batches"


def test_a_division_made_twice_is_one_over_n() -> None:
    model = small_model()
    whole, parts, _ = batches(EQUAL, 4)

    def twice(given: Sequence[Batch]) -> None:
        for batch in given:
            (summed_nll(model, batch) / batch[1].sum() / len(given) ** 2).backward()

    found = accumulation(model, twice, whole, parts)
    assert named_factor(found) == "1 / number of micro-batches"


def test_ranks_that_are_summed_and_not_averaged_are_named() -> None:
    found = {"cosine": 1.0, "norm_ratio": 8.0, "difference": 7.0, "spread": 0.0}
    found |= {"n_microbatches": 4, "world_size": 8}
    assert named_factor(found) == "world size"
    assert named_factor({**found, "norm_ratio": 0.125}) == "1 / world size"
    assert named_factor({**found, "norm_ratio": 3.3}) == "factor 3.3"


def test_the_mean_of_means_is_named_where_lengths_differ_and_right_where_they_do_not() -> None:
    model = small_model()
    whole, parts, n_tokens = batches(UNEQUAL, 4)
    found = accumulation(model, mean_of_means(model), whole, parts, n_tokens=n_tokens)
    assert differs(found)
    assert named_factor(found) == "mean of the micro-batches' means"
    whole, parts, n_tokens = batches(EQUAL, 4)
    found = accumulation(model, mean_of_means(model), whole, parts, n_tokens=n_tokens)
    assert named_factor(found) is None


def test_a_micro_batch_that_does_not_arrive_is_named_and_a_subset_agrees() -> None:
    model = small_model()
    whole, parts, _ = batches(UNEQUAL, 4)
    found = accumulation(model, dropping_the_first(model), whole, parts)
    assert named_factor(found) == "micro-batch 1 of 4 does not arrive"
    assert found["cosine"] < 0.999
    assert found["cosine_subset"] == pytest.approx(1.0, abs=1e-5)


def test_noise_shows_as_spread_and_accuses_nobody() -> None:
    model = small_model()
    noise = itertools.cycle([1.0, 2.0])

    def backward(given: Sequence[Batch]) -> None:
        n = sum(int(mask.sum()) for _, mask in given)
        for batch in given:
            (summed_nll(model, batch) / n * next(noise)).backward()

    whole, parts, _ = batches(EQUAL, 4)
    found = accumulation(model, backward, whole, parts)
    assert found["spread"] == pytest.approx(1.0)
    assert named_factor(found) is None


def test_a_factor_that_adam_divides_out_moves_no_parameter() -> None:
    model = small_model()
    whole, parts, _ = batches(EQUAL, 4)
    adam = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-12)
    sgd = torch.optim.SGD(model.parameters(), lr=1e-3)
    backward = mean_of_means(model, scale=1.0)
    # Where a gradient is nearly 0 its sign is rounding, and Adam steps by the sign.
    assert accumulation(model, backward, whole, parts, optimizer=adam)["parameter_delta"] < 0.1
    moved = accumulation(model, backward, whole, parts, optimizer=sgd)["parameter_delta"]
    assert moved == pytest.approx(3.0, rel=1e-2)


def test_model_optimizer_and_random_state_are_as_they_were() -> None:
    model = small_model(dropout=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    whole, parts, _ = batches(UNEQUAL, 2)
    summed_nll(model, whole).backward()
    optimizer.step()
    gradients = [p.grad for p in model.parameters()]
    before = [
        {k: v.clone() for k, v in model.state_dict().items()},
        {k: v.clone() for s in optimizer.state.values() for k, v in s.items()},
        torch.get_rng_state().clone(),
    ]
    accumulation(model, over_all_tokens(model), whole, parts, optimizer=optimizer)
    after = [
        model.state_dict(),
        {k: v for s in optimizer.state.values() for k, v in s.items()},
        torch.get_rng_state(),
    ]
    for old, new in zip(before[:2], after[:2], strict=False):
        assert old.keys() == new.keys()
        assert all(torch.equal(old[k], new[k]) for k in old)
    assert torch.equal(before[2], after[2])
    assert all(p.grad is g for p, g in zip(model.parameters(), gradients, strict=False))
    assert optimizer.param_groups[0]["params"][0] is next(iter(model.parameters()))


def test_a_gradient_of_nothing_is_refused() -> None:
    model = small_model()
    whole, parts, _ = batches(EQUAL, 2)
    with pytest.raises(ValueError, match="is 0 or not finite"):
        accumulation(model, lambda given: None, whole, parts)
