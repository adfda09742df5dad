"""How long a batch of responses takes: slots are refilled, then the batch drains.

Between two starts or ends the batch is the same, and its sequences grow by a token a step. The step
in the middle of such a piece stands for all its steps: a step is linear in the cached tokens.
"""

import heapq
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from projector.arrays import Floats, Ints
from projector.rl.job import Responses
from projector.serving.deployment import Deployment
from projector.serving.load import Scheduler
from projector.serving.memory import ServingMemory, serving_memories
from projector.serving.points import StepGrid, grid_times, speculated_grid_times
from projector.serving.rates import proposed

GOLDEN = (np.sqrt(5.0) - 1.0) / 2.0
"""Multiples of it lie evenly in the unit interval, however many there are."""


class Pieces(NamedTuple):
    """Parts of a rollout in which the batch is the same, in order; int64 or float64[pieces]."""

    steps: Ints
    """Decode steps, one token of each sequence."""
    batch: Ints
    """Sequences that generate."""
    position: Floats
    """Decode steps that each of them has behind it, the mean over sequences and steps."""


def pieces_of(tokens: Ints, slots: int) -> Pieces:
    """Return the pieces of responses that start in turn in the first slot that is free.

    The prompt gives the first token, so that n tokens take n - 1 steps.
    """
    steps, start = tokens - 1, np.zeros(len(tokens), np.int64)
    free = steps[:slots].tolist()
    heapq.heapify(free)
    for index, length in enumerate(steps[slots:].tolist(), slots):
        start[index] = heapq.heapreplace(free, free[0] + length)
    end = start + steps
    times = np.unique(np.concatenate([start, end]))
    order = np.argsort(end, kind="stable")
    # Starts rise in the order of the responses.
    begun = np.searchsorted(start, times[:-1], side="right")
    ended = np.searchsorted(end[order], times[:-1], side="right")
    sums = [np.concatenate([[0], np.cumsum(each)]) for each in (start, start[order])]
    batch, middle = begun - ended, (times[:-1] + times[1:] - 1) / 2.0
    begun_at = (sums[0][begun] - sums[1][ended]) / np.maximum(1, batch)
    return Pieces(np.diff(times), batch, middle - begun_at)


def in_turn(tokens: Ints) -> Ints:
    """Return lengths in an order in which short and long ones are mixed evenly."""
    mixed = np.empty_like(tokens)
    mixed[np.argsort(np.arange(1, len(tokens) + 1) * GOLDEN % 1.0, kind="stable")] = tokens
    return mixed


class Rollout(NamedTuple):
    """The responses of a step on the replica that has the longest."""

    responses: int
    """Of the replica."""
    slots: int
    """Responses at once; 0 where not even one fits."""
    prefill_s: float
    decode_s: float
    mean_batch: float
    """Sequences that generate, over the steps of decode."""
    tail_s: float
    """Decode with less than half of the largest batch."""
    memory: ServingMemory


def rollouts(
    deployments: Sequence[Deployment], gpus: Sequence[int], responses: Responses, engine: Scheduler
) -> list[Rollout]:
    """Time the responses of a step on each deployment; all decode steps are columns of one batch.

    Slots are as many as the engine has and as fit at every moment. Prompts go through in steps of
    up to ``max_step_tokens``, one prompt at least, during which nothing decodes.
    """
    placed, asked, length = [], [], responses.prompt_tokens
    for each, memory, many in zip(deployments, serving_memories(deployments), gpus, strict=True):
        count = -(-responses.total * each.gpus // many)
        tokens = in_turn(responses.lengths(count))
        slots = _slots(tokens, min(count, engine.max_num_seqs * each.attention_dp), memory, length)
        prompts, room = -(-count // responses.group), max(1, each.max_step_tokens // length)
        asked.append((prompts, min(prompts, each.attention_dp * room)))
        placed.append((count, slots, memory, pieces_of(tokens, max(1, slots))))
    rows, (prompts, together) = np.arange(len(placed)), np.array(asked).T
    first = StepGrid.of(
        deployments, deployment=rows, batch=0, prefill_batch=together, prefill_tokens=length
    )
    prefill_s = prompts / together * grid_times(first).latency_s
    sizes = [len(pieces.steps) for *_, pieces in placed]
    steps, batch, position = map(np.concatenate, zip(*(row[-1] for row in placed), strict=True))
    owner = np.repeat(rows, sizes)
    stages = np.array([each.pp for each in deployments])[owner]
    grid = StepGrid.of(
        deployments,
        deployment=owner,
        batch=-(-batch // stages),
        context=np.rint(length + position),
        draft_tokens=np.array([proposed(each) for each in deployments])[owner],
    )
    times = speculated_grid_times(grid)
    decode_s = steps * times.step_s_of(stages.astype(np.float64)) / times.tokens
    found = []
    split = np.split(decode_s, np.cumsum(sizes)[:-1])
    for row, prompts_s, each_s in zip(placed, prefill_s.tolist(), split, strict=True):
        count, slots, memory, pieces = row
        mean = float(np.average(pieces.batch, weights=pieces.steps))
        tail_s = float(each_s[2 * pieces.batch < pieces.batch.max()].sum())
        found.append(Rollout(count, slots, prompts_s, float(each_s.sum()), mean, tail_s, memory))
    return found


def _slots(tokens: Ints, most: int, memory: ServingMemory, prompt_tokens: int) -> int:
    """Return the most responses at once whose cache fits whenever it is largest."""

    def fits(slots: int) -> bool:
        pieces = pieces_of(tokens, slots)
        context = prompt_tokens + np.ceil(pieces.position + pieces.steps / 2.0).astype(np.int64)
        return bool(np.all(pieces.batch <= memory.max_batch(context)))

    low, high = (most, most) if fits(most) else (0, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
