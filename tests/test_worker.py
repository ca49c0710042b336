"""The queue and thread that the tracker, its sinks and the store share."""

import gc
import os
import threading
import time
import weakref

import pytest

from gyroscope._worker import Worker


class Gate:
    """A handler that notes what it gets and, while closed, waits."""

    def __init__(self, *, opened=True):
        self.batches = []
        self.entered = threading.Event()
        self.open = threading.Event()
        if opened:
            self.open.set()

    def __call__(self, items):
        self.entered.set()
        assert self.open.wait(20)
        self.batches.append(list(items))

    @property
    def items(self):
        return [item for batch in self.batches for item in batch]


def test_items_are_handled_in_order_one_at_a_time_in_another_thread():
    threads = set()
    gate = Gate()
    worker = Worker(lambda items: (threads.add(threading.current_thread().name), gate(items)), name="the-thread")
    for number in range(20):
        assert worker.put(number)
    assert worker.flush()
    assert gate.batches == [[number] for number in range(20)]
    assert threads == {"the-thread"}
    assert worker.close()


def test_what_waits_is_bounded_by_count():
    gate = Gate(opened=False)
    worker = Worker(gate, name="w", max_items=3)
    assert [worker.put(number) for number in range(5)] == [True, True, True, False, False]
    gate.open.set()
    assert worker.close()
    assert gate.items == [0, 1, 2]


def test_what_waits_is_bounded_by_bytes_and_a_larger_item_is_taken_alone():
    gate = Gate(opened=False)
    worker = Worker(gate, name="w", max_bytes=100)
    assert worker.put("large", size=1000)
    assert not worker.has_room(1)
    assert not worker.put("small", size=1)
    gate.open.set()
    worker.flush()
    assert worker.put("half", size=50)
    assert worker.put("other half", size=50)
    assert worker.close()
    assert gate.items == ["large", "half", "other half"]


def test_what_must_not_be_lost_ignores_the_bounds():
    gate = Gate(opened=False)
    worker = Worker(gate, name="w", max_items=1)
    assert [worker.put(1), worker.put(2), worker.put(3, always=True)] == [True, False, True]
    gate.open.set()
    assert worker.close()
    assert gate.items == [1, 3]


def test_put_waits_for_room_as_long_as_it_is_told():
    gate = Gate(opened=False)
    worker = Worker(gate, name="w", max_items=1)
    worker.put(0)
    began = time.perf_counter()
    assert not worker.put(1, timeout=0.1)
    assert time.perf_counter() - began >= 0.1
    threading.Timer(0.1, gate.open.set).start()
    assert worker.put(2, timeout=20)
    assert worker.close()
    assert gate.items == [0, 2]


def test_items_that_gather_are_handled_together():
    gate = Gate()
    worker = Worker(gate, name="w", gather=30.0)
    for number in range(5):
        worker.put(number)
    assert gate.batches == []
    assert worker.flush()
    assert gate.batches == [[0, 1, 2, 3, 4]]
    worker.put(5)
    assert worker.close()
    assert gate.items == [0, 1, 2, 3, 4, 5]


def test_a_half_full_queue_does_not_wait_for_more():
    gate = Gate()
    worker = Worker(gate, name="w", gather=30.0, max_items=8)
    for number in range(4):
        worker.put(number)
    assert gate.entered.wait(10)
    worker.close()


def test_an_idle_worker_is_called_with_nothing():
    calls = []
    twice = threading.Event()

    def handle(items):
        calls.append(items)
        if len(calls) == 2:
            twice.set()

    worker = Worker(handle, name="w", idle=0.01)
    worker.put("first")
    assert twice.wait(10)
    worker.close()
    assert calls[:2] == [["first"], []]


def test_items_that_failed_are_tried_again_when_asked():
    attempts = []

    def handle(items):
        attempts.append(list(items))
        if len(attempts) < 3:
            raise OSError("locked")

    worker = Worker(handle, name="w", failed=lambda error: 0.01)
    worker.put("a")
    worker.put("b")
    assert worker.close(10)
    assert attempts == [["a"], ["a"], ["a"], ["b"]]


