"""What is measured on recorded traces, against a script that shares no line with it."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import independent
from projector.trace.activity import COMPUTE
from projector.trace.alignment import align
from projector.trace.measures.breakdown import GRANULARITIES, breakdown
from projector.trace.measures.collectives import communication_rows, sharding_times, stragglers
from projector.trace.measures.iterations import idle_times, iteration_times, rank_summaries
from projector.trace.measures.overlap import operation_overlaps
from projector.trace.measures.times import kernel_times
from projector.trace.read import load_trace
from synthetic import Host, collective, compute, copy, kineto, step, write
from thoroughness import examples

DATA = Path(__file__).parents[1] / "data"
RECOMPUTED = {"a100_ddp2": 0, "b200_eager_rank0": 0, "mi250_toy": 0, "mi300x_resnet_ddp8": 615}
"""Activities that repeat a forward: only one of the runs has checkpoints."""


@pytest.fixture(scope="module", params=RECOMPUTED)
def trace(request):
    path = DATA / f"{request.param}.json.gz"
    expected = independent.totals(path)
    assert expected["recomputed"] == RECOMPUTED[request.param]
    return align(load_trace(path)), expected


@pytest.mark.rotated
def test_totals_to_the_nanosecond(trace):
    table, expected = trace
    (summary,) = rank_summaries(table)
    found = summary.to_dict()
    parts = ("compute_ns", "exposed_communication_ns", "exposed_memcpy_ns", "idle_ns")
    assert {name: found[name] for name in expected if name in found} == {
        name: value for name, value in expected.items() if name in found
    }
    assert found["busy_ns"] + found["idle_ns"] == found["span_ns"]
    assert sum(found[name] for name in parts) == found["span_ns"]


def test_every_activity_is_in_the_table_once(trace):
    table, expected = trace
    assert len(table) == expected["kernels"] + expected["copies"] + expected["fills"]
    for name in GRANULARITIES:
        rows = breakdown(table, [name], where=np.ones(len(table), bool))
        assert sum(row.activities for row in rows) == len(table)


def test_launch_overhead_and_overlap_to_the_nanosecond(trace):
    table, expected = trace
    times = kernel_times(table)
    computing = table.klass == COMPUTE
    assert times.bubble_ps.sum() == expected["bubbles_ns"] * 1000
    assert times.preparation_ps.sum() == expected["preparation_ns"] * 1000
    assert times.call_ps.sum() == expected["call_ns"] * 1000
    assert times.under_communication_ps[computing].sum() == expected["overlapped_ns"] * 1000


lengths = st.tuples(st.integers(0, 2000), st.integers(0, 500))
lines = st.tuples(
    st.sampled_from([compute, collective, copy]), lengths, st.none() | st.integers(0, 2500),
    st.integers(7, 9),
)  # fmt: skip


@settings(max_examples=examples(30))
@given(
    st.lists(lines, min_size=1, max_size=10),
    st.sampled_from([0, 4458676983543]),
    st.sampled_from([1, 1000]),
)
def test_written_traces_to_the_nanosecond(rows, zero_us, unit_ns):
    """Streams at once, nested and empty kernels, stamps of ns and of whole µs, late launches."""
    kernels = [
        make(
            start * unit_ns, (start + length) * unit_ns, stream=stream,
            launch=None if launch is None else launch * unit_ns,
        )
        for make, (start, length), launch, stream in rows
    ]  # fmt: skip
    with TemporaryDirectory() as folder:
        path = write(Path(folder) / "rank0.json", kineto(*kernels, zero_us=zero_us))
        expected, table = independent.totals(path), align(load_trace(path))
    (summary,) = rank_summaries(table)
    assert {name: getattr(summary, name, value) for name, value in expected.items()} == expected
    times = kernel_times(table)
    assert times.bubble_ps.sum() == expected["bubbles_ns"] * 1000
    assert times.preparation_ps.sum() == expected["preparation_ns"] * 1000
    assert times.call_ps.sum() == expected["call_ns"] * 1000


def test_ranks_whose_clocks_are_skewed(tmp_path):
    """Rank 1 computes 30 µs longer, so rank 0 waits; its clock is 5 ms and 10 ppm off."""
    detail = {
        "collective": "allreduce", "group": "0", "group_ranks": "[0, 1]", "dtype": "Float",
        "in_elements": 256, "out_elements": 256,
    }  # fmt: skip
    skewed = {0: lambda t: t, 1: lambda t: 5_000_000 + t + t // 100_000}
    for rank, clock in skewed.items():
        lines = []
        for number in range(20):
            begin = number * 1_000_000
            late = begin + (430_000 if rank else 400_000)
            lines += [
                step(number, clock(begin), clock(begin + 900_000)),
                compute(clock(begin + 10_000), clock(late), launch=clock(begin + 5_000)),
                collective(
                    clock(late), clock(begin + 500_000), launch=clock(begin + 6_000), detail=detail
                ),
            ]
        write(tmp_path / f"rank{rank}.json", kineto(*lines, rank=rank, world_size=2))
    table = align(load_trace(tmp_path))
    (row,) = communication_rows(table)
    assert (row.kernels, row.bytes) == (40, 1024)
    assert row.transfer_ns.median == pytest.approx(70_000, abs=2)
    first, second = stragglers(table)
    assert first.waiting_ns.median == pytest.approx(30_000, abs=5)
    assert second.late_ns.median == pytest.approx(30_000, abs=5)
    assert (first.last, second.last) == (0.0, 1.0)


def test_copies_of_fsdp_2_lie_in_line_with_computing(tmp_path):
    unpack = "at::native::detail::split_with_sizes_copy_out_contiguous_no_cast_kernel(char**)"
    pack = "void at::native::detail::chunk_cat_cuda_kernel<float, c10::BFloat16>(T2 **)"
    product = "Cijk_Ailk_Bljk_BBS_BH_MT256x256x64"
    back = "## backward ##"
    lines = [
        step(1, 0, 1000),
        compute(10, 30, launch=1, name=unpack),
        compute(30, 90, launch=2, name=product),
        Host(name=back, start=95, end=190, category="user_annotation"),
        compute(100, 180, launch=96, name=product),
        compute(180, 195, launch=97, name=pack),
        Host(name="## forward ##", start=0, end=90, category="user_annotation"),
    ]
    path = write(tmp_path / "rank0.json", kineto(*lines))
    (row,) = sharding_times(align(load_trace(path)))
    assert row.copies_ns.median == 35


def test_recomputation(trace):
    table, expected = trace
    launched = table.launch_ps >= 0  # what else is recomputed was inferred from those
    assert table.recompute[launched].sum() == expected["recomputed"]


def test_gaps_are_idle_and_everything_has_json(trace):
    table, expected = trace
    (gaps,) = idle_times(table)
    assert gaps.idle_ns == expected["idle_ns"]
    iterations = iteration_times(table)
    assert all(0 <= row.idle_ns <= row.span_ns for row in iterations)
    json.dumps([row.to_dict() for row in (*iterations, *operation_overlaps(table), gaps)])
