import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kernels.test_collectives import SWITCH, fabric_dicts, sizes
from kernels.test_collectives import record as fabric_record
from projector.config.cluster import ClusterConfig
from projector.config.device_file import load_device
from projector.config.network import load_network
from projector.kernels.collectives import BEYOND_DOMAIN
from projector.kernels.moe_exchange import (
    BULK_COMBINE,
    BULK_DISPATCH,
    COMBINE,
    DISPATCH,
    EXCHANGE,
    LOW_LATENCY,
    moe_exchange_time_column,
    moe_exchange_times,
)
from projector.kernels.spans import span_codes
from projector.lower.fabrics import exchange_record
from reference import moe_exchange as reference

COSTS = {
    "start_s": (25e-6, 26e-6, 25e-6, 26e-6),
    "scan_s": (190e-9, 760e-9, 0.0, 0.0),
    "message_s": (26e-9, 5e-9, 0.0, 0.0),
    "channel_bytes_per_s": (46e9, 580e9, 58e9, 58e9),
    "link_efficiency": (0.64, 0.67, 0.77, 0.77),
    "first_bytes_per_s": (6e9, 3e9, 6e9, 3e9),
    "network_start_s": (13e-6, 14e-6, 13e-6, 14e-6),
    "doubling_s": (3e-6,) * 4,
    "forward_slowdown": (1.15, 1.46, 1.0, 1.0),
    "adapter_share": (1.03,) * 4,
    "chunk_tokens": (12.0,) * 4,
    "low_latency_start_s": 28e-6,
    "low_latency_doubling_s": 3.2e-6,
    "low_latency_link_efficiency": 0.8,
    "exchange_wait_s": 0.0,
    "exchange_write_s": 0.0,
    "exchange_proxy_bytes_per_s": 0.0,
}
PROXY = {"exchange_write_s": 7e-6, "exchange_proxy_bytes_per_s": 2e9}
TIMES = ("start_s", "scan_s", "message_s", "network_start_s", "doubling_s")
RATES = ("channel_bytes_per_s", "link_efficiency", "first_bytes_per_s", "adapter_share")
LINKS = ("scale_up_bytes_per_s", "peer_bytes_per_s", "nic_bytes_per_s")
ALL_TIMES = (*TIMES, "forward_slowdown", "chunk_tokens", "low_latency_start_s",
             "low_latency_doubling_s")  # fmt: skip
ALL_RATES = (*RATES, "low_latency_link_efficiency")


def of_each(values):
    return st.tuples(values, values, values, values)


cost_dicts = st.fixed_dictionaries(
    {
        **{name: of_each(st.floats(0.0, 1e-4)) for name in TIMES},
        "channel_bytes_per_s": of_each(st.floats(1e9, 1e12)),
        "link_efficiency": of_each(st.floats(0.1, 1.0)),
        "first_bytes_per_s": of_each(st.floats(1e9, 1e12)),
        "forward_slowdown": of_each(st.floats(1.0, 2.0)),
        "adapter_share": of_each(st.floats(0.5, 1.5)),
        "chunk_tokens": of_each(st.floats(0.0, 100.0)),
        "low_latency_start_s": st.floats(0.0, 1e-4),
        "low_latency_doubling_s": st.floats(0.0, 1e-4),
        "low_latency_link_efficiency": st.floats(0.1, 1.0),
        "exchange_wait_s": st.floats(0.0, 1e-2),
        "exchange_write_s": st.one_of(st.just(0.0), st.floats(1e-9, 1e-4)),
        "exchange_proxy_bytes_per_s": st.one_of(st.just(0.0), st.floats(1e7, 1e12)),
    }
)
operations = st.integers(0, LOW_LATENCY)
shares = st.floats(0.1, 16.0)
tokens = st.one_of(st.just(0.0), st.floats(0.01, 1e6))


def cost_record(*costs):
    rows = [tuple(cost[name] for name in EXCHANGE.names) for cost in costs]
    return np.array(rows, EXCHANGE)


def time_of(
    op=DISPATCH, tokens=4096.0, size=7168.0, copies=5.3, reached=1.0, n=8, local=8, channels=10.0,
    fabric=SWITCH, costs=COSTS, span=0,
):  # fmt: skip
    return moe_exchange_time_column(
        op, tokens, size, copies, reached, n, local, channels, 0, fabric_record(fabric),
        cost_record(costs), span,
    )[0]  # fmt: skip


