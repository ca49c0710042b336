"""One queue and one thread, for work that must not delay its caller, with bounds on what may wait."""

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import Any, Generic, TypeVar, final
from weakref import WeakSet

Item = TypeVar("Item")

# All workers of this process. A fork copies them without their threads, and perhaps with a held lock.
_ALL: "WeakSet[Worker[Any]]" = WeakSet()


def _after_fork() -> None:
    for worker in _ALL:
        worker.usable = False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@final
class Worker(Generic[Item]):
    """A daemon thread that handles items in the order in which they were put. It starts with the first item.

    The bounds include the items being handled. A process forked from this one has no such thread: `put` and `flush`
    return False there, and `close` does nothing.

    Args:
        handle: called in the thread with a list: one item, or with `gather` all that wait.
        name: of the thread.
        max_items: that may wait.
        max_bytes: that may wait, as the callers of `put` count them. A larger item is taken if no other waits.
        gather: seconds for which items wait to be handled together. 0 handles each alone, at once. `flush`, `close` and
            half-full bounds end the wait.
        idle: seconds without items after which `handle` gets an empty list. None means never.
        failed: called with an exception of `handle`. It returns the seconds until the same items are tried again, or
            None to give them up. It is also called, in the caller's thread, if no thread can be started.
        finish: called in the thread after the last item.

    >>> squares = []
    >>> worker = Worker(lambda items: squares.extend(x * x for x in items), name="squares")
    >>> worker.put(3), worker.put(4), worker.flush(), squares, worker.close()
    (True, True, True, [9, 16], True)
    """

    def __init__(
        self,
        handle: Callable[[list[Item]], object],
        *,
        name: str,
        max_items: float = inf,
        max_bytes: float = inf,
        gather: float = 0.0,
        idle: float | None = None,
        failed: Callable[[BaseException], float | None] = lambda error: None,
        finish: Callable[[], object] = lambda: None,
    ) -> None:
        self.name = name
        self.max_items = max_items
        self.max_bytes = max_bytes
        self._handle = handle
        self._gather = gather
        self._idle = idle
        self._failed = failed
        self._finish = finish
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()  # guards all that follows
        self._queue: deque[tuple[Item, int]] = deque()
        self._items = 0  # waiting or being handled
        self._bytes = 0
        self._accepted = 0
        self._done = 0  # handled or given up
        self._failures = 0
        self._given_up = False  # items were, since the last `flush`
        self._flushing = False
        self._retry = 0.0
        self._deadline: float | None = None  # of `close`, None while open
        self.seconds = 0.0
        """Processor time of the thread until its last items."""
        self.usable = True
        """Whether items can be put: not after `close`, and not in a forked process."""
        _ALL.add(self)

    @property
    def waiting(self) -> int:
        """Number of items that wait or are being handled."""
        return self._items

    def has_room(self, size: int = 0) -> bool:
        """Return whether an item of `size` bytes would be accepted now."""
        fits = self._items < self.max_items and self._bytes + size <= self.max_bytes
        return fits or not self._items

    def put(self, item: Item, *, size: int = 0, timeout: float = 0.0, always: bool = False) -> bool:
        """Queue an item of `size` bytes. Return False if there is no room for it within `timeout` seconds.

        `always` ignores the bounds.
        """
        if not self.usable:
            return False
        with self._changed:
            if not always and not self._changed.wait_for(lambda: self.has_room(size), timeout):
                return False
            self._queue.append((item, size))
            self._items += 1
            self._bytes += size
            self._accepted += 1
            # Not in __init__, because a worker without items needs no thread.
            if self._thread is None:
                self._start()
            # While items gather, only the first one and full bounds wake the thread.
            if len(self._queue) == 1 or self._wake_now():
                self._changed.notify_all()
        return True

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until all items put so far are handled or given up. Return whether all were handled in time.

        Items that were given up since the last call count as failed, and so does a failure while this waits, even if
        the items are tried again later.
        """
        if not self.usable:
            return False
        with self._changed:
            goal = self._accepted
            failures = self._failures
            if self._done < goal and self._thread is None and not self._start():
                return False
            self._flushing = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._done >= goal or self._failures > failures, timeout)
            done = self._done >= goal and self._failures == failures and not self._given_up
            self._given_up = False
            return done

    def close(self, timeout: float | None = None) -> bool:
        """Handle the remaining items and end the thread. Return whether that was done within `timeout` seconds.

        Items that failed are tried again until then. A second call does nothing.
        """
        if not self.usable:
            return True
        self.usable = False
        with self._changed:
            self._deadline = time.monotonic() + (inf if timeout is None else timeout)
            self._changed.notify_all()
            here = self._thread is None and not self._start()
        if here:  # Python starts no new thread, for example while it ends
            self._run()
        elif self._thread is not None:
            self._thread.join(timeout)
        return not self._items and (self._thread is None or not self._thread.is_alive())

    def _start(self) -> bool:
        thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            self._failed(error)
            return False
        self._thread = thread
        return True

    def _wake_now(self) -> bool:
        half_full = 2 * self._items >= self.max_items or 2 * self._bytes >= self.max_bytes
        return self._flushing or self._deadline is not None or half_full

    # The following methods run in the thread.

    def _run(self) -> None:
        while self._run_once():
            pass
        try:
            self._finish()
        except BaseException as error:
            self._pause_after(error)

    def _pause_after(self, error: BaseException) -> float | None:
        """Return the pause that `failed` chooses. If `failed` raises, the items are given up and the thread goes on."""
        with suppress(BaseException):
            return self._failed(error)
        return None

    def _run_once(self) -> bool:
        """Wait for items and handle them. This is a separate function so that no item is referenced while it waits."""
        batch = self._next()
        retry = None
        failed = False
        try:
            if batch or (self._idle is not None and self._deadline is None):
                self._handle([item for item, _ in batch])
        # SystemExit too, because `flush` and `close` would wait forever for a thread that ends here.
        except BaseException as error:
            failed = True
            retry = self._pause_after(error)
        self.seconds = time.thread_time()
        return self._task_done(batch, failed, retry)

    def _next(self) -> list[tuple[Item, int]]:
        with self._changed:
            if self._retry and self._deadline is None:
                self._changed.wait_for(lambda: self._flushing or self._deadline is not None, self._retry)
            elif self._retry and self._deadline is not None:
                # `close` causes one attempt at once. Later attempts pause as usual.
                self._changed.wait_for(lambda: False, min(self._retry, max(0.0, self._deadline - time.monotonic())))
            else:
                self._changed.wait_for(lambda: self._queue or self._flushing or self._deadline is not None, self._idle)
                if self._queue and self._gather:
                    self._changed.wait_for(self._wake_now, self._gather)
            self._flushing = False
            count = len(self._queue) if self._gather else min(1, len(self._queue))
            return [self._queue.popleft() for _ in range(count)]

    def _task_done(self, batch: list[tuple[Item, int]], failed: bool, retry: float | None) -> bool:
        """Count the items, or put them back for another attempt. Return whether to go on."""
        with self._changed:
            self._failures += failed
            self._given_up |= failed and retry is None
            self._retry = 0.0 if retry is None else retry
            if retry is not None:  # to the front, still counted, so that order and bounds hold
                self._queue.extendleft(reversed(batch))
            else:
                self._items -= len(batch)
                self._bytes -= sum(size for _, size in batch)
                self._done += len(batch)
            self._changed.notify_all()
            if self._deadline is None:
                return True
            return bool(self._queue) and time.monotonic() < self._deadline
