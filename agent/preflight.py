"""A loss function of the user's, named on the command line, through the recorder's probes."""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from firstbad.agent.console import paint, width
from firstbad.agent.plain import plain
from firstbad.agent.replay import NEEDS
from firstbad.tools.errors import UserError

if TYPE_CHECKING:
    from firstbad_recorder.preflight import Preflight

EXPECTED = (
    "a scalar tensor for each LossInput (logp_new, logp_old, logp_ref, logp_engine, loss_mask: "
    "rows x places; advantage: rows; docs/preflight.md)"
)
COLOURS = {"PASS": "green", "FAIL": "red"}
_OUTCOME = re.compile(r"^(PASS|FAIL)(?= )", re.M)


def checked(name: str, out: str | None) -> Preflight:
    """The preflight of `MODULE:FUNCTION`.

    What the user's own code prints goes to standard error.

    Raises:
        UserError: there is no such function, it can't be probed, or torch is not installed.
    """
    with contextlib.redirect_stdout(sys.stderr):
        function = _function(name)
        try:
            import torch  # noqa: F401
        except ImportError as missing:
            raise UserError(f"`{missing.name}` is not installed: {NEEDS}") from missing
        from firstbad_recorder.preflight import preflight

        with _no_exit(f"`{name}`", "called"):
            made = preflight(out, loss_function=function)
    if made.broken:
        found = next(check.error for check in made.checks if check.error)
        raise UserError(f"`{name}` can't be probed: expected {EXPECTED}, found {found}")
    return made


def report(made: Preflight) -> str:
    """The report for the terminal: wrapped, and outcomes in colour."""
    text = plain(made.report(width()).rstrip("\n"))
    return _OUTCOME.sub(lambda match: paint(match[1], COLOURS[match[1]]), text)


def _function(name: str) -> Any:
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise UserError(f"`{name}`: expected MODULE:FUNCTION, such as train:loss")
    sys.path.insert(0, str(Path.cwd()))
    try:
        with _no_exit(f"`{module}`", "imported"):
            found = getattr(importlib.import_module(module), attribute, None)
    except ImportError as error:
        raise UserError(f"`{module}` can't be imported from here: {error}") from error
    except UserError:
        raise
    except Exception as error:  # the user's own module
        told = f"{type(error).__name__}: {error}"
        raise UserError(f"`{module}` breaks when it is imported: {told}") from error
    finally:
        sys.path.remove(str(Path.cwd()))
    if not callable(found):
        raise UserError(f"`{module}` has no function `{attribute}`")
    return found


@contextlib.contextmanager
def _no_exit(what: str, when: str) -> Iterator[None]:
    """The user's own code may not end the program: its exit code would read as one of ours."""
    try:
        yield
    except SystemExit as end:
        raise UserError(
            f"{what} ends the program when it is {when}: SystemExit({end.code!r}); put what runs "
            'under `if __name__ == "__main__":`'
        ) from end
