"""What a sweep does before its workers start."""

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest

from projector.kernels._interpreted import interpreting
from projector.sweeps import rows, store, workers


@pytest.mark.parametrize(
    ("block", "expected"),
    [(nullcontext, ["learn", "start", 0, 1, 2]), (interpreting, [0, "learn", "start", 1, 2])],
)
def test_first_rows_go_before_where_kernels_are_not_compiled(monkeypatch, block, expected):
    told = []

    class Sweeper:
        def __init__(self, *_):
            pass

        def learn(self):
            told.append("learn")

        def part(self, chunk):
            told.append(chunk)
            return chunk

    @contextmanager
    def at_work(*_):
        told.append("start")
        yield SimpleNamespace(want_more=lambda _: False)

    monkeypatch.setattr(rows, "Sweeper", Sweeper)
    monkeypatch.setattr(store, "read_draft", lambda part: part)
    monkeypatch.setattr(workers, "can_copy", lambda: True)
    monkeypatch.setattr(workers._Others, "at_work", at_work)
    with block():
        parts = workers.project_side_by_side(range(3), 3, 2, None, {}, 1, is_long=True)
        assert list(parts) == [0, 1, 2]
    assert told == expected
