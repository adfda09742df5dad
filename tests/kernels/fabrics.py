"""Fabrics and collectives: two of known rates, and random ones."""

import numpy as np
from hypothesis import strategies as st

from projector.kernels.collective_algorithms import (
    ALGORITHMS,
    OPERATIONS,
    SEND_RECV,
)
from projector.kernels.collectives import (
    FABRIC,
    MAX_LISTED_LOCAL,
    algorithm_mask,
)

ANY_ALGORITHM = 0
"""Value of ``algorithms`` that restricts nothing."""

LIBRARY_ALGORITHMS = algorithm_mask("ring", "tree", "in_network", "pairwise")
"""What NCCL and RCCL chose among before version 2.23."""

SWITCH = {
    "scale_up_bytes_per_s": 450e9,
    "peer_bytes_per_s": 450e9,
    "scale_up_efficiency": 0.81,
    "scale_up_latency_s": 0.8e-6,
    "start_s": 5e-6,
    "simple_start_s": 0.0,
    "in_network_bytes_per_s": 0.0,
    "in_network_min_gpus": 0,
    "nic_bytes_per_s": 47e9,
    "nic_latency_s": 5e-6,
    "nic_flag_latency_s": 5e-6,
    "network_start_s": 20e-6,
    "network_flags": 1,
    "network_in_network": 0,
    "tree_efficiency": 1.0,
    "domain_gpus": 8,
    "self_copy_share": 0.0,
    "nic_p2p_bytes_per_s": 0.0,
    "exchange_peer_s": 0.0,
    "pod_oversubscription": 1.0,
    "zone_oversubscription": 1.0,
    "spine_latency_s": 0.0,
    "core_latency_s": 0.0,
    "plain_tree": 0,
    "forwards": 1,
    "flagged_algorithms": algorithm_mask("ring", "tree", "hierarchical", "pairwise"),
    "flag_traffic": 2.0,
    "network_flag_traffic": 2.0,
    "chunk_s": 0.0,
    "fill_limit_s": 1e-4,
    "in_network_chunk_s": 0.0,
    "network_chunk_s": 0.0,
    "network_fill_limit_s": 0.0,
    "exchange_efficiency": 1.0,
    "single_ring_groups": 0,
    "gather_ring_bytes": 0.0,
    "exchange_step_s": 0.8e-6,
    "exchange_issue_s": 0.3e-6,
    "exchange_simple_start_s": 0.0,
    "exchange_flag_bytes": 16384.0,
    "pat_efficiency": 0.75,
    "algorithms": ANY_ALGORITHM,
    "network_algorithms": ANY_ALGORITHM,
    "local_ring_bytes_per_s": (0.0,) * (MAX_LISTED_LOCAL + 1),
    "local_exchange_bytes_per_s": (0.0,) * (MAX_LISTED_LOCAL + 1),
    "local_pair_bytes_per_s": (0.0,) * (MAX_LISTED_LOCAL + 1),
}

STEP_S = SWITCH["exchange_step_s"] + SWITCH["exchange_issue_s"]

MESH = SWITCH | {"scale_up_bytes_per_s": 448e9, "peer_bytes_per_s": 64e9}

BANDWIDTHS = (
    "scale_up_bytes_per_s",
    "peer_bytes_per_s",
    "scale_up_efficiency",
    "in_network_bytes_per_s",
    "nic_bytes_per_s",
    "tree_efficiency",
    "exchange_efficiency",
)

LATENCIES = (
    "scale_up_latency_s",
    "start_s",
    "simple_start_s",
    "nic_latency_s",
    "nic_flag_latency_s",
    "network_start_s",
    "chunk_s",
    "fill_limit_s",
    "in_network_chunk_s",
    "network_chunk_s",
    "network_fill_limit_s",
    "exchange_step_s",
    "exchange_issue_s",
    "exchange_simple_start_s",
    "exchange_peer_s",
    "spine_latency_s",
    "core_latency_s",
)

rates = st.floats(1e9, 2e12)

latencies = st.floats(0.0, 1e-4)

sizes = st.one_of(st.just(0.0), st.floats(1.0, 1e12))

listed_rates = st.one_of(
    st.just((0.0,) * (MAX_LISTED_LOCAL + 1)),
    st.tuples(*[st.one_of(st.just(0.0), rates)] * (MAX_LISTED_LOCAL + 1)),
)

fabric_dicts = st.fixed_dictionaries(
    {
        "scale_up_bytes_per_s": rates,
        "peer_bytes_per_s": rates,
        "scale_up_efficiency": st.floats(0.1, 1.0),
        "scale_up_latency_s": latencies,
        "start_s": latencies,
        "simple_start_s": latencies,
        "in_network_bytes_per_s": st.one_of(st.just(0.0), rates),
        "in_network_min_gpus": st.integers(0, 9),
        "nic_bytes_per_s": rates,
        "nic_latency_s": latencies,
        "nic_flag_latency_s": latencies,
        "network_start_s": latencies,
        "network_flags": st.integers(0, 1),
        "network_in_network": st.integers(0, 1),
        "tree_efficiency": st.floats(0.1, 1.0),
        "domain_gpus": st.just(72),
        "self_copy_share": st.sampled_from([0.0, 0.4]),
        "nic_p2p_bytes_per_s": st.one_of(st.just(0.0), rates),
        "exchange_peer_s": latencies,
        "pod_oversubscription": st.sampled_from([0.0, 1.0, 1.5, 7.0]),
        "zone_oversubscription": st.sampled_from([0.0, 1.0, 4.0]),
        "spine_latency_s": latencies,
        "core_latency_s": latencies,
        "plain_tree": st.integers(0, 1),
        "forwards": st.integers(0, 1),
        "flagged_algorithms": st.integers(0, (1 << len(ALGORITHMS)) - 1),
        "flag_traffic": st.floats(1.0, 4.0),
        "network_flag_traffic": st.floats(1.0, 9.0),
        "chunk_s": latencies,
        "fill_limit_s": latencies,
        "in_network_chunk_s": latencies,
        "network_chunk_s": latencies,
        "network_fill_limit_s": latencies,
        "exchange_efficiency": st.floats(0.5, 1.0),
        "single_ring_groups": st.sampled_from([0, 0b11101000]),
        "gather_ring_bytes": st.sampled_from([0.0, 1e6]),
        "exchange_step_s": latencies,
        "exchange_issue_s": latencies,
        "exchange_simple_start_s": latencies,
        "exchange_flag_bytes": st.sampled_from([0.0, 16384.0, 1e12]),
        "pat_efficiency": st.floats(0.1, 1.0),
        "algorithms": st.integers(0, (1 << len(ALGORITHMS)) - 1),
        "network_algorithms": st.integers(0, (1 << len(ALGORITHMS)) - 1),
        "local_ring_bytes_per_s": listed_rates,
        "local_exchange_bytes_per_s": listed_rates,
        "local_pair_bytes_per_s": listed_rates,
    }
)


@st.composite
def collective_rows(draw):
    op = draw(st.integers(0, len(OPERATIONS) - 1))
    n = 2 if op == SEND_RECV else draw(st.integers(1, 200))
    local = draw(st.integers(1, min(n, 72)))
    if draw(st.booleans()):  # the usual case: powers of two
        n = 2 if op == SEND_RECV else 2 ** draw(st.integers(0, 8))
        local = min(n, 2 ** draw(st.integers(0, 6)))
    return op, draw(sizes), n, local


def record(*fabrics):
    return np.array([tuple(fabric[name] for name in FABRIC.names) for fabric in fabrics], FABRIC)
