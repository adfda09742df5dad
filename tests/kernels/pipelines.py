"""Orders and times for tests of the replay."""

import itertools
from collections.abc import Mapping

import numba
import numpy as np

from projector.kernels.pipeline import Replays
from projector.schedule import registry
from projector.schedule.order import Order, one_forward_one_backward, round_robin_stages, v_shape
from projector.schedule.orders.forward_backward import interleaved
from projector.schedule.planning.costs import Costs


def order_from(ranks, stage_of, microbatches, splits_backward=False):
    flat = [task for tasks in ranks for task in tasks]
    return Order(
        microbatches=microbatches,
        rank_offset=np.cumsum([0, *map(len, ranks)]),
        kind=["FBW".index(kind) for kind, _, _ in flat],
        chunk=[chunk for _, chunk, _ in flat],
        microbatch=[microbatch for _, _, microbatch in flat],
        stage_of=stage_of,
        splits_backward=splits_backward,
    )


def greedy_order(pp, microbatches, seed, split=True):
    """A legal order with a V placement and W apart, drawn by running whatever is ready."""
    rng = np.random.default_rng(seed)
    stage_of = v_shape(pp)
    last = 2 * pp - 1
    done, ranks = set(), [[] for _ in range(pp)]
    waiting = [
        {(k, c, m) for k in ("FBW" if split else "FB") for c in (0, 1) for m in range(microbatches)}
        for _ in range(pp)
    ]

    def ready(rank, kind, chunk, m):
        stage = stage_of[rank, chunk]
        if kind == "F":
            return stage == 0 or ("F", stage - 1, m) in done
        if kind == "W":
            return ("B", stage, m) in done
        return ("F" if stage == last else "B", min(stage + 1, last), m) in done

    while any(waiting):
        rank = int(rng.integers(pp))
        options = sorted(task for task in waiting[rank] if ready(rank, *task))
        if options:
            task = options[int(rng.integers(len(options)))]
            waiting[rank].remove(task)
            ranks[rank].append(task)
            done.add((task[0], stage_of[rank, task[1]], task[2]))
    return order_from(ranks, stage_of, microbatches, split)


def random_costs(rng, stage_of, room=None, w_share=None):
    """Small uneven times and activations; ``room`` is how many microbatches each rank may hold."""
    stages = stage_of.size
    activation = rng.integers(1, 4, stages).astype(float)
    least = activation[stage_of].sum(axis=1)
    limit = np.full(len(stage_of), np.inf) if room is None else least * room
    durations = rng.integers(1, 9, (3, stages))
    latencies = rng.integers(0, 4, (2, stages))
    return Costs(
        *(tuple(row.tolist()) for row in (*durations, *latencies)),
        tuple(activation.tolist()),
        float(rng.choice([0.0, 0.5, 1.0]) if w_share is None else w_share),
        tuple(limit.tolist()),
    )


def planned_order(name, pp, microbatches, seed):
    """An order planned for uneven stages and ranks that may hold one to four microbatches."""
    entry = registry.SCHEDULES[name]
    vpp = entry.chunks(1)
    rng = np.random.default_rng(seed)
    costs = random_costs(rng, entry.stages(pp, vpp), rng.integers(1, 5, pp))
    return registry.build(name, pp, vpp, microbatches, costs)


