"""What probing finds in loss functions that are written out in `losses.py`."""

from __future__ import annotations

import math
from typing import Any

import pytest

from firstbad_recorder.probes.loss_function import Stated, examine, objective, wrongly_cut
from firstbad_recorder.probes.loss_input import LossFunction
from firstbad_recorder.probes.ratio_response import near_bounds
from recorder_probes import losses

torch = pytest.importorskip("torch")


def bounds(found: dict[str, Any]) -> dict[tuple[float, str], float]:
    return {
        (b["advantage"], b["side"]): b["ratio"]
        for b in found["ratio"]["bounds"]
        if b["ratio"] is not None
    }


def wrong(loss: LossFunction, stated: Stated | None = None, **how: Any) -> list[str]:
    probe = objective(loss, stated, **how)
    assert isinstance(probe["cases"], list)
    return [c["name"] for c in probe["cases"] if abs(c["expected"] - c["measured"]) > 0.01]


@pytest.mark.parametrize(
    ("loss", "name", "factor"),
    [
        (losses.ppo(losses.token_mean), "token_mean", 1),
        (losses.ppo(losses.row_mean), "row_mean_of_token_mean", 1),
        (losses.ppo(losses.over_max_length), "row_mean_of_token_sum", 1 / losses.MAX_LENGTH),
        (losses.ppo(losses.row_sum), "row_mean_of_token_sum", 1),
        (losses.ppo(losses.from_outside), "token_sum", 1 / losses.N_TOKENS_OUTSIDE),
        (losses.ppo(losses.plain_sum), "token_sum", 1),
        (losses.ppo(losses.with_padding), "place_mean", 1),
        (lambda given: losses.ppo()(given) / 4, "token_mean", 0.25),
        (lambda given: losses.ppo()(given) * 8, "token_mean", 8),
    ],
)
def test_the_denominator_is_told_by_rows_lengths_and_masked_places(
    loss: LossFunction, name: str, factor: float
) -> None:
    found = examine(loss)["reduction"]
    assert found["name"] == name
    assert found["factor"] == pytest.approx(factor, rel=1e-4)
    assert found["masked_share"] == 0
    if name == "row_mean_of_token_sum" and factor != 1:
        assert found["constant"] == pytest.approx(losses.MAX_LENGTH, rel=1e-4)


def test_a_mask_that_is_left_out_shows_as_weight_at_masked_places() -> None:
    assert examine(losses.ppo(losses.unmasked))["reduction"]["masked_share"] == pytest.approx(1)


def test_a_denominator_that_is_none_of_the_known_ones_is_not_given_a_name() -> None:
    found = examine(losses.ppo(lambda x, mask: (x * mask).sum() / mask.sum().sqrt()))
    assert found["reduction"]["name"] is None


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (losses.ppo(), {(1.0, "high"): 1.2, (-1.0, "low"): 0.8}),
        (losses.ppo(low=0.2, high=0.28), {(1.0, "high"): 1.28, (-1.0, "low"): 0.8}),
        (
            losses.ppo(losses.row_mean, low=3e-4, high=4e-4, sequence=True),
            {(1.0, "high"): 1.0004, (-1.0, "low"): 0.9997},
        ),
        (
            losses.ppo(dual=3.0),
            {(1.0, "high"): 1.2, (-1.0, "low"): 0.8, (-1.0, "high"): 3.0},
        ),
        (
            losses.without_minimum,
            {
                (1.0, "low"): 0.8,
                (1.0, "high"): 1.2,
                (-1.0, "low"): 0.8,
                (-1.0, "high"): 1.2,
            },
        ),
    ],
)
def test_sides_that_are_cut_are_found_with_their_ratio(
    loss: LossFunction, expected: dict[tuple[float, str], float]
) -> None:
    found = examine(loss)
    assert bounds(found) == pytest.approx(expected, rel=1e-4)
    assert bool(wrongly_cut(found["ratio"])) == (loss is losses.without_minimum)


