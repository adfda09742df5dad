"""The two-pass method against programs of which it is known what each kernel's counters are.

A counter's value is the place of its kernel in the iteration, so a kernel of the timed run has been
joined right if it was given its own place.
"""

from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from projector.trace.alignment import align
from projector.trace.counter_join import join_counters, spelled
from projector.trace.counter_join import lanes_of as lanes
from projector.trace.events import KERNEL, Counters
from projector.trace.read import load_trace
from synthetic import activities, compute, copy

FILES = sorted((Path(__file__).parent / "data").glob("*.json.gz"))
NOWHERE = -7.0
"""Value of kernels outside of iterations."""


def timed(*iterations, rank=0, start=0, grids=None, device=None, names=str):
    """Kernels of iterations, each a list of names, one after the other."""
    made, place = [], start
    for number, iteration in enumerate(iterations):
        for at, name in enumerate(iteration):
            detail = None if grids is None else {"grid": (grids[at], 1, 1), "block": (64, 1, 1)}
            made.append(
                compute(
                    place + 5, place + 9, name=names(name), rank=rank, iteration=number,
                    launch=place, detail=detail, device=device,
                )
            )  # fmt: skip
            place += 10
    return made


def counted(rows, *, counter="WORK", device=0, rank=-1, grids=None, path="counters.csv"):
    """A run of kernels, each a name and a value."""
    names = [name for name, _ in rows]
    return Counters(
        path=path,
        kernel=names,
        device=np.full(len(rows), device, np.int64),
        grid=np.array(grids if grids is not None else [-1] * len(rows), np.int64),
        duration_ps=np.arange(len(rows), dtype=np.int64) + 1,
        values={counter: np.array([value for _, value in rows], np.float64)},
        rank=rank,
    )


def placed(iteration):
    return [(name, float(place)) for place, name in enumerate(iteration)]


def places(joined, counter="WORK"):
    return joined.values[counter].tolist()


LAYERS = ["embed", *["norm", "gemm", "gemm", "add"] * 3, "loss", "adam"]


def test_every_kernel_of_every_iteration_is_joined():
    joined = join_counters(
        activities(*timed(LAYERS, LAYERS, LAYERS)), [counted(placed(LAYERS) * 3)]
    )
    assert places(joined) == [float(n) for n in range(len(LAYERS))] * 3
    assert joined.share == joined.time_share == 1.0
    (run,) = joined.runs
    assert (run.iterations, run.counted_iterations, run.uncertain) == (3, 3, 0)
    assert not run.missing
    assert not run.unused
    assert run.names == "full"


@pytest.mark.parametrize("counted_iterations", [1, 2, 5])
def test_runs_may_differ_in_the_number_of_iterations(counted_iterations):
    joined = join_counters(
        activities(*timed(*[LAYERS] * 3)), [counted(placed(LAYERS) * counted_iterations)]
    )
    assert places(joined) == [float(n) for n in range(len(LAYERS))] * 3
    assert joined.runs[0].counted_iterations == counted_iterations
    assert not joined.runs[0].unused


def test_libraries_that_try_kernels_out_before_the_first_iteration():
    tried = [("gemm", NOWHERE)] * 5 + [("gemm_other", NOWHERE), ("norm", NOWHERE)]
    joined = join_counters(
        activities(*timed(LAYERS, LAYERS)), [counted(tried + placed(LAYERS) * 2)]
    )
    assert places(joined) == [float(n) for n in range(len(LAYERS))] * 2
    (run,) = joined.runs
    assert run.unused == {"gemm": 5, "gemm_other": 1, "norm": 1}
    assert run.uncertain == 0


def test_an_optimizer_in_one_iteration_alone():
    without = LAYERS[:-1]
    joined = join_counters(
        activities(*timed(without, LAYERS, without)), [counted(placed(without) + placed(LAYERS))]
    )
    expected = [*range(len(without)), *range(len(LAYERS)), *range(len(without))]
    assert places(joined) == [float(n) for n in expected]


