"""Bytes of a KV cache from what one layer caches of a token."""

from projector.config.model import ModelConfig
from projector.serving.columns import cached_tokens, elements_per_token


def kv_cache_bytes(
    model: ModelConfig, batch: int, context: int, element_bytes: float = 2.0, tp: int = 1
) -> float:
    """Return the bytes that ``batch`` sequences of ``context`` tokens cache on one rank.

    Without windows this is ``2 * layers * kv_heads / tp * head_dim * bytes`` for each token.
    """
    tokens = batch * int(cached_tokens(model, context))
    return float(tokens) * elements_per_token(model, tp) * element_bytes
