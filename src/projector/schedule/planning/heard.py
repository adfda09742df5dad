"""Calls of many seconds beside which signals are heard."""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


def heard(call: Callable[..., T], *arguments: object) -> T:
    """Return what a call returns that does without Python's lock; see `side_by_side`."""
    return side_by_side([partial(call, *arguments)], 1)[0].result()


def side_by_side(calls: Sequence[Callable[[], T]], threads: int) -> list[Future[T]]:
    """Return the answers of calls that do without Python's lock, in ``threads``; 0 is this one.

    Python hears signals in its main thread, between its own steps, which waits here. A signal that
    raises ends the wait; the calls that have begun are left to themselves.
    """
    answers: list[Future[T]] = [Future() for _ in calls]
    left = deque(zip(calls, answers, strict=True))

    def run() -> None:
        with suppress(IndexError):  # nothing is left
            while True:
                call, answer = left.popleft()
                try:
                    answer.set_result(call())
                except Exception as error:  # the caller's
                    answer.set_exception(error)

    if threads == 0:
        run()
    for _ in range(min(threads, len(calls))):
        Thread(target=run, daemon=True).start()
    try:
        while wait(answers, 0.2).not_done:  # another thread may be the one that the signal wakes
            pass
    finally:
        left.clear()
    return answers
