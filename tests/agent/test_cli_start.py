from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import firstbad
from firstbad.agent.investigate import Finished

HEAVY = (
    "rich",
    "pandas",
    "numpy",
    "pyarrow",
    "langgraph",
    "langsmith",
    "plotly",
    "openai",
    "jinja2",
)
TELL = """
import json, sys
from firstbad.agent.cli import main
code = main({args!r})
print()
print(json.dumps([code, sorted(m for m in sys.modules if "." not in m)]))
"""


def loaded(*args: str) -> set[str]:
    """Modules of a new process after a command that went well."""
    package = str(Path(firstbad.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", TELL.format(args=list(args))],
        env={**os.environ, "PYTHONPATH": package},
        capture_output=True,
        text=True,
        check=True,
    )
    code, modules = json.loads(done.stdout.splitlines()[-1])
    assert code == 0, done.stderr
    return set(modules)


def test_old_results_are_shown_without_the_libraries_that_made_them(
    look: Callable[..., Finished], make_run: Callable[..., Path]
) -> None:
    name = look(make_run()).incident.id
    for args in (["memo", "show", name], ["incidents", "ls"], ["incidents", "show", name]):
        assert not loaded(*args) & set(HEAVY), args
