"""The tool table: names, settings, and a tool that breaks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from firstbad.tools import registry
from firstbad.tools.errors import NoData, ToolInputError
from firstbad.tools.evidence import Dated, Metrics
from firstbad.tools.readers import open_run
from firstbad.tools.registry import Measured, find_tool, run_tool, tools
from firstbad.tools.run import Run
from synthetic.cases_accumulation import InParts
from synthetic.cases_update_sign import SamePrompts

MakeRun = Callable[..., Run]


class Reading(Metrics):
    value: float | None


def read_meter(run: Run, *, how: str = "well", unit: int = 1) -> Measured[Reading]:
    """Reading of a meter.

    Cannot tell: the weather.
    """
    if how == "badly":
        raise ZeroDivisionError("the meter fell off")
    if how == "empty":
        raise NoData("no meter in the run")
    if how == "asked wrongly":
        raise ToolInputError("no such meter; there is 1")
    return Measured(Reading(value=float("nan") if how == "strangely" else 2.0 * unit), "it reads")


@pytest.fixture
def meter(monkeypatch: pytest.MonkeyPatch) -> str:
    """The meter in the tool table, beside the real tools."""
    monkeypatch.setattr(registry, "_TABLE", dict(tools()))
    assert registry.tool(read_meter) is read_meter
    return "read_meter"


@pytest.mark.parametrize("name", list(tools()))
def test_a_tool_says_what_it_measures_and_what_it_cannot_tell(name: str) -> None:
    tool = tools()[name]
    assert tool.name == name == tool.function.__name__
    assert tool.summary.endswith(".") or tool.summary in tool.description
    assert "Cannot tell" in tool.description
    assert issubclass(tool.metrics, Metrics)
    assert all(not field.is_required() for field in tool.settings.model_fields.values())


@pytest.mark.parametrize("name", list(tools()))
def test_a_tool_has_a_file_of_tests(name: str, repo: Path) -> None:
    module = tools()[name].function.__module__.removeprefix("firstbad.tools.")
    layer, _, name_of_file = module.partition(".")
    tests = repo / "tests" / "tools" / layer / f"test_{name_of_file}.py"
    assert f'"{name}"' in tests.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", list(tools()))
def test_metrics_are_plain_numbers_by_type(name: str) -> None:
    for field, info in tools()[name].metrics.model_fields.items():
        parts = set(str(info.annotation).replace("<class '", "").replace("'>", "").split(" | "))
        assert parts <= {"bool", "int", "float", "None"}, field


@pytest.mark.parametrize("name", list(tools()))
def test_an_empty_run_is_no_data_with_a_helpful_text(name: str, make_run: MakeRun) -> None:
    found = run_tool(name, make_run(), {}, evidence_id="E7")
    if name in ("list_events", "take_stock", "compare_updates_at_resume"):
        assert found.status == "measured", "that nothing is there is a fact"
        return
    assert found.status == "no_data"
    assert found.metrics is None
    assert found.error is None
    assert len(found.summary.split()) >= 3
    assert found.id == "E7"


def test_an_unknown_tool_offers_the_names(make_run: MakeRun) -> None:
    with pytest.raises(ToolInputError, match=r"no tool `check_mask`; there are: .*check_masks.*"):
        run_tool("check_mask", make_run(), {}, evidence_id="E1")
    with pytest.raises(ToolInputError, match="rejudge"):
        find_tool("")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ({"colour": 1}, ["`colour`", "how, unit"]),
        ({"unit": "many"}, ["`unit`", "integer"]),
        ({"unit": None}, ["`unit`"]),
        ({"how": 3, "unit": 1.5}, ["`how`", "`unit`"]),
    ],
)
def test_a_bad_argument_is_named(
    meter: str, make_run: MakeRun, args: dict[str, Any], says: list[str]
) -> None:
    with pytest.raises(ToolInputError) as error:
        run_tool(meter, make_run(), args, evidence_id="E1")
    for words in (meter, *says):
        assert words in str(error.value)


def test_a_tool_without_settings_says_so(make_run: MakeRun) -> None:
    with pytest.raises(ToolInputError, match="it takes no settings"):
        run_tool("check_rows", make_run(), {"step": 1}, evidence_id="E1")


def test_measured(meter: str, make_run: MakeRun) -> None:
    found = run_tool(meter, make_run(), {"unit": 3}, evidence_id="E2")
    assert (found.status, found.metrics) == ("measured", {"value": 6.0})
    assert found.args == {"how": "well", "unit": 3}, "defaults are recorded too"
    assert found.tool_version
    assert found.seconds >= 0


def test_a_tool_that_breaks_is_evidence_of_an_error(meter: str, make_run: MakeRun) -> None:
    found = run_tool(meter, make_run(), {"how": "badly"}, evidence_id="E3")
    assert (found.status, found.metrics) == ("error", None)
    assert found.error is not None
    assert "ZeroDivisionError: the meter fell off (read_meter, line" in found.error
    assert found.summary == "`read_meter` broke: ZeroDivisionError"
    assert found.args["how"] == "badly"


def test_a_tool_that_stores_nan_breaks_and_does_not_measure(meter: str, make_run: MakeRun) -> None:
    found = run_tool(meter, make_run(), {"how": "strangely"}, evidence_id="E4")
    assert found.status == "error"
    assert found.error is not None
    assert "count non-finite values" in found.error


def test_no_data_and_wrong_questions_are_told_apart(meter: str, make_run: MakeRun) -> None:
    found = run_tool(meter, make_run(), {"how": "empty"}, evidence_id="E5")
    assert (found.status, found.summary) == ("no_data", "no meter in the run")
    with pytest.raises(ToolInputError, match="there is 1"):
        run_tool(meter, make_run(), {"how": "asked wrongly"}, evidence_id="E6")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A sound run with a record of micro-batches, parameters and probes."""
    trainer = InParts(steps=20, captures=5, probes=(2,))
    return open_run(str(trainer.run(tmp_path_factory.mktemp("recorded"))))


