"""One handler a process for the signals that ask recorders to keep a step."""

from __future__ import annotations

import signal
import weakref
from collections.abc import Callable

_asked: dict[int, tuple[weakref.WeakMethod[Callable[[], None]], ...]] = {}
"""What each signal calls, newest last; replaced whole, since a signal may come at any time."""


def on_signal(number: int, call: Callable[[], None]) -> bool:
    """Call a method at a signal, beside those that were given before; False if it is taken.

    A signal is taken where something other than this module handles or ignores it. The handler
    stays when its last method is gone, so that a late signal does not end the process.

    Args:
        number: The signal.
        call: A bound method; held weakly. It may only note that the signal came.

    Raises:
        ValueError: There is no such signal, or this is not the main thread.
    """
    handler = signal.getsignal(number)
    if handler is not _handle:
        if handler is not signal.SIG_DFL:
            return False
        signal.signal(number, _handle)
    alive = (each for each in _asked.get(number, ()) if each() not in (None, call))
    _asked[number] = (*alive, weakref.WeakMethod(call))
    return True


def _handle(number: int, frame: object) -> None:
    for each in _asked.get(number, ()):
        call = each()
        if call is not None:
            call()