def test_kernels_that_one_of_the_runs_lacks_are_told_of():
    fused = [name for name in LAYERS if name != "add"]
    joined = join_counters(activities(*timed(LAYERS)), [counted(placed(fused) * 2)])
    assert joined.share == (len(LAYERS) - 3) / len(LAYERS)
    assert joined.runs[0].missing == {"add": 3}
    joined = join_counters(activities(*timed(fused)), [counted(placed(LAYERS))])
    assert joined.share == 1.0
    assert joined.runs[0].unused == {"add": 3}
    assert joined.to_dict()["runs"][0]["unused"] == {"add": 3}


def test_a_doubtful_pair_is_told_of():
    # Which of the three is missing cannot be known.
    joined = join_counters(
        activities(*timed(["a", "g", "g", "g", "b"])), [counted(placed(["a", "g", "g", "b"]))]
    )
    (run,) = joined.runs
    assert (run.joined, run.uncertain) == (4, 2)


def test_runs_with_a_few_counters_each_are_merged():
    first, second = placed(LAYERS), [(name, 100 + value) for name, value in placed(LAYERS)]
    joined = join_counters(
        activities(*timed(LAYERS, LAYERS)),
        [
            counted(first, counter="A"),
            counted(second[:-1], counter="B"),
            counted([(name, -1.0) for name in LAYERS], counter="A"),
        ],
    )
    assert places(joined, "A") == [value for _, value in first] * 2
    expected = [value for _, value in second[:-1]] + [np.nan]
    np.testing.assert_array_equal(places(joined, "B"), expected * 2)
    assert joined.share == 1.0
    assert joined.duration_ps[0] == 1


def test_grids_tell_kernels_of_one_name_apart():
    names, grids = ["gemm", "gemm", "gemm"], [4, 8, 2]
    run = counted([("gemm", 1.0), ("gemm", 2.0)], grids=[8 * 64, 2 * 64])
    joined = join_counters(activities(*timed(names, grids=grids)), [run])
    np.testing.assert_array_equal(places(joined), [np.nan, 1.0, 2.0])


def test_grids_of_the_extended_launch_of_hip_are_work_items_already():
    run = counted([("gemm", 1.0), ("gemm", 2.0)], grids=[8, 2])
    joined = join_counters(activities(*timed(["gemm"] * 3, grids=[4, 8, 2])), [run])
    np.testing.assert_array_equal(places(joined), [np.nan, 1.0, 2.0])


def test_grids_that_are_counted_in_something_else_do_not_count():
    run = counted(placed(["gemm"] * 3), grids=[512, 7, 7])
    joined = join_counters(activities(*timed(["gemm"] * 3, grids=[2, 4, 8])), [run])
    assert places(joined) == [0.0, 1.0, 2.0]


def test_grids_that_one_run_does_not_know_do_not_count():
    run = counted(placed(["gemm", "gemm"]), grids=[512, -1])
    joined = join_counters(activities(*timed(["gemm", "gemm"], grids=[4, 8])), [run])
    assert places(joined) == [0.0, 1.0]


def test_names_of_templates_in_another_spelling():
    full = {"gemm": "void lib::gemm<float, 2>(float*)", "add": "void at::add<int>(int*)"}
    iteration = ["gemm", "add", "gemm"]
    for spelling, level in (
        (full, "full"),
        ({"gemm": "_ZN3lib4gemmIfLi2EEEvPf", "add": "_ZN2at3addIiEEvPi"}, "without templates"),
        ({"gemm": "gemm", "add": "add"}, "function"),
    ):
        run = counted([(spelling[name], float(n)) for n, name in enumerate(iteration)])
        joined = join_counters(activities(*timed(iteration, names=full.get)), [run])
        assert places(joined) == [0.0, 1.0, 2.0]
        assert joined.runs[0].names == level


def test_each_rank_has_its_own_counters():
    both = [*timed(LAYERS, rank=0), *timed(LAYERS, rank=1)]
    runs = [
        counted([(name, 10 * rank + value) for name, value in placed(LAYERS)], rank=rank, device=3)
        for rank in (1, 0)
    ]
    joined = join_counters(activities(*both), runs)
    ends = [float(n) for n in range(len(LAYERS))]
    assert places(joined) == ends + [10 + n for n in ends]
    assert [(run.rank, run.device) for run in joined.runs] == [(1, 1), (0, 0)]