@given(
    op=operations, tokens=tokens, size=sizes, copies=shares, reached=shares,
    n=st.integers(1, 200), local=st.integers(1, 72), channels=st.floats(0.5, 100.0),
    fabric=fabric_dicts, costs=cost_dicts,
)  # fmt: skip
@example(DISPATCH, 0.5, 7168.0, 6.0, 2.0, 9, 8, 10.0, SWITCH, COSTS)
@example(COMBINE, 4096.0, 14336.0, 5.3, 2.0, 16, 8, 10.0, SWITCH, COSTS | PROXY)
@example(BULK_DISPATCH, 4096.0, 7168.0, 6.0, 3.5, 64, 8, 10.0, SWITCH, COSTS | PROXY)
def test_matches_reference(op, tokens, size, copies, reached, n, local, channels, fabric, costs):
    local = min(local, n)
    args = op, tokens, size, copies, reached, n, local, channels, fabric, costs
    assert time_of(*args) == pytest.approx(reference.moe_exchange_time(*args), rel=1e-11, abs=0)


@given(
    op=operations, n=st.integers(1, 72), tokens=tokens, size=sizes, copies=shares,
    fabric=fabric_dicts, beyond=fabric_dicts, costs=cost_dicts,
)  # fmt: skip
def test_the_network_changes_nothing_within_a_domain(
    op, n, tokens, size, copies, fabric, beyond, costs
):
    group = {"op": op, "tokens": tokens, "size": size, "copies": copies, "n": n, "local": n}
    other = fabric | {name: beyond[name] for name in BEYOND_DOMAIN}
    near = time_of(**group, fabric=fabric, costs=costs)
    assert near == time_of(**group, fabric=other, costs=costs)


@given(
    op=operations, nodes=st.sampled_from([1, 4]), tokens=tokens, size=sizes, more=sizes,
    fabric=fabric_dicts, costs=cost_dicts, factor=st.floats(1.0, 100.0),
)  # fmt: skip
def test_more_is_never_faster(op, nodes, tokens, size, more, fabric, costs, factor):
    group = {"n": 8 * nodes, "local": 8, "fabric": fabric, "costs": costs}
    base = time_of(op, tokens, size, **group)
    slack = 1 + 1e-12
    assert time_of(op, tokens * factor, size, **group) * slack >= base
    assert time_of(op, tokens, size + more, **group) * slack >= base
    assert time_of(op, tokens, size, copies=5.3 * factor, **group) * slack >= base
    assert time_of(op, tokens, size, reached=factor, **group) * slack >= base
    assert time_of(op, tokens, size, channels=10.0 * factor, **{**group, "costs": {
        **costs, "chunk_tokens": (0.0,) * 4}}) <= base * slack  # fmt: skip


@pytest.mark.parametrize("nodes", [1, 4])
@pytest.mark.parametrize("op", range(5))
@pytest.mark.parametrize("name", [*ALL_TIMES, *ALL_RATES])
def test_each_constant_has_its_sign(op, nodes, name):
    value = COSTS[name]
    doubled = tuple(2 * x for x in value) if isinstance(value, tuple) else 2 * value
    for tokens in (16.0, 65536.0):
        base = time_of(op, tokens, n=8 * nodes, reached=nodes)
        changed = time_of(op, tokens, n=8 * nodes, reached=nodes, costs=COSTS | {name: doubled})
        assert changed >= base if name in ALL_TIMES else changed <= base


@pytest.mark.parametrize("name", LINKS)
def test_a_faster_link_is_never_slower(name):
    for op in range(5):
        for n in (8, 32):
            base = time_of(op, n=n, reached=3.0)
            assert time_of(op, n=n, reached=3.0, fabric=SWITCH | {name: 2 * SWITCH[name]}) <= base


def test_copies_bind_inside_a_node_and_links_where_channels_suffice():
    few, many = time_of(channels=4.0), time_of(channels=1e6)
    copies = 4096 * (190e-9 + 5.3 * (26e-9 + 7168 / 46e9)) / 4
    first = 5.3 * 7168 / 6e9
    assert few == pytest.approx(25e-6 + first + copies)
    assert many == pytest.approx(25e-6 + first + 4096 * 5.3 * 7 / 8 * 7168 / (0.64 * 450e9))


def test_half_the_bytes_take_half_the_time_where_links_bind():
    """FP8 with its scales is 1.03 of 2 bytes; what does not move stays."""
    narrow, wide = (time_of(size=7168 * x, channels=1e6, tokens=1e6) for x in (1 + 4 / 128, 2.0))
    assert (narrow - 25e-6) / (wide - 25e-6) == pytest.approx((1 + 4 / 128) / 2)


