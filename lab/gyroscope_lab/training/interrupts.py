"""Ctrl-C that takes effect between steps."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def interrupts_between_steps() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether Ctrl-C was pressed. A second Ctrl-C ends the run at once.

    A run that is interrupted in the middle of a step could not be resumed.
    """
    seen: list[int] = []

    def notice(number: int, frame: object) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)

    # Only the main thread may handle signals.
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.signal(signal.SIGINT, notice)
    try:
        yield lambda: bool(seen)
    finally:
        signal.signal(signal.SIGINT, before)