def test_devices_without_ranks_are_taken_in_their_order():
    both = [*timed(LAYERS, rank=0, device=0), *timed(LAYERS, rank=1, device=1)]
    runs = [
        counted([(name, 10 * agent + value) for name, value in placed(LAYERS)], device=agent)
        for agent in (5, 4)
    ]
    joined = join_counters(activities(*both), runs)
    ends = [float(n) for n in range(len(LAYERS))]
    assert places(joined) == [40 + n for n in ends] + [50 + n for n in ends]


def test_a_trace_of_one_rank_finds_its_device_among_all():
    runs = [
        counted([(name, float(agent)) for name in LAYERS], device=agent) for agent in range(2, 10)
    ]
    joined = join_counters(activities(*timed(LAYERS, rank=3)), runs)
    assert set(places(joined)) == {5.0}


def test_one_device_counted_of_several_leaves_the_others_open():
    both = [*timed(LAYERS, rank=0), *timed(LAYERS, rank=1)]
    joined = join_counters(activities(*both), [counted(placed(LAYERS))])
    assert joined.share == 0.5
    assert joined.kernels == 2 * len(LAYERS)


def test_a_trace_without_iterations_is_one():
    plain = [compute(n, n + 1, name=name) for n, name in enumerate(LAYERS * 2)]
    joined = join_counters(activities(*plain), [counted(placed(LAYERS) * 2)])
    assert places(joined) == [float(n) for n in range(len(LAYERS))] * 2


def test_kernels_before_the_first_iteration_meet_those_of_the_other_run():
    before = [compute(n, n + 1, name="init", launch=n) for n in range(3)]
    run = counted([("init", NOWHERE)] * 3 + placed(LAYERS) * 2)
    joined = join_counters(activities(*before, *timed(LAYERS, LAYERS, start=100)), [run])
    assert joined.share == 1.0
    assert places(joined)[:3] == [NOWHERE] * 3


def test_copies_are_no_kernels_and_order_is_that_of_the_launch():
    late = compute(90, 99, name="gemm", launch=1, stream=9)
    first = compute(20, 30, name="gemm", launch=0)
    second = compute(40, 50, name="gemm", launch=2)
    joined = join_counters(
        activities(copy(0, 5), late, first, second), [counted(placed(["gemm"] * 3))]
    )
    np.testing.assert_array_equal(places(joined), [np.nan, 0.0, 2.0, 1.0])
    assert joined.kernels == 3


def test_nothing_to_join():
    nothing = join_counters(activities(*timed(LAYERS)), [])
    assert (nothing.share, nothing.time_share, dict(nothing.values)) == (0.0, 0.0, {})
    empty = join_counters(activities(), [counted(placed(LAYERS))])
    assert empty.share == 0.0
    other = join_counters(activities(*timed(LAYERS)), [counted([("other", 1.0)])])
    assert other.share == 0.0
    assert other.runs[0].missing["gemm"] == 6


repeated = st.lists(st.sampled_from("ab"), max_size=12)
programs = st.tuples(repeated, st.permutations(["x", "y", "z"])).flatmap(
    lambda parts: st.permutations(parts[0] + list(parts[1]))
)
"""Iterations of kernels that come often and of three that come once."""


@given(program=programs, number=st.integers(1, 4))
def test_equal_runs_join_as_the_plain_reference_does(program, number):
    """The reference: of equal runs, the k-th kernel of a name is the k-th of that name."""
    run = placed(program) * number
    joined = join_counters(activities(*timed(*[program] * number)), [counted(run)])
    by_name = defaultdict(list)
    for place, (name, _) in enumerate(run):
        by_name[name].append(place)
    seen = defaultdict(int)
    expected = []
    for name, _ in run:
        expected.append(run[by_name[name][seen[name]]][1])
        seen[name] += 1
    assert places(joined) == expected
    assert not joined.runs[0].uncertain