def test_adapters_bind_across_nodes():
    slow = SWITCH | {"nic_bytes_per_s": 1e9}
    costs = COSTS | {"chunk_tokens": (0.0,) * 4}
    args = {"n": 64, "reached": 3.5, "fabric": slow, "costs": costs}
    sent = 4096 * 3.5 * 7 / 8 * 7168
    expected = 13e-6 + 3 * 3e-6 + 5.3 * 7168 / 6e9 + sent / (1.03 * 1e9)
    assert time_of(**args) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("op", "ranks", "piece"),
    [(DISPATCH, 16, 20), (COMBINE, 16, 12), (BULK_DISPATCH, 16, 20), (BULK_COMBINE, 16, 12),
     (DISPATCH, 24, 8), (COMBINE, 24, 8), (BULK_DISPATCH, 24, 8), (BULK_COMBINE, 24, 8)],
)  # fmt: skip
def test_a_host_thread_writes_piece_by_piece(op, ranks, piece):
    costs = COSTS | {"chunk_tokens": (0.0,) * 4}
    args = {"op": op, "n": ranks, "reached": 2.0, "costs": costs | {"exchange_write_s": 1e-3}}
    domains = ranks / 8
    fixed = COSTS["network_start_s"][op] + np.ceil(np.log2(domains)) * 3e-6
    fixed += 5.3 * 7168 / COSTS["first_bytes_per_s"][op]
    written = 4096 * 2.0 * (ranks - 8) / ranks
    assert time_of(**args) == pytest.approx(fixed + written / piece * 1e-3)


def test_a_rate_of_host_threads_binds_where_it_is_below_the_adapters():
    args = {"n": 64, "reached": 3.5, "costs": COSTS | {"exchange_proxy_bytes_per_s": 1e9}}
    slow = SWITCH | {"nic_bytes_per_s": 1e9 / 1.03}
    assert time_of(**args) == pytest.approx(time_of(**args | {"costs": COSTS}, fabric=slow))
    fast = COSTS | {"exchange_proxy_bytes_per_s": 1e15}
    assert time_of(**args | {"costs": fast}) == time_of(**args | {"costs": COSTS})


@given(op=operations, n=st.integers(1, 8), tokens=tokens, costs=cost_dicts)
def test_host_threads_change_nothing_within_a_domain(op, n, tokens, costs):
    native = costs | {"exchange_write_s": 0.0, "exchange_proxy_bytes_per_s": 0.0}
    args = {"op": op, "tokens": tokens, "n": n, "local": n}
    assert time_of(**args, costs=costs) == time_of(**args, costs=native)


@given(op=operations, tokens=tokens, costs=cost_dicts, factor=st.floats(1.0, 100.0))
def test_slower_host_threads_are_never_faster(op, tokens, costs, factor):
    def of(write_s, rate):
        proxy = {"exchange_write_s": write_s, "exchange_proxy_bytes_per_s": rate}
        return time_of(op, tokens, n=64, reached=3.5, costs=costs | proxy)

    write_s, rate = costs["exchange_write_s"], costs["exchange_proxy_bytes_per_s"]
    native, base = of(0.0, 0.0), of(write_s, rate)
    assert native <= base <= of(factor * write_s, rate)
    assert base <= of(write_s, rate / factor)


def test_the_wait_of_a_step_is_no_part_of_an_exchange():
    waiting = COSTS | {"exchange_wait_s": 1.0}
    for op in range(5):
        assert time_of(op, n=64, reached=3.5, costs=waiting) == time_of(op, n=64, reached=3.5)


def test_the_fullest_rank_has_more_tokens():
    assert time_of(tokens=2 * 4096.0) > 1.8 * time_of()


def test_a_taper_slows_what_leaves_a_pod():
    """16 domains of 8 in pods of 4, whose spine has a quarter of the adapters' rate."""
    code = int(span_codes(128, 8, domains=16, least=8, pod_domains=4))
    tapered = SWITCH | {"pod_oversubscription": 4.0, "spine_latency_s": 2e-6}
    for op in range(5):
        args = {"op": op, "n": 128, "reached": 4.0}
        plain, slow = time_of(**args), time_of(**args, fabric=tapered, span=code)
        assert slow > 2 * plain
        untapered = time_of(**args, fabric=SWITCH | {"spine_latency_s": 2e-6}, span=code)
        assert untapered == pytest.approx(plain + 2e-6)


def test_low_latency_takes_no_channels():
    assert time_of(LOW_LATENCY, channels=1.0) == time_of(LOW_LATENCY, channels=100.0)


