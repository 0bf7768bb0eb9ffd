"""Runs without a fault, most of which look as if they had one."""

from __future__ import annotations

from firstbad.evals.trl_runs import rewards
from firstbad.evals.trl_runs.plan import M2, M3, Run, Segment, on, resumed, rows, sound, staged
from firstbad.evals.trl_runs.task import WarmStart

SOUND: tuple[Run, ...] = (
    sound(
        "siskin",
        31,
        "Healthy run, default settings.",
        "Is this run all right? Reward looks noisy from step to step.",
        kind="healthy",
    ),
    sound(
        "robin",
        81,
        "Clean resume at 60, all states restored.",
        "We had to resume at 60, is the run still good?",
        segments=resumed(Segment()),
    ),
    sound(
        "swift",
        82,
        "Healthy with lr 2e-4: entropy falls faster.",
        "Entropy falls quite fast, is this a collapse?",
        start=M3,
        config={"learning_rate": 0.0002},
    ),
    sound(
        "ermine",
        83,
        "Easy data (3 or 4 digits): all-right groups become common because the policy learned.",
        "More and more groups have no variance, is training stuck?",
        config={"learning_rate": 0.0002},
        start=WarmStart(seed=3, digits=(3, 4), digit_noise=0.3),
        segments=on(rows(3, 4)),
    ),
    sound(
        "teal",
        84,
        "One slow verifier call at step 70, scores right.",
        "Step time spiked around step 70, did something break?",
        make_rewards=lambda: rewards.slow_once(70),
    ),
    sound(
        "dormouse",
        85,
        "One batch of hard prompts (8 digits) at step 72, then back.",
        "Reward crashed at about step 72!",
        start=M2,
        config={"shuffle_dataset": False},
        segments=on(staged((426, 4, 6), (6, 8, 8), (1568, 4, 6))),
    ),
    sound(
        "lapwing",
        86,
        "Resume at 60 with other save_steps and temperature-neutral settings only.",
        "Config differs after the resume, could that hurt us?",
        start=M3,
        segments=resumed(
            Segment(
                config={
                    "save_steps": 30,
                    "dataloader_num_workers": 0,
                    "logging_first_step": False,
                    "save_total_limit": 5,
                }
            )
        ),
    ),
    sound(
        "fox",
        87,
        "Length grows steadily with correctness: longer thoughts are right more often.",
        "Length keeps growing over the run, reward hacking?",
        start=WarmStart(seed=3, long_is_right=True, digit_noise=0.45),
        config={"learning_rate": 0.0002},
    ),
    sound(
        "seal",
        88,
        "beta 0 and one update per batch: loss about 0, ratio 1 by construction.",
        "Loss is 0 and the ratio is exactly 1, nothing is learned?",
        start=M2,
        config={"beta": 0.0},
    ),
    sound(
        "stork",
        89,
        "Cosine schedule to zero.",
        "Learning rate drops to 0 and progress stops at the end.",
        config={"lr_scheduler_type": "cosine"},
    ),
    sound(
        "caracal",
        90,
        "num_iterations 2: mild clipping.",
        "Clip fraction is not zero and the ratio leaves 1.",
        start=M3,
        config={"num_iterations": 2},
    ),
    sound(
        "wren",
        91,
        "Strict verifier by design: badly formatted replies get 0.",
        "Right digits are scored 0, is the verifier wrong?",
        start=M2,
        make_rewards=rewards.strict_format,
    ),
    sound(
        "owl",
        92,
        "scale_rewards none in the config.",
        "Advantages are much smaller than in other runs.",
        start=M3,
        config={"scale_rewards": "none"},
    ),
    sound(
        "bear",
        93,
        "loss_type grpo in the config.",
        "Loss values differ from our other runs.",
        config={"loss_type": "grpo"},
    ),
    sound(
        "ram",
        94,
        "loss_type dr_grpo in the config.",
        "Gradient norms are smaller than in our other runs.",
        start=M2,
        config={"loss_type": "dr_grpo", "scale_rewards": "none"},
    ),
    sound(
        "pony",
        95,
        "Temperature 0.8 on both sides.",
        "Entropy is lower than in the reference run.",
        start=M3,
        config={"temperature": 0.8},
    ),
    sound(
        "goat",
        96,
        "Linear schedule to zero, no warm-up change.",
        "The learning rate is shrinking, is the schedule broken?",
        start=M2,
        config={"lr_scheduler_type": "linear"},
    ),
    sound(
        "tit",
        97,
        "Healthy run, default settings.",
        "Correctness dipped around step 90, something wrong?",
        kind="healthy",
        start=M3,
    ),
)
