"""Times of collectives: the reference, orders of sizes and rates, and what is documented."""

from typing import get_args

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from kernels.fabrics import (
    ANY_ALGORITHM,
    BANDWIDTHS,
    LATENCIES,
    LIBRARY_ALGORITHMS,
    MESH,
    STEP_S,
    SWITCH,
    collective_rows,
    fabric_dicts,
    record,
    sizes,
)
from projector.config.device import CollectiveAlgorithm
from projector.kernels import collective_algorithms
from projector.kernels.collective_algorithms import (
    ALGORITHMS,
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    ALL_TO_ALL_V,
    BROADCAST,
    BRUCK,
    DIRECT,
    HALVING_DOUBLING,
    IN_NETWORK,
    NO_ALGORITHM,
    OPERATIONS,
    PAIRWISE,
    REDUCE,
    REDUCE_SCATTER,
    RING,
    SEND_RECV,
    TREE,
)
from projector.kernels.collectives import (
    BEYOND_DOMAIN,
    MAX_LISTED_LOCAL,
    algorithm_mask,
    collective_time_columns,
    collective_times,
)
from reference import collectives as reference


def time_of(op, size, n, local, fabric, *algorithms):
    if algorithms:
        fabric = fabric | {"algorithms": algorithm_mask(*algorithms)}
    times, codes = collective_time_columns(op, size, n, local, 0, record(fabric))
    if algorithms:
        assert ALGORITHMS[codes[0]] in algorithms
    return times[0]


def run(rows, fabrics):
    """Return status, times and algorithms of rows (op, size, n, local, fabric)."""
    op, size, n, local, fabric = zip(*rows, strict=True)
    time_s, algorithm = np.full(len(rows), -7.0), np.full(len(rows), -7)
    status = collective_times(
        np.array(op),
        np.array(size, np.float64),
        np.array(n),
        np.array(local),
        np.zeros(len(rows), np.int64),
        np.array(fabric),
        fabrics,
        time_s,
        algorithm,
    )
    return status, time_s, algorithm


@given(row=collective_rows(), fabric=fabric_dicts)
@example(row=(ALL_REDUCE, 1e6, 12, 8), fabric=SWITCH)  # local does not divide the group
@example(row=(ALL_TO_ALL, 1e6, 12, 8), fabric=SWITCH)
@example(row=(ALL_REDUCE, 1e6, 8, 1), fabric=SWITCH)  # one device per node
@example(row=(SEND_RECV, 1e6, 2, 1), fabric=SWITCH)
@example(row=(ALL_GATHER, 0.0, 8, 8), fabric=SWITCH)
@example(row=(ALL_GATHER, 1.0, 1, 1), fabric=SWITCH)
def test_matches_reference(row, fabric):
    op, size, n, local = row
    status, (time_s,), (algorithm,) = run([(*row, 0)], record(fabric))
    assert status == 0
    name = OPERATIONS[op]
    assert time_s == pytest.approx(
        reference.collective_time(name, size, n, local, fabric), rel=1e-12, abs=0
    )
    if n == 1 or size == 0:
        assert algorithm == NO_ALGORITHM
    else:
        own = reference.algorithm_times(name, size, n, local, fabric)[algorithm]
        assert time_s == pytest.approx(own, rel=1e-12)


@given(row=collective_rows(), fabric=fabric_dicts, code=st.integers(0, len(ALGORITHMS) - 1))
def test_each_algorithm_matches_reference(row, fabric, code):
    fabric = fabric | {"algorithms": 1 << code}
    op, size, n, local = row
    _, (time_s,), (algorithm,) = run([(*row, 0)], record(fabric))
    name = OPERATIONS[op]
    expected = reference.collective_time(name, size, n, local, fabric)
    assert time_s == pytest.approx(expected, rel=1e-12, abs=0)
    if n > 1 and size > 0:
        served = reference.ALGORITHMS[code](name, size, n, local, fabric) is not None
        assert (algorithm == code) == served


