import numpy as np
import pytest

from projector.config.cluster import ClusterConfig
from projector.kernels.collective_algorithms import SEND_RECV
from projector.kernels.collectives import (
    FABRIC,
    algorithm_mask,
    collective_time_columns,
    collective_times,
)
from projector.kernels.moe_exchange import moe_exchange_times
from projector.lower.fabrics import exchange_record

ANY_ALGORITHM = 0
LIBRARY_ALGORITHMS = algorithm_mask("ring", "tree", "in_network", "pairwise")
"""Value of ``algorithms`` that restricts nothing, and what libraries choose among."""

FIRST_CALL = """
import numpy as np
from projector.kernels.collectives import FABRIC, collective_time_columns
fabric = np.ones(1, FABRIC)
fabric["domain_gpus"] = 8
collective_time_columns(0, 1e6, 8, 8, 0, fabric)
"""


def fabrics(algorithms):
    table = np.zeros(2, FABRIC)
    table["scale_up_bytes_per_s"] = 450e9, 448e9
    table["peer_bytes_per_s"] = 450e9, 64e9
    table["scale_up_efficiency"] = 0.81, 0.707
    table["scale_up_latency_s"] = 0.8e-6, 2.3e-6
    table["start_s"] = 5e-6, 20e-6
    table["in_network_bytes_per_s"] = 273e9, 0.0
    table["in_network_min_gpus"] = 5, 0
    table["nic_bytes_per_s"] = 47e9
    table["nic_latency_s"] = table["nic_flag_latency_s"] = 5e-6
    table["network_start_s"] = 20e-6
    table["network_flags"] = 1
    table["tree_efficiency"] = 0.92
    table["domain_gpus"] = 8
    table["self_copy_share"] = 0.4, 0.0
    table["simple_start_s"] = 13e-6
    table["flagged_algorithms"] = algorithm_mask("ring", "tree", "hierarchical", "pairwise")
    table["flag_traffic"] = table["network_flag_traffic"] = 2.5
    table["exchange_efficiency"] = 1.0
    table["chunk_s"], table["fill_limit_s"] = 0.5e-6, 80e-6
    table["network_chunk_s"], table["network_fill_limit_s"] = 5e-6, 100e-6
    table["in_network_chunk_s"] = 6e-6
    table["exchange_step_s"], table["exchange_issue_s"] = 1.7e-6, 0.3e-6
    table["exchange_simple_start_s"] = 4e-6
    table["exchange_flag_bytes"] = 16384.0
    table["pat_efficiency"] = 0.75
    table["algorithms"] = algorithms
    return table


def rows(count):
    rng = np.random.default_rng(0)
    local = 2 ** rng.integers(0, 4, count)
    return {
        "op": rng.integers(0, SEND_RECV, count),
        "bytes": 2.0 ** rng.uniform(10, 33, count),
        "ranks": local * 2 ** rng.integers(0, 6, count),
        "local": local,
        "span": np.zeros(count, np.int64),
        "fabric": rng.integers(0, 2, count),
    }


@pytest.mark.parametrize("algorithms", [ANY_ALGORITHM, LIBRARY_ALGORITHMS], ids=["any", "library"])
@pytest.mark.parametrize("count", [1, 100, 100_000])
def test_collective_times(benchmark, count, algorithms):
    out = np.empty(count), np.empty(count, np.int64)
    args = (*rows(count).values(), fabrics(algorithms), *out)
    collective_times(*args)  # compile outside the clock

    benchmark.extra_info["rows"] = count
    assert benchmark(collective_times, *args) == 0


@pytest.mark.parametrize("count", [1, 100_000])
def test_collective_time_columns(benchmark, count):
    columns = rows(count)
    span = columns.pop("span")
    args = (*columns.values(), fabrics(LIBRARY_ALGORITHMS), span)
    collective_time_columns(*args)

    benchmark.extra_info["rows"] = count
    time_s, _ = benchmark(collective_time_columns, *args)
    assert np.isfinite(time_s).all()


@pytest.mark.parametrize("count", [1, 100_000])
def test_moe_exchange_times(benchmark, count):
    columns = rows(count)
    rng = np.random.default_rng(1)
    exchanges = np.concatenate(
        [
            exchange_record(ClusterConfig.parse({"device": name, "nodes": 1}, path="cluster"))
            for name in ("h100", "mi300x")
        ]
    )
    args = (
        rng.integers(0, 3, count), 2.0 ** rng.uniform(5, 17, count), rng.uniform(2e3, 2e4, count),
        rng.uniform(1, 8, (count, 2)), columns["ranks"], columns["local"], columns["span"],
        np.full(count, 10.0), columns["fabric"], fabrics(LIBRARY_ALGORITHMS), exchanges,
        np.empty(count),
    )  # fmt: skip
    moe_exchange_times(*args)

    benchmark.extra_info["rows"] = count
    assert benchmark(moe_exchange_times, *args) == 0


@pytest.mark.thorough
def test_first_call(time_first_call):
    time_first_call(FIRST_CALL)
