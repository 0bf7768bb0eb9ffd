"""The import hook, in processes of its own: verl's classes are wrapped whoever imports first."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

RECORDED = """
from verl.utils.tracking import Tracking
from verl.trainer.constants_ppo import get_ppo_ray_runtime_env
from omegaconf import OmegaConf
assert hasattr(Tracking.log, "firstbad_wrapped"), "not wrapped"
assert Tracking.log.__wrapped__.__qualname__ == "Tracking.log"
assert not hasattr(Tracking.log.__wrapped__, "firstbad_wrapped"), "wrapped twice"
config = OmegaConf.create({"trainer": {"default_local_dir": "/x/y"}})
carried = get_ppo_ray_runtime_env(config)["env_vars"]
assert carried["FIRSTBAD_RECORD"] == "/x/y/record", carried
assert carried["FIRSTBAD_RECORD_OPTIONS"] == "baseline_every=7", carried
"""


def run_python(text: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", text],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "FIRSTBAD_RECORD_OPTIONS": "baseline_every=7",
            **environment,
        },
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.skipif(find_spec("verl") is None, reason="verl is not installed")
def test_the_environment_variable_is_enough() -> None:
    text = (
        RECORDED + 'assert carried["VERL_USE_EXTERNAL_MODULES"] == "firstbad_recorder.verl"\n'
        "import verl.trainer.ppo.core_algos\n"  # another module of verl loads as ever
        "import sys; print(type(sys.meta_path[0]).__module__)"
    )
    said = run_python(text, VERL_USE_EXTERNAL_MODULES="firstbad_recorder.verl")
    assert said.split()[-1] == "firstbad_recorder.verl.hook"


@pytest.mark.skipif(find_spec("verl") is None, reason="verl is not installed")
@pytest.mark.parametrize(
    "first",
    [
        "import firstbad_recorder.verl",
        "import verl.utils.tracking, verl.trainer.constants_ppo\nimport firstbad_recorder.verl",
        "import firstbad_recorder.verl\nfirstbad_recorder.verl.attach.install()",
    ],
)
def test_the_order_of_imports_does_not_matter(first: str) -> None:
    run_python(first + RECORDED, VERL_USE_EXTERNAL_MODULES="")


def test_without_verl_nothing_happens_and_nothing_is_loaded() -> None:
    said = run_python(
        "import sys\n"
        "sys.modules['verl'] = None\n"
        "before = set(sys.modules)\n"
        "import firstbad_recorder.verl\n"
        "names = {n.partition('.')[0] for n in set(sys.modules) - before}\n"
        "print(sorted(names - set(sys.stdlib_module_names)))"
    )
    assert said.strip() == "['firstbad_recorder']"


def test_a_module_that_cannot_be_changed_is_imported_all_the_same(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib

    from firstbad_recorder.verl.hook import watch

    folder = tmp_path_factory.mktemp("modules")
    (folder / "changed_here.py").write_text("value = 1\n")
    (folder / "broken_here.py").write_text("value = 2\n")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))

    def change(module: object) -> None:
        vars(module)["value"] = 10

    def fail(module: object) -> None:
        raise RuntimeError("recording is broken")

    watch({"changed_here": change, "broken_here": fail})
    assert importlib.import_module("changed_here").value == 10
    assert importlib.import_module("broken_here").value == 2
    assert importlib.reload(importlib.import_module("changed_here")).value == 10
    for name in ("changed_here", "broken_here"):
        monkeypatch.delitem(sys.modules, name)