@given(
    row=collective_rows(),
    fabric=fabric_dicts,
    name=st.sampled_from(BANDWIDTHS),
    factor=st.floats(1.0, 100.0),
)
def test_more_bandwidth_never_costs_time(row, fabric, name, factor):
    faster = fabric | {name: fabric[name] * factor}
    if name == "in_network_bytes_per_s" and fabric[name] == 0.0:
        # Where only the switch is allowed, having a slow one takes away the fallback to any
        # other algorithm; that is a choice of the profile and no bandwidth that was raised.
        assume(fabric["algorithms"] != algorithm_mask("in_network"))
        faster[name] = 1e9 * factor
    _, (before, after), _ = run([(*row, 0), (*row, 1)], record(fabric, faster))
    assert after <= before


@given(
    row=collective_rows(),
    fabric=fabric_dicts,
    name=st.sampled_from(LATENCIES),
    factor=st.floats(0.0, 1.0),
)
def test_less_latency_never_costs_time(row, fabric, name, factor):
    quicker = fabric | {name: fabric[name] * factor}
    _, (before, after), _ = run([(*row, 0), (*row, 1)], record(fabric, quicker))
    assert after <= before


@given(row=collective_rows(), fabric=fabric_dicts, beyond=fabric_dicts)
def test_the_network_changes_nothing_within_a_domain(row, fabric, beyond):
    op, size, n, _ = row
    n = min(n, fabric["domain_gpus"])
    other = fabric | {name: beyond[name] for name in BEYOND_DOMAIN}
    _, times, algorithms = run([(op, size, n, n, 0), (op, size, n, n, 1)], record(fabric, other))
    assert times[0] == times[1]
    assert algorithms[0] == algorithms[1]


@given(row=collective_rows(), fabric=fabric_dicts, larger=sizes)
def test_more_bytes_never_cost_less(row, fabric, larger):
    op, size, n, local = row
    rows = [(op, min(size, larger), n, local, 0), (op, max(size, larger), n, local, 0)]
    _, (less, more), _ = run(rows, record(fabric))
    assert 0.0 <= less <= more < np.inf


@given(row=collective_rows(), fabric=fabric_dicts)
def test_a_choice_never_costs_time(row, fabric):
    free = fabric | {"algorithms": ANY_ALGORITHM, "network_algorithms": ANY_ALGORITHM}
    _, (chosen, named), (_, algorithm) = run([(*row, 0), (*row, 1)], record(free, fabric))
    # Bruck's reductions are no choice: they are asked for alone, of all groups or between domains.
    assume(algorithm != BRUCK or row[0] not in (ALL_REDUCE, REDUCE_SCATTER))
    assert chosen <= named


@given(
    rows=st.lists(collective_rows(), min_size=1, max_size=8),
    fabrics=st.lists(fabric_dicts, min_size=1, max_size=3),
)
def test_rows_do_not_depend_on_each_other(rows, fabrics):
    rows = [(*row, i % len(fabrics)) for i, row in enumerate(rows)]
    _, together, codes = run(rows, record(*fabrics))
    for row, time_s, code in zip(rows, together, codes, strict=True):
        _, (alone,), (code_alone,) = run([row], record(*fabrics))
        assert (alone, code_alone) == (time_s, code)


@pytest.mark.parametrize(("op", "passes"), [(ALL_REDUCE, 2), (ALL_GATHER, 1), (REDUCE_SCATTER, 1)])
@pytest.mark.parametrize("n", [2, 3, 8])
def test_ring_in_a_domain(op, passes, n):
    expected = 5e-6 + passes * (n - 1) * (1e9 / n / (450e9 * 0.81) + 0.8e-6)
    assert time_of(op, 1e9, n, n, SWITCH, "ring") == pytest.approx(expected, rel=1e-12)


def test_ring_across_domains_is_bound_by_all_adapters():
    expected = 25e-6 + 2 * 31 / 32 * 1e9 / (8 * 47e9) + 2 * (28 * 0.8e-6 + 3 * 5e-6)
    assert time_of(ALL_REDUCE, 1e9, 32, 8, SWITCH, "ring") == pytest.approx(expected, rel=1e-12)


def test_ring_across_domains_is_bound_by_slow_links():
    fabric = SWITCH | {"scale_up_bytes_per_s": 100e9, "peer_bytes_per_s": 100e9}
    expected = 25e-6 + 31 / 32 * 1e9 * 7 / 8 / 81e9 + 28 * 0.8e-6 + 3 * 5e-6
    assert time_of(ALL_GATHER, 1e9, 32, 8, fabric, "ring") == pytest.approx(expected, rel=1e-12)


