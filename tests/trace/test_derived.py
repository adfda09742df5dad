import ast

import numpy as np
import pytest

from projector.config.device_file import load_device
from projector.trace.counters import derive, load_metrics

MI300X, H100 = load_device("mi300x"), load_device("h100")


def column(*values):
    return np.array(values, np.float64)


def test_matrix_utilisation_and_cycles_of_an_mi300x():
    # 8 dies, each 1,000 cycles; 304 units of 4 matrix cores, busy half of the time.
    counters = {
        "SQ_VALU_MFMA_BUSY_CYCLES": column(304 * 4 * 500, 0, np.nan),
        "GRBM_GUI_ACTIVE": column(8_000, 8_000, 8_000),
    }
    found = derive(counters, device=MI300X, duration_ps=np.array([500_000, -1, 1_000_000]))
    np.testing.assert_allclose(found["matrix_utilisation"].values, [0.5, 0.0, np.nan])
    assert found["cycles"].values.tolist() == [1000.0] * 3
    # 1,000 cycles in 500 ns are 2 GHz.
    np.testing.assert_allclose(found["clock_mhz"].values, [2000.0, np.nan, 1000.0])
    assert "rocprofiler-compute" in found["cycles"].sources[0]


def test_cycles_need_the_number_of_dies():
    found = derive({"GRBM_GUI_ACTIVE": column(8_000), "MfmaUtil": column(42.0)})
    assert "cycles" not in found
    assert found["matrix_utilisation"].values.tolist() == [0.42]


def test_performed_flop_of_amd_are_those_that_were_collected():
    m, n, k = 4096, 4096, 8192
    counters = {
        "SQ_INSTS_VALU_MFMA_MOPS_BF16": column(2 * m * n * k / 512, np.nan, np.nan),
        "SQ_INSTS_VALU_MFMA_MOPS_F32": column(0, 10, np.nan),
    }
    found = derive(counters)["matrix_flop"]
    np.testing.assert_array_equal(found.values, [2 * m * n * k, 5120, np.nan])
    assert found.unit == "FLOP"


def test_bytes_of_amd():
    counters = {
        "TCC_BUBBLE_sum": column(10),
        "TCC_EA0_RDREQ_32B_sum": column(5),
        "TCC_EA0_RDREQ_sum": column(115),
        "TCC_EA0_WRREQ_64B_sum": column(20),
        "TCC_EA0_WRREQ_sum": column(25),
    }
    assert derive(counters)["memory_bytes"].values.tolist() == [
        10 * 128 + 5 * 32 + 100 * 64 + 5 * 32 + 20 * 64
    ]
    sizes = {"FETCH_SIZE": column(3), "WRITE_SIZE": column(1)}
    assert derive(sizes)["memory_bytes"].values.tolist() == [4096.0]


def test_metrics_of_nsight_compute():
    counters = {
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed": column(75.0, np.nan),
        "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active": column(90.0, 80.0),
        "sm__cycles_elapsed.max": column(1_755_000, 10),
        "dram__bytes_read.sum": column(100, 1),
        "dram__bytes_write.sum": column(11, 2),
        "sm__ops_path_tensor_src_bf16_dst_fp32.sum": column(1e12, 0),
        "sm__ops_path_tensor_src_fp8_dst_fp32.sum": column(0, 5),
    }
    found = derive(counters, device=H100, duration_ps=np.array([1_000_000_000, 10_000]))
    utilisation = found["matrix_utilisation"]
    np.testing.assert_allclose(utilisation.values, [0.75, 0.8])
    # The second kernel has only the share of the cycles with work, and that is told.
    assert len(utilisation.ways) == 2
    assert "upper bound" in utilisation.notes[-1]
    assert found["cycles"].values.tolist() == [1_755_000, 10]
    np.testing.assert_allclose(found["clock_mhz"].values, [1755.0, 1000.0])
    assert found["memory_bytes"].values.tolist() == [111.0, 3.0]
    assert found["matrix_flop"].values.tolist() == [1e12, 5.0]


def test_sparse_and_dense_parts_do_not_count_twice():
    whole = {"sm__ops_path_tensor_src_bf16_dst_fp32.sum": column(100)}
    parts = {
        "sm__ops_path_tensor_src_bf16_dst_fp32_sparsity_off.sum": column(100),
        "sm__ops_path_tensor_src_bf16_dst_fp32_sparsity_on.sum": column(0),
    }
    assert derive(whole)["matrix_flop"].values.tolist() == [100.0]
    assert derive(whole | parts)["matrix_flop"].values.tolist() == [100.0]


def test_division_by_nothing_is_no_value():
    counters = {"SQ_VALU_MFMA_BUSY_CYCLES": column(5), "GRBM_GUI_ACTIVE": column(0)}
    assert "matrix_utilisation" not in derive(counters, device=MI300X)
    assert derive({}) == {}


def test_what_json_says_of_a_metric():
    found = derive({"dram__bytes.sum": column(1, np.nan)})["memory_bytes"].to_dict()
    assert found["kernels"] == 1
    assert found["ways"] == ['"dram__bytes.sum"']


NO_COUNTERS = (
    "compute_units", "dies", "peak_clock_mhz", "duration_ns", "some", "all_of",
)  # fmt: skip


def counters_of(metric):
    """Return the counters that the ways of a metric name."""
    names = {}
    for way in load_metrics().metrics[metric].ways:
        for node in ast.walk(ast.parse(way.of.strip(), mode="eval")):
            if isinstance(node, ast.Name) and node.id not in NO_COUNTERS:
                names[node.id] = None
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                names[node.value] = None
    return tuple(names)


@pytest.mark.parametrize("name", sorted(load_metrics().metrics))
def test_every_way_is_an_equation_with_a_source(name):
    metrics = load_metrics()
    for way in metrics.metrics[name].ways:
        assert way.source in metrics.sources
        ast.parse(way.of.strip(), mode="eval")
    assert counters_of(name)
    everything = {each: column(2.0, 3.0) for each in counters_of(name)}
    found = derive(everything, device=MI300X, duration_ps=np.array([1000, 2000]))
    assert name in found or name == "clock_mhz"


def test_counters_that_a_metric_needs():
    assert counters_of("cycles")[:2] == ("GRBM_GUI_ACTIVE", "GRBM_COUNT")
    assert "sm__ops_path_tensor_src_" in counters_of("matrix_flop")
