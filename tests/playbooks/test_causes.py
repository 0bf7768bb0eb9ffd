"""The closed list of causes: a public contract, never renamed."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from pydantic import ValidationError

from firstbad.playbooks.causes import causes
from firstbad.playbooks.findings import build_finding
from firstbad.playbooks.gate import judge
from firstbad.playbooks.loader import load, shipped
from firstbad.playbooks.model import Cause, Check
from firstbad.tools.evidence import Evidence

# Copied from the reference, with the layer of each. Ids are compared by other people's scripts:
# a line may be added here, and none changed or taken away.
IDS = """
none.healthy -
infra.rollout_stall records
infra.resume records
cfg.resolved records
cfg.completion_cap records
data.wrong_gold records
id.rows records
metric.misleading records
data.sampling records
prob.engine_mismatch probability
prob.processed_logprobs probability
prob.weight_sync probability
prob.stale_rollouts probability
prob.old_logprob_source probability
prob.tokenization probability
prob.conditioning probability
prob.nondeterministic_trainer probability
prob.positions probability
prob.moe_routing probability
grad.accumulation_scale accumulation
grad.denominator accumulation
grad.missing_microbatch accumulation
grad.reduction accumulation
grad.objective accumulation
grad.frozen accumulation
mask.prompt masks
mask.tool masks
mask.padding masks
mask.shifted masks
mask.dropped masks
mask.eos masks
mask.truncation masks
data.dirty_samples masks
num.exp_overflow numerics
num.low_precision_logprob numerics
num.update_absorbed numerics
num.log_softmax_eps numerics
num.inf_sentinel numerics
num.clamp_in_objective numerics
num.overflow_activations numerics
opt.step_too_large optimizer
opt.lr_jump optimizer
opt.state_mismatch optimizer
opt.data_reuse optimizer
opt.kl_constraint optimizer
opt.entropy_bonus optimizer
opt.critic optimizer
opt.reference_model optimizer
opt.grad_clip_fuse optimizer
reward.verifier_outage reward
reward.service_slow reward
reward.environment_leak reward
reward.false_negative reward
reward.false_positive reward
reward.scale reward
reward.outlier reward
reward.near_zero_sigma reward
reward.model_overoptimised reward
reward.wrong_group reward
reward.truncation_conflated reward
reward.hack_length reward
reward.hack_format reward
reward.phase_change reward
collapse.all_right samples
collapse.all_wrong samples
collapse.sigma_minority shaping
collapse.few_samples samples
collapse.dynamic_sampling samples
collapse.filter_shaped samples
collapse.tool_drift samples
collapse.clip_upper shaping
collapse.entropy prompt
collapse.template prompt
collapse.length_normalisation shaping
other.unlisted any
"""
LISTED = [line.split() for line in IDS.split("\n") if line]


def test_all_75_ids_are_there_and_none_was_renamed() -> None:
    assert len(LISTED) == 75
    assert {name for name, _ in LISTED} <= set(causes())


def test_ids_stand_in_the_order_of_the_reference() -> None:
    known = [name for name in causes() if name in {n for n, _ in LISTED}]
    assert known == [name for name, _ in LISTED]


@pytest.mark.parametrize(("name", "layer"), LISTED)
def test_a_cause_says_what_it_is_how_to_cure_it_and_what_would_refute_it(
    name: str, layer: str
) -> None:
    cause = causes()[name]
    assert cause.id == name
    assert cause.layer == layer
    assert cause.wrong
    assert cause.tells
    for text in (cause.remedy, cause.refuted_by):
        assert len(text.split()) >= 2
        assert "!" not in text
    assert cause.remedy_kind in ("fixes", "dilutes", "experiment")


SMALLER_STEPS = re.compile(
    r"(lower|reduc|smaller|halv)\w* (the )?(learning rate|lr|step)"
    r"|(more|tighter|stronger) (grad\w* )?clip"
    r"|longer warm-?up|bigger batch",
    re.IGNORECASE,
)


@pytest.mark.parametrize("name", [n for n, _ in LISTED])
def test_what_only_makes_steps_smaller_never_fixes(name: str) -> None:
    cause = causes()[name]
    assert cause.remedy_kind != "fixes" or not SMALLER_STEPS.search(cause.remedy)


def test_a_remedy_that_a_check_gives_never_only_makes_steps_smaller() -> None:
    for name in shipped():
        for layer in load(name).playbook.layers:
            for pointer in (p for c in layer.checks for p in c.points_to):
                kind = pointer.remedy_kind or causes()[pointer.cause].remedy_kind
                assert not (kind == "fixes" and SMALLER_STEPS.search(pointer.remedy)), (
                    pointer.remedy
                )
                assert pointer.remedy or not pointer.remedy_kind


def test_the_word_for_smaller_steps_finds_them() -> None:
    assert SMALLER_STEPS.search("lower the learning rate to a tenth")
    assert SMALLER_STEPS.search("more gradient clipping")
    assert not SMALLER_STEPS.search("restore the learning-rate schedule with the step")


CRASH_LAYERS = {
    "records", "probability", "accumulation", "masks", "numerics", "optimizer", "reward",
}  # fmt: skip


@pytest.mark.parametrize("name", [n for n, layer in LISTED if layer in CRASH_LAYERS])
def test_a_cause_of_the_crash_layers_says_all_that_one_does_about_it(name: str) -> None:
    cause = causes()[name]
    for text in (cause.remedy, cause.verify, cause.refuted_by, cause.rollback, cause.log_next):
        assert 3 <= len(text.split()) <= 40, text
        assert not text.endswith(".")
    assert cause.experiment is not None
    trial = cause.experiment
    assert len({trial.change, trial.expect, trial.otherwise, cause.remedy}) == 4
    for text in (trial.change, trial.expect, trial.otherwise):
        assert 1 <= len(text.split()) <= 40, text
        assert not text.endswith(".")
    assert cause.remedy_kind != "dilutes"
    assert cause.dilutes != cause.remedy
    assert cause.rollback.startswith("no rollback") or cause.weights != "sound"
    assert not (cause.rollback.startswith("no rollback") and cause.weights == "spoiled")


def test_what_the_gradient_was_made_of_decides_over_the_weights() -> None:
    worth = {name: causes()[name].weights for name, _ in LISTED}
    assert worth["metric.misleading"] == worth["reward.service_slow"] == "sound"
    assert worth["grad.objective"] == worth["mask.prompt"] == worth["opt.lr_jump"] == "spoiled"
    assert {worth[n] for n, _ in LISTED if n.startswith("prob.")} == {"spoiled"}


def test_the_form_of_an_id_is_fixed() -> None:
    fields = {"layer": "records", "wrong": "w", "tells": "t"}
    for bad in ("rows", "id.Rows", "id.rows.more", "id rows", ""):
        with pytest.raises(ValidationError, match="pattern"):
            Cause.model_validate({"id": bad, **fields})
    with pytest.raises(ValidationError, match="extra"):
        Cause.model_validate({"id": "id.rows", "severity": "high", **fields})


@pytest.mark.parametrize("name", shipped())
def test_shipped_playbooks_point_to_causes_of_the_list(name: str) -> None:
    book = load(name).playbook
    pointed = {p.cause for layer in book.layers for c in layer.checks for p in c.points_to}
    assert pointed <= set(causes())
    assert "none.healthy" not in pointed


@pytest.mark.parametrize("name", shipped())
def test_what_only_finds_out_is_an_experiment(name: str) -> None:
    """A remedy that begins with looking, comparing or two runs changes nothing by itself."""
    finds_out = re.compile(r"^(two runs|run the batch|close the layers|read twenty)")
    pointers = [p for la in load(name).playbook.layers for c in la.checks for p in c.points_to]
    found = [p for p in pointers if finds_out.match(p.remedy)]
    assert found
    assert {p.remedy_kind for p in found} == {"experiment"}


@pytest.mark.parametrize(
    ("own", "kind"), [({}, "fixes"), ({"remedy_kind": "experiment"}, "experiment")]
)
def test_a_remedy_of_a_check_may_be_of_another_kind(
    check: Callable[..., Check],
    seen: Callable[..., dict[str, Evidence]],
    own: dict[str, str],
    kind: str,
) -> None:
    pointer = {"cause": "id.rows", "claim": "broken", "remedy": "replay the batch", **own}
    made = check({"fail_if": {"rows.bad": "> 0"}}, points_to=[pointer])
    read = seen(rows={"bad": 2})
    found = build_finding(made, judge(made, read, playbook="p", layer="records"), read)
    assert found.remedy == "replay the batch"
    assert found.remedy_kind == kind