def test_hierarchical_all_reduce():
    within = 2 * (7 / 8 * 1e9 / (450e9 * 0.81) + 7 * 0.8e-6)
    across = 2 * (3 / 4 * (1e9 / 8) / 47e9 + 3 * 5e-6)
    time_s = time_of(ALL_REDUCE, 1e9, 32, 8, SWITCH, "hierarchical")
    # Two calls besides the first.
    assert time_s == pytest.approx(25e-6 + 2 * 5e-6 + within + across, rel=1e-12)


def test_hierarchical_all_reduce_is_a_scatter_and_a_gather():
    halves = [
        time_of(op, 1e9, 32, 8, SWITCH, "hierarchical") for op in (REDUCE_SCATTER, ALL_GATHER)
    ]
    whole = time_of(ALL_REDUCE, 1e9, 32, 8, SWITCH, "hierarchical")
    assert whole == pytest.approx(sum(halves) - 25e-6, rel=1e-12)


def test_small_message_across_nodes_takes_the_tree():
    _, algorithm = collective_time_columns(
        ALL_REDUCE, [1e3, 8e9], 32, 8, 0, record(SWITCH | {"algorithms": LIBRARY_ALGORITHMS})
    )
    assert algorithm.tolist() == [TREE, RING]


def test_tree_of_two_nodes_sends_the_buffer_once():
    expected = 25e-6 + 1e9 / (8 * 20e9) + 2 * (7 * 0.8e-6 + 5e-6)
    fabric = SWITCH | {"nic_bytes_per_s": 20e9}
    assert time_of(ALL_REDUCE, 1e9, 16, 8, fabric, "tree") == pytest.approx(expected, rel=1e-12)
    # Where adapters keep up, the chains within the nodes bind: up and down through each member.
    fabric = SWITCH | {"tree_efficiency": 0.9}
    expected = 25e-6 + 2 * 1e9 / (450e9 * 0.81 * 0.9) + 2 * (7 * 0.8e-6 + 5e-6)
    assert time_of(ALL_REDUCE, 1e9, 16, 8, fabric, "tree") == pytest.approx(expected, rel=1e-12)


def test_a_tree_may_join_reductions_in_the_switches_of_nodes():
    fabric = SWITCH | {"in_network_bytes_per_s": 273e9, "in_network_min_gpus": 5}
    fabric |= {"tree_efficiency": 0.9, "network_in_network": 1}
    expected = 25e-6 + 1e9 / (273e9 * 0.9) + 2 * (0.8e-6 + 5e-6)
    assert time_of(ALL_REDUCE, 1e9, 16, 8, fabric, "in_network") == pytest.approx(expected)
    # Beyond two nodes an adapter carries the buffer up and down.
    expected = 25e-6 + 2 * 1e9 / (8 * 47e9) + 2 * (0.8e-6 + 2 * 5e-6)
    assert time_of(ALL_REDUCE, 1e9, 32, 8, fabric, "in_network") == pytest.approx(expected)


def test_a_network_may_refuse_flags():
    fabric = SWITCH | {"simple_start_s": 1e-5}
    flagged, plain = (
        time_of(ALL_REDUCE, 1e3, 16, 8, fabric | {"network_flags": flags}, "ring")
        for flags in (1, 0)
    )
    assert flagged < plain
    within = [time_of(ALL_REDUCE, 1e3, 8, 8, fabric | {"network_flags": flags}) for flags in (1, 0)]
    assert within[0] == within[1]


def test_flags_have_hops_and_traffic_of_their_own_between_domains():
    fabric = SWITCH | {
        "nic_latency_s": 20e-6,
        "nic_flag_latency_s": 6e-6,
        "network_flag_traffic": 8,
    }
    # Two hops up and two down a tree of four domains, and seven each way in the domain.
    near = 25e-6 + 14 * 0.8e-6
    small = time_of(ALL_REDUCE, 1.0, 32, 8, fabric, "tree")
    assert small == pytest.approx(near + 4 * 6e-6, rel=1e-4)
    large = time_of(ALL_REDUCE, 1e8, 32, 8, fabric, "tree")
    assert large == pytest.approx(near + 4 * 20e-6 + 2e8 / (450e9 * 0.81))
    # A hop with flags never takes longer than one without.
    slower = fabric | {"nic_flag_latency_s": 1.0}
    assert time_of(ALL_REDUCE, 1e3, 32, 8, slower) == time_of(
        ALL_REDUCE, 1e3, 32, 8, slower | {"nic_flag_latency_s": 20e-6}
    )


