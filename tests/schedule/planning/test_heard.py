"""Signals are heard beside long calls, whose answers and errors are the caller's."""

import os
import signal
import threading
import time

import pytest

from projector.schedule.planning.heard import heard, side_by_side


def test_answers_and_errors_arrive():
    assert heard(max, 3, 7) == 7
    with pytest.raises(ZeroDivisionError):
        heard(lambda: 1 // 0)


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_answers_of_many_calls_stand_in_their_places(threads):
    def refuse():
        raise IndexError

    calls = [lambda each=each: each**2 for each in range(20)]
    answers = side_by_side([*calls, refuse, *calls], threads)
    with pytest.raises(IndexError):
        answers.pop(20).result()
    assert [each.result() for each in answers] == 2 * [each**2 for each in range(20)]


def test_threads_work_at_the_same_time():
    meet = threading.Barrier(3)
    answers = side_by_side([lambda: meet.wait(30.0)] * 3, 3)
    assert sorted(each.result() for each in answers) == [0, 1, 2]


def test_a_signal_ends_the_wait():
    begun, release = threading.Event(), threading.Event()

    def long():
        begun.set()
        release.wait(30.0)

    def send():
        begun.wait(30.0)
        os.kill(os.getpid(), signal.SIGINT)

    sender = threading.Thread(target=send)
    sender.start()
    before = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        heard(long)
    release.set()
    sender.join()
    assert time.monotonic() - before < 15.0
