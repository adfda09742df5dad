"""What a run knows of its operations, with answers that can be worked out by hand."""

import numpy as np
import pytest
from runs_of_jobs import of_activities

from projector.trace.activity import GEMM
from projector.trace.events import Samples
from projector.trace.measures.gap import Counted
from projector.trace.work import works_of
from projector.validate.traces.compare import compare_runs
from projector.validate.traces.result import REST
from projector.validate.traces.sides import clock_of, sums_of
from synthetic import activities, collective, compute

PRODUCT = {"operator": "aten::mm", "dims": [[64, 32], [32, 16]], "types": ["c10::Half"] * 2}


def product(start, end, **more):
    return compute(start, end, **{"type": GEMM, "operation": "fc1", "iteration": 0} | more)


def sums(table, **options):
    of = np.where(table.operation >= 0, 0, 1)
    return sums_of(table, works_of(table), of, 2, 1, **options)


def test_overlap_is_the_duration_over_that_alone():
    table = activities(
        product(0, 100), product(200, 300), product(400, 550), collective(400, 550, iteration=0)
    )
    found = sums(table)
    assert found.time_s[0] == pytest.approx(350e-9)
    assert found.overlap[0] == pytest.approx(350 / 300)
    assert np.isnan(found.overlap[1]), "communication does not overlap itself"


def test_nothing_is_claimed_of_what_never_ran_alone():
    table = activities(product(0, 100), collective(0, 100, iteration=0))
    assert np.isnan(sums(table).overlap[0])


def test_waiting_is_measured_at_the_rank_that_waits_least():
    table = activities(
        *(collective(start, 1000, rank=rank, iteration=0, group="0", bytes=8)
          for rank, start in ((0, 200), (1, 900))),
        *(collective(start, 3000, rank=rank, iteration=0, group="0", bytes=8)
          for rank, start in ((0, 2600), (1, 2800))),
    )  # fmt: skip
    found = sums_of(table, works_of(table), np.zeros(4, np.int64), 1, 2)
    assert found.waiting[0] == pytest.approx((800 + 100 + 400 + 200) / (2 * 100 + 2 * 200))
    assert found.work[0] == 4 * 8 / 2
    one = activities(collective(0, 10, iteration=0, group="0"))
    assert np.isnan(sums_of(one, works_of(one), np.zeros(1, np.int64), 1, 1).waiting[0])


def test_clocks_are_those_of_the_last_sample():
    table = activities(product(0, 100), product(1000, 1100), product(0, 100, rank=1))
    samples = Samples(
        path="s", what="clock_mhz", time_ps=np.array([0, 500_000]),
        values=np.array([[2000.0], [1000.0]]), columns=("0",), rank=0,
    )  # fmt: skip
    clock = clock_of(table, np.arange(3), [samples])
    np.testing.assert_array_equal(clock, [2e9, 1e9, np.nan])
    found = sums_of(table, works_of(table), np.array([0, 0, 1]), 2, 1, [samples])
    assert found.clock_hz[0] == pytest.approx(1.5e9)
    assert np.isnan(found.clock_hz[1])


def test_calls_count_the_kernels_that_do_the_work():
    table = activities(
        product(0, 100, detail=PRODUCT),
        product(100, 110, detail=PRODUCT, name="splitKreduce_kernel"),
        product(200, 300, detail=PRODUCT),
    )
    found = sums(table)
    assert found.runs(0) == 2.0
    assert found.kernels[0] == 3.0
    assert found.work[0] == 2 * 2.0 * 64 * 32 * 16


def fsdp(version):
    """One layer under FSDP: version 2 clocks higher, and copies what it has gathered."""
    slow = 1.25 if version == 1 else 1.0
    gather = {"iteration": 0, "operation": "all_gather", "bytes": 1000}
    kernels = [
        collective(0, 400, **gather),
        product(500, 500 + round(400 * slow), detail=PRODUCT),
        collective(1200, 1600, **gather),
        product(1700, 1700 + round(600 * slow), detail=PRODUCT),
    ]
    if version == 2:
        kernels.append(compute(450, 480, operation="split_with_sizes_copy", iteration=0))
    mhz = 1600.0 if version == 1 else 2000.0
    clock = Samples(
        path="s", what="clock_mhz", time_ps=np.zeros(1, np.int64), values=np.array([[mhz]]),
        columns=("0",),
    )  # fmt: skip
    analysis = of_activities(activities(*kernels))
    object.__setattr__(analysis.trace, "samples", (clock,))
    return analysis


def test_fsdp_1_against_2_is_the_clock():
    found = compare_runs(fsdp(1), fsdp(2))
    slowest = found.operations[0]
    assert slowest.operation == "fc1"
    factors = {factor.name: factor.value for factor in slowest.factors}
    assert factors["frequency"] == pytest.approx(1600 / 2000)
    assert factors["count"] == factors["shape"] == 1.0
    assert factors[REST] == pytest.approx(1.0)
    assert slowest.because.name == "frequency"
    assert [each.operation for each in found.only_second] == ["split_with_sizes_copy"]
    gather = next(each for each in found.operations if each.operation == "all_gather")
    assert gather.slowdown == 1.0


def test_counters_are_added_where_all_of_the_work_was_counted():
    table = activities(product(0, 100, detail=PRODUCT), product(200, 300, detail=PRODUCT))
    flop = 2.0 * 64 * 32 * 16
    counted = Counted(
        performed_flop=np.array([flop, 2 * flop]),
        utilisation=np.array([0.5, 0.25]),
        cycles=np.array([100.0, 300.0]),
    )
    found = sums(table, counted=counted)
    assert found.performed_flop[0] == 3 * flop
    assert found.utilisation[0] == pytest.approx((0.5 * 100 + 0.25 * 300) / 400)
    counted.cycles[0] = np.nan
    assert np.isnan(sums(table, counted=counted).utilisation[0])
    assert np.isnan(sums(table).performed_flop[0])
