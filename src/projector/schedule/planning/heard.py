"""Calls of many seconds beside which signals are heard."""

from collections.abc import Callable
from concurrent.futures import Future, wait
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


def heard(call: Callable[..., T], *arguments: object) -> T:
    """Return what a call returns that does without Python's lock.

    Python hears signals in its main thread, between its own steps, which waits here. A signal that
    raises ends the wait; the call is left to itself.
    """
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(call(*arguments))
        except Exception as error:  # the caller's
            answer.set_exception(error)

    Thread(target=run, daemon=True).start()
    while not answer.done():
        wait((answer,), 0.2)  # another thread may be the one that the signal wakes
    return answer.result()