@given(
    program=programs,
    timed_number=st.integers(1, 4),
    counted_number=st.integers(1, 4),
    tried=st.lists(st.sampled_from(["a", "b", "c"]), max_size=8),
)
@example(program=["x", "y", "z", "a"], timed_number=2, counted_number=1, tried=["a"])
def test_what_libraries_try_out_first_goes_to_no_kernel(
    program, timed_number, counted_number, tried
):
    run = [(name, NOWHERE) for name in tried] + placed(program) * counted_number
    joined = join_counters(activities(*timed(*[program] * timed_number)), [counted(run)])
    assert places(joined) == [float(n) for n in range(len(program))] * timed_number
    assert sum(joined.runs[0].unused.values()) == len(tried)


@given(
    program=programs,
    timed_number=st.integers(1, 3),
    counted_number=st.integers(1, 3),
    lost=st.sets(st.tuples(st.integers(0, 2), st.integers(0, 14)), max_size=3),
    of_timed=st.booleans(),
)
def test_what_is_joined_without_doubt_is_right(
    program, timed_number, counted_number, lost, of_timed
):
    """Kernels that one run lacks: each joined kernel has its own place, or the doubt is told.

    Where iterations end and begin with kernels of one name, the cut between them is in doubt too.
    """
    program = ["first", *program, "last"]
    kept = [
        [(n, at) for n, at in placed(program) if n not in "ab" or (number, at) not in lost]
        for number in range(3)
    ]
    whole = [placed(program)] * 3
    first, second = (kept, whole) if of_timed else (whole, kept)
    first, second = first[:timed_number], second[:counted_number]
    made = timed(*[[name for name, _ in iteration] for iteration in first])
    joined = join_counters(activities(*made), [counted([k for part in second for k in part])])
    truth = [at for iteration in first for _, at in iteration]
    given_places = places(joined)
    wrong = sum(a != b for a, b in zip(truth, given_places, strict=True) if not np.isnan(a + b))
    assert wrong <= joined.runs[0].uncertain
    # Of a name that no run lacks anywhere, every kernel is joined.
    lacking = {
        n for n, at in placed(program) if n in "ab" and any((k, at) in lost for k in range(3))
    }
    names = [n for iteration in first for n, _ in iteration]
    assert not any(
        np.isnan(value) and n not in lacking for n, value in zip(names, given_places, strict=True)
    )


def test_a_trace_that_begins_within_an_iteration():
    # Of kernels that were given to the device before the profiler began the launch is not known.
    late = [compute(100 + n, 101 + n, name=name, launch=None) for n, name in enumerate(LAYERS[-6:])]
    rest = timed(LAYERS, LAYERS, start=40)
    moved = [replace(kernel, start=kernel.start + 100, end=kernel.end + 100) for kernel in rest]
    joined = join_counters(activities(*late, *moved), [counted(placed(LAYERS) * 3)])
    assert joined.share == 1.0
    ends = [float(n) for n in range(len(LAYERS))]
    assert places(joined) == ends[-6:] + ends * 2


@pytest.mark.rotated
@pytest.mark.parametrize("level", range(3))
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name.split(".")[0])
def test_kernels_of_real_traces_find_themselves(file, level):
    """Counters of the very kernels of a trace, in the order in which a device got them."""
    table = align(load_trace(file))
    kernels = np.flatnonzero(table.kind == KERNEL)
    alone = join_counters(
        table, [counted([(table.names[table.name[row]], 0.0) for row in kernels])]
    )
    assert alone.kernels == len(kernels)
    # The order of dispatch is that in which the join looks at them.
    (order,) = lanes(table).values()
    rows = [(spelled(table.names[table.name[row]], level), float(row)) for row in order]
    joined = join_counters(table, [counted([("before", NOWHERE)] * 9 + rows)])
    assert joined.share == 1.0
    given = np.array(places(joined))[kernels].astype(int)
    assert (np.asarray(table.name)[given] == table.name[kernels]).all() or level
    run = joined.runs[0]
    # Collectives that were launched before the profiler began stand between two iterations.
    assert run.unused.pop("before") == 9
    assert sum(run.unused.values()) <= 4
    if table.iteration.max() >= 0:
        assert run.counted_iterations >= run.iterations