def test_groups_of_a_mesh_without_rings_of_their_own_have_one_link():
    rings = MESH | {"single_ring_groups": 1 << 6}
    assert time_of(ALL_GATHER, 1e9, 6, 6, rings, "ring") == pytest.approx(
        5e-6 + 5 * 0.8e-6 + 1e9 * 5 / 6 / (64e9 * 0.81)
    )
    for n in (4, 8):
        assert time_of(ALL_GATHER, 1e9, n, n, rings) == time_of(ALL_GATHER, 1e9, n, n, MESH)
    # An exchange goes from each to each.
    assert time_of(ALL_TO_ALL, 1e9, 6, 6, rings) == time_of(ALL_TO_ALL, 1e9, 6, 6, MESH)


def test_mesh_group_uses_the_links_among_its_members():
    times = [time_of(ALL_GATHER, 1e9, n, n, MESH, "ring") for n in (2, 4, 8)]
    wire = [t - 5e-6 - (n - 1) * 0.8e-6 for t, n in zip(times, (2, 4, 8), strict=True)]
    # Each of the n - 1 links carries 1/n of the buffer.
    assert wire == pytest.approx([1e9 / n / (64e9 * 0.81) for n in (2, 4, 8)])


def test_single_partner_steps_are_slow_on_a_mesh():
    times = [
        time_of(ALL_REDUCE, 1e9, 8, 8, MESH, name)
        for name in ("direct", "ring", "halving_doubling")
    ]
    assert times == sorted(times)
    assert times[2] > 6 * times[1]


def test_halving_of_other_than_a_power_of_two_folds_the_rest_in():
    fabric = SWITCH | {"algorithms": algorithm_mask("halving_doubling")}
    time_s, algorithm = collective_time_columns(
        [ALL_REDUCE, ALL_GATHER], 1e9, 6, 6, 0, record(fabric)
    )
    traffic = 2 * 3 / 4 * 1e9 + 2 * 1e9
    assert time_s[0] == pytest.approx(5e-6 + traffic / (450e9 * 0.81) + 6 * STEP_S, rel=1e-12)
    assert (algorithm == HALVING_DOUBLING).tolist() == [True, False]


def test_bruck_all_to_all_sends_half_a_step():
    expected = 5e-6 + 3 * (0.5 * 1e6 / (450e9 * 0.81) + STEP_S)
    assert time_of(ALL_TO_ALL, 1e6, 8, 8, SWITCH, "bruck") == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("n", "steps"), [(2, 1), (6, 3), (8, 3), (72, 7)])
def test_bruck_all_reduce_takes_two_passes_of_log_many_steps(n, steps):
    wire = 2 * (n - 1) / n * 1e6 / (450e9 * 0.81)
    fabric = SWITCH | {"domain_gpus": 72}
    time_s = time_of(ALL_REDUCE, 1e6, n, n, fabric, "bruck")
    assert time_s == pytest.approx(5e-6 + 2 * steps * STEP_S + wire, rel=1e-12)
    halves = [time_of(op, 1e6, n, n, fabric, "bruck") for op in (REDUCE_SCATTER, ALL_GATHER)]
    assert time_s == pytest.approx(sum(halves) - 5e-6, rel=1e-12)


@pytest.mark.parametrize("op", [ALL_REDUCE, REDUCE_SCATTER])
@pytest.mark.parametrize(("n", "local"), [(6, 6), (12, 8), (4, 1)])
def test_bruck_reduces_only_where_it_is_asked_for(op, n, local):
    masks = algorithm_mask("bruck"), algorithm_mask("bruck", "ring"), ANY_ALGORITHM
    fabrics = [SWITCH | {"algorithms": mask, "network_algorithms": ANY_ALGORITHM} for mask in masks]
    _, algorithm = collective_time_columns(op, 1e3, n, local, [0, 1, 2], record(*fabrics))
    assert (algorithm == BRUCK).tolist() == [True, False, False]


