"""What goes wrong with measuring is a note in the run and a warning, and never an exception in training."""

import threading
import warnings
from collections.abc import Callable
from typing import final


@final
class Trouble:
    """Collects complaints of all threads; `off` says that measuring has ended. Each text is said once."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self.off = False
        self._note, self._lock = note, threading.Lock()
        self._said: set[str] = set()
        self._waiting: list[str] = []

    def say(self, text: str) -> None:
        """Complain; the warning comes when training next looks in, for a warning is best seen in its thread."""
        with self._lock:
            if text in self._said:
                return
            self._said.add(text)
            self._waiting.append(text)
        self._note(text)

    def stop(self, error: Exception) -> None:
        """Give up measuring because of an error; said once, whatever follows from it."""
        with self._lock:
            first, self.off = not self.off, True
        if first:
            self.say(f"measuring stopped, training goes on: {type(error).__name__}: {error}")

    def warn(self) -> None:
        """Give the warnings that wait."""
        if not self._waiting:
            return
        with self._lock:
            texts, self._waiting = self._waiting, []
        for text in texts:
            warnings.warn(f"gyroscope: {text}", RuntimeWarning, stacklevel=4)