def test_a_fuse_far_out_is_no_clip_and_a_tight_one_changes_the_objective() -> None:
    fuse, tight = examine(losses.ppo(fuse=20.0)), examine(losses.ppo(fuse=0.2, low=0.5, high=0.5))
    assert fuse["ratio"]["log_ratio_clamp"] == pytest.approx([-20.0, 20.0], abs=1e-3)
    assert not wrongly_cut(fuse["ratio"])
    assert tight["ratio"]["log_ratio_clamp"] == pytest.approx([-0.2, 0.2], abs=1e-3)
    assert wrongly_cut(tight["ratio"])


@pytest.mark.parametrize(
    ("loss", "form", "figures"),
    [
        (losses.cispo(5.0), "capped_weight", {"cap": 5.0}),
        (losses.cispo(0.2), "capped_weight", {"cap": 0.2}),
        (losses.sapo(), "sigmoid", {"temperature": 1.0, "temperature_down": 1.05}),
        (losses.vespo, "gamma", {"k": 2, "lambda": 3, "k_down": 3, "lambda_down": 2}),
        (losses.reinforce, "constant", {}),
        (losses.unclipped, "ratio", {}),
    ],
)
def test_other_forms_are_told_with_their_settings(
    loss: LossFunction, form: str, figures: dict[str, float]
) -> None:
    ratio = examine(loss)["ratio"]
    assert ratio["form"] == form
    assert {key: ratio[key] for key in figures} == pytest.approx(figures, rel=1e-3)


@pytest.mark.parametrize(
    ("loss", "types"),
    [
        (losses.ppo(losses.row_mean), ["grpo"]),
        (losses.ppo(losses.token_mean), ["bnpo", "dapo"]),
        (losses.ppo(losses.over_max_length), ["dr_grpo"]),
        (losses.ppo(losses.from_outside), ["dapo"]),
        (losses.ppo(losses.row_sum, sequence=True), ["luspo"]),
        (losses.cispo(), ["cispo"]),
        (losses.sapo(), ["sapo"]),
        (losses.vespo, ["vespo"]),
        (losses.without_minimum, []),
        (losses.reinforce, []),
    ],
)
def test_trl_loss_types_are_told_as_far_as_they_differ(
    loss: LossFunction, types: list[str]
) -> None:
    assert examine(loss)["loss_types"] == types


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_the_same_is_found_in_other_dtypes_up_to_their_rounding(dtype: str) -> None:
    kind = getattr(torch, dtype)
    found = examine(losses.ppo(losses.row_mean, high=0.28, beta=0.04), kind)
    assert found["loss_types"] == ["grpo"]
    assert found["kl"]["coefficient"] == pytest.approx(0.04, rel=0.01)
    at = near_bounds(found["ratio"]["bounds"])
    assert at == pytest.approx({(1.0, "high"): 1.28, (-1.0, "low"): 0.8}, rel=0.01)
    assert examine(losses.unclipped, kind)["ratio"]["form"] == "ratio"
    assert examine(losses.with_engine("plain"), kind)["engine"]["form"] == "plain"


def test_the_ratio_of_a_sequence_is_told_from_that_of_a_token() -> None:
    assert examine(losses.ppo(losses.row_mean))["ratio"]["level"] == "token"
    sequence = examine(losses.ppo(losses.row_mean, sequence=True))
    assert sequence["ratio"]["level"] == "sequence_mean"


def test_old_log_probs_that_are_left_out_make_the_ratio_1() -> None:
    found = examine(losses.ppo(old=False))["ratio"]
    assert found["form"] == "constant"
    assert not found["old_used"]
    assert examine(losses.ppo())["ratio"]["old_used"]


