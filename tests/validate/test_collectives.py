import numpy as np
import pytest

from projector.config.cluster import ClusterConfig
from projector.kernels.collective_algorithms import ALL_TO_ALL
from projector.kernels.collectives import collective_time_columns
from projector.kernels.moe_exchange import (
    COMBINE,
    DISPATCH,
    LOW_LATENCY,
    moe_exchange_time_column,
)
from projector.lower.fabrics import exchange_record, fabric_record
from projector.lower.workload_columns import expected_parts
from projector.single.collective import collective_time
from projector.validate.collectives import KIND
from projector.validate.kind import FROM_ROW, FROM_RULE, OK

ROW = {
    "system": "a node",
    "gpu": "H100",
    "n_nodes": "1",
    "n_gpus": "8",
    "collective": "all_reduce",
    "message_bytes": "1000000000",
    "value": "400",
    "unit": "GB/s",
    "metric": "busbw",
    "notes": "",
}
RING = {"extends": "h100", "collective_algorithms": ["ring"]}
MOE = {
    **ROW,
    "n_gpus": "",
    "collective": "MoE dispatch (DeepEP normal)",
    "message_bytes": "",
    "value": "1000",
    "unit": "us",
    "metric": "time",
    "notes": "4096 tokens a rank; hidden 7168; topk 8; experts 256; 24 SMs",
}
FEW_TOKENS = {
    **MOE,
    "gpu": "H800",
    "n_nodes": "2",
    "n_gpus": "16",
    "metric": "latency",
    "notes": "128 tokens/batch hidden 7168 top-8",
}


def project(row=ROW, **changes):
    (outcome,) = KIND.project([{**row, **changes}])
    return outcome


def fabric(device, **network):
    return fabric_record(ClusterConfig.parse({"device": device, "network": network or None}))


def exchange_us(device, op, tokens, size, ranks, local, **routing):
    """Time of a token that reaches ``copies`` ranks on ``nodes`` nodes."""
    copies = routing.get("copies") or expected_parts(ranks, 256, 8, *routing.get("groups", ()))
    nodes = expected_parts(ranks / local, 256, 8, *routing.get("groups", ()))
    costs = exchange_record(ClusterConfig.parse({"device": device}))
    channels = routing.get("channels", 10.0)
    args = op, tokens, size, copies, nodes, ranks, local, channels, 0
    return moe_exchange_time_column(*args, fabric(device), costs)[0] * 1e6


def test_a_plain_row_is_the_collective_in_microseconds():
    outcome = project()
    expected_us = collective_time("all_reduce", 1e9, 8, device="h100") * 1e6
    assert outcome.status == OK
    assert outcome.mark == FROM_ROW
    assert outcome.predicted == pytest.approx(expected_us)
    assert outcome.ratio == pytest.approx(outcome.predicted / outcome.measured)


@pytest.mark.parametrize(
    ("collective", "metric", "unit", "value", "ranks", "expected_us"),
    [
        # 1 GB at 400 GB/s is 2500 us; the bus carries 2 * 7/8 of it, or 7/8.
        ("all_reduce", "busbw", "GB/s", "400", "8", 4375.0),
        ("all_reduce", "algbw", "GB/s", "400", "8", 2500.0),
        ("all_gather", "busbw", "GB/s", "400", "8", 2187.5),
        ("reduce_scatter", "busbw", "GB/s", "400", "8", 2187.5),
        ("all_to_all", "busbw", "GB/s", "400", "8", 2187.5),
        ("all2all", "busbw", "Gb/s", "3200", "8", 2187.5),
        ("send/recv", "busbw", "GB/s", "400", "2", 2500.0),
        ("all_reduce", "time", "us", "123", "8", 123.0),
        ("all_reduce", "latency", "ms", "1.5", "8", 1500.0),
    ],
)
def test_a_row_becomes_a_time(collective, metric, unit, value, ranks, expected_us):
    outcome = project(collective=collective, metric=metric, unit=unit, value=value, n_gpus=ranks)
    assert outcome.measured == pytest.approx(expected_us)


def test_ranks_fill_the_nodes():
    two_nodes = project(collective="all_to_all", n_nodes="2", n_gpus="16")
    expected, _ = collective_time_columns(ALL_TO_ALL, 1e9, 16, 8, 0, fabric("h100"))
    assert two_nodes.predicted == pytest.approx(expected[0] * 1e6)
    one_a_node = project(collective="all_to_all", n_nodes="2", n_gpus="2")
    expected, _ = collective_time_columns(ALL_TO_ALL, 1e9, 2, 1, 0, fabric("h100"))
    assert one_a_node.predicted == pytest.approx(expected[0] * 1e6)