def test_items_that_failed_are_given_up_otherwise_and_flush_says_so():
    errors = []

    def handle(items):
        if items == ["bad"]:
            time.sleep(0.3)  # until `flush` waits: it tells of what fails meanwhile
            raise ValueError("bad")

    worker = Worker(handle, name="w", failed=errors.append)
    worker.put("bad")
    assert not worker.flush()
    worker.put("good")
    assert worker.flush()
    assert worker.close()
    assert [str(error) for error in errors] == ["bad"]


def test_even_an_exit_in_the_handler_leaves_no_caller_waiting():
    def handle(items):
        raise SystemExit(1)

    worker = Worker(handle, name="w")
    worker.put(1)
    assert not worker.flush(10)
    assert worker.close(10)


def test_flush_tells_of_items_that_were_given_up_before_it_was_called():
    def handle(items):
        raise SystemExit(1)

    worker = Worker(handle, name="w")
    worker.put(1)
    while worker.waiting:
        time.sleep(0.001)
    assert not worker.flush(10)
    assert worker.flush(10)  # nothing was put since
    assert worker.close(10)


def test_an_error_in_the_handler_of_errors_does_not_end_the_thread():
    handled = []

    def handle(items):
        handled.extend(items)
        raise OSError("locked")

    def failed(error):
        raise SystemExit(1)

    worker = Worker(handle, name="w", failed=failed)
    worker.put(1)
    worker.put(2)
    assert not worker.flush(10)
    assert worker.close(10)
    assert handled == [1, 2]


def test_closing_gives_up_after_its_time():
    gate = Gate(opened=False)
    worker = Worker(gate, name="w")
    worker.put(1)
    worker.put(2)
    assert not worker.close(0.05)
    assert worker.waiting == 2
    gate.open.set()


def test_closing_tries_again_until_its_time_is_over():
    def handle(items):
        raise OSError("locked")

    worker = Worker(handle, name="w", failed=lambda error: 0.02)
    worker.put(1)
    assert not worker.close(0.2)
    assert worker.waiting == 1


def test_finish_runs_last_and_also_where_nothing_was_put():
    calls = []
    worker = Worker(calls.append, name="w", finish=lambda: calls.append("end"))
    worker.put(1)
    worker.close()
    worker.close()
    empty = Worker(calls.append, name="w", finish=lambda: calls.append("end"))
    empty.close()
    assert calls == [[1], "end", "end"]
    assert not worker.put(2)


def test_where_no_thread_starts_closing_does_the_work(monkeypatch):
    gate = Gate()
    errors = []

    def refuse(self):
        raise RuntimeError("can't start new thread")

    worker = Worker(gate, name="w", failed=errors.append)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert worker.put(1)
    assert not worker.flush()
    assert worker.close()
    assert gate.items == [1]
    assert "can't start new thread" in str(errors[0])


def test_no_item_is_kept_alive_while_the_thread_waits():
    class Thing:
        pass

    worker = Worker(lambda items: None, name="w")
    thing = Thing()
    gone = weakref.ref(thing)
    worker.put(thing)
    worker.flush()
    del thing
    gc.collect()
    deadline = time.monotonic() + 5
    while gone() is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert gone() is None
    worker.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_in_a_forked_process_nothing_waits():
    gate = Gate(opened=False)
    worker = Worker(gate, name="w", max_items=1)
    worker.put(1)
    child = os.fork()
    if child == 0:
        done = not worker.put(2, timeout=5) and not worker.flush() and worker.close()
        os._exit(0 if done else 1)
    deadline = time.monotonic() + 10
    ended, status = os.waitpid(child, os.WNOHANG)
    while not ended and time.monotonic() < deadline:
        time.sleep(0.02)
        ended, status = os.waitpid(child, os.WNOHANG)
    if not ended:
        os.kill(child, 9)
        os.waitpid(child, 0)
    gate.open.set()
    worker.close()
    assert ended
    assert os.waitstatus_to_exitcode(status) == 0
