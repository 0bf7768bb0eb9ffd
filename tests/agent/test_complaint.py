from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstbad.agent.complaint import read_complaint
from firstbad.agent.complaint_words import ALONE, PAIRS, SIGNALS

# How people complain, with what they mean (step, symptoms).
SAID: dict[str, tuple[int | None, tuple[str, ...]]] = {
    "Reward jumped at about step 50 and loss went to zero": (50, ("reward_spike", "loss_zero")),
    "Entropy dropped at step 42 and KL keeps climbing": (42, ("entropy_down", "kl_up")),
    "KL and entropy exploded": (None, ("kl_up", "entropy_up")),
    "Reward stopped improving although KL keeps growing": (None, ("reward_flat", "kl_up")),
    "Learning seems slower in the second half": (None, ("learning_slow",)),
    "Training became very slow at around step 60": (60, ("slow",)),
    "Train accuracy is perfect but our manual spot check looks bad": (None, ("judging_doubt",)),
    "Correctness looks great but the answers aren't sorted": (None, ("judging_doubt",)),
    "reward dropped to a quarter at step 66": (66, ("reward_drop",)),
    "reward dropped to 0 at step 4100": (4100, ("reward_drop",)),
    "reward went to 0 at 4.1k": (4100, ("reward_drop",)),
    "My reward has not moved for hundreds of steps. Config below.": (None, ("reward_flat",)),
    "Reward has been flat for 300 steps": (None, ("reward_flat",)),
    "The loss left zero and stays negative": (None, ("loss_odd",)),
    "loss jumped below zero at step 35": (35, ("loss_odd",)),
    "Loss is 0 from the first step. Is it training at all?": (1, ("loss_zero", "reward_flat")),
    "Loss, grad norm and KL are all exactly 0, but the reward looks normal": (
        None,
        ("loss_zero", "grad_norm_zero", "kl_zero"),
    ),
    "The accuracy reward is 0 for every sample, the format reward is fine": (
        None,
        ("reward_zero",),
    ),
    "It learned well until about step 300, then the reward fell to 0 and the text became "
    "random characters": (300, ("reward_drop", "garbage_text")),
    "Output is exclamation marks after the first update": (None, ("garbage_text",)),
    "KL keeps growing, is that a problem or just learning?": (None, ("kl_up", "is_normal")),
    "Grad norm spikes to hundreds but the reward still rises": (
        None,
        ("grad_norm_spike", "reward_rise"),
    ),
    "Should the importance ratio not be 1 when I do one update per batch?": (
        None,
        ("ratio_not_one", "is_normal"),
    ),
    "Rollout and trainer log-probs differ by this much: is that acceptable noise?": (
        None,
        ("engine_mismatch", "is_normal"),
    ),
    "Entropy goes up after iteration 50": (50, ("entropy_up",)),
    "entropy collapsed to 0 around 800": (800, ("entropy_down",)),
    "Answers get shorter and shorter": (None, ("length_down",)),
    "Why is the printed grad norm above my clip value?": (None, ("norm_above_clip",)),
    "Is the prompt trained?": (None, ("mask_doubt",)),
    "Should tool output be in the loss? How can I see that it is masked?": (None, ("mask_doubt",)),
    "Someone touched the mask code, does it train on the right tokens?": (None, ("mask_doubt",)),
    "trained_tokens does not match the completion lengths": (None, ("mask_doubt",)),
    "prompt 也在训练吗": (None, ("mask_doubt",)),
    "损失掩码是不是错了": (None, ("mask_doubt",)),
    "We switched to bf16": (None, ("precision_doubt",)),
    "log-probs look noisy": (None, ("precision_doubt",)),
    "Somebody changed the log-prob code, is the run numerically sound?": (
        None,
        ("precision_doubt",),
    ),
    "半精度有误差": (None, ("precision_doubt",)),
    "grad_norm is suddenly about twice as high, since step 62": (62, ("grad_norm_odd",)),
    "Gradient norms are smaller than in our other runs.": (None, ("grad_norm_down",)),
    "grad_norm looks different in the second half": (None, ("grad_norm_odd",)),
    "梯度范数过大": (None, ("grad_norm_odd",)),
    "梯度变成0": (None, ("grad_norm_zero",)),
    "KL looks odd": (None, ("kl_odd",)),
    "KL 偏高": (None, ("kl_up",)),
    "Entropy is lower than in the reference run": (None, ("entropy_down",)),
    "熵异常": (None, ("entropy_odd",)),
    "Clip fractions are large": (None, ("clip",)),
    "the answers look incomplete": (None, ("truncation",)),
    "Loss values differ from our other runs": (None, ("loss_odd",)),
    "The learning rate is shrinking, is the schedule broken?": (None, ("lr_odd",)),
    "学习率不对": (None, ("lr_odd",)),
    "Advantages look odd since about step 55": (55, ("advantages_odd",)),
    "The reward looks noisy from step to step": (None, ("reward_odd",)),
    "After step 60 it stops learning": (60, ("reward_flat",)),
    "No progress at all in rollouts, though the loss moves": (None, ("reward_flat",)),
    "it plateaued after step 800": (800, ("reward_flat",)),
    "the model is not learning": (None, ("reward_flat",)),
    "nothing is learned": (None, ("reward_flat",)),
    "模型不学了": (None, ("reward_flat",)),
    "进入平台期": (None, ("reward_flat",)),
    "Training went wrong within a few steps": (None, ("reward_drop",)),
    "Training reward goes up, validation goes down from step 1,200": (
        1200,
        ("reward_rise_eval_down",),
    ),
    "GPU use is 0-20% most of the time. What is the bottleneck?": (None, ("slow",)),
    "It hangs without an error after a few steps. NCCL?": (None, ("hang",)),
    "After resume everything is worse for a while": (None, ("resume_worse",)),
    "resumed from step 100 and the reward collapsed at step 150": (
        150,
        ("reward_drop", "resume_worse"),
    ),
    "The model stopped calling the tool. Why?": (None, ("tool_calls",)),
    "iteration #50: nan": (50, ("nan",)),
    "Short run, anything odd?": (None, ("is_normal",)),
    "Is it all right?": (None, ("is_normal",)),
    "有什么问题吗": (None, ("is_normal",)),
    "Entropy fell at once at 50, is this a collapse?": (50, ("entropy_down", "is_normal")),
    "Completions are long since the resume.": (None, ("length_up", "resume_worse")),
    "No learning for a long time.": (None, ("reward_flat",)),
    "Generation takes a long time": (None, ()),
    "Is this normal?": (None, ("is_normal",)),
    "第66步奖励突然掉到0": (66, ("reward_drop",)),
    "在4100步左右 reward 崩了": (4100, ("reward_drop",)),
    "从step 66开始reward掉了": (66, ("reward_drop",)),
    "训练到4.1k步以后KL飙升": (4100, ("kl_up",)),
    "第六十六步开始输出乱码": (66, ("garbage_text",)),
    "第一千二百步熵下降": (1200, ("entropy_down",)),
    "1.2万步之后回答越来越长": (12000, ("length_up",)),
    "loss变成nan了 step=512": (512, ("nan",)),
    "奖励200步没动,正常吗": (None, ("reward_flat", "is_normal")),
    "": (None, ()),
}