def test_send_and_receive_joins_neighbours():
    rows = [
        {**ROW, "collective": "send_recv", "n_nodes": nodes, "n_gpus": gpus}
        for nodes, gpus in (("1", "2"), ("1", "8"), ("2", "16"))
    ]
    pair, node, two_nodes = (outcome.predicted for outcome in KIND.project(rows))
    assert pair == node == pytest.approx(collective_time("send_recv", 1e9, 2, device="h100") * 1e6)
    assert two_nodes > 2 * pair


def test_a_rack_is_one_domain():
    rows = [{**ROW, "gpu": "GB200", "n_nodes": nodes, "n_gpus": "16"} for nodes in ("1", "4")]
    one, four = KIND.project(rows)
    assert one.predicted == four.predicted
    assert project(gpu="GB200", n_nodes="20", n_gpus="80").predicted > one.predicted


@pytest.mark.parametrize("adapters", ["8x200Gb", "8x25GB/s", "4x2x200G"])
def test_the_adapters_of_a_system_are_its_own(adapters):
    fields = {"collective": "all_to_all", "n_nodes": "2", "n_gpus": "16"}
    outcome = project(**fields, system=f"cloud ({adapters} a node)")
    own = fabric("h100", nics_per_node=8, nic_gbit_per_s=200.0)
    expected, _ = collective_time_columns(ALL_TO_ALL, 1e9, 16, 8, 0, own)
    assert outcome.predicted == pytest.approx(expected[0] * 1e6)
    assert outcome.predicted > project(**fields).predicted


def test_a_dispatch_on_one_node_copies_to_distinct_ranks():
    outcome = project(MOE)
    expected = exchange_us("h100", DISPATCH, 4096, 7168 * (1 + 4 / 128), 8, 8, channels=12.0)
    assert outcome.predicted == pytest.approx(expected)
    assert outcome.measured == pytest.approx(1000.0)
    assert outcome.mark == FROM_RULE
    assert outcome.note == "8 ranks a node"


def test_a_combine_is_in_16_bits():
    outcome = project(MOE, collective="MoE combine (DeepEP normal)")
    expected = exchange_us("h100", COMBINE, 4096, 7168 * 2, 8, 8, channels=12.0)
    assert outcome.predicted == pytest.approx(expected)


def test_compute_units_and_experts_come_from_the_row():
    fewer = MOE["notes"].replace("24 SMs", "8 SMs")
    assert project(MOE, notes=fewer).predicted > project(MOE).predicted
    unstated = project(MOE, notes=MOE["notes"].replace("; 24 SMs", ""), library="DeepEP 24 SMs")
    assert unstated.predicted == project(MOE).predicted
    ruled = project(MOE, notes="4096 tokens; hidden 7168; topk 8")
    assert "256 experts; 20 SMs" in ruled.note
    one_each = project(MOE, notes=MOE["notes"].replace("experts 256", "experts 8"))
    assert one_each.predicted > project(MOE).predicted, "all 8 ranks are reached"


def test_a_token_goes_to_at_most_four_nodes():
    outcome = project(MOE, n_nodes="8")
    group = {"channels": 12.0, "groups": (8, 4)}
    expected = exchange_us("h100", DISPATCH, 4096, 7168 * (1 + 4 / 128), 64, 8, **group)
    assert outcome.predicted == pytest.approx(expected)
    assert "at most 4 nodes" in outcome.note
    stated = project(MOE, n_nodes="8", notes="4096 tokens, hidden 7168, top-2 groups, top-8")
    assert stated.predicted < outcome.predicted
    assert "nodes" not in stated.note


def test_low_latency_sends_every_copy():
    outcome = project(FEW_TOKENS, collective="MoE combine BF16 (low latency)")
    expected = exchange_us("h800", LOW_LATENCY, 128, 7168 * 2, 16, 8, copies=8.0)
    assert outcome.predicted == pytest.approx(expected)


