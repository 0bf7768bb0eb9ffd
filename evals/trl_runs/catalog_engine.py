"""Runs whose rollouts come from an engine apart from the trainer, and are worth recording."""

from __future__ import annotations

from firstbad.evals.trl_runs.plan import M2, Run, fault, sound

ENGINE: tuple[Run, ...] = (
    sound(
        "auk",
        131,
        "Healthy run whose engine is a second copy of the model.",
        "New engine since this week, does it serve what we train?",
        trainer="SecondCopy",
        config={"max_steps": 80},
    ),
    sound(
        "boar",
        132,
        "Healthy run with a tool that answers after six tokens.",
        "Are the tool's words left out of the loss as they should be?",
        trainer="ToolAnswers",
        config={"max_steps": 80},
    ),
    fault(
        "civet",
        133,
        "prob.processed_logprobs",
        40,
        "The engine samples at 1.6 while the trainer scores at 1.0.",
        "Replies are messy in the second half.",
        trainer="HotEngine",
        config={"max_steps": 80},
        fault={"temperature": 1.6},
    ),
    fault(
        "drake",
        134,
        "prob.weight_sync",
        40,
        "For 15 steps no weights are delivered to the engine.",
        "Learning stalled for a while around step 45.",
        start=M2,
        trainer="LateDelivery",
        config={"max_steps": 80, "learning_rate": 3e-4},
        fault={"steps": 15},
    ),
    fault(
        "fennec",
        135,
        "prob.weight_sync",
        30,
        "From step 30 on only q_proj and v_proj are delivered to the engine.",
        "The gap to the engine keeps growing.",
        start=M2,
        trainer="PartialDelivery",
        config={"max_steps": 80, "learning_rate": 3e-4},
        fault={"parts": ("q_proj", "v_proj")},
    ),
    fault(
        "grouse",
        136,
        "mask.tool",
        None,
        "The words of the tool are in the loss.",
        "The policy starts to write what the tool says.",
        trainer="ToolsTrained",
        config={"max_steps": 80},
    ),
    fault(
        "hoopoe",
        137,
        "grad.denominator",
        30,
        "Each micro-batch is divided by its own tokens though the loss type is dapo.",
        "Short answers seem to count more lately.",
        trainer="OwnDenominator",
        config={
            "max_steps": 80,
            "per_device_train_batch_size": 8,
            "gradient_accumulation_steps": 6,
        },
    ),
)
