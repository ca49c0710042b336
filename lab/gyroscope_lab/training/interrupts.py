"""Ctrl-C between steps."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def interrupts_between_steps() -> Iterator[Callable[[], bool]]:
    """Ctrl-C is noticed between steps, for a step cut in half could not be resumed; a second one ends at once."""
    seen: list[int] = []

    def notice(number: int, frame: object) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)

    # Only the main thread may handle signals; elsewhere nobody presses Ctrl-C.
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.signal(signal.SIGINT, notice)
    try:
        yield lambda: bool(seen)
    finally:
        signal.signal(signal.SIGINT, before)
