"""Which activities a question is about."""

import numpy as np
import pytest

from projector.errors import ConfigError
from projector.trace.activity import BACKWARD, FORWARD
from projector.trace.select import Selection, chosen, numbers, take
from synthetic import activities, collective, compute


@pytest.fixture
def table():
    return activities(
        compute(0, 10, iteration=-1),
        compute(10, 20, iteration=4),
        collective(20, 30, iteration=4),
        compute(30, 40, iteration=5, phase=BACKWARD),
        compute(0, 10, rank=1, iteration=4),
        compute(30, 40, rank=1, iteration=5, phase=BACKWARD),
    )


def test_numbers_are_lists_and_ranges():
    assert numbers("3", "ranks") == (3,)
    assert numbers("0, 4-6,5", "ranks") == (0, 4, 5, 6)
    for wrong in ("", "a", "3-", "5-3", "-1", "0-99999999999", "1;2"):
        with pytest.raises(ConfigError, match="no list of numbers"):
            numbers(wrong, "ranks")


@pytest.mark.parametrize(
    ("selection", "rows"),
    [
        (Selection(), [0, 1, 2, 3, 4, 5]),
        (Selection(ranks=(1,)), [4, 5]),
        (Selection(iterations=(5,)), [3, 5]),
        (Selection(skip_warmup=1), [3, 5]),
        (Selection(phases=("backward",)), [3, 5]),
        (Selection(types=("communication",)), [2]),
        (Selection(ranks=(0,), iterations=(4,), phases=("forward", "backward")), [1]),
    ],
)
def test_what_is_chosen(table, selection, rows):
    assert np.flatnonzero(chosen(table, selection)).tolist() == rows


@pytest.mark.parametrize(
    ("wrong", "key", "text"),
    [
        ({"ranks": (2,)}, "ranks", "the trace has no 2; it has 0, 1"),
        ({"iterations": (6,)}, "iterations", "it has 4, 5"),
        ({"skip_warmup": 2}, "skip_warmup", "leaves nothing"),
        ({"skip_warmup": -1}, "skip_warmup", "cannot be -1"),
        ({"phases": ("forwards",)}, "phase", "known: forward, backward"),
        ({"types": ("matmul",)}, "type", "known: gemm"),
    ],
)
def test_what_is_not_there_is_said(table, wrong, key, text):
    with pytest.raises(ConfigError, match=text) as caught:
        chosen(table, Selection(**wrong))
    assert caught.value.key == key
    assert caught.value.allowed


def test_iterations_of_a_trace_without_any():
    table = activities(compute(0, 10))
    with pytest.raises(ConfigError, match="the trace has none"):
        chosen(table, Selection(iterations=(1,)))


def test_a_forward_that_is_left_out_becomes_unknown(table):
    linked = np.array([-1, -1, -1, 1, -1, 4])
    table = type(table)(**{**{n: getattr(table, n) for n in table.__slots__}, "forward": linked})
    part = take(table, chosen(table, Selection(ranks=(1,))))
    assert part.forward.tolist() == [-1, 0]
    assert part.phase.tolist() == [FORWARD, BACKWARD]
    part = take(table, chosen(table, Selection(iterations=(5,))))
    assert part.forward.tolist() == [-1, -1]
    assert part.names == table.names
