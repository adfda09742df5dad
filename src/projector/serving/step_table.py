"""Times of the steps of one deployment on a grid, from which a simulation interpolates."""

import numpy as np

from projector.arrays import Ints
from projector.serving._wip import StepTable
from projector.serving.columns import Step
from projector.serving.deployment import Deployment
from projector.serving.step import BREAKDOWN, step_times
from projector.units import MICROSECOND

_ATTENTION, _HOST = (BREAKDOWN.index(name) for name in ("attention", "host"))

FIRST_CONTEXT = 128
"""Shortest context of the grid beside none; each further point is twice the one before."""


def step_table(deployment: Deployment, max_seqs: int, max_tokens: int, longest: int) -> StepTable:
    """Time the steps that a load can meet.

    Parameters
    ----------
    deployment : Deployment
        One replica.
    max_seqs, max_tokens : int
        Most sequences and new tokens of one step.
    longest : int
        Most tokens of one sequence.

    Notes
    -----
    A step with prompts is composed: kernels without attention for all its new tokens, as in the
    prefill of one prompt of so many tokens, and the attention of each part. With ``pp`` stages a
    step stands for ``pp`` smaller ones that follow each other through the stages, each with its
    share of the sequences and tokens.
    """
    groups, stages = deployment.attention_dp, deployment.pp
    batch, context = _spread(1, max_seqs), _doubling(longest)
    tokens, chunk = _spread(2, max_tokens), _powers(2, max_tokens)
    decode = [
        Step(deployment, max(1, -(-int(many) // stages)), 1, int(past))
        for many in batch for past in context
    ]  # fmt: skip
    base = [Step(deployment, groups, max(2, int(many) // (groups * stages))) for many in tokens]
    parts = [
        Step(deployment, groups, int(part), int(past)) for part in chunk for past in context
    ]
    times = step_times([*decode, *base, *parts])
    attention_s = times.breakdown_s[:, _ATTENTION]
    square = (len(batch), len(context))
    alone, prompts = len(decode), len(decode) + len(base)
    overhead_s = deployment.step_overhead_us * MICROSECOND
    breakdown_s = times.breakdown_s[alone:prompts]
    device_s = breakdown_s.sum(axis=1) - breakdown_s[:, _HOST]
    # Of the smallest step the host's time shows, unless the host never matters.
    waits_s = float(breakdown_s[0, _HOST]) - overhead_s
    return StepTable(
        batch=batch,
        context=context,
        decode_s=times.latency_s[:alone].reshape(square),
        decode_attention_s=attention_s[:alone].reshape(square),
        tokens=tokens,
        base_s=device_s - breakdown_s[:, _ATTENTION],
        chunk=chunk,
        past=context,
        chunk_attention_s=attention_s[prompts:].reshape(len(chunk), -1) / (groups * stages),
        host_s=float(device_s[0]) + waits_s if waits_s > 0.0 else 0.0,
        overhead_s=overhead_s,
    )


def _spread(first: int, last: int) -> Ints:
    """Return the powers of 2 and the middles between them up to ``last``, which is one of them."""
    powers = first << np.arange(max(1, int(np.ceil(np.log2(max(2, last) / first)))) + 1)
    both = np.sort(np.concatenate([powers, powers[:-1] + powers[:-1] // 2]))
    return _closed(np.unique(both), first, last)


def _powers(first: int, last: int) -> Ints:
    return _closed(first << np.arange(40), first, last)


def _doubling(longest: int) -> Ints:
    """Return 0, ``FIRST_CONTEXT`` and its doubles."""
    return np.concatenate([[0], _closed(FIRST_CONTEXT << np.arange(40), FIRST_CONTEXT, longest)])


def _closed(grid: Ints, first: int, last: int) -> Ints:
    """Cut a grid at ``last``, with two points at least."""
    inside = grid[grid < last]
    points: Ints = np.append(inside, last) if len(inside) else np.array([first, first + 1])
    return points.astype(np.int64)
