"""Gold answers against what the samples of a prompt agree on."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstbad.tools.records.prompt_kinds import telling_word
from firstbad.tools.run import RolloutBatch, Run

TOOL = "check_gold"
ONSET = 31

MakeRun = Callable[..., Run]
MakeBatch = Callable[..., RolloutBatch]
Measure = Callable[..., dict[str, Any]]


def said(*answers: str) -> list[str]:
    return [f"<answer>{a}</answer>" for a in answers]


def test_hand_counted_groups(make_run: MakeRun, batch: MakeBatch, measure: Measure) -> None:
    # 20 steps with three groups of five: 3 of 5 agree (60 %) on the gold answer, 4 of 5 on
    # another one, and 2 of 5 agree on nothing.
    rows = [
        batch(
            step,
            prompts=["is a here"] * 5 + ["is b here"] * 5 + ["is c here"] * 5,
            completions=said("a", "a", "a", "x", "y")
            + said("b", "b", "b", "b", "z")
            + said("c", "c", "v", "w", "u"),
            gold=["a"] * 5 + ["q"] * 5 + ["c"] * 5,
            size=5,
        )
        for step in range(1, 21)
    ]
    found = measure(TOOL, make_run(rollouts=rows))
    assert (found["n_groups"], found["n_consensus"]) == (60, 40)
    assert found["consensus_share"] == pytest.approx(2 / 3, abs=1e-6)
    assert found["consensus_wrong_share"] == 0.5
    assert found["words_differ_share"] == 1
    # `b` stands in its prompt, `q` does not.
    assert (found["prompt_words_consensus"], found["prompt_words_gold"]) == (1, 0)
    assert found["prompt_words_gap"] == 1
    assert found["elsewhere_share"] == 0, "`b` is nobody's gold answer"


@pytest.mark.parametrize("gold", ["135", "1,3,5", "[1; 3; 5]", "(1)(3)(5)", "1 3 5."])
def test_gold_in_another_form_is_no_wrong_gold(
    make_run: MakeRun, batch: MakeBatch, measure: Measure, gold: str
) -> None:
    """Spaces and punctuation are form, whatever extractor the form of the gold answer suggests."""
    rows = [
        batch(
            step,
            prompts=["sort 5 3 1"] * 5,
            completions=[*said(*["1 3 5"] * 4), "I count 5 3 9"],
            gold=[gold] * 5,
            size=5,
        )
        for step in range(1, 25)
    ]
    found = measure(TOOL, make_run(rollouts=rows))
    assert found["n_consensus"] == 24
    assert found["consensus_wrong_share"] == 0
    other = [
        batch(r.step, prompts=r.prompts, completions=r.completions, gold=["246"] * 5, size=5)
        for r in rows
    ]
    assert measure(TOOL, make_run(rollouts=other))["consensus_wrong_share"] == 1


def shifted_gold(d: SimpleNamespace) -> None:
    """Each group has the gold answer of the one before it."""
    golds = [d.gold[g * 8] for g in range(4)]
    d.gold = [golds[(g - 1) % 4] for g in d.group]


def run_with(simulate: MakeRun, fault: Callable[[SimpleNamespace], None], onset: int) -> Run:
    return simulate(1, solve=(0.75, 0.95), edit=lambda d: fault(d) if d.step >= onset else None)


def test_gold_of_the_neighbour_is_dated_and_named(simulate: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, run_with(simulate, shifted_gold, ONSET))
    assert (found["last_good_step"], found["first_bad_step"]) == (ONSET - 1, ONSET)
    assert not found["from_start"]
    assert found["consensus_wrong_share"] > 0.95
    assert found["consensus_wrong_before"] == 0
    assert found["stretch_gain"] > 50
    # Of four groups in a ring three find their answer one place on, the last one at the front.
    assert found["neighbour_share"] == pytest.approx(0.75, abs=0.06)
    assert found["elsewhere_share"] == pytest.approx(1, abs=0.05)


def test_gold_shifted_from_the_start(simulate: MakeRun, measure: Measure) -> None:
    found = measure(TOOL, run_with(simulate, shifted_gold, 1))
    assert found["from_start"]
    assert found["consensus_wrong_share"] > 0.95


def test_a_healthy_run_agrees_with_its_gold(healthy: Run, measure: Measure) -> None:
    found = measure(TOOL, healthy)
    assert found["consensus_wrong_share"] == 0
    assert found["stretch_gain"] == 0
    assert found["neighbour_share"] == found["prompt_words_gap"] == 0


def test_a_weak_policy_is_no_wrong_gold(simulate: MakeRun, measure: Measure) -> None:
    """Wrong answers scatter, so they make no consensus against the gold answer."""
    found = measure(TOOL, simulate(2, solve=(0.0, 0.7), steps=80))
    assert found["consensus_share"] < 0.3
    assert found["consensus_wrong_share"] < 0.05


@pytest.mark.parametrize(
    ("gold", "said_", "wrong"),
    [
        ("7 apples", "7 apples.", False),
        ("(1, 2)", "1,2", False),
        ("the blue whale", "blue whale", False),  # one holds the other
        ("7", "8", True),
        ("312", "12", True),
    ],
)
def test_another_form_of_the_gold_answer_contradicts_nothing(
    make_run: MakeRun, batch: MakeBatch, measure: Measure, gold: str, said_: str, wrong: bool
) -> None:
    rows = [batch(s, completions=said(said_, said_, said_), gold=[gold] * 3) for s in range(1, 31)]
    assert measure(TOOL, make_run(rollouts=rows))["consensus_wrong_share"] == wrong


def test_one_step_of_wrong_gold_is_no_stretch(simulate: MakeRun, measure: Measure) -> None:
    def edit(d: SimpleNamespace) -> None:
        if d.step == ONSET:
            d.gold = [g if k else "0" for g, k in zip(d.gold, d.group, strict=True)]

    found = measure(TOOL, simulate(1, solve=(0.75, 0.95), edit=edit))
    assert found["stretch_gain"] == 0
    assert found["consensus_wrong_share"] < 0.01


def test_without_data(make_run: MakeRun, batch: MakeBatch, missing: Callable[..., str]) -> None:
    assert "right answers" in missing(TOOL, make_run())
    rows = batch(rewards={"correct": [1, 0, 0]})
    assert "right answers" in missing(TOOL, make_run(rollouts=[rows]))
    rows = batch(completions=said("a", "a", "a"), gold=["a"] * 3)
    assert "have a gold one: 1 of" in missing(TOOL, make_run(rollouts=[rows]))
    rows = batch(completions=said("a", "a", "a"), gold=[None] * 3)
    assert "have a gold one: 0 of" in missing(TOOL, make_run(rollouts=[rows]))


@settings(max_examples=4, derandomize=True)
@given(rows=st.permutations(range(8)), by=st.integers(1, 1000))
def test_the_order_of_rows_in_a_group_and_the_step_numbers_do_not_matter(
    simulate: MakeRun, measure: Measure, changed: SimpleNamespace, rows: list[int], by: int
) -> None:
    run = run_with(simulate, shifted_gold, ONSET)
    before = measure(TOOL, run)
    mixed = [8 * g + r for g in range(4) for r in rows]
    run = changed.rebatch(run, lambda b: changed.reorder(b, mixed))
    after = measure(TOOL, changed.shift_steps(run, by))
    assert after == changed.dates_moved(before, by)


def sorts(batch: MakeBatch, lists: list[str], gold: Callable[[str], str], asks: str) -> Any:
    """Each group sorts one list and agrees."""
    rows = []
    for step in range(1, 9):
        said = [" ".join(sorted(x.split())) for x in lists for _ in range(4)]
        rows.append(
            batch(
                step,
                rewards={"correct": [0.0] * len(said)},
                size=4,
                prompts=[f"{asks}: {x}" for x in lists for _ in range(4)],
                completions=[f"<answer>{s}</answer>" for s in said],
                gold=[gold(s) for s in said],
            )
        )
    return rows


def once(text: str) -> str:
    return " ".join(dict.fromkeys(text.split()))


LISTS = ["9 5 5 7 1", "6 3 3 2 4", "5 4 3", "2 8 5 2 0", "7 1 9"]


def test_gold_answers_that_lack_repeated_words(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    """Made with a set: three of five lists repeat a digit, not at an end."""
    found = measure(TOOL, make_run(rollouts=sorts(batch, LISTS, once, "sort")))
    assert found["consensus_wrong_share"] == pytest.approx(0.6)
    assert (found["repeats_lost_share"], found["repeats_lost_of_all"]) == (1, 1)
    assert (found["first_bad_step"], found["from_start"]) == (1, True)


@pytest.mark.parametrize(
    ("gold", "asks"),
    [
        (lambda text: text, "sort"),  # sound
        (once, "sort, each distinct digit"),  # words are asked for once
        (lambda text: text[::-1], "sort"),  # another fault
    ],
    ids=["sound", "asked once", "reversed"],
)
def test_what_is_no_loss_of_repeats(
    make_run: MakeRun,
    batch: MakeBatch,
    measure: Measure,
    gold: Callable[[str], str],
    asks: str,
) -> None:
    found = measure(TOOL, make_run(rollouts=sorts(batch, LISTS, gold, asks)))
    assert found["repeats_lost_share"] < 0.5


@pytest.mark.parametrize(
    ("late", "up_too", "n_kind"),
    [
        ("down", False, 48),  # to the end
        ("up", False, 0),  # learned in the last third
        ("down", True, 0),  # other prompts fail as well: no word tells
    ],
)
def test_a_kind_of_prompt_that_is_never_right(
    make_run: MakeRun, batch: MakeBatch, measure: Measure, late: str, up_too: bool, n_kind: int
) -> None:
    """Two kinds of prompts; the samples of the one agree on another answer than the gold one."""

    def rows(step: int) -> RolloutBatch:
        said_down = "wrong" if step <= 16 or late == "down" else "right"
        answers = ["wrong" if up_too and i else "right" for i in range(2)] + [said_down] * 2
        prompts = [f"sort {kind} {step} {i}" for kind in ("rising", "falling") for i in range(2)]
        return batch(
            step,
            prompts=[p for p in prompts for _ in range(5)],
            completions=[said(a)[0] for a in answers for _ in range(5)],
            gold=["right"] * 20,
            size=5,
        )

    found = measure(TOOL, make_run(rollouts=[rows(s) for s in range(1, 25)]))
    assert found["n_kind"] == n_kind


def test_the_word_that_tells_two_sets_of_prompts() -> None:
    down = [f"sort falling {i}" for i in range(20)]
    up = [f"sort rising {i}" for i in range(20)]
    assert telling_word(down, up) == "falling"
    assert telling_word(down[:19], up) is None, "too few"
    assert telling_word(down * 3, up) == "falling"
    assert telling_word([*down, "sort rising 1", "sort rising 2"], up) is None


def test_few_kinds_of_right_answers_make_no_neighbour(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    """Of yes and no the wrong one is always a neighbour's."""

    def rows(step: int) -> RolloutBatch:
        gold = ["yes" if (step + g) % 2 else "no" for g in range(6)]
        wrong = ["no" if g == "yes" else "yes" for g in gold]
        given = [w if i < 2 else g for i, (g, w) in enumerate(zip(gold, wrong, strict=True))]
        return batch(
            step,
            prompts=[f"is {step} {g} so" for g in range(6) for _ in range(5)],
            completions=[said(a)[0] for a in given for _ in range(5)],
            gold=[g for g in gold for _ in range(5)],
            size=5,
        )

    found = measure(TOOL, make_run(rollouts=[rows(s) for s in range(1, 25)]))
    assert found["consensus_wrong_share"] == pytest.approx(1 / 3, abs=1e-6)
    assert found["neighbour_share"] == 0


