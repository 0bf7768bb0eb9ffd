"""`--code`: the path of the loss code is kept in the incident, and read again from there."""

from __future__ import annotations

from firstbad.agent.incident import IncidentRecord
from firstbad.tools.code.files import open_code
from firstbad.tools.errors import UserError
from firstbad.tools.run import Run


def as_kept(path: str) -> str:
    """The path as an incident keeps it, absolute.

    Raises:
        UserError: there is no Python code.
    """
    return str(open_code(path).path)


def with_code(record: IncidentRecord, run: Run) -> Run:
    """The run with the code of its incident, as it is now: what was changed is a difference.

    Raises:
        UserError: the code is gone.
    """
    if record.code:
        try:
            run.code = open_code(record.code)
        except UserError as error:
            raise UserError(f"{error}; put it back, or begin anew: firstbad investigate") from error
    return run
