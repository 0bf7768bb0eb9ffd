"""Each rule fires on what it is for, and not on what looks like it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from importlib.resources import files

import pytest
import yaml

from firstbad_recorder.plain import as_number
from firstbad_recorder.rules import MOST_ALARMS, Alarm, Rules


def alarms(name: str, values: Iterable[float], rules: Rules | None = None) -> list[Alarm]:
    """Of one signal, from step 1 on."""
    rules = rules or Rules()
    found: list[Alarm] = []
    for step, value in enumerate(values, 1):
        found += rules.observe(step, {name: as_number(value)})
    return found


def wave(n: int, middle: float, width: float) -> list[float]:
    return [middle + width * math.sin(1.7 * i) for i in range(n)]


LEVELS = [
    # signal, a healthy level, a breach
    ("kl", 0.05, 0.6),
    ("actor/pg_clipfrac", 0.1, 0.5),
    ("entropy", 1.0, 0.2),
    ("grad_norm", 0.5, 6.0),
    ("completions/mean_length", 200.0, 450.0),
]


@pytest.mark.parametrize(("name", "usual", "breach"), LEVELS)
def test_a_level_fires_once_at_its_third_breach(name: str, usual: float, breach: float) -> None:
    (alarm,) = alarms(name, [*wave(30, usual, 0.05 * usual), *[breach] * 40])
    assert (alarm.first, alarm.step) == (31, 33)
    assert alarm.why.endswith("since step 31")


@pytest.mark.parametrize(("name", "usual", "breach"), LEVELS)
def test_single_spikes_fire_nothing(name: str, usual: float, breach: float) -> None:
    spikes = [breach if i % 3 != 0 else usual for i in range(60)]  # two in a row, over and over
    assert not alarms(name, [*wave(30, usual, 0.05 * usual), *spikes])


@pytest.mark.parametrize(
    ("name", "values"),
    [
        pytest.param("entropy", [2.0 * 0.99**i for i in range(110)], id="slow-sharpening"),
        pytest.param("grad_norm", [0.1 * 1.01**i for i in range(600)], id="norm-grows-slowly"),
        pytest.param("grad_norm", [0.0] * 30 + [0.2] * 30, id="no-gradient-so-far"),
        pytest.param("completion_length_mean", [100 + i for i in range(400)], id="longer"),
        pytest.param("reward", [i / 500 for i in range(500)], id="slow-learning"),
        pytest.param("reward", [0.5 + 0.3 * (i % 2) for i in range(300)], id="noisy-reward"),
        pytest.param("reward", [-1.0 - i / 100 for i in range(300)], id="no-positive-baseline"),
        pytest.param("reward", [0.8 - i / 2000 for i in range(600)], id="falls-over-600-steps"),
    ],
)
def test_slow_changes_fire_nothing(name: str, values: Sequence[float]) -> None:
    assert not alarms(name, values)


def test_a_reward_that_falls_by_a_fifth_fires_once() -> None:
    (alarm,) = alarms("reward_mean", [*wave(100, 0.6, 0.05), *wave(100, 0.3, 0.05)])
    assert 101 <= alarm.step <= 115


def test_a_huge_reward_is_forgotten() -> None:
    values = [1e30, *[0.5] * 150, *[0.1] * 40]
    assert any(151 < alarm.step < 175 for alarm in alarms("reward", values))


def test_a_part_of_the_reward_that_no_longer_varies_fires_at_once() -> None:
    (alarm,) = alarms("rewards/right/std", [*[0.4] * 20, *[0.0] * 20])
    assert (alarm.first, alarm.step, alarm.why) == (21, 21, "`rewards/right` no longer varies")


@pytest.mark.parametrize(
    "values",
    [[0.0] * 60, [0.4, 0.0] * 30, [0.0] * 30 + [0.4] * 5 + [0.0] * 30],
    ids=["constant-from-the-start", "varies-now-and-then", "rarely-varies"],
)
def test_a_part_that_never_varied_steadily_fires_nothing(values: list[float]) -> None:
    assert not alarms("rewards/format/std", values)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_longer_finite_fires_at_once(value: float) -> None:
    (alarm,) = alarms("loss", [0.1, 0.2, value, value, value])
    assert (alarm.first, alarm.step, alarm.why) == (3, 3, "not finite: `loss`")


def test_what_was_never_finite_fires_nothing() -> None:
    assert not alarms("eval/reward", [math.nan] * 20)
    assert not alarms("reward", [math.nan] * 20 + [0.1] * 5)


def test_many_signals_that_break_at_once_are_one_alarm() -> None:
    rules = Rules()
    names = [f"layer/{i}" for i in range(100)]
    assert not list(rules.observe(1, dict.fromkeys(names, 0.5)))
    (alarm,) = rules.observe(2, dict.fromkeys(names, "NaN"))
    assert alarm.why == "not finite: `layer/0`, `layer/1`, `layer/2` and 97 more"


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("eval/loss", [0.5, math.nan] * 50),
        ("kl", [*[0.9] * 3, 0.1] * 50),
        ("rewards/a/std", [*[0.4] * 11, 0.0] * 50),
    ],
)
def test_a_rule_that_is_wrong_for_a_run_falls_silent(name: str, values: list[float]) -> None:
    assert len(alarms(name, values)) == MOST_ALARMS


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("reward", 0.8, 0.2),
        ("entropy", 1.0, 0.2),
        ("grad_norm", 0.1, 5.0),
        ("response_length/mean", 100.0, 500.0),
        ("rewards/a/std", 0.4, 0.0),
    ],
)
def test_a_new_phase_begins_anew(name: str, before: float, after: float) -> None:
    rules = Rules()
    assert not alarms(name, [before] * 60, rules)
    rules.restart()
    assert not alarms(name, [after] * 60, rules)
    assert alarms(name, [*[before] * 60, *[after] * 60])  # it would have fired


def test_what_is_no_number_is_passed_over() -> None:
    rules = Rules()
    values: dict[str, object] = {"kl": True, "entropy": None, "reward": [1], "grad_norm": 10**18}
    for step in range(30):
        assert not list(rules.observe(step, values))


WATCHED = {
    "kl_ref": ("kl", 0.05, 0.6),
    "clip_frac_total": ("clip fraction", 0.1, 0.5),
    "entropy": ("entropy", 1.0, 0.2),
    "grad_norm_preclip": ("gradient norm", 0.5, 6.0),
    "completion_length_mean": ("length", 200.0, 450.0),
    "reward_mean": ("reward", 0.8, 0.3),
}
"""By canonical name: how an alarm begins, a healthy level, a breach."""


def logged_names() -> list[tuple[str, str]]:
    """What records and frameworks call the quantities that rules are for."""
    table = yaml.safe_load(files("firstbad.tools.readers").joinpath("aliases.yaml").read_text())
    found = {(name, name) for name in WATCHED}
    for keys in (*(table["frameworks"][f]["keys"] for f in table["frameworks"]), table["any"]):
        for key, meant in keys.items():
            name = meant["to"] if isinstance(meant, dict) else meant
            if name in WATCHED:
                found.add((key, name))
    return sorted(found)


@pytest.mark.parametrize(("key", "name"), logged_names())
@pytest.mark.parametrize("before", ["", "train/"])
def test_a_quantity_is_watched_under_every_name(key: str, name: str, before: str) -> None:
    begins, usual, breach = WATCHED[name]
    (alarm,) = alarms(before + key, [*[usual] * 60, *[breach] * 40])
    assert alarm.why.lower().startswith(begins)


@pytest.mark.parametrize("name", ["rewards/a/std", "train/rewards/a/std", "reward_part_std/a"])
def test_parts_of_the_reward_are_watched_under_every_name(name: str) -> None:
    (alarm,) = alarms(name, [*[0.4] * 20, *[0.0] * 20])
    assert (alarm.first, alarm.why) == (21, f"`{name.removesuffix('/std')}` no longer varies")


def test_names_of_one_quantity_are_counted_apart() -> None:
    rules = Rules()
    for step in (1, 2):  # two breaches of each: four in all, and no third of one
        assert not list(rules.observe(step, {"kl": 0.9, "kl_ref": 0.9}))
    assert not list(rules.observe(3, {"kl": 0.1, "kl_ref": 0.1}))
    for step in (4, 5):  # a healthy `kl` does not hide what `kl_ref` does
        assert not list(rules.observe(step, {"kl_ref": 0.9, "kl": 0.1}))
    (alarm,) = rules.observe(6, {"kl_ref": 0.9, "kl": 0.1})
    assert (alarm.first, alarm.step) == (4, 6)


def test_names_of_one_quantity_that_break_together_are_one_alarm() -> None:
    rules = Rules()
    found = [list(rules.observe(step, {"kl": 0.9, "kl_ref": 0.8})) for step in (1, 2, 3)]
    assert [len(each) for each in found] == [0, 0, 1]


def test_one_step_that_is_logged_three_times_is_one_breach() -> None:
    rules = Rules()
    for step in (7, 7, 7, 8, 8):
        assert not list(rules.observe(step, {"kl": 0.9}))
    (alarm,) = rules.observe(9, {"kl": 0.9})
    assert (alarm.first, alarm.step) == (7, 9)
