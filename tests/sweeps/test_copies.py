"""Calls in copies of this process."""

import os
import signal
import sys
import time
from functools import partial

import pytest

from projector.sweeps.copies import in_copies

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems are not copied")


def test_each_answer_comes_from_its_copy():
    with in_copies(
        [partial(lambda size: (os.getpid(), b"x" * size), 1 << 20 << n) for n in (0, 1)]
    ) as answers:
        found = [answer() for answer in answers]
    assert [len(text) for _, text in found] == [1 << 20, 1 << 21]
    assert len({os.getpid(), *(pid for pid, _ in found)}) == 3


@pytest.mark.parametrize("ends", [lambda: 1 / 0, lambda: os.kill(os.getpid(), signal.SIGKILL)])
def test_what_a_copy_does_not_answer_is_called_here(ends):
    caller = os.getpid()

    def call():
        if os.getpid() != caller:
            ends()
        return os.getpid()

    with in_copies([call]) as answers:
        assert [answer() for answer in answers] == [caller]


def test_what_raises_raises_here():
    with in_copies([lambda: 1 / 0]) as answers, pytest.raises(ZeroDivisionError):
        answers[0]()


def test_copies_end_with_the_block(tmp_path):
    told = tmp_path / "pid"

    def call():
        told.write_text(str(os.getpid()))
        time.sleep(60)

    with in_copies([call]):
        while not (told.exists() and told.read_text()):
            time.sleep(0.01)
    with pytest.raises(ProcessLookupError):
        os.kill(int(told.read_text()), 0)