def test_all_to_all_across_nodes_is_bound_by_the_adapter():
    fabric = SWITCH | dict.fromkeys(LATENCIES, 0.0)
    time_s = time_of(ALL_TO_ALL, 1e9, 64, 8, fabric)
    assert time_s == pytest.approx(1e9 * 56 / 64 / 47e9, rel=1e-12)
    fast = fabric | {"nic_bytes_per_s": 47e13, "forwards": 0}
    time_s = time_of(ALL_TO_ALL, 1e9, 64, 8, fast, "pairwise")
    assert time_s == pytest.approx(1e9 * 7 / 64 / (450e9 * 0.81), rel=1e-12)


def test_send_recv():
    near, far = time_of(SEND_RECV, 1e9, 2, 2, MESH), time_of(SEND_RECV, 1e9, 2, 1, MESH)
    assert near == pytest.approx(5e-6 + STEP_S + 1e9 / (64e9 * 0.81), rel=1e-12)
    assert far == pytest.approx(25e-6 + STEP_S + 5e-6 + 1e9 / 47e9, rel=1e-12)


def test_broadcast_of_a_large_message_takes_the_link_rate():
    time_s = time_of(BROADCAST, 1e9, 8, 8, SWITCH)
    assert time_s == pytest.approx(5e-6 + 7 * 0.8e-6 + 1e9 / (450e9 * 0.81), rel=1e-12)


@pytest.mark.parametrize(("n", "local"), [(8, 8), (32, 8), (12, 8), (4, 1)])
@pytest.mark.parametrize("name", [*ALGORITHMS, None])
def test_a_reduce_is_a_broadcast_in_reverse(n, local, name):
    mask = algorithm_mask(name) if name else ANY_ALGORITHM
    fabric = SWITCH | {"algorithms": mask}
    assert time_of(REDUCE, 1e7, n, local, fabric) == time_of(BROADCAST, 1e7, n, local, fabric)


def test_unequal_blocks_are_not_forwarded_in_log_many_steps():
    fabric = SWITCH | {"algorithms": algorithm_mask("bruck")}
    even = time_of(ALL_TO_ALL, 1e3, 8, 8, fabric)
    fullest = time_of(ALL_TO_ALL_V, 1e3, 8, 8, fabric)
    assert fullest == time_of(ALL_TO_ALL_V, 1e3, 8, 8, SWITCH) != even
    pairs = SWITCH | {"algorithms": algorithm_mask("pairwise")}
    assert time_of(ALL_TO_ALL_V, 1e9, 32, 8, pairs) == time_of(ALL_TO_ALL, 1e9, 32, 8, pairs)


def test_hierarchical_exchange_sends_few_messages():
    within = 7 / 8 * 1e6 / (450e9 * 0.81) + 0.8e-6 + 7 * 0.3e-6
    across = 3 / 4 * 1e6 / 47e9 + 0.8e-6 + 3 * 0.3e-6 + 5e-6
    time_s = time_of(ALL_TO_ALL, 1e6, 32, 8, SWITCH, "hierarchical")
    assert time_s == pytest.approx(25e-6 + 5e-6 + within + across, rel=1e-12)


def test_listed_rates_of_an_irregular_node():
    listed = [0.0] * (MAX_LISTED_LOCAL + 1)
    listed[4] = 100e9
    fabric = SWITCH | {"local_ring_bytes_per_s": listed, "local_pair_bytes_per_s": listed}
    for op, name in ((ALL_GATHER, "ring"), (ALL_REDUCE, "halving_doubling")):
        fast, slow = (time_of(op, 1e12, 4, 4, changed, name) for changed in (SWITCH, fabric))
        assert slow / fast == pytest.approx(4.5, rel=1e-3)
        assert time_of(op, 1e9, 8, 8, fabric, name) == time_of(op, 1e9, 8, 8, SWITCH, name)


def test_in_network_needs_enough_members_in_one_domain():
    fabric = SWITCH | {"in_network_bytes_per_s": 273e9, "in_network_min_gpus": 5}
    _, algorithm = collective_time_columns(
        [ALL_REDUCE, ALL_REDUCE, ALL_REDUCE, ALL_GATHER], 1e9, [8, 4, 16, 8], [8, 4, 8, 8], 0,
        record(fabric | {"algorithms": LIBRARY_ALGORITHMS}),
    )  # fmt: skip
    assert (algorithm == IN_NETWORK).tolist() == [True, False, False, False]


