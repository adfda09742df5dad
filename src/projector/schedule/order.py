"""The order of operations of every rank, as integer arrays."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from projector.arrays import Ints, Ints8

FORWARD, BACKWARD, WEIGHT = 0, 1, 2
"""Kinds of operation: forward, backward, separate gradient of the weights."""


@dataclass(frozen=True, eq=False)
class Order:
    """What each rank does, and in which order; times come later.

    Operations stand rank by rank: those of rank r are ``rank_offset[r]:rank_offset[r + 1]``.
    The arrays are read-only copies, because an order is shared by everyone who asks for it.
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
            column = np.array(getattr(self, name), dtype, order="C")
            column.setflags(write=False)
            object.__setattr__(self, name, column)

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
    codes: list[Ints],
    stage_of: Ints,
    microbatches: int,
    directions: int = 1,
) -> Order:
    """Build an order with B and W apart from what each rank does.

    Parameters
    ----------
    codes : list of int64[ops]
        For each rank ``vpp * kind + chunk`` of its operations; those of one code are microbatches
        0, 1, 2 ... Operations beyond the last microbatch are left out.
    stage_of : int64[pp, vpp]
        Placement of the chunks.
    microbatches : int
        Microbatches of each chunk.
    directions : int
        Copies of the model.
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

    Parameters
    ----------
    warmup : int[pp]
        Forwards of each rank before the first pair of F and B; at most all of them.
    forward, backward : pair of int64[vpp * microbatches]
        Chunk and microbatch of each F and of each B, the same on every rank.
    stage_of : int64[pp, vpp]
        Placement of the chunks.
    microbatches : int
        Microbatches of the step.
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
    return Order(
        microbatches=microbatches,
        rank_offset=np.arange(pp + 1) * 2 * steps,
        kind=kind.ravel(),
        chunk=chunk.ravel(),
        microbatch=microbatch.ravel(),
        stage_of=stage_of,
    )
