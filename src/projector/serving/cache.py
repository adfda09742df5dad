"""Size of the cache of keys and values."""

import numpy as np

from projector.arrays import Ints
from projector.config.model import ModelConfig
from projector.serving.deployment import Deployment


def elements_per_token(model: ModelConfig, tp: int = 1) -> int:
    """Return what one layer caches of one token on one rank, in elements.

    Key heads are split over ``tp`` ranks and repeated where there are fewer; the latent of MLA
    (and its shared rotary key) is cached whole on every rank.
    """
    if model.mla is not None:
        return model.mla.kv_lora_rank + model.mla.qk_pos_emb_head_dim
    return -(-model.query_groups // tp) * 2 * model.head_dim


def cached_tokens(model: ModelConfig, context: int | Ints) -> Ints:
    """Return the tokens that all layers together cache of one sequence, int64 like ``context``.

    A windowed layer keeps its window.
    """
    windowed = model.sliding_window_layers
    windowed_tokens = np.minimum(context, model.sliding_window)
    return np.asarray((model.num_layers - windowed) * context + windowed * windowed_tokens)


def kv_cache_bytes(
    model: ModelConfig, batch: int, context: int, element_bytes: float = 2.0, tp: int = 1
) -> float:
    """Return the bytes that ``batch`` sequences of ``context`` tokens cache on one rank.

    Without windows this is ``2 * layers * kv_heads / tp * head_dim * bytes`` for each token.
    """
    tokens = batch * int(cached_tokens(model, context))
    return float(tokens) * elements_per_token(model, tp) * element_bytes


def deployment_cache_bytes(deployment: Deployment, batch: int, context: int) -> float:
    """Return the cache of one rank of the first pipeline stage, in bytes."""
    whole = kv_cache_bytes(
        deployment.model, batch, context, deployment.cached_element_bytes, deployment.tp
    )
    layers = deployment.model.num_layers
    return whole * (-(-layers // deployment.pp)) / layers
