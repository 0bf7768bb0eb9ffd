"""A loss function of the user's, named on the command line, through the recorder's probes."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from firstbad.agent.replay import NEEDS
from firstbad.tools.errors import UserError

if TYPE_CHECKING:
    from firstbad_recorder.preflight import Preflight


def checked(name: str, out: str | None) -> Preflight:
    """The preflight of `MODULE:FUNCTION`.

    Raises:
        UserError: there is no such function, or torch is not installed.
    """
    function = _function(name)
    try:
        import torch  # noqa: F401
    except ImportError as missing:
        raise UserError(f"`{missing.name}` is not installed: {NEEDS}") from missing
    from firstbad_recorder.preflight import preflight

    return preflight(out, loss_function=function)


def _function(name: str) -> Any:
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise UserError(f"`{name}`: expected MODULE:FUNCTION, such as train:loss")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except ImportError as error:
        raise UserError(f"`{module}` can't be imported from here: {error}") from error
    except Exception as error:  # the user's own module
        told = f"{type(error).__name__}: {error}"
        raise UserError(f"`{module}` breaks when it is imported: {told}") from error
    finally:
        sys.path.remove(str(Path.cwd()))
    if not callable(found):
        raise UserError(f"`{module}` has no function `{attribute}`")
    return found
