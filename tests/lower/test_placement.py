"""Places of groups, against the lists of ranks that Megatron's RankGenerator makes."""

from itertools import product

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from projector.kernels.spans import span_of
from projector.lower.placement import (
    DEGREES,
    ORDERS,
    Blocks,
    Runs,
    one_run,
    parts,
    place,
    place_pairs,
    spread,
    strides,
    two_runs,
)
from thoroughness import examples


def rank_lists(order, sizes, names):
    """Return the groups of ``names``: ranks that agree in every other degree, ascending."""
    ordered = order.split("-")
    digits = {}
    for rank in range(int(np.prod([sizes[name] for name in ordered]))):
        rest, of_rank = rank, {}
        for name in ordered:
            rest, of_rank[name] = divmod(rest, sizes[name])
        key = tuple(of_rank[name] for name in ordered if name not in names)
        digits.setdefault(key, []).append(rank)
    return list(digits.values())


def worst(groups, block):
    """Return most, least and blocks of the group that blocks serve worst."""
    found = []
    for group in groups:
        counts = np.unique(np.array(group) // block, return_counts=True)[1]
        found.append((-len(counts), min(counts), -max(counts)))
    blocks, least, most = min(found)
    return -most, least, -blocks


def column(value):
    return np.array([value], np.int64)


def runs_of(order, sizes, names):
    apart = strides(column(ORDERS.index(order)), {name: column(sizes[name]) for name in DEGREES})
    degrees = [(column(sizes[name]), apart[name]) for name in names]
    return one_run(*degrees[0]) if len(degrees) == 1 else two_runs(*degrees)


degrees = st.fixed_dictionaries({name: st.sampled_from([1, 2, 3, 4, 5, 8]) for name in DEGREES})
GROUPS = (("tp",), ("cp",), ("ep",), ("dp",), ("pp",), ("dp", "cp"))


@settings(max_examples=examples(300))
@given(
    order=st.sampled_from(ORDERS),
    sizes=degrees,
    names=st.sampled_from(GROUPS),
    block=st.integers(1, 80),
)
@example("tp-cp-ep-pp-dp", {"tp": 2, "cp": 2, "ep": 1, "dp": 3, "pp": 2}, ("dp", "cp"), 8)
@example("tp-dp-ep-cp-pp", {"tp": 3, "cp": 4, "ep": 1, "dp": 5, "pp": 2}, ("dp", "cp"), 8)
@example(ORDERS[0], {"tp": 3, "cp": 1, "ep": 1, "dp": 8, "pp": 1}, ("tp",), 8)
@example(ORDERS[0], {"tp": 1, "cp": 1, "ep": 1, "dp": 3, "pp": 1}, ("dp",), 2)
def test_spread_is_that_of_the_listed_ranks(order, sizes, names, block):
    world = int(np.prod([*sizes.values()]))
    groups = rank_lists(order, sizes, names)
    found = spread(runs_of(order, sizes, names), column(block), column(world))
    wanted = worst(groups, block)
    assert tuple(int(each[0]) for each in found[:3]) == wanted


@given(order=st.sampled_from(ORDERS), sizes=degrees, names=st.sampled_from(GROUPS))
def test_runs_are_the_listed_ranks(order, sizes, names):
    runs = Runs(*(int(each[0]) for each in runs_of(order, sizes, names)))
    first = [
        inner * runs.stride + outer * runs.outer_stride
        for outer, inner in product(range(runs.outer_size), range(runs.size))
    ]
    assert first == rank_lists(order, sizes, names)[0]


@given(
    order=st.sampled_from(ORDERS),
    sizes=st.fixed_dictionaries({name: st.sampled_from([1, 2, 4, 8]) for name in DEGREES}),
    log_part=st.integers(0, 6),
)
def test_parts_are_neighbours_of_the_group(order, sizes, log_part):
    group = rank_lists(order, sizes, ("dp", "cp"))[0]
    ranks = min(len(group), 1 << log_part)
    part, across = parts(runs_of(order, sizes, ("dp", "cp")), column(ranks))
    for runs, listed in ((part, group[:ranks]), (across, group[::ranks])):
        size, stride, outer_size, outer_stride = (int(each[0]) for each in runs)
        found = [
            inner * stride + outer * outer_stride
            for outer, inner in product(range(outer_size), range(size))
        ]
        assert found == listed


@given(
    size=st.sampled_from([96, 1000, 4096]),
    stride=st.sampled_from([1, 3, 6]),
    groups=st.integers(1, 3),
    block=st.sampled_from([8, 18, 72]),
)
@settings(max_examples=examples(40))
def test_long_runs_are_counted_by_their_ends(size, stride, groups, block):
    world = size * stride * groups
    listed = [
        [begin + rank * stride for rank in range(size)]
        for start in range(groups)
        for begin in range(start * size * stride, start * size * stride + stride)
    ]
    found = spread(one_run(column(size), column(stride)), column(block), column(world))
    assert tuple(int(each[0]) for each in found[:3]) == worst(listed, block)


@pytest.mark.parametrize(
    ("names", "local", "pod_domains", "zone_domains"),
    [(("tp",), 8, 0, 0), (("dp", "cp"), 1, 4, 8), (("pp",), 1, 1, 1)],
)
def test_tiers_hold_domains(names, local, pod_domains, zone_domains):
    sizes = {"tp": 8, "cp": 2, "ep": 1, "dp": 8, "pp": 4}
    blocks = Blocks(column(8), column(32), column(64), column(512))
    found = place(runs_of("tp-cp-ep-dp-pp", sizes, names), blocks)
    assert int(found.local[0]) == local
    span = span_of(int(found.span[0]), int(found.ranks[0]), local)
    assert (span.pod_domains, span.zone_domains) == (pod_domains, zone_domains)
    assert not span.strays


@given(
    order=st.sampled_from(ORDERS),
    sizes=st.fixed_dictionaries(
        {name: st.sampled_from([1, 2, 3, 4]) for name in DEGREES if name != "pp"}
        | {"pp": st.sampled_from([2, 3, 4])}
    ),
    block=st.integers(1, 40),
    data=st.data(),
)
def test_pairs_of_pipeline_ranks_are_those_of_the_listed_ranks(order, sizes, block, data):
    pp, world = sizes["pp"], int(np.prod([*sizes.values()]))
    rank, other = data.draw(st.permutations(range(pp)))[:2]
    apart = strides(column(ORDERS.index(order)), {name: column(sizes[name]) for name in DEGREES})
    blocks = Blocks(column(min(block, world)), column(0), column(0), column(world))
    found = place_pairs(column(rank), column(other), apart["pp"], column(pp), blocks)
    pairs = [(group[rank], group[other]) for group in rank_lists(order, sizes, ("pp",))]
    leaves = any(one // block != two // block for one, two in pairs)
    rows = world // int(apart["pp"][0] * pp)
    if leaves or rows == 1 or rows >= block:
        assert int(found.local[0]) == (1 if leaves else 2)


def test_few_of_a_pod_send_beyond_it():
    sizes = {"tp": 8, "cp": 1, "ep": 1, "dp": 2, "pp": 8}
    apart = strides(column(0), {name: column(size) for name, size in sizes.items()})
    blocks = Blocks(column(8), column(64), column(0), column(128))
    for rank, domains in ((0, 0), (3, 4)):
        pair = place_pairs(column(rank), column(rank + 1), apart["pp"], column(8), blocks)
        assert span_of(int(pair.span[0]), 2, 1).pod_domains == domains


def test_a_group_that_domains_cut_strays_over_rails():
    sizes = {"tp": 3, "cp": 1, "ep": 1, "dp": 16, "pp": 1}
    none = column(0)
    found = place(runs_of(ORDERS[0], sizes, ("dp",)), Blocks(column(8), none, none, column(48)))
    assert span_of(int(found.span[0]), 16, int(found.local[0])).strays


def test_size_does_not_decide_the_work():
    world = 131_072
    for size, stride in ((world // 8, 8), (world // 24, 24), (world // 6, 3)):
        found = spread(one_run(column(size), column(stride)), column(72), column(world))
        assert int(found.blocks[0]) <= size
