"""Seconds of prompts (whole or in chunks, less a cached prefix), of tokens and of generations."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from projector.arrays import Floats, Ints
from projector.errors import ConfigError
from projector.serving.columns import Step
from projector.serving.deployment import Deployment
from projector.serving.speculation import speculated_times
from projector.serving.step import step_times


def cached_prefix(share: Floats, tokens: Ints, page: Ints) -> Ints:
    """Return the tokens of prompts that a cached prefix spares, int64 like ``tokens``.

    That is ``share`` of them in whole pages. At least one token is left, whose logits give the
    first new one.
    """
    spared = np.minimum((share * tokens).astype(np.int64), np.maximum(0, tokens - 1))
    return np.asarray(spared // page * page)


def cached_prefix_tokens(deployment: Deployment, tokens: int) -> int:
    """Return the tokens of a prompt of ``tokens`` that a cached prefix spares."""
    page = np.array(deployment.page_tokens)
    return int(cached_prefix(np.array(deployment.prefix_share), np.array(tokens), page))


def prompt_steps(
    deployment: Deployment, batch: int, tokens: int, chunk_tokens: int | None = None
) -> list[Step]:
    """Return the steps that prefill ``batch`` prompts of ``tokens`` each.

    A step has at most ``chunk_tokens`` new tokens of one attention group; without, one step
    prefills all. The prompts of a group go through in step, and each chunk reads what was cached
    before it.
    """
    if chunk_tokens is not None and chunk_tokens < 1:
        msg = f"a chunk has at least one token, got {chunk_tokens}"
        raise ConfigError(msg, key="chunk_tokens", value=chunk_tokens, allowed=">= 1")
    cached = cached_prefix_tokens(deployment, tokens)
    if chunk_tokens is None:
        return [_prompts(deployment, batch, tokens - cached, cached)]
    together = -(-batch // deployment.attention_dp)
    size = max(1, chunk_tokens // max(1, together))
    return [
        _prompts(deployment, batch, min(size, tokens - begin), begin)
        for begin in range(cached, tokens, size)
    ]


def _prompts(deployment: Deployment, batch: int, tokens: int, context: int) -> Step:
    if tokens > 1 or context == 0:
        return Step(deployment, batch, tokens, context)
    # One new token behind a cached prefix is still a prompt.
    return Step(deployment, 0, prefill_tokens=tokens, prefill_context=context, prefill_batch=batch)


DECODE_POINTS = 9
"""Context lengths at which a generation's decode step is timed, evenly spaced; the step is taken
as linear in between."""


def prefill_time_s(
    deployment: Deployment, batch: int, tokens: int, chunk_tokens: int | None = None
) -> float:
    """Return the seconds until each of ``batch`` prompts of ``tokens`` has its first token.

    With ``chunk_tokens`` the prompts go through in chunks, see `prompt_steps`.
    """
    steps = prompt_steps(deployment, batch, tokens, chunk_tokens)
    return float(step_times(steps).latency_s.sum())


def decode_time_s(deployment: Deployment, batch: int, context: int) -> float:
    """Return the seconds of a token of each sequence, with ``context`` tokens cached for it.

    That is one decode step, or with speculative decoding its share of one.
    """
    return float(speculated_times([Step(deployment, batch, 1, context)]).token_s[0])


@dataclass(frozen=True, slots=True)
class Generation:
    """A batch of equal requests that start together, without new ones joining."""

    deployment: Deployment
    batch: int
    input_len: int
    output_len: int


@dataclass(frozen=True, slots=True)
class GenerationTimes:
    """Times of generations, float64[generations]."""

    prefill_s: Floats
    """Prompt to first token."""
    decode_s: Floats
    """All further tokens."""


def generation_times(generations: Sequence[Generation]) -> GenerationTimes:
    """Time generations: the prefill gives the first token, decode steps the further ones.

    With speculative decoding a sequence gains the expected tokens of a step. That all of a batch
    end together is kept.
    """
    steps: list[Step] = []
    for item in generations:
        steps += prompt_steps(item.deployment, item.batch, item.input_len)
        steps += [Step(item.deployment, item.batch, 1, context) for context in _contexts(item)]
    latency_s = speculated_times(steps).token_s
    prefill_s, decode_s = np.zeros(len(generations)), np.zeros(len(generations))
    start = 0
    for row, item in enumerate(generations):
        prefill_s[row] = latency_s[start]
        contexts = _contexts(item)
        if contexts:
            count = item.output_len - 1
            visited = item.input_len + np.arange(count)
            visited_s = latency_s[start + 1 : start + 1 + len(contexts)]
            decode_s[row] = np.interp(visited, contexts, visited_s).sum()
        start += 1 + len(contexts)
    return GenerationTimes(prefill_s, decode_s)


def _contexts(item: Generation) -> list[int]:
    """List the distinct context lengths at which the decode steps of a generation are timed."""
    if item.output_len < 2:
        return []
    last = item.input_len + item.output_len - 2
    points = np.linspace(item.input_len, last, DECODE_POINTS).round().astype(np.int64)
    return [int(point) for point in np.unique(points)]
