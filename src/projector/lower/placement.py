"""Where the ranks of a group sit: members in one domain, pod and zone, for any order of ranks.

Ranks are numbered as Megatron numbers them: an order such as ``tp-cp-ep-dp-pp`` says which degree
runs fastest. The ranks of a group differ in one degree, or in a few, and agree in the rest. Blocks
(scale-up domains, pods, zones) hold equally many consecutive ranks each.

A group is one or two *runs*: ``size`` ranks that are ``stride`` apart. Degrees that follow one
another in the order make one run. The second run is the outer one.

Source: ``RankGenerator`` of Megatron-LM (``megatron/core/parallel_state.py``).
"""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np

from projector.arrays import Array, Flags, Ints
from projector.kernels.grouping import group_rows
from projector.kernels.spans import span_codes

DEGREES = ("tp", "cp", "ep", "dp", "pp")
"""Degrees of an order. Of the experts, tp and dp are their own, and cp is 1."""

ORDERS = tuple("-".join(order) for order in permutations(DEGREES))
"""All orders; the first, ``tp-cp-ep-dp-pp``, is Megatron's."""

_MOST_COUNTED = 1 << 22
"""Members that are counted one by one at most; groups that need more are sampled."""


def _faster() -> Flags:
    """Return bool[orders, degrees, degrees]: whether the second degree runs faster."""
    place = [[order.split("-").index(name) for name in DEGREES] for order in ORDERS]
    of_first, of_second = np.array(place)[:, :, None], np.array(place)[:, None, :]
    return np.asarray(of_second < of_first)


_FASTER = _faster()


def strides(order: Ints, sizes: Mapping[str, Ints]) -> dict[str, Ints]:
    """Return the distance between neighbouring ranks of each degree, int64[jobs].

    ``order`` are positions in `ORDERS`, ``sizes`` each of `DEGREES`.
    """
    size = np.stack([sizes[name] for name in DEGREES], axis=1)[:, None, :]
    apart = np.where(_FASTER[order], size, 1).prod(axis=2)
    return {name: apart[:, number] for number, name in enumerate(DEGREES)}


class Runs(NamedTuple):
    """Groups of one or two runs, int64[groups] each; without a second run its size is 1."""

    size: Ints
    stride: Ints
    outer_size: Ints
    outer_stride: Ints

    @property
    def ranks(self) -> Ints:
        """Members of each group."""
        return self.size * self.outer_size


def one_run(size: Ints, stride: Ints) -> Runs:
    """Return groups of one degree."""
    return Runs(size, stride, np.ones_like(size), size * stride)


def two_runs(first: tuple[Ints, Ints], second: tuple[Ints, Ints]) -> Runs:
    """Join two degrees, given by size and stride; what follows one another is one run."""
    swap = first[1] > second[1]
    size, stride = (np.where(swap, b, a) for a, b in zip(first, second, strict=True))
    outer_size, outer_stride = (np.where(swap, a, b) for a, b in zip(first, second, strict=True))
    # A degree of 1 is no run, wherever it stands.
    stride = np.where(size == 1, outer_stride, stride)
    adjacent = (outer_size == 1) | (size == 1) | (outer_stride == size * stride)
    whole = np.where(adjacent, size * outer_size, size)
    return Runs(
        whole,
        stride,
        np.where(adjacent, 1, outer_size),
        np.where(adjacent, whole * stride, outer_stride),
    )


