"""Alignment on the recorded traces: each event of a device once, in its context."""

from pathlib import Path

import numpy as np
import pytest

from projector.trace.activity import BACKWARD, COMMUNICATION, FORWARD, MEMCPY, OPTIMIZER
from projector.trace.alignment import align
from projector.trace.events import ON_DEVICE, Trace
from projector.trace.read import load_trace

DATA = Path(__file__).parent / "data"
FILES = ["a100_ddp2", "b200_eager_rank0", "mi250_toy", "mi300x_resnet_ddp8"]


def read(name):
    return load_trace(DATA / f"{name}.json.gz")


@pytest.mark.parametrize("name", FILES)
def test_every_event_of_a_device_stands_in_the_table_once(name):
    trace = read(name)
    activities = align(trace)
    (rank,) = trace.ranks
    events, rows = rank.events, np.isin(rank.events.kind, ON_DEVICE)
    expected = sorted(
        zip(
            [rank.names[row] for row in events.name[rows]],
            events.start_ps[rows].tolist(),
            (events.start_ps + events.duration_ps)[rows].tolist(),
            events.thread[rows].tolist(),
            strict=True,
        )
    )
    found = sorted(
        zip(
            [activities.names[row] for row in activities.name],
            activities.start_ps.tolist(),
            activities.end_ps.tolist(),
            activities.stream.tolist(),
            strict=True,
        )
    )
    assert found == expected


@pytest.mark.parametrize("name", FILES)
def test_activities_stand_in_order(name):
    a = align(read(name))
    keys = list(zip(a.rank, a.device, a.start_ps, a.end_ps, strict=True))
    assert keys == sorted(keys)


def test_iterations_are_those_of_the_profiler():
    a = align(read("a100_ddp2"))
    assert np.unique(a.iteration, return_counts=True)[0].tolist() == [4, 5, 6]
    assert np.unique(a.iteration, return_counts=True)[1].tolist() == [1258] * 3


def test_phases_of_a_run_with_ranges():
    a = align(read("a100_ddp2"))
    assert np.bincount(a.phase, minlength=4).tolist() == [1371, 2376, 27, 0]
    names = {a.operations[row] for row in a.operation[a.phase == OPTIMIZER]}
    assert all("_foreach_" in name for name in names)


def test_collectives_have_group_and_bytes():
    a = align(read("a100_ddp2"))
    talks = a.klass == COMMUNICATION
    assert talks.sum() == 21
    assert {a.groups[row] for row in a.group[talks]} == {"0: ranks 0-1"}
    assert (a.bytes[talks] > 0).all()
    assert (a.klass == MEMCPY).sum() == 960


def test_recomputation_is_recognised():
    a = align(read("mi300x_resnet_ddp8"))
    launched = a.launch_ps >= 0
    assert a.recompute[launched].sum() == 615
    assert (a.phase[a.recompute] == BACKWARD).all()
    # Three of the four stages of the network run twice: the forward of each is in both phases.
    first = np.bincount(a.operation[(a.phase == FORWARD) & (a.operation >= 0)])
    again = np.bincount(a.operation[a.recompute], minlength=len(first))
    assert ((again > 0) <= (first[: len(again)] > 0)).all()


def test_kernels_without_a_launch_are_kept():
    a = align(read("mi300x_resnet_ddp8"))
    assert (a.launch_ps < 0).sum() == 968
    assert (a.iteration[a.launch_ps < 0] == -1).all()


def test_work_launched_before_the_trace_is_as_that_of_the_next_iteration():
    a = align(read("mi300x_resnet_ddp8"))
    before = a.launch_ps < 0
    assert (a.operation[before] >= 0).all()
    # One iteration of 895, and the last 73 of one before.
    per_iteration = np.bincount(a.phase[~before], minlength=4) // 3
    assert (np.bincount(a.phase[before], minlength=4) >= per_iteration).all()
    assert any("968 activities were launched before" in note for note in a.notes)


def test_the_backward_points_at_its_forward():
    a = align(read("a100_ddp2"))
    linked = np.flatnonzero(a.forward >= 0)
    assert (a.phase[linked] == BACKWARD).all()
    assert (a.phase[a.forward[linked]] == FORWARD).all()
    assert (a.operation[a.forward[linked]] == a.operation[linked]).all()
    assert len(linked) == 1392


def test_a_trace_without_ranks_has_no_activities():
    assert len(align(Trace(ranks=()))) == 0


def test_layers_are_the_modules_that_repeat():
    a = align(read("mi300x_resnet_ddp8"))
    assert np.unique(a.layer).tolist() == [-1, *range(8)]
    labels = {a.operations[row] for row in a.operation[(a.layer >= 0) & (a.phase == FORWARD)]}
    assert {"Conv2d[0]", "Conv2d[1]", "BatchNorm2d[0]", "ReLU"} <= labels
    # The backward of a layer has the layer of its forward.
    linked = np.flatnonzero((a.forward >= 0) & (a.layer >= 0))
    assert (a.layer[a.forward[linked]] == a.layer[linked]).all()
    a = align(read("b200_eager_rank0"))
    assert np.unique(a.layer, return_counts=True)[1].tolist() == [29, *[25] * 36]


def test_communication_is_its_collective_wherever_it_stands():
    a = align(read("b200_eager_rank0"))
    talks = a.klass == COMMUNICATION
    assert {a.operations[row] for row in a.operation[talks]} == {
        "multimem_all_reduce_", "_allgather_base"
    }  # fmt: skip
    assert (a.bytes[talks] > 0).all()