def test_low_latency_of_mori_copies_to_ranks():
    row = {**FEW_TOKENS, "gpu": "MI300X", "library": "MORI-EP EP8", "n_nodes": "1", "n_gpus": "8"}
    size = 7168 * (1 + 4 / 128)
    expected = exchange_us("mi300x", LOW_LATENCY, 128, size, 8, 8)
    assert project(row, collective="MoE dispatch FP8 (low latency)").predicted == pytest.approx(
        expected
    )
    across = {**row, "n_nodes": "2", "n_gpus": "16"}
    expected = exchange_us("mi300x", DISPATCH, 128, size, 16, 8)
    assert project(across, collective="MoE dispatch FP8 (low latency)").predicted == pytest.approx(
        expected
    )


@pytest.mark.parametrize(
    ("metric", "places"),
    [
        # 8 of 256 experts over 2 nodes, and over 16 ranks.
        ("logical bottleneck bandwidth RDMA", expected_parts(2.0, 256, 8)),
        ("RDMA bandwidth (algo)", expected_parts(2.0, 256, 8)),
        ("bottleneck bandwidth NVLink", expected_parts(16.0, 256, 8)),
        ("XGMI bandwidth", expected_parts(16.0, 256, 8)),
    ],
)
def test_bandwidths_of_an_exchange_count_the_own_node(metric, places):
    notes = "8K tokens, hidden 7168, top-8; includes local-rank traffic"
    outcome = project(FEW_TOKENS, collective="MoE dispatch FP8", notes=notes, metric=metric,
                      value="50", unit="GB/s")  # fmt: skip
    expected_s = 8192 * places * 7168 * (1 + 4 / 128) / 50e9
    assert outcome.measured == pytest.approx(expected_s * 1e6)


def test_a_forced_algorithm_is_the_only_one():
    free, ring = project(), project(notes="NCCL_ALGO=Ring")
    expected_us = collective_time("all_reduce", 1e9, 8, device=RING) * 1e6
    assert ring.predicted == pytest.approx(expected_us)
    assert free.predicted < ring.predicted


def test_the_loop_of_a_benchmark_belongs_to_its_rows():
    alone, looped = project(), project(library="torch all_reduce_bench")
    assert looped.predicted == pytest.approx(alone.predicted + 21.0)
    assert looped.mark == FROM_RULE
    assert "PyTorch" in looped.note


def test_a_bad_row_fails_alone():
    rows = [
        ROW,
        {**ROW, "gpu": "unstated"},
        {**ROW, "n_gpus": "0"},
        {**ROW, "n_gpus": "8.5"},
        {**ROW, "n_nodes": "-1"},
        {**ROW, "n_gpus": "1"},
        {**ROW, "message_bytes": "big"},
        {**ROW, "message_bytes": "0"},
        {**ROW, "value": ""},
        {**ROW, "value": "-3"},
        {**ROW, "unit": "furlongs"},
        {**ROW, "metric": "time"},
        {**ROW, "message_bytes": "1e308"},
        {**ROW, "value": "5e-324"},
        {**ROW, "system": "8x0Gb"},
        {**MOE, "metric": "bandwidth"},
        {**MOE, "notes": "0 tokens; hidden 7168; topk 8"},
        {**MOE, "n_gpus": "1"},
        MOE,
        ROW,
    ]
    outcomes = KIND.project(rows)
    assert [outcome.status == OK for outcome in outcomes] == [True] + [False] * 17 + [True, True]
    assert outcomes[0] == outcomes[-1] == project()
    assert all(np.isfinite(outcome.ratio) for outcome in outcomes if outcome.status == OK)


def test_no_rows_no_outcomes():
    assert KIND.project([]) == []


@pytest.mark.parametrize(
    ("row", "eligible"),
    [
        (ROW, True),
        ({**ROW, "collective": "all2all", "metric": "algbw"}, True),
        ({**ROW, "collective": "send_recv", "metric": "time"}, True),
        ({**ROW, "message_bytes": ""}, False),
        ({**ROW, "collective": "broadcast"}, False),
        ({**ROW, "collective": "p2p hipMemcpyPeer latency max"}, False),
        ({**ROW, "metric": "fitted asymptotic bandwidth"}, False),
        (MOE, True),
        (FEW_TOKENS, True),
        ({**MOE, "notes": "128 tokens/batch"}, False),
        ({**MOE, "notes": "4096 tokens, hidden 7168, top-4 groups"}, False),
    ],
)
def test_eligibility_looks_at_the_table_alone(row, eligible):
    assert (KIND.why_not_eligible(row) == "") is eligible