@pytest.mark.parametrize("op", [ALL_GATHER, REDUCE_SCATTER])
def test_aggregated_trees_reach_all_nodes_in_log_many_steps(op):
    nodes, fabric = 16384, SWITCH | {"algorithms": algorithm_mask("pat")}
    wire = (nodes - 1) / nodes * 1e9 / (47e9 * 0.75)
    expected = 25e-6 + 14 * 5e-6 + wire
    assert time_of(op, 1e9, nodes, 1, fabric) == pytest.approx(expected, rel=1e-12)
    # A ring waits for every node in turn.
    assert time_of(op, 1e9, nodes, 1, SWITCH, "ring") > nodes * 5e-6
    assert time_of(op, 1e9, nodes, 1, SWITCH) < 1.5 * 1e9 / 47e9
    in_node = 5e-6 + 7 * 0.8e-6 + 7 / 8 * 1e9 / (450e9 * 0.81)
    of_eight = 25e-6 + 14 * 5e-6 + wire / 8 + in_node
    assert time_of(op, 1e9, 8 * nodes, 8, fabric) == pytest.approx(of_eight, rel=1e-12)


def test_chunks_fill_the_links():
    fabric = SWITCH | {"chunk_s": 1e-6, "simple_start_s": 1.0, "flagged_algorithms": 0}
    wire = 7 / 8 * 1e7 / (450e9 * 0.81)
    filled = [
        time_of(ALL_GATHER, size, 8, 8, changed, "ring")
        - time_of(ALL_GATHER, size, 8, 8, fabric | {"chunk_s": 0.0}, "ring")
        for size, changed in (
            (1e7, fabric),
            (1e10, fabric),
            (1e10, fabric | {"fill_limit_s": 1e-3}),
        )
    ]
    assert filled == pytest.approx([2 * (1e-6 * wire) ** 0.5, 1e-4, 2 * (1e-3 * wire) ** 0.5])
    across = fabric | {"network_chunk_s": 1e-4, "network_fill_limit_s": 1e-2}
    slower = time_of(ALL_GATHER, 1e7, 16, 8, across, "ring")
    wire = 15 / 16 * 1e7 / 8 / 47e9
    faster = time_of(ALL_GATHER, 1e7, 16, 8, fabric | {"chunk_s": 0.0}, "ring")
    assert slower - faster == pytest.approx(2 * (1e-4 * wire) ** 0.5)


def test_messages_have_flags_up_to_a_size():
    fabric = SWITCH | {"exchange_simple_start_s": 4e-6, "simple_start_s": 1.0}
    just, more = (
        time_of(ALL_TO_ALL, size, 8, 8, fabric, "pairwise") for size in (8 * 16384, 8 * 16384 + 8)
    )
    assert more - just == pytest.approx(4e-6 - 7 * 16384 / (450e9 * 0.81), rel=1e-3)
    # Flags of a library's rings do not help what is made of sends.
    alone = fabric | {"flagged_algorithms": algorithm_mask("ring")}
    assert time_of(ALL_TO_ALL, 1e3, 8, 8, alone, "pairwise") > just
    assert time_of(ALL_REDUCE, 1e3, 8, 8, fabric, "direct") > 1.0
    flagged = fabric | {"flagged_algorithms": algorithm_mask("direct")}
    assert time_of(ALL_REDUCE, 1e3, 8, 8, flagged, "direct") < 2e-5


@given(row=collective_rows(), fabric=fabric_dicts)
def test_the_default_is_the_least_of_all_algorithms(row, fabric):
    fabric = fabric | {"network_algorithms": ANY_ALGORITHM}
    free = fabric | {"algorithms": (1 << len(ALGORITHMS)) - 1}
    single = [fabric | {"algorithms": 1 << code} for code in range(len(ALGORITHMS))]
    rows = [(*row, i) for i in range(len(ALGORITHMS) + 1)]
    _, times, codes = run(rows, record(free, *single))
    served = {c: t for c, t in enumerate(times[1:]) if codes[1 + c] in (c, NO_ALGORITHM)}
    if row[0] in (ALL_REDUCE, REDUCE_SCATTER):
        del served[BRUCK]
    assert times[0] == min(served.values())