@pytest.mark.parametrize(
    ("changes", "fabric", "costs"),
    [
        ({"op": LOW_LATENCY + 1}, {}, {}),
        ({"op": -1}, {}, {}),
        ({"tokens": -1.0}, {}, {}),
        ({"size": np.nan}, {}, {}),
        ({"copies": np.inf}, {}, {}),
        ({"reached": -1.0}, {}, {}),
        ({"channels": 0.0}, {}, {}),
        ({"span": -1}, {}, {}),
        ({"local": 0}, {}, {}),
        ({"local": 9}, {}, {}),
        ({"n": 128, "local": 73}, {}, {}),
        ({"size": 1e308}, {}, {"channel_bytes_per_s": (1e-6,) * 4}),
        ({}, {"scale_up_bytes_per_s": 0.0}, {}),
        ({"n": 16}, {"nic_bytes_per_s": 0.0}, {}),
        ({"n": 16}, {}, {"adapter_share": (0.0, 1.0, 1.0, 1.0)}),
        ({}, {}, {"link_efficiency": (0.0, 1.0, 1.0, 1.0)}),
        ({}, {}, {"first_bytes_per_s": (0.0, 1.0, 1.0, 1.0)}),
        ({"op": LOW_LATENCY}, {}, {"low_latency_link_efficiency": 0.0}),
    ],
)
def test_invalid(changes, fabric, costs):
    with pytest.raises(ValueError, match="exchange 0 has no valid time: op"):
        time_of(**changes, fabric=SWITCH | {"domain_gpus": 72} | fabric, costs=COSTS | costs)


def test_an_unknown_fabric_is_invalid():
    with pytest.raises(ValueError, match="fabric 1"):
        moe_exchange_time_column(
            0, 1.0, 1.0, 1.0, 1.0, 8, 8, 1.0, 1, fabric_record(SWITCH), cost_record(COSTS)
        )


def test_a_batch_is_its_rows():
    rng = np.random.default_rng(0)
    op, local = rng.integers(0, 5, 300), 2 ** rng.integers(0, 4, 300)
    n = local * rng.integers(1, 9, 300)
    columns = (
        op, 2.0 ** rng.uniform(0, 17, 300), 2.0 ** rng.uniform(8, 15, 300),
        rng.uniform(1, 8, 300), rng.uniform(1, 4, 300), n, local, rng.uniform(1, 32, 300),
    )  # fmt: skip
    fabric = np.zeros(300, np.int64)
    fabrics, costs = fabric_record(SWITCH), cost_record(COSTS)
    together = moe_exchange_time_column(*columns, fabric, fabrics, costs)
    apart = [
        moe_exchange_time_column(*(column[i] for column in columns), 0, fabrics, costs)[0]
        for i in range(300)
    ]
    np.testing.assert_array_equal(together, apart)
    python = getattr(moe_exchange_times, "py_func", moe_exchange_times)
    interpreted = np.empty(300)
    reached = np.stack(columns[3:5], axis=1)
    rest = n, local, fabric, columns[7], fabric, fabrics, costs, interpreted
    assert python(*columns[:3], reached, *rest) == 0
    np.testing.assert_array_equal(together, interpreted)


def cluster_of(network):
    return ClusterConfig.parse({"device": "h100", "nodes": 2, "network": network})


def test_shipped_constants_reach_the_kernel():
    costs = exchange_record(cluster_of("p5_efa"))[0]
    exchange = load_device("h100").expert_exchange
    assert costs["start_s"][COMBINE] == pytest.approx(exchange.combine.start_us * 1e-6)
    assert costs["channel_bytes_per_s"][DISPATCH] == exchange.dispatch.copy_gb_per_s * 1e9
    bulk = costs["link_efficiency"][BULK_DISPATCH]
    assert bulk == exchange.bulk_dispatch.link_efficiency
    assert costs["low_latency_start_s"] == pytest.approx(exchange.low_latency.start_us * 1e-6)
    network = load_network("p5_efa")
    assert network.exchange_write_us > 0.0
    assert costs["exchange_write_s"] == pytest.approx(network.exchange_write_us * 1e-6)
    assert costs["exchange_wait_s"] == pytest.approx(network.exchange_wait_us * 1e-6)
    uccl = cluster_of({"extends": "p5_efa", "exchange_proxy": "uccl"})
    rate = uccl.network.exchange_proxy_gb_per_s
    assert rate > 0.0
    assert exchange_record(uccl)["exchange_proxy_bytes_per_s"] == pytest.approx(rate * 1e9)
