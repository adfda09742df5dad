"""Prompts as steps: whole or in chunks, without what a cached prefix spares."""

import numpy as np

from projector.arrays import Floats, Ints
from projector.errors import ConfigError
from projector.serving.columns import Step
from projector.serving.deployment import Deployment


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

    Parameters
    ----------
    chunk_tokens : int, optional
        Most new tokens of a step of one attention group; none given prefills in one step. The
        prompts of a group go through in step, and each chunk reads what was cached before it.
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
