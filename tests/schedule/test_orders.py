"""Every order is legal, and is the one that the framework runs."""

import numpy as np
import pytest

from projector.errors import ScheduleError
from projector.schedule import registry
from projector.schedule.order import Order, check_order
from projector.schedule.planning.costs import uniform_costs
from projector.schedule.replay.order_times import compile_line, peak_in_flight
from reference import pipeline as reference


@pytest.mark.rotated
@pytest.mark.parametrize("pp", range(1, 17))
@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zerobubble", "zerobubble-h2"])
def test_one_chunk_orders_are_legal(name, pp):
    for microbatches in range(1, 4 * pp + 1):
        check_order(registry.SCHEDULES[name].order(pp, 1, microbatches))


@pytest.mark.rotated
@pytest.mark.parametrize("pp", range(2, 13))
@pytest.mark.parametrize(
    ("name", "vpp"),
    [
        ("zbv-formatted", 2),
        ("zbv-greedy-min", 2),
        ("zbv-greedy-half", 2),
        ("zbv-greedy-zb", 2),
        ("seaailab", 1),
    ],
)
def test_v_and_planned_orders_are_legal_and_keep_their_memory(name, vpp, pp):
    third, half = -(-(pp + 2) // 3), -(-pp // 2) + 1
    limit = {"zbv-greedy-min": third, "zbv-greedy-half": half}.get(name, pp)
    every = range(1, 4 * pp + 1) if pp <= 4 else (1, 2, pp - 1, pp, 2 * pp - 1, 2 * pp, 3 * pp + 1)
    for microbatches in every:
        order = registry.build(name, pp, vpp, microbatches)
        check_order(order)
        if name != "seaailab":  # which is planned with unlimited memory here
            assert peak_in_flight(order).max() <= 2 * limit


@pytest.mark.parametrize("pp", range(2, 17, 2))
def test_dualpipe_orders_are_legal(pp):
    for microbatches in range(2 * pp, 4 * pp + 1, 2):
        order = registry.build("dualpipe", pp, 1, microbatches)
        check_order(order)
        assert (order.directions, order.num_stages) == (2, pp)
        # DeepSeek-V3, table 2: the activations of pp + 1 microbatches.
        assert peak_in_flight(order).max() == pp + 1


def test_dualpipe_follows_the_published_phases():
    # One middle rank of four with eight microbatches, as the implementation's loops run.
    order = registry.build("dualpipe", 4, 1, 8)
    tasks = reference.tasks_of(order)[1]
    ahead = [("F", 0, 0), ("F", 1, 0), ("F", 0, 1), ("F", 1, 1)]
    main = []
    for step in range(2):
        main += [("F", 0, step + 2), ("B", 1, step), ("W", 1, step)]
        main += [("F", 1, step + 2), ("B", 0, step), ("W", 0, step)]
    drain = [("B", 1, 2), ("W", 1, 2), ("B", 0, 2), ("W", 0, 2)]
    late = [("B", 1, 3), ("B", 0, 3), ("W", 1, 3), ("W", 0, 3)]
    assert tasks == ahead + main + drain + late


@pytest.mark.parametrize("pp", range(2, 10))
def test_1f1b_in_a_v_follows_its_building_block(pp):
    for microbatches in (1, 2, 3, pp, pp + 1, 2 * pp - 1, 2 * pp, 3 * pp):
        order = registry.build("1f1b-v", pp, 2, microbatches)
        check_order(order)
        expected = reference.one_forward_one_backward_v(pp, microbatches)
        assert reference.tasks_of(order) == expected, microbatches


@pytest.mark.parametrize("pp", [*range(2, 17), 33, 64])
def test_1f1b_in_a_v_holds_two_thirds_of_1f1b(pp):
    order = registry.build("1f1b-v", pp, 2, 3 * pp)
    assert peak_in_flight(order).max() == 2 * (2 * pp // 3 + 1)


def test_v_shape_puts_the_last_stage_beside_the_first():
    order = registry.build("zbv-formatted", 4, 2, 8)
    assert order.stage_of.tolist() == [[0, 7], [1, 6], [2, 5], [3, 4]]


def test_many_ranks_use_the_blocks_of_few():
    check_order(registry.build("zbv-greedy-half", 24, 2, 30))


def test_blocks_that_do_not_fit_repeat_less_often():
    costs = uniform_costs(6, 12, limit=2.0)  # one microbatch at a time
    order = registry.build("zbv-greedy-half", 6, 2, 4, costs)
    check_order(order)
    assert peak_in_flight(order).max() == 2


@pytest.mark.parametrize(
    ("name", "pp", "vpp", "microbatches", "key"),
    [
        ("zbv-formatted", 4, 1, 8, "vpp"),
        ("zbv-greedy-min", 1, 2, 8, "pp"),
        ("dualpipe", 3, 1, 8, "pp"),
        ("dualpipe", 4, 2, 8, "vpp"),
        ("dualpipe", 4, 1, 6, "microbatches"),
        ("dualpipe", 4, 1, 9, "microbatches"),
        ("seaailab", 4, 2, 8, "vpp"),
    ],
)
def test_what_a_schedule_refuses(name, pp, vpp, microbatches, key):
    with pytest.raises(ScheduleError, match=name) as caught:
        registry.build(name, pp, vpp, microbatches)
    assert caught.value.key == key
    assert caught.value.allowed


@pytest.mark.parametrize("pp", range(2, 17))
def test_interleaved_orders_are_legal(pp):
    for vpp in (2, 3, 5):
        for groups in range(1, 5):
            check_order(registry.build("interleaved", pp, vpp, groups * pp))


@pytest.mark.parametrize(
    ("name", "pp", "vpp", "microbatches"),
    [
        ("1f1b", 32, 1, 100),
        ("gpipe", 32, 1, 64),
        ("interleaved", 32, 4, 64),
        ("zerobubble", 32, 1, 100),
        ("zerobubble-h2", 32, 1, 100),
    ],
)
def test_large_orders_are_legal(name, pp, vpp, microbatches):
    order = registry.build(name, pp, vpp, microbatches)
    check_order(order)
    assert len(order.kind) == (2 + order.splits_backward) * pp * vpp * microbatches


def test_many_stages_do_not_leave_the_code_of_a_kind():
    # 64 stages and more: a code of one byte must not be multiplied as one.
    compile_line(registry.build("1f1b", 130, 1, 2))


@pytest.mark.parametrize("pp", [1, 2, 3, 8])
def test_one_forward_one_backward_follows_the_rule(pp):
    for microbatches in (1, pp - 1, pp, pp + 1, 3 * pp):
        if microbatches:
            order = registry.build("1f1b", pp, 1, microbatches)
            assert reference.tasks_of(order) == reference.one_forward_one_backward(pp, microbatches)


@pytest.mark.parametrize("pp", [2, 3, 4, 8])
@pytest.mark.parametrize("vpp", [2, 3, 4])
def test_interleaved_follows_megatron(pp, vpp):
    for microbatches in (pp, 2 * pp, 4 * pp):
        order = registry.build("interleaved", pp, vpp, microbatches)
        assert reference.tasks_of(order) == reference.interleaved(pp, vpp, microbatches)
        assert order.stage_of.tolist() == [
            [chunk * pp + rank for chunk in range(vpp)] for rank in range(pp)
        ]


def reference_zero_bubble(pp, microbatches, twice):
    """Operations of each rank: W where too many wait, else F up to the limit, else B."""
    second = max(0, min(microbatches - pp, pp - 1)) if twice else 0
    ranks = []
    for rank in range(pp):
        ahead = pp - 1 - rank + min(pp - 1 - rank, second)
        room = rank + min(rank, second)
        done = {"F": 0, "B": 0, "W": 0}
        tasks = []
        while done["W"] < microbatches:
            if done["B"] - done["W"] > room or done["B"] == microbatches:
                kind = "W"
            elif done["F"] < microbatches and done["F"] - done["B"] <= ahead:
                kind = "F"
            else:
                kind = "B"
            tasks.append((kind, 0, done[kind]))
            done[kind] += 1
        ranks.append(tasks)
    return ranks


@pytest.mark.parametrize("pp", [1, 2, 3, 8])
@pytest.mark.parametrize("twice", [False, True])
def test_zero_bubble_follows_the_rule(pp, twice):
    for microbatches in (1, pp, pp + 1, 2 * pp - 1, 2 * pp, 4 * pp):
        order = registry.build("zerobubble-h2" if twice else "zerobubble", pp, 1, microbatches)
        assert order.splits_backward
        assert reference.tasks_of(order) == reference_zero_bubble(pp, microbatches, twice)


@pytest.mark.parametrize("microbatches", [1, 3, 8, 20])
def test_peak_in_flight_of_one_chunk(microbatches):
    pp = 8
    one, all_at_once = (
        peak_in_flight(registry.build(name, pp, 1, microbatches)) for name in ("1f1b", "gpipe")
    )
    assert one.tolist() == [min(microbatches, pp - rank) for rank in range(pp)]
    assert all_at_once.tolist() == [microbatches] * pp


@pytest.mark.parametrize("pp", range(1, 17))
def test_peak_in_flight_of_zero_bubble(pp):
    # arXiv:2401.10241, section 2: the memory of 1F1B, and of 2 pp - 1 microbatches; until W.
    for microbatches in range(1, 4 * pp + 1):
        for name, most in (("zerobubble", pp), ("zerobubble-h2", 2 * pp - 1)):
            peak = peak_in_flight(registry.build(name, pp, 1, microbatches))
            assert peak.tolist() == [min(microbatches, most)] * pp


@pytest.mark.parametrize(("pp", "vpp"), [(2, 2), (4, 2), (4, 5), (8, 3)])
def test_peak_in_flight_of_interleaved(pp, vpp):
    for microbatches in (pp, 4 * pp):
        peak = peak_in_flight(registry.build("interleaved", pp, vpp, microbatches))
        assert peak.tolist() == [
            min((pp - rank - 1) * 2 + (vpp - 1) * pp + 1, vpp * microbatches) for rank in range(pp)
        ]


def test_interleaved_groups():
    check_order(registry.build("interleaved", 4, 2, 8, group_size=8))
    # A rest of at least pp microbatches makes a group of its own, as in Megatron.
    order = registry.build("interleaved", 4, 2, 21, group_size=8)
    check_order(order)
    first = [task for task in reference.tasks_of(order)[0] if task[0] == "F"]
    assert [chunk for _, chunk, _ in first[:17]] == [0] * 8 + [1] * 8 + [0]
    for group, microbatches in ((3, 8), (12, 8), (8, 10)):
        with pytest.raises(ScheduleError, match="microbatch group") as caught:
            registry.build("interleaved", 4, 2, microbatches, group_size=group)
        assert caught.value.key == "group_size"
    assert registry.build("1f1b", 4, 1, 8, group_size=8) is registry.build("1f1b", 4, 1, 8)
    with pytest.raises(ScheduleError, match="group_size must be"):
        registry.build("interleaved", 4, 2, 8, group_size=0)


def test_orders_are_shared_and_read_only():
    order = registry.build("1f1b", 4, 1, 8)
    assert order is registry.build("auto", 4, 1, np.int64(8))
    for column in (order.rank_offset, order.kind, order.chunk, order.microbatch, order.stage_of):
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 0
    assert repr(order) == (
        "Order(pp=4, vpp=1, microbatches=8, operations=64, splits_backward=False)"
    )


def broken(**changes):
    columns = {
        "microbatches": 1,
        "rank_offset": [0, 2, 4],
        "kind": [0, 1, 0, 1],
        "chunk": [0] * 4,
        "microbatch": [0] * 4,
        "stage_of": [[0], [1]],
    }
    return Order(**{**columns, **changes})


def test_the_order_that_is_broken_below_is_legal():
    check_order(broken())


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"rank_offset": [0, 4]}, "columns"),
        ({"rank_offset": [0, 5, 4]}, "columns"),
        ({"chunk": [0] * 3}, "columns"),
        ({"stage_of": [[0], [2]]}, "placement"),
        ({"stage_of": [[0], [0]]}, "placement"),
        ({"kind": [0, 2, 0, 1]}, "does not exist"),
        ({"chunk": [0, 1, 0, 0]}, "does not exist"),
        ({"microbatch": [0, -1, 0, 0]}, "does not exist"),
        ({"kind": [0, 0, 0, 1]}, "F of virtual stage 0 and microbatch 0 stands 2 times"),
        ({"microbatches": 2}, "stands 0 times"),
        ({"splits_backward": True}, "W of virtual stage 0 and microbatch 0 stands 0 times"),
        ({"kind": [0, 1, 1, 0]}, "rank 0 waits for ever before B of virtual stage 0"),
        ({"kind": [1, 0, 0, 1]}, "rank 0 waits for ever before B"),
    ],
)
def test_broken_orders_are_refused(changes, match):
    with pytest.raises(ScheduleError, match=match):
        check_order(broken(**changes))


def test_weight_gradient_before_its_backward_is_refused():
    columns = {"microbatches": 1, "chunk": [0] * 3, "microbatch": [0] * 3, "stage_of": [[0]]}
    good = Order(rank_offset=[0, 3], kind=[0, 1, 2], splits_backward=True, **columns)
    check_order(good)
    bad = Order(rank_offset=[0, 3], kind=[0, 2, 1], splits_backward=True, **columns)
    with pytest.raises(ScheduleError, match="before W"):
        check_order(bad)
