"""Gates of the optimizer layer on figures: the cause that each points to, and its look-alikes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from firstbad.playbooks.findings import build_finding
from firstbad.playbooks.gate import judge
from firstbad.playbooks.loader import load
from firstbad.tools.evidence import Evidence

Figures = Mapping[str, Any]
Seen = Callable[..., dict[str, Evidence]]
(LAYER,) = (layer for layer in load("crash").playbook.layers if layer.id == "optimizer")
CHECKS = {check.id: check for check in LAYER.checks}

RATE = {"n_steps": 120, "expected_known": True, "jump_factor": 1.0, "largest_factor": 1.0}
STATE = {
    **{"n_states": 2, "settled": True, "rate_off_factor": 1.0, "state_dropped": False},
    **{"both_dropped": False, "state_ahead": False, "schedule_dropped": False},
}
MOMENTS = {
    **{"n_states": 1, "blank_share": 0.0, "norm_logged": 0.5, "second_zero_share": 0.0},
    **{"impossible_share": 0.0, "coarse": False, "coarse_resumed": False, "below_eps_share": 0.0},
}
CLIP = {
    **{"n_steps": 120, "hit_share": 0.99, "norm_over_clip_median": 8.0, "scale_free": False},
    **{"n_captured": 0, "after_over_clip": None, "clip_value": 0.1},
}
CRITIC = {
    **{"has_critic": True, "n_steps": 90, "below_zero_late": 0.0, "spread_late": 0.4},
    **{"explained_late": 0.3, "bias_late": 0.1},
}
STEPS = {
    **{"n_steps": 120, "runaway": False, "reuse_alarm": False, "resume_jump": False},
    **{"unheld": False, "reward_lost": 0.8, "updates_per_batch": 8.0},
}
PASSES = {"clip_second": 0.04, "clip_last": 0.16, "tail_second": 3.0, "tail_last": 7.0}


@pytest.mark.parametrize(
    ("name", "figures", "cause"),
    [
        ("learning_rate", {"lr": RATE, "state": STATE}, None),
        ("learning_rate", {"lr": RATE, "state": {**STATE, "rate_off_factor": 10.0}}, "opt.lr_jump"),
        ("learning_rate", {"lr": RATE, "state": {**STATE, "rate_off_factor": None}}, None),
        ("state", {"state": STATE}, None),
        ("state", {"state": {**STATE, "state_dropped": True}}, "opt.state_mismatch"),
        ("state", {"state": {**STATE, "both_dropped": True}}, "opt.state_mismatch"),
        ("state", {"state": {**STATE, "state_ahead": True}}, "opt.state_mismatch"),
        ("state", {"state": {**STATE, "schedule_dropped": True}}, "opt.lr_jump"),
        ("moments", {"moments": MOMENTS}, None),
        ("moments", {"moments": {**MOMENTS, "second_zero_share": 0.1}}, "opt.state_mismatch"),
        ("moments", {"moments": {**MOMENTS, "impossible_share": 0.1}}, "opt.state_mismatch"),
        ("moments", {"moments": {**MOMENTS, "blank_share": 1.0}}, "opt.state_mismatch"),
        # No gradient was logged either: then it is the gradient that is missing.
        ("moments", {"moments": {**MOMENTS, "blank_share": 1.0, "norm_logged": 0.0}}, None),
        ("moments", {"moments": {**MOMENTS, "blank_share": 1.0, "norm_logged": None}}, None),
        ("moments", {"moments": {**MOMENTS, "coarse": True}}, None),
        ("moments", {"moments": {**MOMENTS, "coarse_resumed": True}}, "opt.state_mismatch"),
        ("weight_moves", {"moves": {"adam": True, "moved_over_rates": 2.2}}, "opt.state_mismatch"),
        ("weight_moves", {"moves": {"adam": True, "moved_over_rates": 0.3}}, None),
        ("grad_clip", {"clip": CLIP, "moments": None}, "opt.grad_clip_fuse"),
        ("grad_clip", {"clip": {**CLIP, "hit_share": 0.5}, "moments": None}, None),
        ("grad_clip", {"clip": {**CLIP, "norm_over_clip_median": 1.2}, "moments": None}, None),
        # Adam divides by the size of the gradient, until epsilon is larger than what is left of it.
        ("grad_clip", {"clip": {**CLIP, "scale_free": True}, "moments": MOMENTS}, None),
        (
            "grad_clip",
            {
                "clip": {**CLIP, "scale_free": True},
                "moments": {**MOMENTS, "below_eps_share": 0.8},
            },
            "opt.grad_clip_fuse",
        ),
        ("critic", {"critic": CRITIC}, None),
        ("critic", {"critic": {**CRITIC, "has_critic": False}}, None),
        ("critic", {"critic": {**CRITIC, "below_zero_late": 1.0}}, "opt.critic"),
        ("critic", {"critic": {**CRITIC, "bias_late": 2.0}}, "opt.critic"),
        # Rewards that are all alike leave nothing to explain.
        ("critic", {"critic": {**CRITIC, "below_zero_late": 1.0, "spread_late": 0.0}}, None),
        (
            "step_size",
            {"steps": {**STEPS, "unheld": True}, "budget": None, "passes": None},
            "opt.kl_constraint",
        ),
        (
            "step_size",
            {"steps": {**STEPS, "reuse_alarm": True}, "budget": None, "passes": PASSES},
            "opt.data_reuse",
        ),
        ("step_size", {"steps": STEPS, "budget": None, "passes": PASSES}, None),
        # A weight that is there only to have KL logged holds as little as none.
        (
            "step_size",
            {"steps": {**STEPS, "runaway": True}, "budget": {"used_share": 0.0}, "passes": None},
            "opt.kl_constraint",
        ),
        (
            "step_size",
            {"steps": {**STEPS, "runaway": True}, "budget": {"used_share": 0.01}, "passes": None},
            "opt.step_too_large",
        ),
    ],
)
def test_gate(name: str, figures: Figures, cause: str | None, seen: Seen) -> None:
    read = seen(**figures)
    result = judge(CHECKS[name], read, playbook="crash", layer="optimizer")
    assert result.outcome == ("pass" if cause is None else "fail")
    if cause is not None:
        assert build_finding(CHECKS[name], result, read).cause == cause


@pytest.mark.parametrize(
    ("name", "figures"),
    [
        # SGD's updates go with its gradients: nothing bounds them by the rate.
        ("weight_moves", {"moves": {"adam": False, "moved_over_rates": 9.0}}),
        ("weight_moves", {"moves": {"adam": True, "moved_over_rates": None}}),
        ("grad_clip", {"clip": {**CLIP, "scale_free": None}, "moments": None}),
        (
            "critic",
            {
                "critic": {
                    **CRITIC,
                    "explained_late": None,
                    "below_zero_late": None,
                    "bias_late": None,
                }
            },
        ),
    ],
)
def test_what_is_not_known_decides_nothing(name: str, figures: Figures, seen: Seen) -> None:
    result = judge(CHECKS[name], seen(**figures), playbook="crash", layer="optimizer")
    assert result.outcome == "inconclusive"


def test_a_batch_that_is_hardly_left_contradicts_reuse(seen: Seen) -> None:
    passes = {**PASSES, "tail_last": 0.1}
    read = seen(steps={**STEPS, "reuse_alarm": True}, budget=None, passes=passes)
    result = judge(CHECKS["step_size"], read, playbook="crash", layer="optimizer")
    assert build_finding(CHECKS["step_size"], result, read).contradicts
