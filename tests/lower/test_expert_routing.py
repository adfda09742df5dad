import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from projector.lower.workload_columns import expected_parts
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
