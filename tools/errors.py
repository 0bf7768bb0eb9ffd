"""Errors sorted by who can act on them."""


class FirstbadError(Exception):
    """Root of the errors that firstbad raises on purpose."""


class UserError(FirstbadError):
    """The person can fix it: shown as one line, exit code 2, no traceback."""


class Stopped(FirstbadError):
    """The person stopped the work (Ctrl-C, or a polite kill): one line, exit code 130."""


class ToolInputError(FirstbadError):
    """A tool was asked wrongly (unknown step, empty window); the text says what exists."""


class NoData(FirstbadError):
    """A tool ran, and the run does not hold what it needs; the text says what is missing."""