@pytest.fixture(scope="module")
def repeating(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A sound run that asks the same prompts in every step, each of them captured."""
    return open_run(str(SamePrompts().run(tmp_path_factory.mktemp("repeating"))))


DRAWN_APART = ("recompute_figures",)
"""What the simulator logs of entropy and KL is not drawn from its captures."""


def with_data(name: str, *runs: Run) -> Run:
    """The first run that has what the tool reads."""
    fit = runs[1:] if name in DRAWN_APART else runs
    return next(r for r in fit if run_tool(name, r, {}, evidence_id="E1").status == "measured")


@pytest.mark.parametrize("name", list(tools()))
def test_the_same_run_gives_the_same_evidence(
    name: str, healthy: Run, recorded: Run, repeating: Run
) -> None:
    run = with_data(name, healthy, recorded, repeating)
    found = [run_tool(name, run, {}, evidence_id="E1") for _ in range(2)]
    assert found[0].status == "measured"
    assert found[0].model_copy(update={"seconds": 0.0}) == found[1].model_copy(
        update={"seconds": 0.0}
    )


@pytest.mark.parametrize("name", list(tools()))
def test_a_healthy_run_has_no_first_bad_step(
    name: str, healthy: Run, recorded: Run, repeating: Run
) -> None:
    found = run_tool(name, with_data(name, healthy, recorded, repeating), {}, evidence_id="E1")
    assert found.metrics is not None
    assert found.metrics.get("first_bad_step") is None
    assert not found.metrics.get("from_start", False)


class Began(Dated):
    """When it began."""


@pytest.mark.parametrize(
    ("steps", "good", "bad", "sampled"),
    [
        ((5, 10, 20), 10, 20, True),
        ((10, 15, 20), 10, 20, False),
        ((18, 19, 20), 19, 20, False),
        ((5, 20), 10, 20, False),  # dated by something else than these rollouts
    ],
)
def test_an_onset_between_two_sampled_steps_is_a_bracket(
    make_run: MakeRun,
    batch: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    steps: tuple[int, ...],
    good: int,
    bad: int,
    sampled: bool,
) -> None:
    def find_began(run: Run) -> Measured[Began]:
        """When it began. Cannot tell: why."""
        list(run.rollouts.batches())
        return Measured(Began(last_good_step=good, first_bad_step=bad), "it began")

    monkeypatch.setattr(registry, "_TABLE", dict(tools()))
    find_began.__annotations__["return"] = Measured[Began]
    registry.tool(find_began)
    run = make_run(rollouts=[batch(step, completions=["a", "b"]) for step in steps])
    found = run_tool("find_began", run, {}, evidence_id="E1")
    assert found.metrics is not None
    assert found.metrics["sampled"] is sampled
