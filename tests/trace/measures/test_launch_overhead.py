"""Launch overhead against equations 1 to 3, and in the cases that these leave open."""

from hypothesis import given
from hypothesis import strategies as st

from projector.trace.measures.times import bubbles, split_bubbles
from reference import trace_measures as reference
from synthetic import NS, Kernel, activities, collective, compute, copy


def overheads(*kernels):
    """Return (preparation, call) in ns of each row, None where either is not known."""
    table = activities(*kernels)
    pairs = zip(*(each.tolist() for each in split_bubbles(table, bubbles(table))), strict=True)
    return [None if min(pair) < 0 else (pair[0] // NS, pair[1] // NS) for pair in pairs]


def test_the_three_cases_of_figure_10():
    assert overheads(
        compute(0, 100, launch=0),
        compute(120, 200, launch=50),  # launched in time: all of the bubble is the call
        compute(260, 300, launch=240),  # launched 40 late, then 20 until it starts
        compute(300, 310, launch=290),  # no bubble
    ) == [None, (0, 20), (40, 20), (0, 0)]


def test_communication_and_copies_are_bubbles():
    assert overheads(
        compute(0, 100, launch=0),
        collective(100, 180, stream=7, launch=60),
        copy(180, 190, stream=7, launch=70),
        compute(190, 200, launch=80),
    ) == [None, None, None, (0, 90)]


def test_a_fill_computes():
    fill = Kernel(name="Memset", start=110, end=120, launch=105)
    assert overheads(compute(0, 100, launch=0), fill) == [None, (5, 5)]


def test_streams_at_once_count_no_time_twice():
    assert overheads(
        compute(0, 100, launch=0),
        compute(20, 40, stream=8, launch=10),  # within the first
        compute(60, 70, stream=8, launch=50),  # its own stream was idle, the device was not
        compute(130, 140, launch=90),  # after the first, not after the one just before
    ) == [None, (0, 0), (0, 0), (0, 30)]


def test_a_launch_that_is_not_known_leaves_the_bubble():
    table = activities(compute(0, 10, launch=0), compute(30, 40), compute(50, 60, launch=45))
    assert overheads(compute(0, 10, launch=0), compute(30, 40), compute(50, 60, launch=45)) == [
        None, None, (5, 5),
    ]  # fmt: skip
    assert bubbles(table).tolist() == [-1, 20 * NS, 10 * NS]


def test_a_launch_behind_the_start_counts_as_at_the_start():
    assert overheads(compute(0, 10, launch=0), compute(30, 40, launch=35)) == [None, (20, 0)]


def test_each_device_starts_anew():
    kernels = (compute(0, 10, launch=0), compute(90, 95, rank=1, launch=85))
    assert overheads(*kernels, compute(100, 110, rank=1, launch=97)) == [None, None, (2, 3)]


def test_zero_length_kernels_end_bubbles():
    kernels = (compute(0, 10, launch=0), compute(20, 20, launch=15), compute(35, 40, launch=0))
    assert overheads(*kernels) == [None, (5, 5), (0, 15)]


spans = st.tuples(st.integers(0, 80), st.integers(0, 30))
rows = st.tuples(spans, st.none() | st.integers(0, 90), st.booleans())


@given(st.lists(rows, max_size=14))
def test_matches_reference(lines):
    kernels = [
        (collective if communicates else compute)(start, start + length, launch=launch)
        for (start, length), launch, communicates in lines
    ]
    ordered = sorted(kernels, key=lambda k: (k.start, k.end))
    plain = [(k.start, k.end, k.launch, "nccl" in k.name) for k in ordered]
    assert overheads(*kernels) == reference.launch_overheads(plain)


@given(st.lists(spans, min_size=1, max_size=14), st.integers(0, 90))
def test_bubbles_and_busy_are_the_span(lines, launch):
    kernels = [compute(start, start + length, launch=launch) for start, length in lines]
    bubble = bubbles(activities(*kernels))
    first, last = min(k.start for k in kernels), max(k.end for k in kernels)
    idle = sum(not any(k.start <= t < k.end for k in kernels) for t in range(first, last))
    assert bubble[1:].sum() == idle * NS
    assert bubble[0] == -1
