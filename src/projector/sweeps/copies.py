"""Calls with long answers in copies of this process, beside it."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import TypeVar

from projector.sweeps import workers

T = TypeVar("T")


@contextmanager
def in_copies(calls: Sequence[Callable[[], T]]) -> Iterator[list[Callable[[], T]]]:
    """Begin calls, each in a copy of this process; yield what waits for the answers.

    What has no answer, because the call raised or its copy was ended, is called here. The copies
    end with the block. This process can be copied (`workers.can_copy`).
    """
    with ExitStack() as stack:
        yield [stack.enter_context(_begun(call)) for call in calls]


@contextmanager
def _begun(call: Callable[[], T]) -> Iterator[Callable[[], T]]:
    receiver, sender = Pipe(duplex=False)
    with receiver:
        with sender:
            copy = workers.Copy(target=_answer, args=(call, receiver, sender), daemon=True)
            copy.start()
        try:
            yield partial(_answered, call, receiver)
        finally:
            copy.kill()
            copy.join()


def _answer(call: Callable[[], object], receiver: Connection, sender: Connection) -> None:
    receiver.close()
    threading.Thread(target=workers.end_with_caller, daemon=True).start()
    with suppress(Exception):
        sender.send(call())


def _answered(call: Callable[[], T], receiver: Connection) -> T:
    try:
        answer: T = receiver.recv()
    except EOFError:
        return call()
    return answer
