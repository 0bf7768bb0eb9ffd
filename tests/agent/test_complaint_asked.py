"""How people ask when a run breaks, in the words of public reports, and what is made of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from firstbad.agent.complaint import QUOTED, read_complaint, told_back
from firstbad.agent.complaint_offer import OFFERED
from firstbad.agent.complaint_words import SUBJECTS

ASKED = [
    (text, (int(step) if step else None, tuple(symptoms.split())))
    for line in (Path(__file__).parent / "asked.tsv").read_text("utf-8").splitlines()[1:]
    for step, symptoms, text in [line.split("\t")]
]
"""Public questions with the step and symptoms that are meant."""

NUMBERS: dict[str, tuple[int | None, tuple[str, ...]]] = {
    "reward lost a fifth": (None, ("reward_drop",)),
    "accuracy went from the mid 30s to the 20s": (None, ("reward_drop",)),
    "accuracy went from 20% to 40%": (None, ("reward_rise",)),
    "accuracy is down from 70": (None, ("reward_drop",)),
    "reward went from 0.8 to 0.2 at step 50": (50, ("reward_drop",)),
    "reward halved": (None, ("reward_drop",)),
    "KL doubled at step 40": (40, ("kl_up",)),
    "grad norm tripled": (None, ("grad_norm_spike",)),
    "grad norm is up about 100-fold": (None, ("grad_norm_spike",)),
    "the loss left zero": (None, ("loss_odd",)),
    "loss turned negative": (None, ("loss_odd",)),
    "reward turned negative": (None, ("reward_drop",)),
    "reward is negative all the time": (None, ("reward_odd",)),
    "KL is negative": (None, ("kl_odd",)),
    "loss is at 3.5": (None, ("loss_odd",)),
    "reward about 0.05": (None, ("reward_odd",)),
    "kl at 66": (66, ()),
    "reward 0, KL 0": (None, ("reward_zero", "kl_zero")),
    "accuracy is stuck at 12%": (None, ("reward_flat",)),
    "accuracy will not go higher": (None, ("reward_flat",)),
    "reward does not grow": (None, ("reward_flat",)),
    "the model no longer learns": (None, ("reward_flat",)),
    "the run is rougher with this learning rate": (None, ("reward_odd",)),
    "accuracy dropped in the mid 30s": (35, ("reward_drop",)),
    "reward fell in the early 120s": (120, ("reward_drop",)),
    "100 steps, and the reward is flat": (None, ("reward_flat",)),
    "after 100 steps the reward is flat": (100, ("reward_flat",)),
    "KL grows and the run dies": (None, ("kl_up", "crashed")),
    "a large learning rate and no KL term": (None, ("lr_odd",)),
    "our token counter went down, the replies are as long as before": (None, ("mask_doubt",)),
    "奖励减半": (None, ("reward_drop",)),
    "收敛太慢": (None, ("learning_slow",)),
}
"""Levels, factors and spans: which way they go, and which of them is a step."""


ENDED: dict[str, tuple[int | None, tuple[str, ...]]] = {
    "training crashed at step 23": (23, ("crashed",)),
    "it crashed": (None, ("crashed",)),
    "the run died at step 23 with a TimeoutError": (23, ("crashed",)),
    "job was killed after step 40": (40, ("crashed",)),
    "killed at step 9": (9, ("crashed",)),
    "CUDA OOM at step 12": (12, ("crashed",)),
    "CUDA out of memory around step 300": (300, ("crashed",)),
    "our reward function raises an exception at step 23": (23, ("crashed",)),
    "RuntimeError: probability tensor contains either inf, nan": (None, ("crashed", "nan")),
    "why did the run stop at step 22": (22, ("crashed",)),
    "The run stopped early": (None, ("crashed",)),
    "script exited with exit code 1": (None, ("crashed",)),
    "GRPO training keeps crashing": (None, ("crashed",)),
    "loss went NaN and then it crashed": (None, ("nan", "crashed")),
    "the reward crashed and then the run crashed": (None, ("reward_drop", "crashed")),
    "it died at step 23, reward was fine": (23, ("crashed",)),
    "训练报错退出": (None, ("crashed",)),
    "显存不足": (None, ("crashed",)),
    "the run did not crash": (None, ()),
    "no crash, but the reward fell": (None, ("reward_drop",)),
    "reward crashed": (None, ("reward_drop",)),
    "accuracy died after step 50": (50, ("reward_drop",)),
    "the entropy crashed": (None, ("entropy_down",)),
    "MoE run collapses": (None, ("reward_drop",)),
    "it exploded at step 50": (50, ("diverged",)),
    "the training blew up after step 200": (200, ("diverged",)),
    "training diverged at step 100": (100, ("diverged",)),
    "reward drops and the run explodes": (None, ("reward_drop", "diverged")),
    "训练发散了": (None, ("diverged",)),
    "the training loss diverged": (None, ("loss_up",)),
    "loss exploded at 40": (40, ("loss_up",)),
    "grad norm blew up at step 30": (30, ("grad_norm_spike",)),
    "the job hung": (None, ("hang",)),
    "training stalled at step 40": (40, ("hang",)),
    "training is stuck": (None, ("hang",)),
    "rollouts stalled": (None, ("hang",)),
    "no new steps for an hour": (None, ("hang",)),
    "the step counter stopped at 12": (12, ("hang",)),
    "learning stalled": (None, ("reward_flat",)),
    "reward is stuck at 0.5": (None, ("reward_flat",)),
}
"""A run that ended, one that blew up and one that hangs, and what only sounds like it."""


@pytest.mark.parametrize(("text", "meant"), [*ASKED, *NUMBERS.items(), *ENDED.items()])
def test_a_complaint_is_understood(text: str, meant: tuple[int | None, tuple[str, ...]]) -> None:
    said = read_complaint(text)
    assert (said.noticed_step, said.symptoms) == meant


@pytest.mark.parametrize(
    "text",
    [
        "GRPO behaves like plain REINFORCE",
        "Logged averages on 2 GPUs differ from 1 GPU",
        "went from the mid 30s to the 20s",
        "the loss flubs",
        "are we in trouble",
    ],
)
def test_what_is_not_understood_is_told_back_and_not_guessed_at(text: str) -> None:
    said = read_complaint(text)
    assert said.symptoms == ()
    assert said.not_understood == (text,)
    assert f"“{text}”" in told_back(said.not_understood)


def test_a_part_that_is_not_understood_is_told_beside_what_is() -> None:
    said = read_complaint("KL doubled, the entropy flubs. Config below.")
    assert said.symptoms == ("kl_up",)
    assert said.not_understood == ("the entropy flubs",)


@pytest.mark.parametrize(
    "text", ["", "the reward did not fall", "KL doubled, the reward is fine", "it broke at 66"]
)
def test_nothing_is_told_back_of_what_is_well(text: str) -> None:
    assert told_back(read_complaint(text).not_understood) == ""


def test_a_long_statement_is_told_back_in_short() -> None:
    assert "x" * QUOTED + "…”" in told_back(["x" * 500])
    assert "every word …”" in told_back(["every word " * 50])


def test_every_signal_that_is_understood_is_on_offer() -> None:
    named = {"eval": "evaluations", "norm": "gradient norm", "lr": "learning rate", "kl": "KL"}
    assert all(named.get(subject, subject) in OFFERED for subject in SUBJECTS)
