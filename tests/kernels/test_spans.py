"""Groups that lie unevenly, in several pods or zones, against the plain walk over their domains."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.test_collectives import SWITCH, fabric_dicts, record, sizes
from projector.kernels.collective_algorithms import (
    ALGORITHMS,
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    OPERATIONS,
    SEND_RECV,
)
from projector.kernels.collectives import algorithm_mask, collective_time_columns
from projector.kernels.spans import span_codes, span_of
from reference import collectives as reference


@st.composite
def layouts(draw):
    """Return the sizes of domains, how many lie in a pod and in a zone, and whether they stray."""
    most = draw(st.integers(1, 8))
    more = draw(st.lists(st.integers(1, most), min_size=1, max_size=12))
    sizes = [most, *([most] * len(more) if draw(st.booleans()) else more)]
    pod = draw(st.integers(0, len(sizes) - 1))
    zones = [0, *(pod * each for each in (1, 2, 3) if pod and pod * each < len(sizes))]
    return {
        "sizes": sizes,
        "pod": pod,
        "zone": draw(st.sampled_from(zones)),
        "strays": draw(st.booleans()),
    }


def code_of(layout):
    members = layout["sizes"]
    return span_codes(
        sum(members),
        max(members),
        domains=len(members),
        least=min(members),
        pod_domains=layout["pod"],
        zone_domains=layout["zone"],
        strays=layout["strays"],
    )


def time_of(op, size, layout, fabric, *algorithms):
    if algorithms:
        fabric = fabric | {"algorithms": algorithm_mask(*algorithms)}
    members = layout["sizes"]
    return collective_time_columns(
        op, size, sum(members), max(members), 0, record(fabric), code_of(layout)
    )[0][0]


def even(domains, local, **tiers):
    return {"sizes": [local] * domains, "pod": 0, "zone": 0, "strays": False} | tiers


@given(layout=layouts())
def test_a_code_holds_the_layout(layout):
    members = layout["sizes"]
    span = span_of(int(code_of(layout)), sum(members), max(members))
    assert span.domains == len(members)
    assert span.least == min(members)
    assert (span.pod_domains, span.zone_domains) == (layout["pod"], layout["zone"])
    assert span.strays == layout["strays"]


@given(n=st.integers(1, 5000), local=st.integers(1, 72))
def test_filling_domains_in_order_is_code_0(n, local):
    local = min(n, local)
    domains = -(-n // local)
    rest = n - local * (domains - 1)
    assert span_codes(n, local, domains=domains, least=rest) == 0


@given(
    op=st.integers(0, len(OPERATIONS) - 1).filter(lambda op: op != SEND_RECV),
    size=sizes,
    layout=layouts(),
    fabric=fabric_dicts,
    code=st.integers(0, len(ALGORITHMS) - 1),
)
def test_each_algorithm_matches_reference(op, size, layout, fabric, code):
    fabric = fabric | {"algorithms": 1 << code}
    n, local = sum(layout["sizes"]), max(layout["sizes"])
    expected = reference.collective_time(
        OPERATIONS[op], size, n, local, fabric | {"layout": layout}
    )
    assert time_of(op, size, layout, fabric) == pytest.approx(expected, rel=1e-12, abs=0)


@given(size=sizes, pod=st.integers(0, 9), zone=st.integers(0, 9), fabric=fabric_dicts)
def test_a_message_between_two_ranks_matches_reference(size, pod, zone, fabric):
    layout = {"sizes": [1, 1], "pod": pod, "zone": zone if pod else 0, "strays": False}
    expected = reference.collective_time("send_recv", size, 2, 1, fabric | {"layout": layout})
    assert time_of(SEND_RECV, size, layout, fabric) == pytest.approx(expected, rel=1e-12, abs=0)


def test_a_chain_needs_uplinks_for_one_domain_of_each_pod():
    fabric = SWITCH | {"pod_oversubscription": 4.0}
    plain = time_of(ALL_REDUCE, 1e12, even(16, 8), fabric, "ring")
    for domains, slower in ((8, 1.0), (4, 1.0), (2, 2.0), (1, 4.0)):
        tapered = time_of(ALL_REDUCE, 1e12, even(16, 8, pod=domains), fabric, "ring")
        assert tapered == pytest.approx(slower * plain, rel=1e-4)


def test_an_exchange_needs_uplinks_for_all_that_leaves_the_pod():
    fabric = SWITCH | {"pod_oversubscription": 4.0}
    plain = time_of(ALL_TO_ALL, 1e12, even(16, 8), fabric)
    tapered = time_of(ALL_TO_ALL, 1e12, even(16, 8, pod=8), fabric)
    # Half of the ranks are in another pod, at a quarter of the rate; before, 15 of 16 nodes.
    assert tapered / plain == pytest.approx(4.0 * (64 / 128) / (120 / 128), rel=1e-3)


def test_the_emptiest_domain_has_the_fewest_adapters():
    full = time_of(ALL_GATHER, 1e12, even(2, 8), SWITCH, "ring")
    layout = {**even(2, 8), "sizes": [8, 2]}
    uneven = time_of(ALL_GATHER, 1e12, layout, SWITCH, "ring")
    assert uneven / full == pytest.approx(4.0 * (9 / 10) / (15 / 16), rel=1e-4)


def test_rails_save_the_spine_unless_members_stray():
    fabric = SWITCH | {"spine_latency_s": 1e-3}
    on_rails = time_of(ALL_GATHER, 8.0, even(4, 1), fabric, "ring")
    strayed = time_of(ALL_GATHER, 8.0, even(4, 1, strays=True), fabric, "ring")
    in_plain_tree = time_of(ALL_GATHER, 8.0, even(4, 1), fabric | {"plain_tree": 1}, "ring")
    assert strayed == in_plain_tree == pytest.approx(on_rails + 3e-3)


def test_forwarding_loads_the_links_of_the_domain():
    slow_links = SWITCH | {"scale_up_bytes_per_s": 10e9, "peer_bytes_per_s": 10e9}
    there, alone = (
        time_of(ALL_TO_ALL, 1e12, even(4, 8), slow_links | {"forwards": flag}) for flag in (1, 0)
    )
    # 7 of 32 blocks stay in the node; of the other 24 only one in eight is on its rail already.
    assert there / alone == pytest.approx((7 + 24 * 7 / 8) / 7, rel=1e-3)


def test_what_is_no_span_is_refused():
    for code in (-1, int(span_codes(8, 8, domains=9, least=1))):
        with pytest.raises(ValueError, match="span"):
            collective_time_columns(ALL_REDUCE, 1.0, 8, 8, 0, record(SWITCH), code)


def test_what_exceeds_its_bits_is_kept_as_the_most():
    span = span_of(int(span_codes(1 << 30, 1, domains=1 << 30, least=1, pod_domains=1 << 29)), 4, 1)
    assert span.pod_domains == (1 << 20) - 1
    assert np.all(span_codes([4, 8], 4, domains=[1, 2], least=4) == 0)