def test_self_copy_adds_its_share_of_a_block():
    fabric = SWITCH | {"self_copy_share": 0.4}
    extra = time_of(ALL_GATHER, 1e9, 8, 8, fabric) - time_of(ALL_GATHER, 1e9, 8, 8, SWITCH)
    assert extra == pytest.approx(0.4 / 8 * 1e9 / (450e9 * 0.81))
    for op in (BROADCAST, SEND_RECV):
        assert time_of(op, 1e9, 2, 2, fabric) == time_of(op, 1e9, 2, 2, SWITCH)


def test_operation_that_no_allowed_algorithm_serves_takes_any():
    _, algorithm = collective_time_columns(
        [ALL_TO_ALL, SEND_RECV, ALL_REDUCE],
        1e9, [16, 2, 16], [8, 2, 8], 0,
        record(SWITCH | {"algorithms": algorithm_mask("tree")}),
    )  # fmt: skip
    assert algorithm.tolist() == [PAIRWISE, DIRECT, TREE]


def bus_bandwidth(n, fabric):
    size = 8e9
    return 2 * (n - 1) / n * size / time_of(ALL_REDUCE, size, n, n, fabric) / 1e9


@pytest.mark.parametrize(
    ("n", "fields", "measured"),
    [
        # Azure/AI-benchmarking-guide, ND H100 v5 at 8 GB with NVLS: 478.9.
        (
            8,
            {
                "scale_up_bytes_per_s": 450e9,
                "peer_bytes_per_s": 450e9,
                "in_network_bytes_per_s": 273e9,
                "in_network_min_gpus": 5,
            },
            479,
        ),
        # Azure/AI-benchmarking-guide, ND A100 v4 at 8 GB: 231.6.
        (
            8,
            {
                "scale_up_bytes_per_s": 300e9,
                "peer_bytes_per_s": 300e9,
                "scale_up_efficiency": 0.783,
            },
            230,
        ),
        # Azure/AI-benchmarking-guide, ND MI300X v5 at 8 GB: 316.8; stas00/ml-engineering,
        # network/README.md, at 4 GiB: 312.9, and a pair, with one link of seven, 47.7.
        (8, MESH | {"scale_up_efficiency": 0.707}, 315),
        (2, MESH | {"scale_up_efficiency": 0.745}, 47.7),
    ],
)
def test_documented_bus_bandwidth(n, fields, measured):
    for algorithms in (ANY_ALGORITHM, LIBRARY_ALGORITHMS):
        fabric = SWITCH | fields | {"algorithms": algorithms}
        assert bus_bandwidth(n, fabric) == pytest.approx(measured, rel=0.1)


VALID = (ALL_REDUCE, 1e6, 8, 8, 0)


@pytest.mark.parametrize(
    "row",
    [
        (-1, 1e6, 8, 8, 0),
        (len(OPERATIONS), 1e6, 8, 8, 0),
        (ALL_REDUCE, -1.0, 8, 8, 0),
        (ALL_REDUCE, np.nan, 8, 8, 0),
        (ALL_REDUCE, np.inf, 8, 8, 0),
        (ALL_REDUCE, 1e308, 8, 8, 1),
        (ALL_REDUCE, 1e6, 0, 0, 0),
        (ALL_REDUCE, 1e6, 8, 0, 0),
        (ALL_REDUCE, 1e6, 8, 9, 0),
        (ALL_REDUCE, 1e6, 16, 9, 0),  # nine of a domain of eight
        (SEND_RECV, 1e6, 3, 1, 0),
        (ALL_REDUCE, 1e6, 8, 8, -1),
        (ALL_REDUCE, 1e6, 8, 8, 4),
        (ALL_REDUCE, 1e6, 8, 8, 2),  # no scale-up rate
        (ALL_REDUCE, 1e6, 16, 8, 3),  # no adapter
    ],
)
def test_invalid_row_is_marked_and_harms_no_other(row):
    fabrics = record(
        SWITCH,
        SWITCH | {"scale_up_bytes_per_s": 0.001, "peer_bytes_per_s": 0.001},
        SWITCH | {"scale_up_bytes_per_s": 0.0},
        SWITCH | {"nic_bytes_per_s": 0.0},
    )
    status, time_s, algorithm = run([VALID, row, VALID], fabrics)
    assert status == 1
    assert np.isnan(time_s).tolist() == [False, True, False]
    assert algorithm[1] == NO_ALGORITHM
    assert time_s[0] == time_s[2] == time_of(*VALID[:4], SWITCH)
    op, size, n, local, index = row
    with pytest.raises(ValueError, match="collective 0 has no valid time: op"):
        collective_time_columns(op, size, n, local, index, fabrics)