def test_what_the_policy_learns_was_no_wrong_gold(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    def rows(step: int) -> RolloutBatch:
        given = [f"w{i}" if i < 3 and step <= 8 else f"g{step}{i}" for i in range(6)]
        return batch(
            step,
            prompts=[f"ask {step} {i}" for i in range(6) for _ in range(5)],
            completions=[said(a)[0] for a in given for _ in range(5)],
            gold=[f"g{step}{i}" for i in range(6) for _ in range(5)],
            size=5,
        )

    found = measure(TOOL, make_run(rollouts=[rows(s) for s in range(1, 31)]))
    assert found["consensus_wrong_share"] > 0.4
    assert found["learned_away"]


def test_a_policy_that_echoes_its_prompt_is_no_witness(
    make_run: MakeRun, batch: MakeBatch, measure: Measure
) -> None:
    """Right answers are worked out and do not stand in the prompts; wrong ones are read off."""

    def rows(step: int) -> RolloutBatch:
        right = ["abcdef"[i] * step for i in range(6)]
        given = [f"{step}{i}" if i < 2 else right[i] for i in range(6)]
        return batch(
            step,
            prompts=[f"{step}{i} and more" for i in range(6) for _ in range(5)],
            completions=[said(a)[0] for a in given for _ in range(5)],
            gold=[g for g in right for _ in range(5)],
            size=5,
        )

    found = measure(TOOL, make_run(rollouts=[rows(s) for s in range(1, 25)]))
    assert (found["prompt_words_consensus"], found["prompt_words_gold"]) == (1, 0)
    assert found["prompt_words_gap"] == 0