def random_times(order, seed, n=1, high=50):
    """Small integers, so that ties are frequent; 0 included."""
    rng = np.random.default_rng(seed)
    durations = rng.integers(0, high, (n, order.pp, order.vpp, 3, 3))
    return durations, rng.integers(0, high // 2, (n, 2, order.pp * order.vpp))


def uniform_times(order, duration, latency=0):
    durations = np.full((order.pp, order.vpp, 3, 3), duration)
    return durations, np.full((2, order.pp * order.vpp), latency)


def repeated_order(pp, microbatches, seed, times, split=True):
    """A greedy order again and again, each time with the next microbatches."""
    once = greedy_order(pp, microbatches, seed, split)
    ranks = [
        [
            ("FBW"[once.kind[row]], once.chunk[row], once.microbatch[row] + turn * microbatches)
            for turn in range(times)
            for row in range(begin, end)
        ]
        for begin, end in itertools.pairwise(once.rank_offset)
    ]
    return order_from(ranks, once.stage_of, times * microbatches, split)


def eager_order(pp, microbatches, factor):
    """1F1B with a warm-up that many times as long, so that ranks read far back."""
    step = np.arange(microbatches)
    work = (np.zeros_like(step), step)
    warmup = factor * np.arange(pp)[::-1]
    return one_forward_one_backward(warmup, work, work, round_robin_stages(pp, 1), microbatches)


def periodic_orders():
    """Name and order of what repeats itself often enough to be jumped."""
    yield "1f1b-1", registry.build("1f1b", 1, 1, 13)
    yield "1f1b-2", registry.build("1f1b", 2, 1, 14)
    yield "eager-2", eager_order(2, 22, 4)
    yield "interleaved-2", registry.build("interleaved", 2, 2, 28)
    yield "zerobubble-2", registry.build("zerobubble", 2, 1, 16)
    yield "repeated-2", repeated_order(2, 1, 0, 13)
    yield "dualpipe-2", registry.build("dualpipe", 2, 1, 32)
    yield "zbv-formatted-2", registry.build("zbv-formatted", 2, 2, 18)
    if numba.config.DISABLE_JIT:
        return
    for pp, microbatches in ((3, 40), (4, 17), (4, 120), (5, 300), (8, 90)):
        yield f"1f1b-{pp}-{microbatches}", registry.build("1f1b", pp, 1, microbatches)
        for name in ("zerobubble", "zerobubble-h2"):
            order = registry.build(name, pp, 1, microbatches + pp)
            yield f"{name}-{pp}-{microbatches}", order
    for pp, vpp, groups in ((2, 3, 40), (3, 2, 15), (4, 4, 16), (4, 2, 60)):
        order = registry.build("interleaved", pp, vpp, pp * groups)
        yield f"interleaved-{pp}-{vpp}-{groups}", order
    for pp, microbatches in ((4, 64), (4, 250), (6, 120), (8, 200)):
        yield f"dualpipe-{pp}-{microbatches}", registry.build("dualpipe", pp, 1, microbatches)
    for pp, microbatches in ((3, 40), (4, 150), (8, 90)):
        order = registry.build("zbv-formatted", pp, 2, microbatches)
        yield f"zbv-formatted-{pp}-{microbatches}", order
    yield "interleaved-groups", interleaved(4, 2, 128, group_size=8)
    for pp, factor in ((2, 3), (3, 3), (4, 2), (4, 6)):
        yield f"eager-{pp}-{factor}", eager_order(pp, 100, factor)
    for seed in range(12):
        order = repeated_order(2 + seed % 3, 1 + seed % 4, seed, 12 + 9 * (seed % 5), seed % 2 > 0)
        yield f"repeated-{seed}", order


def other_orders():
    """Name and order of what has no period, or too few repetitions of it."""
    yield "gpipe", registry.build("gpipe", 2, 1, 3)
    yield "one microbatch", registry.build("1f1b", 3, 1, 1)
    yield "greedy", greedy_order(2, 2, 1)
    if numba.config.DISABLE_JIT:
        return
    yield "gpipe-4", registry.build("gpipe", 4, 1, 60)
    yield "1f1b-8", registry.build("1f1b", 8, 1, 5)
    yield "interleaved-4", registry.build("interleaved", 4, 3, 16)
    yield "zerobubble-4", registry.build("zerobubble", 4, 1, 9)
    yield "dualpipe-6", registry.build("dualpipe", 6, 1, 12)
    yield "zbv-formatted-4", registry.build("zbv-formatted", 4, 2, 5)
    for seed in range(12):
        pp, microbatches = 2 + seed % 3, 2 + 5 * (seed % 4)
        yield f"greedy-{seed}", greedy_order(pp, microbatches, seed, seed % 2 > 0)


class PlannedOrders(Mapping):
    """Orders that are planned, with a period or not: that depends on their times.

    Each is planned when it is asked for, which takes a second without the JIT.
    """

    def __init__(self):
        sizes = ((2, 40), (3, 7), (4, 60)) if not numba.config.DISABLE_JIT else ((2, 3),)
        self._made = {}
        self._asked = {
            f"{name}-{pp}-{microbatches}": (name, pp, microbatches, seed)
            for seed, (name, entry) in enumerate(registry.SCHEDULES.items())
            for pp, microbatches in (sizes if entry.planned else ())
        }

    def __getitem__(self, name):
        if name not in self._made:
            self._made[name] = planned_order(*self._asked[name])
        return self._made[name]

    def __iter__(self):
        return iter(self._asked)

    def __len__(self):
        return len(self._asked)


PLANNED = PlannedOrders()


def _times_of(rng, family, shape, stages):
    """Durations [n, pp, vpp, 3, 3] and latencies [n, 2, stages] of one family."""
    n = shape[0]
    latencies = rng.integers(0, 30, (n, 2, stages)) * rng.integers(0, 2, (n, 1, 1))
    each = (*shape[:-1], 1)  # the same in all three classes
    if family == "ties":
        return rng.integers(0, 4, shape), rng.integers(0, 3, (n, 2, stages))
    if family == "near ties":
        near = 1000 * rng.integers(1, 4, (n, 1, 1, 3, 1)) + rng.integers(-1, 2, each)
        return np.broadcast_to(near, shape), latencies
    if family == "equal stages":
        equal = rng.integers(1, 100, (n, 1, 1, 3, 1))
        return np.broadcast_to(equal, shape), latencies[:, :1, :1] + np.zeros_like(latencies)
    if family == "zeros":
        return rng.integers(0, 50, shape) * rng.integers(0, 2, each), latencies
    if family == "long transient":
        # One slow first microbatch, and stages that make up for it by next to nothing.
        durations = 10**6 + rng.integers(0, 2000, each) + np.zeros(shape, np.int64)
        durations[..., 0] += rng.integers(0, 10**8, shape[:-1])
        return durations, rng.integers(0, 10**5, (n, 2, stages))
    if family == "heavy ends":
        durations = rng.integers(100, 110, each) * np.array([3, 1, 2])
        durations[:, 0, 0] *= 2
        durations[:, -1, -1] *= 2
        return durations, latencies
    assert family == "large"
    return rng.integers(0, 10**12, shape), rng.integers(0, 10**13, (n, 2, stages))


FAMILIES = ("ties", "near ties", "equal stages", "zeros", "long transient", "heavy ends", "large")


def mixed_times(order, seed, n):
    """Durations and latencies of n configurations, in turn from all families."""
    rng = np.random.default_rng(seed)
    durations = np.empty((n, order.pp, order.vpp, 3, 3), np.int64)
    latencies = np.empty((n, 2, order.pp * order.vpp), np.int64)
    for index, family in enumerate(FAMILIES):
        rows = slice(index, None, len(FAMILIES))
        shape = durations[rows].shape
        durations[rows], latencies[rows] = _times_of(rng, family, shape, order.stage_of.size)
    return durations, latencies


def assert_same(one, other):
    """Two replays agree in every output, bit for bit."""
    for field, mine, theirs in zip(one._fields, one, other, strict=True):
        np.testing.assert_array_equal(mine, theirs, err_msg=field)


def without_work(replays):
    """What ends say of replays."""
    return replays._replace(rank_busy_ps=replays.rank_busy_ps[:0])


def replays_of(ends, rows=slice(None)):
    """The replays whose ends these are, each in full, without their work."""
    row, later_ps = ends.row[rows], ends.later_ps[rows]
    return Replays(
        ends.rank_start_ps[row],
        ends.rank_end_ps[row] + later_ps[:, None],
        ends.rank_end_ps[:0],
        ends.last_backward_end_ps[row] + later_ps[:, None, None],
    )
