"""Times of the steps of one deployment on a grid, from which a simulation interpolates."""

from collections.abc import Iterable

import numpy as np

from projector.arrays import Floats, Ints
from projector.kernels.serving_load import StepTable
from projector.serving.columns import Step, counts_of, scheduled
from projector.serving.deployment import Deployment
from projector.serving.speculation import speculated_times
from projector.serving.step import step_times
from projector.serving.totals import BREAKDOWN, hosts_of
from projector.units import MICROSECOND

_ATTENTION, _HOST = (BREAKDOWN.index(name) for name in ("attention", "host"))

FIRST_CONTEXT = 128
"""Shortest context of the grid beside none; each further point is twice the one before."""

ROUNDING_S = 1e-12
"""Waits below this are none."""

FIRST_STEP_UP = 7
"""Power of 2 from which on such steps matter: below, a tile of rows is not full."""

BESIDE_TOKENS, BESIDE_CONTEXT = 1024, 512
"""Step at which it is asked what sequences add that decode beside prompts; it depends on neither,
up to the way GEMMs are cut into tiles."""


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
    prefill of one prompt of so many tokens; the attention of each part; what sequences add that
    decode beside them. With ``pp`` stages a step stands for ``pp`` smaller ones that follow each
    other through the stages, each with its share of the sequences and tokens.

    With speculative decoding a step of decode alone is the share of a verified step that each of
    its expected tokens has; beside prompts a sequence gets one token.
    """
    groups, stages = deployment.attention_dp, deployment.pp
    batch, context = _spread(1, max_seqs), _doubling(longest)
    tokens, chunk = _dense(2, max_tokens), _powers(2, max_tokens)
    timed = _Timed(deployment)
    decoding = [max(1, -(-int(many) // stages)) for many in batch]
    decode = timed.add(
        Step(deployment, many, 1, int(past)) for many in decoding for past in context
    )
    base = timed.add(_prompts(deployment, int(many) // stages) for many in tokens)
    parts = timed.add(
        Step(deployment, groups, int(part), int(past)) for part in chunk for past in context
    )
    mixed = timed.add(
        Step(deployment, many, 1, BESIDE_CONTEXT, BESIDE_TOKENS, 0, groups) for many in decoding
    )
    alone = timed.add(_prompts(deployment, many + BESIDE_TOKENS * groups) for many in decoding)
    (small,) = timed.add([Step(deployment, groups, 1, BESIDE_CONTEXT, 2, 0, groups)])
    timed.run()
    decode_s = timed.latency_s[decode]
    if deployment.speculative is not None:
        decode_s = speculated_times(timed.steps[: len(decode)]).token_s
    square = (len(batch), len(context))
    return StepTable(
        batch=batch,
        context=context,
        decode_s=decode_s.reshape(square),
        decode_attention_s=timed.attention_s[decode].reshape(square),
        tokens=tokens,
        base_s=timed.other_s[base],
        chunk=chunk,
        past=context,
        chunk_attention_s=timed.attention_s[parts].reshape(len(chunk), -1) / (groups * stages),
        beside_s=timed.other_s[mixed] - timed.other_s[alone],
        host_s=float(timed.host_s[base[0]]),
        host_beside_s=float(timed.host_s[small]),
        overhead_s=deployment.runs.step_us * MICROSECOND,
        sequence_s=deployment.runs.sequence_us * MICROSECOND / groups,
    )


def _prompts(deployment: Deployment, tokens: int) -> Step:
    """Return a step with so many new tokens, all of prompts, one for each attention group."""
    groups = deployment.attention_dp
    return Step(deployment, groups, max(2, tokens // groups))


class _Timed:
    """Steps that are collected first and timed at once."""

    latency_s: Floats
    attention_s: Floats
    other_s: Floats
    """Of the device, without attention."""
    host_s: Floats
    """What the host needs, where that shows; else 0."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self.steps: list[Step] = []

    def add(self, steps: Iterable[Step]) -> Ints:
        """Take steps; return their positions."""
        first = len(self.steps)
        self.steps.extend(steps)
        return np.arange(first, len(self.steps))

    def run(self) -> None:
        """Time all steps."""
        times = step_times(self.steps)
        breakdown_s = times.breakdown_s
        self.latency_s = times.latency_s
        self.attention_s = breakdown_s[:, _ATTENTION]
        hosts, counts = hosts_of([self._deployment]), counts_of(self.steps)
        overhead_s = hosts.step_s + hosts.sequence_s * scheduled(counts, hosts.groups)
        waits_s = breakdown_s[:, _HOST] - overhead_s
        device_s = times.latency_s - breakdown_s[:, _HOST]
        self.other_s = device_s - self.attention_s
        self.host_s = np.where(waits_s > ROUNDING_S, device_s + waits_s, 0.0)


def _spread(first: int, last: int) -> Ints:
    """Return the powers of 2 and the middles between them up to ``last``, which is one of them."""
    powers = first << np.arange(max(1, int(np.ceil(np.log2(max(2, last) / first)))) + 1)
    both = np.sort(np.concatenate([powers, powers[:-1] + powers[:-1] // 2]))
    return _closed(np.unique(both), first, last)


def _dense(first: int, last: int) -> Ints:
    """Return eight points in every octave, and the next number after each large power of 2.

    GEMMs take a step up there, since one more tile begins.
    """
    octaves = int(np.ceil(np.log2(max(2.0, last / first))))
    points = np.rint(first * 2.0 ** (np.arange(8 * octaves + 1) / 8.0)).astype(np.int64)
    above = (1 << np.arange(FIRST_STEP_UP, FIRST_STEP_UP + octaves)) + 1
    return _closed(np.unique(np.concatenate([points, above])), first, last)


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