@pytest.mark.parametrize(("text", "meant"), SAID.items())
def test_complaint_is_understood(text: str, meant: tuple[int | None, tuple[str, ...]]) -> None:
    said = read_complaint(text)
    assert (said.noticed_step, said.symptoms) == meant
    assert said.raw == text


@pytest.mark.parametrize(
    "text",
    [
        "reward goes up but eval is worse",
        "reward hacking since step 60, eval accuracy drops",
        "val score falls while train reward rises",
        "training reward climbs and held-out accuracy degrades",
        "奖励上升,但是验证集准确率下降",
    ],
)
def test_other_words_for_one_thing_are_one_symptom(text: str) -> None:
    assert read_complaint(text).symptoms == ("reward_rise_eval_down",)


@pytest.mark.parametrize(
    ("text", "symptoms"),
    [
        ("eval accuracy drops", ("eval_down",)),
        ("accuracy on the test set is down", ("eval_down",)),
        ("eval score jumped at step 300", ("eval_odd",)),
        ("the evaluation accuracy spiked", ("eval_odd",)),
        ("val reward shot up around step 300", ("eval_up",)),
        ("benchmark scores surged", ("eval_odd",)),
        ("held-out accuracy jumped down", ("eval_down",)),
        ("eval doubled overnight", ("eval_up",)),
        ("the test set score is tiny", ("eval_down",)),
        ("验证集准确率飙升", ("eval_up",)),
        ("reward jumped, eval is fine", ("reward_spike",)),
        ("accuracy drops", ("reward_drop",)),
        ("length grows, reward hacking?", ("length_up", "reward_hacking")),
        ("entropy drops, and there is no KL in the logs", ("entropy_down", "kl_missing")),
        ("KL is not logged", ("kl_missing",)),
        ("no KL spike anywhere, loss is nan", ("kl_spike", "nan")),
        ("entropy plateaus", ()),
        ("the learning rate is the same", ()),
        ("KL rises and looks noisy", ("kl_up",)),
        ("the model stopped calling tools", ("tool_calls",)),
        ("trained on prompts of another set", ()),
        ("the run stopped at step 60", ("crashed",)),
        ("is it gaming my checker?", ("reward_hacking",)),
        ("progress stops at the end", ("reward_flat",)),
        ("Correctness stays at 0", ("reward_zero",)),
        ("entropy is collapsing and acc, jumps 0.15 to 0.9", ("entropy_down", "reward_spike")),
        ("reward goes down instead of up", ("reward_drop",)),
        ("reward rises rather than falls", ("reward_rise",)),
        ("reward goes down, not up", ("reward_drop",)),
        ("the reward did not spike", ()),
        ("KL is not zero", ("kl_odd",)),
        ("kl has spikes", ("kl_spike",)),
        ("kl looks spiky", ("kl_spike",)),
        ("spikes in loss and grad norm", ("loss_spike", "grad_norm_spike")),
        ("entropy drops and the accuracy swings", ("entropy_down", "reward_odd")),
        ("loss and grad norm are 0", ("loss_zero", "grad_norm_zero")),
        ("are we being gamed?", ("reward_hacking",)),
        ("I don't believe the accuracy number", ("judging_doubt",)),
        ("the accuracy number looks made up", ("judging_doubt",)),
        ("loss is at -3", ("loss_odd",)),
    ],
)
def test_look_alikes_are_told_apart(text: str, symptoms: tuple[str, ...]) -> None:
    assert read_complaint(text).symptoms == symptoms


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("it broke at the 4000th step", 4000),
        ("between step 400 and 500 the reward fell", 400),
        ("steps 400-500 look strange", 400),
        ("first 50 steps fine, then at 66 nothing", 66),
        ("reward dropped from 0.8 to 0.2 at 66", 66),
        ("global_step=7", 7),
        ("between 50 and 70 it broke", 50),
        ("bad from the beginning", 1),
        ("from the very start entropy is low", 1),
        ("from the start until step 50 it was fine", 50),
        ("一开始就乱码", 1),
        ("step 12.5", None),
        ("reward stuck at 0.5", None),
        ("reward plateaus after 50", 50),
        ("since 70ish everything is dead", 70),
        ("took 30 s after 12 hours", None),
        ("dropped after 20 epochs", None),
        ("reward fell to 0.2 after 128 tokens", None),
        ("every 10 steps the loss spikes", None),
        ("reward crashed 200 steps ago", None),
        ("KL is at 12", None),
        ("Is +2 on a 30-question test worth anything?", None),
        ("reward fell at 20%", None),
        ("最近50步熵一直在下降", None),
        ("奖励从0.8降到0.2", None),
    ],
)
def test_a_length_of_time_or_a_level_is_no_step(text: str, step: int | None) -> None:
    assert read_complaint(text).noticed_step == step


