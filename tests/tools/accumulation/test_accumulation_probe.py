"""Probes of the accumulated against the whole gradient."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstbad.tools.run import Run
from synthetic.by_hand import flight, probe

TOOL = "read_accumulation_probe"
MakeRun = Callable[..., Run]


@pytest.fixture
def read(make_run: MakeRun, measure: Callable[..., dict[str, Any]]) -> Callable[..., Any]:
    """Metrics of one probe of four micro-batches, or of several."""
    usual = {
        "cosine": 1.0, "norm_ratio": 1.0, "spread": 1e-3, "n_microbatches": 4, "world_size": 1,
        "equal_lengths": False,
    }  # fmt: skip

    def of(*others: dict[str, object], **figures: object) -> Any:
        made = [
            probe("accumulation", i, **{**usual, **f}) for i, f in enumerate([figures, *others])
        ]
        return measure(TOOL, make_run(flight=flight(probes=made)))

    return of


@pytest.mark.parametrize(
    ("ratio", "factor", "microbatches", "ranks"),
    [
        (4.0, 4, True, False),
        (0.25, 0.25, True, False),
        (8.0, 8, False, True),
        (1 / 64, 1 / 64, False, True),
        (1.0, None, False, False),
        (1.37, None, False, False),
        (3.0, 3, False, False),
    ],
)
def test_a_norm_ratio_names_its_factor(
    read: Any, ratio: float, factor: float | None, microbatches: bool, ranks: bool
) -> None:
    found = read(norm_ratio=ratio, world_size=8)
    assert (found["factor"], found["turned"]) == (factor, 0)
    assert (found["factor_is_microbatches"], found["factor_is_ranks"]) == (microbatches, ranks)
    assert found["difference"] == pytest.approx(abs(ratio - 1))


def test_the_tolerance_is_the_spread_of_the_probe_itself(read: Any) -> None:
    """A difference of 2 % is noise beside a spread of 1 %, and none beside one of 0.01 %."""
    noisy, quiet = (read(norm_ratio=1.02, spread=s) for s in (1e-2, 1e-4))
    assert noisy["difference_over_spread"] == pytest.approx(2)
    assert quiet["difference_over_spread"] == pytest.approx(200)
    assert read(norm_ratio=1.02, spread=None)["spread_known"] is False


def test_another_order_of_sums_is_no_difference(read: Any) -> None:
    found = read(norm_ratio=1 + 1e-7, spread=0.0)
    assert found["difference_over_spread"] < 10
    assert found["first_bad_step"] is None


def test_a_turned_gradient_is_no_factor(read: Any) -> None:
    found = read(cosine=0.8, norm_ratio=1.0, cosine_subset=1.0)
    assert found["turned"] == pytest.approx(0.6)
    assert found["difference"] == pytest.approx(math.sqrt(0.4))
    assert (found["factor"], found["subset_turned"]) == (None, 0)


def test_equal_lengths_are_read_beside_unequal_ones(read: Any) -> None:
    found = read({"equal_lengths": True}, cosine=0.8)
    assert (found["n_probes"], found["n_unequal"]) == (2, 1)
    assert (found["turned"], found["equal_lengths_turned"]) == (pytest.approx(0.6), 0)


def test_one_rank_alone(read: Any) -> None:
    assert read(norm_ratio=4.0, norm_ratio_one_rank=1.0)["one_rank_off"] == 0
    assert read(norm_ratio=4.0, norm_ratio_one_rank=4.0)["one_rank_off"] == 3
    assert read(norm_ratio=4.0)["one_rank_known"] is False


def test_the_fault_is_dated_between_probes(read: Any) -> None:
    found = read({"norm_ratio": 1.0}, {"norm_ratio": 4.0}, {"norm_ratio": 4.0})
    assert (found["last_good_step"], found["first_bad_step"], found["from_start"]) == (1, 2, False)


@pytest.mark.parametrize("figures", [{"cosine": "NaN"}, {"norm_ratio": None}, {"norm_ratio": -1.0}])
def test_a_probe_without_numbers_is_none(
    make_run: MakeRun, missing: Callable[..., str], figures: dict[str, Any]
) -> None:
    usual: dict[str, Any] = {"cosine": 1.0, "norm_ratio": 1.0}
    made = probe("accumulation", **{**usual, **figures})
    assert "accumulation" in missing(TOOL, make_run(flight=flight(probes=[made])))


@given(seed=st.integers(0, 99), scale=st.floats(0.1, 10))
@settings(max_examples=30, deadline=None)
def test_difference_and_angle_are_those_of_vectors(
    make_run: MakeRun, measure: Callable[..., dict[str, Any]], seed: int, scale: float
) -> None:
    rng = np.random.default_rng(seed)
    whole = rng.normal(size=5)
    parts = scale * (whole + 0.5 * rng.normal(size=5))
    size, ratio = float(np.linalg.norm(whole)), float(np.linalg.norm(parts) / np.linalg.norm(whole))
    cosine = float(whole @ parts) / (size * float(np.linalg.norm(parts)))
    made = probe("accumulation", cosine=cosine, norm_ratio=ratio, spread=1e-6)
    found = measure(TOOL, make_run(flight=flight(probes=[made])))
    assert found["difference"] == pytest.approx(
        float(np.linalg.norm(parts - whole)) / size, rel=1e-5
    )
    if cosine > 0:
        across = parts - whole * (whole @ parts) / size**2
        assert found["turned"] == pytest.approx(
            float(np.linalg.norm(across) / np.linalg.norm(parts)), abs=1e-6
        )
