"""Signals are heard beside long calls, whose answers and errors are the caller's."""

import os
import signal
import threading
import time

import pytest

from projector.schedule.planning.heard import heard


def test_answers_and_errors_arrive():
    assert heard(max, 3, 7) == 7
    with pytest.raises(ZeroDivisionError):
        heard(lambda: 1 // 0)


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
