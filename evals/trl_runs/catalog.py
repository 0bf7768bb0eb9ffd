"""The list of runs: what is changed in each, and the truth about it."""

from __future__ import annotations

from firstbad.evals.trl_runs.catalog_data import DATA
from firstbad.evals.trl_runs.catalog_engine import ENGINE
from firstbad.evals.trl_runs.catalog_losses import LOSSES
from firstbad.evals.trl_runs.catalog_optimizer import OPTIMIZER
from firstbad.evals.trl_runs.catalog_reward import REWARD
from firstbad.evals.trl_runs.catalog_sound import SOUND
from firstbad.evals.trl_runs.catalog_trainer import TRAINER
from firstbad.evals.trl_runs.plan import Run

RUNS: tuple[Run, ...] = (*SOUND, *LOSSES, *REWARD, *DATA, *TRAINER, *OPTIMIZER, *ENGINE)
