"""V-shaped zero bubble with controllable memory: V-Min, V-Half and V-ZB.

Qi et al., arXiv:2405.15362, section 3: a building block says when each rank runs F and B of both
chunks of one microbatch, in operations of equal length, and repeats for every microbatch. How long
activations live, and so what a rank holds, follows from the block. ``min`` holds about a third of
the activations of 1F1B, ``half`` about half, ``zb`` all of them. W's stand where a rank would
wait, or where an F needs their memory.
"""

import itertools
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from projector.arrays import Ints
from projector.kernels.planning import RAMP_IN, RAMP_OUT, Candidates
from projector.schedule.order import Order, microbatches_held, v_shape
from projector.schedule.planning.candidates import best_order, check_memory, rank
from projector.schedule.planning.costs import Costs, uniform_costs

Steps = tuple[int, int, int, int]

UNIT_INTERVAL = 6
"""Operations of a microbatch on a rank: F, B and W of two chunks."""

LARGEST_REFERENCE = 11
"""Building blocks of more ranks are searched with fewer: collisions depend on ``pp`` modulo 6."""

RANKED_BLOCKS = 12
KEPT_BLOCKS = 24
"""How many of the best go on to the next step of a search."""

STEPS = {
    "min": ((1, 1, 1, 1), (1, 1, 1, 2), (1, 2, 1, 2)),
    "half": ((1, 2, 1, 2), (1, 2, 2, 2), (1, 3, 1, 3)),
    "zb": ((1, 3, 1, 3), (1, 4, 1, 4), (2, 4, 2, 4)),
}
"""Times from one rank to the next that were the best, or as good, for 2 to 11 ranks among all
steps of 1 to 4 whose lives balance."""

RAMPS = ((0, 0), (1, 1), (1, 2), (1, 3), (2, 2), (2, 3), (3, 2))
"""By how much the first or last microbatches move together, and how many of them."""

PROFILES = ((10, 10, 10), (10, 12, 8))
"""Times of F, B and W that blocks are ranked with."""

PATIENCES = (0, 2, 4)
"""Quarters of a W that the next F or B must be away."""


class Block(NamedTuple):
    """A building block; `_block_offsets` says what its numbers mean."""

    steps: Steps
    gaps: tuple[int, int, int]


Proposal = tuple[Block, tuple[int, ...]]
"""A building block and its shape: see `Candidates`."""


def plan(mode: str, pp: int, vpp: int, microbatches: int, costs: Costs) -> Order:
    """Return the fastest order found for a memory mode, or for the limit where that is lower.

    Building blocks are ranked once for every ``pp`` and mode with equal stages. Those ahead are
    laid out with the times at hand, the best of them with all ramps. Where the limit holds none,
    blocks repeat less often.
    """
    del vpp
    stage_of = v_shape(pp)
    check_memory(stage_of, costs)
    whole = np.array(costs.activation)[stage_of].sum(axis=1)
    limit = np.minimum(np.array(costs.limit), microbatches_held(mode, pp) * whole)
    costs = costs._replace(limit=tuple(limit.tolist()))
    blocks = _ranked(mode, pp if pp <= LARGEST_REFERENCE else 6 + pp % 6)
    interval = UNIT_INTERVAL
    while True:
        proposals: list[Proposal] = [
            (block, (interval, 0, 0, 0, 0, patience)) for block in blocks for patience in PATIENCES
        ]
        for ramp in (RAMP_OUT, RAMP_IN):
            ahead = _best(pp, proposals, costs, KEPT_BLOCKS)
            proposals = [
                (block, (*shape[:ramp], *by, *shape[ramp + 2 :]))
                for (block, shape), by in itertools.product(ahead, RAMPS)
            ]
        if proposals:
            order = best_order(stage_of, _columns(pp, proposals), costs, microbatches)
            if order is not None:
                return order
        # At last one microbatch at a time.
        interval += max(1, interval // 4)


@lru_cache(maxsize=64)
def _ranked(mode: str, pp: int) -> tuple[Block, ...]:
    """Return the best building blocks of a mode with equal stages."""
    blocks: list[Block] = []
    for steps, (forward, backward, weight) in itertools.product(STEPS[mode], PROFILES):
        costs = uniform_costs(pp, 2 * pp, 2.0 * microbatches_held(mode, pp))._replace(
            forward_ps=(forward,) * 2 * pp,
            backward_ps=(backward,) * 2 * pp,
            weight_ps=(weight,) * 2 * pp,
        )
        proposals = [
            (block, (UNIT_INTERVAL, 0, 0, 0, 0, patience))
            for block in _blocks(mode, pp, steps)
            for patience in PATIENCES
        ]
        blocks += [block for block, _ in _best(pp, proposals, costs, RANKED_BLOCKS)]
    return tuple(dict.fromkeys(blocks))


def _best(pp: int, proposals: Sequence[Proposal], costs: Costs, most: int) -> list[Proposal]:
    if not proposals:
        return []
    ranking = rank(v_shape(pp), _columns(pp, proposals), costs, 3 * pp, most)
    return [proposals[index] for index in ranking.tolist()]


def _columns(pp: int, proposals: Sequence[Proposal]) -> Candidates:
    return Candidates(
        _block_offsets(pp, [block for block, _ in proposals]),
        np.array([shape for _, shape in proposals], np.int64),
    )


def _blocks(mode: str, pp: int, steps: Steps) -> list[Block]:
    """Return building blocks whose activations live about as long as the mode allows."""
    blocks = [
        Block(steps, (first, second, third))
        for first, second, third in itertools.product(range(UNIT_INTERVAL), repeat=3)
    ]
    offset = _block_offsets(pp, blocks)
    life = (offset[:, :, 1] - offset[:, :, 0]).sum(axis=2).max(axis=1)
    most = UNIT_INTERVAL * (2 * microbatches_held(mode, pp) + 1)
    return [block for block, lives in zip(blocks, life, strict=True) if lives <= most]


def _block_offsets(pp: int, blocks: Sequence[Block]) -> Ints:
    """Return when each rank runs F and B of both chunks of microbatch 0, ``int64[n, pp, 2, 2]``.

    A step is the time from one rank to the next: F of chunk 0 takes ``steps[0]`` on its way down
    and F of chunk 1 ``steps[1]`` on its way back; B of chunk 1 then takes ``steps[2]`` down and B
    of chunk 0 ``steps[3]`` back. ``gaps`` are waits at the turns.
    """
    steps, gaps = np.array([b.steps for b in blocks]), np.array([b.gaps for b in blocks])
    down = np.arange(pp)
    back = down[::-1]
    first = steps[:, :1] * down
    second = first[:, -1:] + 1 + gaps[:, :1] + steps[:, 1:2] * back
    third = second[:, :1] + 1 + gaps[:, 1:2] + steps[:, 2:3] * down
    fourth = third[:, -1:] + 1 + gaps[:, 2:3] + steps[:, 3:4] * back
    forward = np.stack([first, second], axis=2)
    backward = np.stack([fourth, third], axis=2)
    return np.stack([forward, backward], axis=2)
