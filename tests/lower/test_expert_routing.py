import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from projector.config.load import load_job
from projector.lower.cluster_columns import LOAD_ONE
from projector.lower.workload_columns import expected_parts, kept_loads, kept_parts
from projector.projection.api import project_performance
from reference import moe_exchange as reference


@pytest.mark.parametrize(
    ("parts", "experts", "topk", "groups", "group_topk"),
    [
        (2, 8, 2, 0, 0),
        (4, 8, 3, 0, 0),
        (8, 8, 2, 0, 0),
        (4, 12, 4, 0, 0),
        (4, 12, 4, 4, 2),
        (4, 16, 3, 8, 3),
        (2, 16, 4, 8, 2),
        (8, 16, 3, 4, 2),
        (16, 16, 4, 4, 2),
        (4, 16, 4, 4, 4),
    ],
)
def test_is_the_mean_over_all_choices(parts, experts, topk, groups, group_topk):
    expected = reference.expected_parts(parts, experts, topk, groups, group_topk)
    found = expected_parts(float(parts), experts, topk, groups, group_topk)
    assert found == pytest.approx(expected, rel=1e-12)


@given(
    doublings=st.integers(0, 6),
    blocks=st.integers(1, 8),
    topk=st.integers(1, 16),
    groups=st.sampled_from([0, 4, 8]),
    group_topk=st.integers(0, 8),
)
def test_bounds(doublings, blocks, topk, groups, group_topk):
    parts, experts = 2.0**doublings, 64 * blocks
    # A model with fewer experts in the groups of a token than it picks is refused.
    assume(not (groups and group_topk) or topk * groups <= group_topk * experts)
    reached = expected_parts(parts, experts, topk, groups, group_topk)
    assert 1.0 - 1e-9 <= reached <= min(parts, topk) * (1 + 1e-9)
    assert reached <= expected_parts(parts, experts, topk) * (1 + 1e-9)
    # A part more cannot be reached by fewer.
    more = min(2 * parts, float(experts))
    assert reached <= expected_parts(more, experts, topk, groups, group_topk) * (1 + 1e-9)


def test_fractions_of_parts_lie_between_whole_ones():
    """12 ranks over domains of 8 are one and a half domains."""
    one, more, two = (expected_parts(parts, 96, 4) for parts in (1.0, 1.5, 2.0))
    assert one < more < two
    assert expected_parts(1.5, 96, 4, 8, 2) <= more


def test_deepseek_v3_visits_fewer_nodes_with_groups():
    """256 experts on 8 nodes, top-8 of 4 groups of 8: 3.6 nodes instead of 5.3."""
    free = expected_parts(8.0, 256, 8)
    limited = expected_parts(8.0, 256, 8, 8, 4)
    assert free == pytest.approx(8 * (1 - (7 / 8) ** 8), rel=0.01)
    assert limited == pytest.approx(4 * (1 - (3 / 4) ** 8), rel=0.01)
    # 64 ranks: a token reaches one rank for nearly each expert.
    assert 7.0 < expected_parts(64.0, 256, 8, 8, 4) < expected_parts(64.0, 256, 8) < 8.0


def test_one_part_holds_everything():
    assert expected_parts(1.0, 256, 8) == 1.0
    assert expected_parts(8.0, 8, 8) == 8.0


def dealt(loads, capacity, *, padded):
    """Tokens of each expert of ``loads``, one by one: those beyond its capacity find no place."""
    kept = []
    for tokens in loads:
        of_expert = 0
        for _ in range(tokens):
            of_expert += capacity is None or of_expert < capacity
        kept.append(capacity if padded else of_expert)
    return kept


@given(
    loads=st.lists(st.integers(1, 60), min_size=8, max_size=8),
    ep=st.sampled_from([1, 2, 4, 8]),
    capacity=st.one_of(st.none(), st.integers(1, 80)),
    padded=st.booleans(),
)
def test_capacity_deals_tokens_one_by_one(loads, ep, capacity, padded):
    padded = padded and capacity is not None
    balanced = sum(loads) / len(loads)
    kept = dealt(loads, capacity, padded=padded)
    fullest = sum(kept[::ep]) * ep / len(loads) / balanced
    mean = sum(kept) / len(loads) / balanced
    share = (capacity or 0) / balanced
    found = kept_loads(np.array(loads, float), ep, share, padded=padded)
    assert found == pytest.approx((fullest, mean), rel=1e-12)


@pytest.mark.parametrize("kept", [0.25, 0.5, 0.9, 1.0, 1.5])
def test_parts_of_what_is_kept_follow_every_choice(kept):
    """A share of the picks, each as likely to be left out: the mean over all choices of them."""
    parts, experts, topk = 4, 12, 4
    picked = kept * topk
    fewer, more = int(picked), min(int(picked) + 1, experts)
    each = [reference.expected_parts(parts, experts, n) if n else 0.0 for n in (fewer, more)]
    expected = each[0] + (picked - fewer) * (each[1] - each[0])
    found = kept_parts(float(parts), experts, round(kept * LOAD_ONE), topk)
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("dispatcher", ["alltoall", "deepep", "hybridep", "allgather"])
def test_capacity_changes_time_for_every_dispatcher(dispatcher):
    def seconds(capacity, *, waits=True, load="balanced"):
        moe = {"dispatcher": dispatcher, "host_sync": waits, "load": load}
        job = {
            "model": "mixtral_8x7b",
            "parallelism": {"ep": 8, "sequence_parallel": False},
            "training": {
                "micro_batch_size": 2, "global_batch_size": 64, "seq_length": 4096,
                "moe": {**moe, "capacity_factor": capacity} if capacity else moe,
            },
            "cluster": {"device": "h100", "nodes": 2, "gpus_per_node": 8},
        }  # fmt: skip
        found = project_performance(load_job(job)).breakdown_s
        return np.array([found["ep_comm"], found["compute_gemm"]])

    free = seconds(None)
    assert seconds(1.0) == pytest.approx(free)
    dropped, padded = seconds(0.5), seconds(1.5, waits=False)
    exchanged = dispatcher != "allgather"
    assert (dropped < free)[1]
    assert (padded > seconds(None, waits=False))[1]
    # Gathering everything does not depend on what experts keep of it.
    assert ((dropped < free)[0], (padded > free)[0]) == (exchanged, exchanged)
    uneven = seconds(None, load="zipf")
    assert np.all(seconds(1.2, load="zipf")[1] < uneven[1])
    assert seconds(1.2, load="zipf", waits=False) == pytest.approx(seconds(1.2, waits=False))