def parts(runs: Runs, ranks: Ints) -> tuple[Runs, Runs]:
    """Cut groups into parts of ``ranks`` neighbours; return a part, and one rank of each part.

    Parts that do not consist of whole inner runs, or divide one, are taken as if they did.
    """
    inner = np.minimum(runs.size, ranks)
    of_outer = np.maximum(1, ranks // runs.size)
    part = two_runs((inner, runs.stride), (of_outer, runs.outer_stride))
    across = two_runs(
        (runs.size // inner, runs.stride * inner),
        (runs.outer_size // of_outer, runs.outer_stride * of_outer),
    )
    return part, across


class Spread(NamedTuple):
    """The group of a kind that blocks serve worst, int64[groups] each.

    It is the one in most blocks; of several, the one with the emptiest block; of these, the one
    with the fullest.
    """

    most: Ints
    """Members in its fullest block."""
    least: Ints
    """Members in its emptiest block."""
    blocks: Ints
    strays: Flags
    """Whether its members stand at different places in different blocks."""


def spread(runs: Runs, block: Ints, world: Ints) -> Spread:
    """Return how groups lie in blocks of ``block`` consecutive ranks, out of ``world``.

    Exact, but for the sampling of very large groups that no block divides.
    """
    size, stride, outer_size, outer_stride = runs
    ranks, reach = runs.ranks, size * stride
    block = np.minimum(block, world)
    # Whole runs of each level in a block, and whether blocks cut them evenly.
    apart = block <= stride
    cuts_inner = ~apart & (block < reach)
    one_inner = ~apart & ~cuts_inner & (block <= outer_stride) & (outer_size > 1)
    cuts_outer = (outer_size > 1) & (block > outer_stride) & (block < outer_size * outer_stride)
    cases = [apart, cuts_inner, one_inner, cuts_outer]
    last = np.where(outer_size > 1, outer_size * outer_stride, reach) >= world
    inner = np.maximum(1, block // stride)
    outer = np.maximum(1, block // outer_stride)
    most: Ints = _chosen(cases, [1, inner, size, size * outer], ranks)
    blocks = -(-ranks // most)
    rest = ranks - most * (blocks - 1)
    even = _chosen(
        cases,
        [
            True,
            (block % stride == 0) & ((reach % block == 0) | (last & (outer_size == 1))),
            block % reach == 0,
            (block % outer_stride == 0) & ((outer_size * outer_stride % block == 0) | last),
        ],
        (block % np.where(outer_size > 1, outer_size * outer_stride, reach) == 0)
        | (block >= world),
    )
    strays = ~even | (apart & (ranks > 1) & (stride % block != 0))
    strays |= apart & (outer_size > 1) & (outer_stride % block != 0)
    found = Spread(most, rest, blocks, strays)
    uneven = np.flatnonzero(~even & (ranks > 1))
    if len(uneven):
        columns = [column[uneven] for column in (*runs, block, world)]
        first, of_row = group_rows(*columns)
        for number, row in enumerate(first.tolist()):
            counted = _counted(*(int(column[row]) for column in columns))
            where = uneven[of_row == number]
            for column, value in zip(found, counted, strict=True):
                column[where] = value
    return found


def _chosen(cases: Sequence[Flags], values: Sequence[Any], other: Array) -> Array:
    """Return the value of the first case that holds; `np.select` takes ten times as long."""
    for case, value in zip(reversed(cases), reversed(values), strict=True):
        other = np.where(case, value, other)
    return other


@lru_cache(maxsize=1 << 16)
def _counted(
    size: int, stride: int, outer_size: int, outer_stride: int, block: int, world: int
) -> tuple[int, int, int, bool]:
    """Count the members of each block, for all groups that differ in their place in a block."""
    inner, inner_left_out = _shortened(size, stride, block)
    shorter = outer_stride - inner_left_out * stride
    outer, outer_left_out = _shortened(outer_size, shorter, block)
    begins = _begins(size, stride, outer_size, outer_stride, block, world)
    step = -(-len(begins) * inner * outer // _MOST_COUNTED)
    begins = begins[::step]
    period = block // math.gcd(shorter, block)
    members = _members(inner, stride, outer, shorter)
    blocks, least, most = _in_blocks(begins, members, block)
    blocks = blocks + outer * (inner_left_out * stride // block)
    if outer_left_out:
        longer = _members(inner, stride, outer + period, shorter)
        more = _in_blocks(begins, longer, block)[0] + (outer + period) * (
            inner_left_out * stride // block
        )
        blocks = blocks + (more - blocks) * (outer_left_out // period)
    worst = np.lexsort((-most, least, -blocks))[0]
    strays = _strays(begins[worst], members, block)
    return int(most[worst]), int(least[worst]), int(blocks[worst]), strays


def _shortened(size: int, stride: int, block: int) -> tuple[int, int]:
    """Leave whole periods out of the middle of a run: return its size and how many were left out.

    Members repeat their places in blocks after ``block / gcd`` of them.
    """
    period = block // math.gcd(stride, block)
    left_out = max(0, size // period - 2) * period
    return size - left_out, left_out


def _members(size: int, stride: int, outer_size: int, outer_stride: int) -> Ints:
    """Return the ranks of a group that begins at 0, ascending."""
    inner = np.arange(size, dtype=np.int64) * stride
    return ((np.arange(outer_size, dtype=np.int64) * outer_stride)[:, None] + inner).ravel()


def _begins(
    size: int, stride: int, outer_size: int, outer_stride: int, block: int, world: int
) -> Ints:
    """Return the places in a block where groups begin, ascending."""
    reach, outer_reach = size * stride, outer_size * outer_stride
    begins = np.zeros(1, np.int64)
    for most, distance in (
        (stride, 1),
        (outer_stride // reach, reach),
        (world // outer_reach, outer_reach),
    ):
        # The degrees of an illegal job may not fit each other; it is refused elsewhere.
        count = max(1, min(most, block // math.gcd(distance, block)))
        begins = np.unique((begins[:, None] + np.arange(count, dtype=np.int64) * distance) % block)
    return begins


def _in_blocks(begins: Ints, members: Ints, block: int) -> tuple[Ints, Ints, Ints]:
    """Return the blocks of each group, and the members of its emptiest and its fullest one."""
    of_member = (begins[:, None] + members) // block
    new = np.ones(of_member.shape, np.bool_)
    new[:, 1:] = np.diff(of_member, axis=1) > 0
    counts = np.diff(np.append(np.flatnonzero(new.ravel()), new.size))
    first = np.cumsum(np.append(0, new.sum(axis=1)))[:-1]
    return new.sum(axis=1), np.minimum.reduceat(counts, first), np.maximum.reduceat(counts, first)


def _strays(begin: int, members: Ints, block: int) -> bool:
    """Whether the places of a group's members differ from one full block to the next."""
    ranks = np.asarray(begin + members)
    _, first, counts = np.unique(ranks // block, return_index=True, return_counts=True)
    fullest = int(np.argmax(counts))
    held = ranks[first[fullest] : first[fullest] + counts[fullest]] % block
    return not bool(np.isin(ranks % block, held).all())


class Blocks(NamedTuple):
    """Ranks of the blocks that a cluster consists of, int64[jobs] each."""

    domain: Ints
    pod: Ints
    """0 where one pod holds all ranks."""
    zone: Ints
    world: Ints


class Place(NamedTuple):
    """Where groups lie, int64[groups] each."""

    ranks: Ints
    local: Ints
    """Members in the fullest domain."""
    span: Ints
    """What lies beyond it, a code of ``kernels.spans``."""

    def take(self, rows: Ints) -> "Place":
        """Return some of the groups, in any order."""
        return Place(self.ranks[rows], self.local[rows], self.span[rows])


def place(runs: Runs, blocks: Blocks) -> Place:
    """Return where groups lie in domains, pods and zones."""
    ranks, world = runs.ranks, blocks.world
    near = spread(runs, blocks.domain, world)
    tiers = [_tier(runs, tier, near, world) for tier in (blocks.pod, blocks.zone)]
    code = span_codes(
        ranks,
        near.most,
        domains=near.blocks,
        least=near.least,
        pod_domains=tiers[0],
        zone_domains=tiers[1],
        strays=near.strays & (near.blocks > 1),
    )
    return Place(ranks, near.most, code)


def _tier(runs: Runs, block: Ints, near: Spread, world: Ints) -> Ints:
    """Return the domains of a group in a pod or zone; 0 where one holds the whole group."""
    inside = (block == 0) | (block >= world) | (near.blocks == 1)
    if inside.all():
        return np.zeros_like(block)
    far = spread(runs, np.where(inside, world, block), world)
    return np.where(inside | (far.blocks == 1), 0, np.maximum(1, far.most // near.most))


def place_pairs(rank: Ints, other: Ints, stride: Ints, pp: Ints, blocks: Blocks) -> Place:
    """Return where pairs of pipeline ranks lie: the pair that blocks serve worst, of all pipelines.

    All are int64[pairs]; ``stride`` is the distance between neighbouring ranks of a pipeline.
    """
    apart = np.abs(other - rank) * stride
    first = np.minimum(rank, other) * stride
    leaves = _leaves(first, apart, stride, pp, blocks.domain, blocks.world)
    local = np.where(leaves | (blocks.domain == 1), 1, 2)
    tiers = []
    for tier in (blocks.pod, blocks.zone):
        block = np.where(tier > 0, np.minimum(tier, blocks.world), blocks.world)
        out = leaves & (tier > 0) & _leaves(first, apart, stride, pp, block, blocks.world)
        # Of the ranks of a block as many send beyond it as the pair is apart.
        tiers.append(np.where(out, np.maximum(1, block // np.maximum(1, apart)), 0))
    code = span_codes(
        2,
        local,
        domains=3 - local,
        least=local,
        pod_domains=tiers[0],
        zone_domains=tiers[1],
        strays=leaves & (apart % np.minimum(blocks.domain, blocks.world) != 0),
    )
    return Place(np.full_like(local, 2), local, code)


def _leaves(first: Ints, apart: Ints, stride: Ints, pp: Ints, block: Ints, world: Ints) -> Flags:
    """Whether any pair that begins ``first`` ranks into its pipeline lies in two blocks.

    Pipelines begin ``stride`` ranks in a row, then ``pp * stride`` further on. Their places in a
    block are taken to be all multiples of what both share, unless there is one row of pipelines.
    """
    reach = pp * stride
    # Pipelines of which all ranks follow one another begin at a multiple of this.
    grid = np.where(reach >= world, block, np.gcd(reach, block))
    return np.asarray((apart > 0) & (first % grid + apart + stride > grid))
