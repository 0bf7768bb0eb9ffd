from __future__ import annotations

from typing import Any

import pytest

from firstbad_recorder.probes.denominators import denominators
from firstbad_recorder.probes.loss_function import examine
from firstbad_recorder.probes.weighting import COUNTS_MORE, WEIGHTS
from recorder_probes import losses


def by_what(audit: list[dict[str, Any]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for entry in audit:
        found.setdefault(entry["what"], []).append(entry["is"])
    return found


def test_every_reduction_says_what_it_makes_count_more() -> None:
    assert set(WEIGHTS) == set(COUNTS_MORE)


def test_settings_alone_give_every_normalisation_that_they_name() -> None:
    found = by_what(
        denominators({
            "loss_type": "dr_grpo",
            "max_completion_length": 512,
            "scale_rewards": "none",
            "gradient_accumulation_steps": 4,
            "max_grad_norm": 1.0,
        })
    )  # fmt: skip
    assert found == {
        "advantage": ["group mean subtracted, not divided"],
        "policy term": ["dr_grpo: row_mean_of_token_sum, divided by max_completion_length 512"],
        "micro-batches": ["mean over 4"],
        "gradient": ["norm cut at 1"],
    }


def test_verls_nested_names_are_read() -> None:
    found = by_what(
        denominators({
            "actor_rollout_ref.actor.loss_agg_mode": "seq-mean-token-mean",
            "algorithm.norm_adv_by_std_in_grpo": True,
        })
    )  # fmt: skip
    assert found["policy term"] == ["seq-mean-token-mean: row_mean_of_token_mean"]
    assert found["advantage"] == ["divided by the standard deviation of its group"]


def test_nothing_known_gives_nothing() -> None:
    assert denominators() == []
    assert denominators({"loss_type": "something of our own", "scale_rewards": None}) == []


def test_probing_is_held_against_the_setting() -> None:
    pytest.importorskip("torch")
    rows, tokens = examine(losses.ppo(losses.row_mean)), examine(losses.ppo(losses.token_mean))
    outside = examine(losses.ppo(losses.from_outside))
    for word, found, off in (
        ("grpo", rows, False),
        ("grpo", tokens, True),
        ("dapo", tokens, False),
        ("dapo", outside, False),  # its denominator comes from outside
        ("bnpo", outside, True),
    ):
        probed = [e for e in denominators({"loss_type": word}, found) if e["source"] == "probe"]
        assert [e["disagrees"] for e in probed] == [off], word


def test_a_kl_term_of_another_reduction_is_named() -> None:
    pytest.importorskip("torch")
    rows = losses.ppo(losses.row_mean)

    def mixed(given: Any) -> Any:
        return rows(given) + 0.04 * losses.token_mean(losses.k3(given), given.loss_mask)

    audit = {e["what"]: e for e in denominators(None, examine(mixed))}
    assert audit["KL term"]["is"] == "token_mean, k3 with coefficient 0.04"
    assert "not the reduction of the policy term" in audit["KL term"]["counts_more"]
    by_ratio = losses.with_kl(lambda g: losses.k3(g) * (g.logp_new - g.logp_old).exp())
    weighed = {e["what"]: e["is"] for e in denominators(None, examine(by_ratio))}
    assert weighed["KL term"] == "token_mean, k3 (its gradient: k2) with coefficient 0.04"
    same = {e["what"]: e for e in denominators(None, examine(losses.ppo(beta=0.04)))}
    assert "not the reduction" not in same["KL term"]["counts_more"]


def test_weights_beside_the_denominator_are_listed() -> None:
    pytest.importorskip("torch")
    engine = by_what(denominators(None, examine(losses.with_engine("truncated"))))
    assert engine["engine weight"] == ["token, truncated at 2"]
    sequence = by_what(denominators(None, examine(losses.ppo(losses.row_mean, sequence=True))))
    assert sequence["ratio"] == ["sequence_mean"]
    unmasked = by_what(denominators(None, examine(losses.ppo(losses.unmasked))))
    assert unmasked["places outside the loss mask"] == ["weight 1 of a trained token"]