def test_a_step_given_apart_wins() -> None:
    assert read_complaint("reward dropped at step 66", step=70).noticed_step == 70
    assert read_complaint("reward dropped at step 66", step=0).noticed_step == 0


def test_the_signal_of_the_first_symptom_is_named() -> None:
    assert read_complaint("NaN, and KL explodes").signal == "kl_ref"
    assert read_complaint("it hangs").signal is None


def test_every_signal_belongs_to_a_symptom() -> None:
    assert set(SIGNALS) <= {*PAIRS.values(), *ALONE, "reward_rise_eval_down"}


@given(st.text(max_size=80))
def test_any_text_can_be_read(text: str) -> None:
    said = read_complaint(text)
    assert said.noticed_step is None or said.noticed_step >= 0
    assert read_complaint(text + " and broke at step 77").noticed_step is not None


@given(st.integers(0, 10_000_000))
def test_a_plain_step_is_read_exactly(step: int) -> None:
    assert read_complaint(f"reward fell at step {step}").noticed_step == step
    assert read_complaint(f"reward fell at step {step:,}").noticed_step == step
    assert read_complaint(f"奖励在第{step}步下降").noticed_step == step


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("it broke at 3 am", None),
        ("the reward fell at 3:30", None),
        ("loss is NaN since 10 p.m., at step 40", 40),
        ("at step 3: reward fell", 3),
        ("around 12 among others", 12),
    ],
)
def test_a_time_of_day_is_no_step(text: str, step: int | None) -> None:
    assert read_complaint(text).noticed_step == step


@pytest.mark.parametrize(
    ("text", "symptoms"),
    [
        ("seeds repeat", ("same_completions",)),
        ("the seeds are the same on both ranks", ("same_completions",)),
        ("is it the seed?", ("few_samples",)),
        ("three seeds differ", ("few_samples",)),
        ("the answers repeat", ("garbage_text",)),
    ],
)
def test_seeds_that_repeat_are_no_doubt_of_a_result(text: str, symptoms: tuple[str, ...]) -> None:
    assert read_complaint(text).symptoms == symptoms