@pytest.mark.parametrize(
    ("kl", "value", "gradient"),
    [
        (lambda g: g.logp_new - g.logp_ref, "k1", "k1"),
        (lambda g: (g.logp_new - g.logp_ref) ** 2 / 2, "k2", "k2"),
        (losses.k3, "k3", "k3"),
        (lambda g: (g.logp_new - g.logp_ref).abs(), "abs", "abs"),
        (lambda g: losses.k3(g).detach(), "k3", "none"),
        # With the ratio as a weight the gradient is that of k2.
        (lambda g: losses.k3(g) * (g.logp_new - g.logp_old).exp(), "k3", "k2"),
        (lambda g: losses.k3(g).clamp(max=0.5), "other", "other"),
    ],
)
def test_the_kl_estimator_is_told_by_value_and_gradient(kl: Any, value: str, gradient: str) -> None:
    found = examine(losses.with_kl(kl, beta=0.04))["kl"]
    assert (found["value"], found["gradient"]) == (value, gradient)
    if gradient not in ("none", "other"):
        assert found["coefficient"] == pytest.approx(0.04, rel=1e-3)


def test_without_kl_there_is_none_and_beta_is_against_the_policy_term() -> None:
    assert examine(losses.ppo())["kl"]["value"] == "none"
    scaled = losses.with_kl(losses.k3, beta=0.04)
    assert examine(lambda g: scaled(g) / 8)["kl"]["coefficient"] == pytest.approx(0.04, rel=1e-3)


@pytest.mark.parametrize(
    ("how", "form", "high", "low"),
    [
        ("truncated", "truncated", 2.0, None),
        ("masked", "masked", 2.0, 0.5),
        ("plain", "plain", None, None),
    ],
)
def test_the_engines_weight_is_found_with_its_cap(
    how: str, form: str, high: float | None, low: float | None
) -> None:
    found = examine(losses.with_engine(how, low=0.5))["engine"]
    assert found["form"] == form
    assert found["high"] == (None if high is None else pytest.approx(high, rel=1e-3))
    assert found["low"] == (None if low is None else pytest.approx(low, rel=1e-3))
    assert found["level"] == "token"
    assert examine(losses.ppo())["engine"] == {"used": False}


def test_a_weight_of_the_whole_sequence_is_told() -> None:
    assert examine(losses.with_engine("truncated", level="sequence"))["engine"]["level"] == (
        "sequence_sum"
    )


def test_a_limit_after_exp_hides_a_gradient_that_is_not_finite() -> None:
    after = examine(losses.clamp_after_exp)["numerics"]
    before = examine(losses.ppo(fuse=2.3))["numerics"]
    assert after["exp_before_clamp"]
    assert after["finite_up_to"] == 85
    assert not before["exp_before_clamp"]
    assert before["finite_up_to"] == 1000
    # No limit at all: the loss is not finite either, and says so.
    assert not examine(losses.ppo())["numerics"]["exp_before_clamp"]


def test_half_precision_overflows_early() -> None:
    def in_half(given: Any) -> Any:
        ratio = (given.logp_new - given.logp_old).half().exp().float()
        return losses.token_mean(-ratio * given.advantage[:, None], given.loss_mask)

    assert examine(in_half)["numerics"]["finite_up_to"] == 11


def test_infinity_at_masked_places_is_harmless_only_where_it_is_selected_away() -> None:
    assert examine(losses.ppo())["numerics"]["masked_infinity"] == "not finite"

    def select_first(given: Any) -> Any:
        away = (given.logp_new - given.logp_old).masked_fill(given.loss_mask == 0, 0.0)
        each = -away.exp() * given.advantage[:, None]
        return losses.selected(each, given.loss_mask)

    # masked_fill has a gradient of 0 there, and -Inf minus -Inf never meets a number.
    assert examine(select_first)["numerics"]["masked_infinity"] == "finite"


def test_a_batch_without_trained_tokens_is_tried() -> None:
    divided = losses.ppo(lambda x, mask: (x * mask).sum() / mask.sum())
    assert examine(divided)["numerics"]["empty_batch"] == "not finite"
    assert examine(losses.ppo())["numerics"]["empty_batch"] == "finite"


