"""What is recorded of verl's own V0 loop, and that nothing changes by it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("verl")
pytest.importorskip("torchdata")

from firstbad.tools.readers import open_run

pytestmark = pytest.mark.filterwarnings("default")
MakeTrainer = Callable[..., Any]


def test_a_run(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    import os, shutil
    os.environ["FIRSTBAD_RECORD"] = str(tmp_path / "out/record")
    make_trainer("actor_rollout_ref.actor.ppo_mini_batch_size=4", n_steps=14, tools=True).fit()
    shutil.rmtree("/tmp/w/flv_rec", ignore_errors=True); shutil.copytree(tmp_path, "/tmp/w/flv_rec")
    print(open_run(f"rec:{tmp_path}/out/record"))
