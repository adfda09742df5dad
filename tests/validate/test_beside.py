"""Measured rows are read by `validate` and `calibrate`, and modelled by the same path."""

import pytest

from measure.bench_stand_in import CPU, H100, StandIn, out_of_memory
from projector.config.device_file import load_device
from projector.measure.bench.cases import clock_cases, collective_cases, copy_cases
from projector.measure.bench.lists import (
    AttentionOptions,
    GemmOptions,
    attention_list,
    gemm_list,
)
from projector.measure.bench.rows import TABLES
from projector.measure.bench.session import begin, settings_of
from projector.measure.task import Outcome
from projector.single.collective import collective_time
from projector.validate.beside import benchmark_of
from projector.validate.run import validate

LISTS = {
    "gemm": lambda: [
        *gemm_list(GemmOptions(sizes="512:4096", dtypes="bf16,fp8")),
        *gemm_list(GemmOptions(sizes="4096", batch=8)),
        *gemm_list(GemmOptions(sizes="4096", groups=8)),
    ],
    "attention": lambda: attention_list(AttentionOptions(sizes="1024:8192", kv_heads=8)),
    "collective": lambda: collective_cases(["all_reduce", "all_gather"], [2**14, 2**24], 8),
    "memory": lambda: copy_cases([2**24, 2**30]),
    "clock": lambda: clock_cases(["bf16", "fp8"], 2.0),
}


def benchmark(kind, run=None, device=None, out=None):
    session = begin(
        kind, LISTS[kind](), device=device, out=out, overwrite=False, settings=settings_of(),
        run=run or StandIn(),
    )  # fmt: skip
    session.measuring.go()
    return benchmark_of(session)


@pytest.mark.parametrize("kind", TABLES)
def test_what_is_shown_is_what_validate_says(tmp_path, kind):
    out = tmp_path / "out.csv"
    found = benchmark(kind, out=str(out))
    results = validate(TABLES[kind], out).results
    assert len(results) == len(found.measured)
    for row, result in enumerate(results):
        assert result.projected, result.status
        assert result.outcome.ratio == pytest.approx(found.ratio(row), rel=1e-6)
        assert not result.outcome.note or kind != "gemm"


def test_groups_of_a_batch_are_no_groups_of_a_router():
    found = benchmark("gemm")
    batched, grouped = found.modelled[-2:]
    assert batched.time_s < grouped.time_s


@pytest.mark.parametrize("kind", TABLES)
def test_rows_without_a_time_do_not_count(tmp_path, kind):
    out = tmp_path / "out.csv"
    run = StandIn(rule=lambda program: out_of_memory())
    found = benchmark(kind, run, out=str(out))
    assert {each.status for each in found.measured} == {"out_of_memory"}
    # The model has an answer all the same.
    assert all(each.time_s for each in found.modelled)
    results = validate(TABLES[kind], out).results
    assert {result.status for result in results} == {"not eligible: not measured: out of memory"}


def test_any_profile_may_be_modelled_beside():
    here, there = benchmark("gemm"), benchmark("gemm", device="a100")
    assert [each.row for each in here.measured] == [each.row for each in there.measured]
    known = [row for row in range(5) if there.modelled[row].time_s]
    assert all(there.modelled[row].time_s > here.modelled[row].time_s for row in known)


def test_rows_of_a_profile_of_ones_own_are_validated(tmp_path):
    own = tmp_path / "own.yaml"
    own.write_text("extends: h100\nname: A Processor\n")
    out = tmp_path / "out.csv"
    found = benchmark("gemm", StandIn(CPU), device=str(own), out=str(out))
    assert found.machine.gpu == str(own)
    results = validate("gemm_measured", out).results
    assert all(result.projected for result in results)


def test_nothing_is_modelled_without_a_profile():
    found = benchmark("gemm", StandIn(CPU))
    assert found.modelled == ()
    assert found.totals is None
    assert found.to_dict()["device"] is None


def test_a_copy_takes_its_traffic_and_a_start():
    found = benchmark("memory")
    device = load_device("h100")
    share = device.elementwise_efficiency or device.hbm_efficiency
    expected = 2**30 / (device.hbm_peak_tb_per_s * share * 1e12) + device.kernel_start_us * 1e-6
    assert found.modelled[1].time_s == pytest.approx(expected)


def test_a_clock_is_beside_the_sustained_one():
    found = benchmark("clock")
    clocks = load_device("h100").sustained_clock_mhz
    assert [each.clock_mhz for each in found.modelled] == [clocks["bf16"], clocks["fp8"]]
    assert found.ratio(0) == pytest.approx(clocks["bf16"] / 1395.0)
    assert found.to_dict()["rows"][0]["tflops"] == pytest.approx(650.0)


def test_a_collective_is_the_one_of_its_own_command():
    found = benchmark("collective")
    expected = collective_time("all_reduce", 2**24, 8, device="h100")
    assert found.modelled[1].time_s == pytest.approx(expected)


def test_the_object_says_what_was_not_measured():
    run = StandIn(rule=lambda program: Outcome(status="unsupported", message="no fp8"))
    found = benchmark("gemm", run).to_dict()
    assert found["statuses"] == {"unsupported": len(found["rows"])}
    assert found["rows"][0]["message"] == "no fp8"
    assert found["rows"][0]["time_us"] is None
    assert found["errors"] is None
    assert found["environment"]["device"] == H100.device