def test_small_differences_are_lost_in_bfloat16_and_seen_after_an_upcast() -> None:
    coarse = examine(losses.subtracted_in_bfloat16)["numerics"]["smallest_difference"]
    assert coarse == 0.1
    assert examine(losses.upcast_first)["numerics"]["smallest_difference"] <= 1e-4
    assert examine(losses.ppo())["numerics"]["smallest_difference"] <= 1e-4
    # What is bfloat16 when it comes in is lost before the function begins.
    stored = examine(losses.upcast_first, dtype=torch.bfloat16)["numerics"]
    assert stored["smallest_difference"] == 0.1

    # A weight that follows the ratio otherwise loses nothing.
    def root(given: Any) -> Any:
        ratio = (given.logp_new - given.logp_old).exp().sqrt()
        return losses.token_mean(-ratio * given.advantage[:, None], given.loss_mask)

    assert examine(root)["numerics"]["smallest_difference"] <= 1e-4
    # Nor does one that is cut before the largest of them.
    tight = losses.ppo(fuse=0.02, low=0.5, high=0.5)
    assert examine(tight)["numerics"]["smallest_difference"] <= 1e-4


def test_a_loss_that_descends_is_told_by_its_sign() -> None:
    assert examine(losses.ppo(sign=-1.0))["ratio"]["direction"] == "down"
    assert examine(losses.ppo())["ratio"]["direction"] == "up"
    assert examine(lambda g: losses.ppo()(g).detach())["ratio"]["direction"] == "none"
    assert examine(lambda g: losses.ppo()(g) * math.nan)["ratio"]["direction"] == "not_finite"


def test_a_batch_without_advantages_is_tried() -> None:
    def by_their_sum(given: Any) -> Any:
        return losses.ppo(losses.plain_sum)(given) / given.advantage.abs().sum()

    assert examine(by_their_sum)["numerics"]["no_advantage"] == "not finite"
    assert examine(losses.ppo())["numerics"]["no_advantage"] == "finite"


def test_advantages_that_the_loss_changes_are_told() -> None:
    assert examine(losses.whitened)["mixes_advantages"]
    assert not examine(losses.ppo())["mixes_advantages"]


@pytest.mark.parametrize(
    "loss",
    [
        losses.ppo(),
        losses.ppo(losses.row_mean, high=0.28, dual=3.0, beta=0.04),
        losses.ppo(losses.over_max_length, fuse=20.0),
        losses.cispo(0.2),
        losses.sapo(),
        losses.vespo,
        losses.reinforce,
    ],
)
def test_a_right_loss_has_the_gradients_that_are_expected_of_it(loss: LossFunction) -> None:
    assert wrong(loss) == []


def test_wrong_sides_and_signs_differ_without_any_statement() -> None:
    assert wrong(losses.without_minimum) == ["up_flows", "down_flows"]
    assert "up_inside" in wrong(losses.ppo(sign=-1.0))


def test_a_stated_setting_is_held_against_the_loss() -> None:
    assert wrong(losses.ppo(high=0.28), Stated(epsilon_low=0.2, epsilon_high=0.28)) == []
    assert wrong(losses.ppo(high=0.6), Stated(epsilon_low=0.2, epsilon_high=0.28)) == ["up_cut"]
    assert wrong(losses.reinforce, Stated(form="clip")) != []
    assert wrong(losses.ppo(beta=0.04), Stated(beta=0.04, kl="k3")) == []
    assert wrong(losses.ppo(beta=0.4), Stated(beta=0.04, kl="k3")) == ["kl_above", "kl_below"]


def test_a_factor_shows_against_the_stated_reduction() -> None:
    stated = Stated(reduction="token_mean")
    assert wrong(losses.ppo(), stated) == []
    assert "up_inside" in wrong(lambda g: losses.ppo()(g) * 4, stated)


def test_in_bfloat16_rounding_is_within_the_stated_spread() -> None:
    probe = objective(losses.ppo(), dtype=torch.bfloat16)
    assert probe["spread"] == pytest.approx(2**-7)
    assert (
        wrong(losses.ppo(), Stated(epsilon_low=0.2, epsilon_high=0.2), dtype=torch.bfloat16) == []
    )
