"""Orders of operations and where their stages live, as integer arrays; rules that they share.

Whether an order is a schedule at all is checked without the kernel that replays it.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cached_property, wraps
from threading import Lock
from typing import ClassVar, NoReturn, ParamSpec, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from projector.arrays import Array, Flags, Ints, Ints8
from projector.errors import ScheduleError

FORWARD, BACKWARD, WEIGHT = 0, 1, 2
"""Kinds of operation: forward, backward, separate gradient of the weights."""


@dataclass(frozen=True, eq=False)
class Order:
    """What each rank does, and in which order; times come later.

    Operations stand rank by rank: those of rank r are ``rank_offset[r]:rank_offset[r + 1]``.
    The arrays are read-only, because an order is shared by everyone who asks for it.
    """

    microbatches: int
    """Microbatches that pass through each virtual stage."""
    rank_offset: Ints
    """``int64[pp + 1]``"""
    kind: Ints8
    """``int8[ops]``: F 0, B 1, W 2."""
    chunk: Ints
    """``int64[ops]``: which of the chunks of its rank an operation works on."""
    microbatch: Ints
    """``int64[ops]``"""
    stage_of: Ints
    """``int64[pp, vpp]``: virtual stage, in model order, that each chunk holds; the stages of a
    second direction follow those of the first."""
    splits_backward: bool = False
    """Whether B is the gradient of the input alone and W an operation of its own."""
    directions: int = 1
    """Copies of the model that run through the ranks at once, each with microbatches of its own:
    copy d is the virtual stages from ``d * num_stages`` on, and stage 0 begins the next one."""

    def __post_init__(self) -> None:
        for name, dtype in (
            ("rank_offset", np.int64),
            ("kind", np.int8),
            ("chunk", np.int64),
            ("microbatch", np.int64),
            ("stage_of", np.int64),
        ):
            column = np.ascontiguousarray(getattr(self, name), dtype).view()
            column.setflags(write=False)
            object.__setattr__(self, name, column)

    @classmethod
    def of_ranks(
        cls, stage_of: Ints, microbatches: int, *columns: Array, splits_backward: bool = False
    ) -> "Order":
        """Return an order of kind, chunk and microbatch ``int[pp, operations]``, a rank a row."""
        pp, operations = columns[0].shape
        begins = np.arange(pp + 1) * operations
        kind, chunk, number = (column.ravel() for column in columns)
        return cls(microbatches, begins, kind, chunk, number, stage_of, splits_backward)

    def __repr__(self) -> str:
        return (
            f"Order(pp={self.pp}, vpp={self.vpp}, microbatches={self.microbatches}, "
            f"operations={len(self.kind)}, splits_backward={self.splits_backward})"
        )

    @property
    def pp(self) -> int:
        """Ranks of the pipeline."""
        return int(self.stage_of.shape[0])

    @property
    def vpp(self) -> int:
        """Chunks of each rank."""
        return int(self.stage_of.shape[1])

    @property
    def num_stages(self) -> int:
        """Virtual stages of one copy of the model."""
        return self.pp * self.vpp // self.directions

    @property
    def rank(self) -> Ints:
        """Rank of each operation, ``int64[ops]``."""
        return np.repeat(np.arange(self.pp), np.diff(self.rank_offset))

    @property
    def stage(self) -> Ints:
        """Virtual stage of each operation, ``int64[ops]``."""
        stage: Ints = self.stage_of[self.rank, self.chunk]
        return stage


def round_robin_stages(pp: int, vpp: int) -> Ints:
    """Deal the virtual stages to the ranks in turn: chunk c of rank r holds ``c * pp + r``."""
    return np.arange(pp * vpp).reshape(vpp, pp).T


def v_shape(pp: int) -> Ints:
    """Run down the ranks with chunk 0 and back with chunk 1: the last stage lies on rank 0."""
    return np.stack([np.arange(pp), 2 * pp - 1 - np.arange(pp)], axis=1)


def order_from_codes(
    codes: list[Ints], stage_of: Ints, microbatches: int, directions: int = 1
) -> Order:
    """Build an order with B and W apart from what each rank does.

    ``codes`` has, for each rank, ``vpp * kind + chunk`` of its operations, ``int64[ops]``; those of
    one code are microbatches 0, 1, 2 ... Operations beyond the last microbatch are left out.
    """
    vpp = stage_of.shape[1]
    codes_of_rank, numbers = [], []
    for code in codes:
        number = np.empty_like(code)
        for rank_code in range(3 * vpp):
            (of_code,) = np.nonzero(code == rank_code)
            number[of_code] = np.arange(len(of_code))
        codes_of_rank.append(code[number < microbatches])
        numbers.append(number[number < microbatches])
    code = np.concatenate(codes_of_rank)
    return Order(
        microbatches=microbatches,
        rank_offset=np.cumsum([0, *map(len, codes_of_rank)]),
        kind=code // vpp,
        chunk=code % vpp,
        microbatch=np.concatenate(numbers),
        stage_of=stage_of,
        splits_backward=True,
        directions=directions,
    )


def one_forward_one_backward(
    warmup: ArrayLike,
    forward: tuple[Ints, Ints],
    backward: tuple[Ints, Ints],
    stage_of: Ints,
    microbatches: int,
) -> Order:
    """Build the orders that begin with some forwards, then alternate, then drain.

    ``warmup`` (``int[pp]``) is the forwards of each rank before the first pair of F and B, at most
    all of them. ``forward`` and ``backward`` are the chunk and microbatch of each F and of each B,
    the same on every rank: pairs of ``int64[vpp * microbatches]``.
    """
    steps = len(forward[0])
    pp = len(stage_of)
    step = np.arange(steps)
    waiting = np.minimum(warmup, steps)[:, np.newaxis]
    # Step i of the forwards is at i, and at every second position behind the warm-up. Step j of the
    # backwards fills the positions between, and follows on when the forwards are through.
    forward_at = np.where(step < waiting, step, 2 * step - waiting)
    backward_at = np.where(step < steps - waiting, waiting + 2 * step + 1, steps + step)

    rank = np.arange(pp)[:, np.newaxis]
    kind = np.empty((pp, 2 * steps), np.int8)
    chunk = np.empty((pp, 2 * steps), np.int64)
    microbatch = np.empty((pp, 2 * steps), np.int64)
    for code, position, (chunks, numbers) in (
        (FORWARD, forward_at, forward),
        (BACKWARD, backward_at, backward),
    ):
        kind[rank, position] = code
        chunk[rank, position] = chunks
        microbatch[rank, position] = numbers
    return Order.of_ranks(stage_of, microbatches, kind, chunk, microbatch)


@dataclass(frozen=True)
class Series:
    """Orders that differ in the number of microbatches alone.

    From ``least`` microbatches on, an order of ``every`` more is the same order with one more
    period in its middle: what precedes the period, the period itself and what follows it do not
    depend on how often it is repeated.
    """

    pp: int
    vpp: int
    """Chunks of a rank."""
    order: Callable[[int], Order]
    """The order of some microbatches; the same object for the same number."""
    every: int = 0
    """0 where orders of different lengths have nothing in common."""
    least: int = 1
    MIN_PERIODS: ClassVar[int] = 10
    """Fewer repetitions than this are not worth the search for a steady state."""

    def with_all_peaks(self, microbatches: int) -> int:
        """Return the fewest microbatches with which ranks hold what they hold with more."""
        return min(microbatches, self.alike(self.least + self.every, microbatches))

    def with_period(self, microbatches: int) -> int:
        """Return the fewest microbatches that show the period of an order; all if there is none."""
        ramps = self.least + 3 * max(self.pp, self.every)
        return self.alike(ramps + (self.MIN_PERIODS + 1) * self.every, microbatches)

    def alike(self, least: int, microbatches: int) -> int:
        """Return the fewest microbatches >= least from which whole periods lead to some others."""
        return least + (microbatches - least) % self.every if self.every else microbatches


class Placement:
    """The chunks of every rank; shared by all jobs of a schedule and size, so read-only."""

    def __init__(self, stage_of: Ints, directions: int = 1, splits_backward: bool = False) -> None:
        """Keep the virtual stages ``int64[pp, chunks]`` of ``directions`` copies of a model."""
        # Kernels are compiled for one layout.
        self.stage_of = np.array(stage_of, np.int64, order="C")
        self.directions = directions
        self.splits_backward = splits_backward

    @property
    def num_stages(self) -> int:
        """Virtual stages of one copy of the model."""
        return self.stage_of.size // self.directions

    @cached_property
    def model_stage(self) -> Ints:
        """Stage of the model that each chunk of each rank holds, ``int64[pp, chunks]``."""
        return self.stage_of % self.num_stages

    @cached_property
    def rank_of(self) -> Ints:
        """Rank of each virtual stage, ``int64[pp * chunks]``."""
        rank = np.empty(self.stage_of.size, np.int64)
        rank[self.stage_of] = np.arange(len(self.stage_of))[:, np.newaxis]
        return rank

    @cached_property
    def joins_ends(self) -> Flags:
        """Whether each rank holds the first stage of the model and the last, ``bool[pp]``."""
        first, last = self.model_stage == 0, self.model_stage == self.num_stages - 1
        return np.asarray(first.any(axis=1) & last.any(axis=1))

    @cached_property
    def neighbour(self) -> Ints:
        """Rank of the next stage and of the one before, or itself, ``int64[pp * chunks, 2]``."""
        rank, stage = self.rank_of, np.arange(self.stage_of.size)
        depth = stage % self.num_stages
        following = np.where(depth == self.num_stages - 1, stage, stage + 1) % len(rank)
        before = np.where(depth == 0, stage, stage - 1)
        return np.stack([rank[following], rank[before]], axis=1)

    @cached_property
    def _sends(self) -> Flags:
        """Whether a virtual stage sends to another rank, on and back: ``bool[2, pp * chunks]``."""
        return np.asarray((self.neighbour != self.rank_of[:, np.newaxis]).T)

    def sent_ps(self, p2p_ps: Ints) -> Ints:
        """Return how long what each chunk sends is on its way: int64[..., 2, pp, chunks].

        ``p2p_ps`` is the latency from each virtual stage to the next and to the one before:
        ``int64[..., 2, pp * chunks]``.
        """
        return np.where(self._sends, p2p_ps, 0).take(self.stage_of, axis=-1)

    def block(self, duration_ps: Ints, p2p_ps: Ints) -> tuple[Ints, Ints]:
        """Return durations and latencies of ranks that wait until what they send has arrived.

        Durations are ``int64[..., pp, chunks, 3, 3]``: by rank, chunk, kind and class.
        """
        sent = self.sent_ps(p2p_ps)
        longer = duration_ps.copy()
        for kind, direction in ((FORWARD, 0), (BACKWARD, 1)):
            longer[..., kind, :] += sent[..., direction, :, :, np.newaxis]
        return longer, np.zeros_like(p2p_ps)

    def sends_ps(self, p2p_ps: Ints, microbatches: int) -> Ints:
        """Return how long each rank waits for the messages of a step, ``int64[pp]``."""
        per_stage = np.where(self._sends, p2p_ps, 0).sum(axis=0)
        return np.asarray(microbatches * per_stage[self.stage_of].sum(axis=1), np.int64)


P = ParamSpec("P")
T = TypeVar("T")

MOST_OPERATIONS = 1 << 22
"""Operations of all orders that one function keeps results of: some tens of megabytes each, and
enough for every number of microbatches that a sweep meets."""


def kept_by_operations(
    operations: Callable[..., int] = lambda _, order: len(order.kind), most: int = MOST_OPERATIONS
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Keep the results of a function of hashable arguments, the latest first.

    ``operations`` takes a result and the arguments, and returns the operations of the order that it
    is about; ``most`` bounds those of all results together. A larger one alone is kept as well.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        results: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()
        lock = Lock()
        total = 0

        @wraps(function)
        def keeping(*args: P.args, **kwargs: P.kwargs) -> T:
            nonlocal total
            key = (args, tuple(sorted(kwargs.items())))
            with lock:
                if key in results:
                    results.move_to_end(key)
                    return results[key][0]
            result = function(*args, **kwargs)
            size = operations(result, *args, **kwargs)
            with lock:
                if key in results:
                    return results[key][0]
                results[key] = (result, size)
                total += size
                while total > most and len(results) > 1:
                    _, (_, old) = results.popitem(last=False)
                    total -= old
            return result

        return keeping

    return decorate


def one_chunk(name: str, pp: int, vpp: int, microbatches: int) -> None:  # noqa: ARG001
    """Refuse virtual stages; any number of ranks and microbatches."""
    if vpp != 1:
        msg = (
            f"schedule {name} has one chunk a rank, but vpp is {vpp}; "
            "set vpp = 1 or choose interleaved"
        )
        raise ScheduleError(msg, key="vpp", value=vpp, allowed=1)


def two_chunks(name: str, pp: int, vpp: int, microbatches: int) -> None:  # noqa: ARG001
    """Refuse anything but two chunks on at least two ranks, as a V has."""
    if pp < 2:
        msg = f"schedule {name} needs at least two ranks, but pp is {pp}; set pp >= 2"
        raise ScheduleError(msg, key="pp", value=pp, allowed="pp >= 2")
    if vpp != 2:
        msg = f"schedule {name} has two chunks a rank, but vpp is {vpp}; set vpp = 2"
        raise ScheduleError(msg, key="vpp", value=vpp, allowed=2)


def microbatches_held(mode: str, pp: int) -> int:
    """Return the microbatches (of both chunks) that a V-shaped schedule lets a rank hold."""
    return {"min": -(-(pp + 2) // 3), "half": -(-pp // 2) + 1, "zb": pp}[mode]


@kept_by_operations()
def check_complete(order: Order) -> None:
    """Raise unless every operation of every virtual stage and microbatch occurs exactly once."""
    pp, vpp, microbatches = order.pp, order.vpp, order.microbatches
    num_ops = len(order.kind)
    kinds = 3 if order.splits_backward else 2
    if not (
        order.rank_offset.shape == (pp + 1,)
        and order.rank_offset[0] == 0
        and order.rank_offset[-1] == num_ops
        and np.all(np.diff(order.rank_offset) >= 0)
        and order.chunk.shape == order.microbatch.shape == (num_ops,)
    ):
        _refuse("its columns do not fit together")
    if order.directions < 1 or pp * vpp % order.directions:
        _refuse(f"{pp * vpp} virtual stages are not {order.directions} copies of a model")
    if not np.array_equal(np.sort(order.stage_of, axis=None), np.arange(pp * vpp)):
        _refuse("its placement does not hold every virtual stage once")
    for column, bound in (
        (order.kind, kinds),
        (order.chunk, vpp),
        (order.microbatch, microbatches),
    ):
        if np.any(column < 0) or np.any(column >= bound):
            _refuse("an operation has a kind, chunk or microbatch that does not exist")
    key = (order.kind.astype(np.int64) * (pp * vpp) + order.stage) * microbatches + order.microbatch
    count = np.bincount(key, minlength=kinds * pp * vpp * microbatches)
    if np.any(count != 1):
        wrong = int(np.argmax(count != 1))
        stage, microbatch = divmod(wrong % (pp * vpp * microbatches), microbatches)
        kind = "FBW"[wrong // (pp * vpp * microbatches)]
        _refuse(
            f"{kind} of virtual stage {stage} and microbatch {microbatch} stands "
            f"{count[wrong]} times"
        )


def check_order(order: Order) -> None:
    """Raise :class:`ScheduleError` unless the order is complete and can run."""
    check_complete(order)
    length = order.num_stages
    columns = (order.kind.tolist(), order.stage.tolist(), order.microbatch.tolist())
    queues = [
        deque(zip(*(column[begin:end] for column in columns), strict=True))
        for begin, end in zip(order.rank_offset[:-1], order.rank_offset[1:], strict=True)
    ]
    done: set[tuple[int, int, int]] = set()

    def ready(kind: int, stage: int, microbatch: int) -> bool:
        own_forward = (FORWARD, stage, microbatch) in done
        if kind == FORWARD:
            return stage % length == 0 or (FORWARD, stage - 1, microbatch) in done
        if kind == BACKWARD:
            last = (stage + 1) % length == 0
            return own_forward and (last or (BACKWARD, stage + 1, microbatch) in done)
        return (BACKWARD, stage, microbatch) in done

    progress = True
    while progress:
        progress = False
        for queue in queues:
            while queue and ready(*queue[0]):
                done.add(queue.popleft())
                progress = True
    for rank, queue in enumerate(queues):
        if queue:
            kind, stage, microbatch = queue[0]
            _refuse(
                f"rank {rank} waits for ever before {'FBW'[kind]} of virtual stage {stage} and "
                f"microbatch {microbatch}"
            )


def _refuse(why: str) -> NoReturn:
    raise ScheduleError(f"this order is not a schedule: {why}", key="schedule")