def test_an_isolated_domain_needs_no_adapter():
    fabric = SWITCH | {"nic_bytes_per_s": 0.0}
    assert time_of(ALL_REDUCE, 1e6, 8, 8, fabric) == time_of(ALL_REDUCE, 1e6, 8, 8, SWITCH)


def test_no_rows():
    time_s, algorithm = collective_time_columns([], [], [], [], 0, record(SWITCH))
    assert time_s.size == algorithm.size == 0


def test_algorithm_mask():
    assert algorithm_mask("ring", "pairwise") == 1 << RING | 1 << PAIRWISE
    assert algorithm_mask() == ANY_ALGORITHM
    with pytest.raises(ValueError, match="unknown algorithm rings; known: ring, tree"):
        algorithm_mask("rings")


def test_codes_follow_names():
    for names in (OPERATIONS, ALGORITHMS):
        for code, name in enumerate(names):
            assert getattr(collective_algorithms, name.upper()) == code
    assert tuple(f.__name__ for f in reference.ALGORITHMS) == ALGORITHMS
    assert get_args(CollectiveAlgorithm) == ALGORITHMS


@pytest.mark.parametrize("op", range(len(OPERATIONS)))
def test_an_unknown_algorithm_is_never_replaced_by_another(op):
    n = 2 if op == SEND_RECV else 8
    for mask in (1 << len(ALGORITHMS), 1 << len(ALGORITHMS) | 1 << RING, -1):
        fabric = SWITCH | {"algorithms": mask}
        status, (time_s,), (algorithm,) = run([(op, 1e6, n, n, 0)], record(fabric))
        assert (status, algorithm) == (1, NO_ALGORITHM)
        assert np.isnan(time_s)
        assert reference.collective_time(OPERATIONS[op], 1e6, n, n, fabric) is None


def test_kernels_and_python_agree_without_jit():
    rng = np.random.default_rng(0)
    op = rng.integers(0, SEND_RECV, 200)
    size = 2.0 ** rng.uniform(0, 40, 200)
    local = 2 ** rng.integers(0, 4, 200)
    n = local * rng.integers(2, 9, 200)
    fabric = rng.integers(0, 2, 200)
    fabrics = record(SWITCH, MESH | {"algorithms": LIBRARY_ALGORITHMS})
    compiled, interpreted = (
        (np.empty(200), np.empty(200, np.int64)),
        (
            np.empty(200),
            np.empty(200, np.int64),
        ),
    )
    python = getattr(collective_times, "py_func", collective_times)
    span = np.zeros(200, np.int64)
    assert collective_times(op, size, n, local, span, fabric, fabrics, *compiled) == 0
    assert python(op, size, n, local, span, fabric, fabrics, *interpreted) == 0
    for a, b in zip(compiled, interpreted, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(("local", "names"), [(8, {"ring"}), (1, {"ring", "pat"})])
def test_libraries_gather_between_domains_in_a_ring(local, names):
    """Exchanges with far partners are not NCCL's; one rank a node may have aggregated trees."""
    have = algorithm_mask("ring", "tree", "direct", "pat")
    fabric = SWITCH | {"network_algorithms": have}
    for size in (1e5, 1e8, 1e10):
        times_s = {name: time_of(ALL_GATHER, size, 512, local, SWITCH, name) for name in names}
        chosen_s = time_of(ALL_GATHER, size, 512, local, fabric)
        assert chosen_s == min(times_s.values())
        # A name that is asked for is taken all the same.
        asked = fabric | {"algorithms": algorithm_mask("hierarchical")}
        expected_s = time_of(ALL_GATHER, size, 512, 8, SWITCH, "hierarchical")
        assert time_of(ALL_GATHER, size, 512, 8, asked) == expected_s
