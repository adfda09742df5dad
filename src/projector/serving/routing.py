"""How many tokens each routed expert gets, under the distributions that benchmarks state."""

import numpy as np

from projector.arrays import Ints
from projector.config.inference import benchmark_routing


def balanced_picks(tokens: int, experts: int, topk: int) -> Ints:
    """Return int64[tokens, topk]: token t picks ``(t + j * ceil(experts / topk)) % experts``."""
    stride = -(-experts // topk)
    picks: Ints = (np.arange(tokens)[:, None] + stride * np.arange(topk)[None, :]) % experts
    return picks


def balanced_loads(tokens: int, experts: int, topk: int) -> Ints:
    """Return int64[experts], the tokens of each expert under `balanced_picks`."""
    stride = -(-experts // topk)
    period = tokens // experts + (np.arange(experts) < tokens % experts)
    loads = np.zeros(experts, np.int64)
    for choice in range(topk):
        loads += np.roll(period, stride * choice)
    return loads


def power_law_loads(
    tokens: int, experts: int, topk: int, exponent: float, generator: np.random.Generator
) -> Ints:
    """Return int64[experts], loads drawn from a density that falls as ``x**-exponent``.

    The draws are scaled to ``tokens * topk`` pairs, no expert gets a token twice, and what
    rounding and that limit leave over is handed out one by one, in turn.
    """
    pairs = tokens * topk
    drawn = benchmark_routing()
    low, high = drawn.sparse_low, drawn.sparse_high
    if pairs > experts:
        low, high = 1.0, drawn.power_law_share * tokens
    uniform = generator.random(experts)
    if exponent == 1.0:
        draw = low * (high / low) ** uniform
    else:
        power = 1.0 - exponent
        draw = (low**power + uniform * (high**power - low**power)) ** (1.0 / power)
    loads = np.minimum(np.floor(draw / draw.sum() * pairs), tokens).astype(np.int64)
    return _hand_out(loads, pairs - int(loads.sum()), tokens)


def random_loads(tokens: int, experts: int, topk: int, generator: np.random.Generator) -> Ints:
    """Return int64[experts], loads of independent tokens that each pick ``topk`` distinct experts.

    All sets of experts are equally likely (R. W. Floyd's sampling, all tokens at a time).
    """
    picks = np.empty((topk, tokens), np.int64)
    for row, last in enumerate(range(experts - topk, experts)):
        drawn = generator.integers(0, last + 1, tokens)
        taken = (picks[:row] == drawn).any(axis=0)
        picks[row] = np.where(taken, last, drawn)
    loads: Ints = np.bincount(picks.reshape(-1), minlength=experts).astype(np.int64)
    return loads


def fullest_rank_first(loads: Ints, ranks: int) -> Ints:
    """Return int64[experts] with the experts of the fullest rank swapped into rank 0."""
    by_rank = loads.reshape(ranks, -1).copy()
    fullest = int(np.argmax(by_rank.sum(axis=1)))
    by_rank[[0, fullest]] = by_rank[[fullest, 0]]
    return by_rank.reshape(-1)


def picks_of_loads(loads: Ints, tokens: int) -> Ints:
    """Return int64[tokens, topk], distinct picks of each token that add up to the loads.

    The experts, fullest first, are dealt to the tokens in turn; a load of at most ``tokens``
    thus never meets a token twice.
    """
    order = np.argsort(-loads, kind="stable")
    return np.repeat(order, loads[order]).reshape(-1, tokens).T


def group_limited_loads(picks: Ints, experts: int) -> Ints:
    """Return int64[experts] after group-limited routing of scores that are one at the picks.

    A token keeps the groups with the largest sum of its two best scores and picks among their
    experts; equal scores go to the lowest index. With groups of one expert that sum is the same
    for all.
    """
    tokens, topk = picks.shape
    wanted = np.zeros((tokens, experts), np.bool_)
    wanted[np.arange(tokens)[:, None], picks] = True
    drawn = benchmark_routing()
    score = np.minimum(wanted.reshape(tokens, drawn.groups, -1).sum(axis=2), 2)
    if experts == drawn.groups:
        score[:] = 0
    kept_groups = np.argsort(-score, axis=1, kind="stable")[:, : drawn.kept_groups]
    in_kept_group = np.zeros((tokens, drawn.groups), np.bool_)
    in_kept_group[np.arange(tokens)[:, None], kept_groups] = True
    allowed = np.repeat(in_kept_group, experts // drawn.groups, axis=1)
    hit = wanted & allowed
    rest = allowed & ~wanted
    missing = topk - hit.sum(axis=1, keepdims=True)
    filled = rest & (np.cumsum(rest, axis=1, dtype=np.int32) <= missing)
    loads: Ints = (hit | filled).sum(axis=0).astype(np.int64)
    return loads


def _hand_out(loads: Ints, left: int, limit: int) -> Ints:
    """Add ``left`` to the loads, one by one and in turn, none above ``limit``."""
    while left > 0:
        free = np.flatnonzero(loads < limit)
        if len(free) == 0:
            break
        share = left // len(free)
        if share == 0:
            loads[free[:left]] += 1
            break
        room = np.minimum(share, limit - loads[free])
        loads[free] += room
        left -= int(room.sum())
    return loads
