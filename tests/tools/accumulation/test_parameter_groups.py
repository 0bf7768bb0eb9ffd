"""Groups of parameters that stand while others move."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from firstbad.tools.flight import FlightStep, ParameterGroup
from firstbad.tools.run import Run
from synthetic.by_hand import flight, probe

TOOL = "check_parameter_groups"
MakeRun = Callable[..., Run]
Norms = tuple[float | None, float | None]
MOVES, STANDS, UNMOVED, IDLE = (0.1, 1e-3), (0.0, 0.0), (0.1, 0.0), (None, 0.0)


def group(name: str, norms: Norms, dtype: str) -> ParameterGroup:
    """A group of weights of size 1."""
    grad, update = norms
    return ParameterGroup(name, grad, update, 1.0, dtype=dtype)


@pytest.fixture
def check(make_run: MakeRun, measure: Callable[..., dict[str, Any]]) -> Callable[..., Any]:
    """Metrics of twelve steps with these groups: one pair of norms, or one for each half."""

    def of(config: dict[str, object] | None = None, dtype: str = "float32", **groups: Any) -> Any:
        steps = [
            FlightStep(
                s,
                parameters=tuple(
                    group(name, v[s > 6] if isinstance(v, list) else v, dtype)
                    for name, v in groups.items()
                ),
            )
            for s in range(1, 13)
        ]
        return measure(TOOL, make_run(flight=flight(*steps), config=config or {}))

    return of


def test_all_groups_move(check: Any) -> None:
    found = check(body=MOVES, head=MOVES)
    assert (found["n_groups"], found["still_groups"], found["first_bad_step"]) == (2, 0, None)


def test_a_group_that_stops(check: Any) -> None:
    found = check(body=MOVES, head=[MOVES, STANDS])
    assert (found["still_groups"], found["stopped_groups"]) == (1, 1)
    assert (found["last_good_step"], found["first_bad_step"]) == (6, 7)
    assert found["still_share"] == 0.5


def test_a_group_that_never_had_a_gradient_may_be_meant_so(check: Any) -> None:
    for norms in (STANDS, IDLE):
        found = check(body=MOVES, vision=norms)
        assert (found["still_groups"], found["stopped_groups"]) == (1, 0)
    assert check(body=MOVES, vision=STANDS)["unmoved_groups"] == 0
    assert check(body=MOVES, vision=UNMOVED)["unmoved_groups"] == 1


def test_a_group_that_comes_back_does_not_stand(check: Any) -> None:
    assert check(body=MOVES, head=[STANDS, MOVES])["still_groups"] == 0


def test_steps_in_which_nothing_moves_tell_nothing(check: Any) -> None:
    found = check(body=[STANDS, MOVES], head=[STANDS, MOVES])
    assert (found["n_steps"], found["still_groups"]) == (6, 0)


def test_an_update_may_vanish_in_sixteen_bits(check: Any) -> None:
    assert check(dtype="bfloat16", body=MOVES, head=[MOVES, UNMOVED])["still_groups"] == 0
    assert check(dtype="torch.bfloat16", body=MOVES, head=[MOVES, STANDS])["still_groups"] == 1


@pytest.mark.parametrize(
    ("groups", "config"),
    [
        ({"lora_A": MOVES, "base": STANDS}, {}),
        ({"body": MOVES, "vision": STANDS}, {"freeze_vision": True}),
    ],
)
def test_frozen_on_purpose(check: Any, groups: dict[str, Norms], config: dict[str, object]) -> None:
    assert check(config, **groups)["freezing_declared"] is True


def test_an_adapter_that_stands_is_no_frozen_base(check: Any) -> None:
    found = check(lora_A=MOVES, lora_B=[MOVES, STANDS])
    assert (found["freezing_declared"], found["stopped_groups"]) == (False, 1)


def test_experts_and_embeddings_may_have_no_tokens(check: Any) -> None:
    groups = {"body": MOVES, "head": MOVES, "embed_tokens": STANDS, "mlp.experts.3": STANDS}
    assert check(**groups)["still_groups"] == 0


def probed(make_run: MakeRun, *rows: tuple[str, float | None, bool]) -> Run:
    parameters = [{"name": n, "grad_norm": g, "trainable": t} for n, g, t in rows]
    return make_run(flight=flight(probes=[probe("gradients", parameters=parameters)]))


def test_trainable_parameters_without_a_gradient(
    make_run: MakeRun, measure: Callable[..., dict[str, Any]]
) -> None:
    run = probed(make_run, ("a", 0.1, True), ("b", 0.0, True), ("c", None, True), ("d", 0.0, False))
    found = measure(TOOL, run)
    assert (found["n_probed"], found["probe_zero"]) == (2, 1)
    assert (found["first_bad_step"], found["from_start"]) == (1, True)


def test_a_new_adapter_has_no_gradient_in_its_first_factor(
    make_run: MakeRun, measure: Callable[..., dict[str, Any]]
) -> None:
    run = probed(make_run, ("q.lora_A", 0.0, True), ("q.lora_B", 0.1, True))
    assert measure(TOOL, run)["probe_zero"] == 0
