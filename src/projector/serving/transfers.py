"""Prefixes that spare prefill, and caches that are sent from prefill to decode."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from projector.arrays import Flags, Floats, Ints
from projector.kernels.collective_algorithms import SEND_RECV
from projector.kernels.collectives import collective_time_columns
from projector.lower.fabrics import fabric_record
from projector.serving.columns import cached_tokens, elements_per_token
from projector.serving.deployment import Deployment


def cached_prefix(share: Floats, tokens: Ints, page: Ints) -> Ints:
    """Return tokens that a cached prefix spares, whole pages of a ``share``; one token is left."""
    spared = np.minimum((share * tokens).astype(np.int64), np.maximum(0, tokens - 1))
    return np.asarray(spared // page * page)


def cached_prefix_tokens(deployment: Deployment, tokens: int) -> int:
    """Return the tokens of a prompt of ``tokens`` that a cached prefix spares."""
    page = np.array(deployment.page_tokens)
    return int(cached_prefix(np.array(deployment.prefix_share), np.array(tokens), page))


@dataclass(frozen=True, slots=True)
class CacheTransfers:
    """Caches of some prompts on their way from prefill to decode, float64[loads] each."""

    cache_bytes: Floats
    """All layers of all prompts of a prefill step, each element once."""
    wire_bytes: Floats
    """What the decode ranks take; more where several of them hold the same elements."""
    sent_bytes: Floats
    received_bytes: Floats
    transfer_s: Floats
    """Time of the slower end of the links."""


def transfers_of(
    deployments: Sequence[Deployment], deployment: Ints, prompts: Ints, lengths: Ints
) -> CacheTransfers:
    """Return what is sent from prefill to decode, and how long it takes.

    The ranks that hold the prompts send, each its even part. Each decode rank takes the heads and
    layers that it will read; the latent of MLA, and key heads that repeat, several times. Row n is
    of a ``deployment`` that prefills so many ``prompts`` of some ``lengths`` in tokens.
    """
    tokens = np.empty(len(deployment), np.int64)
    for row, each in enumerate(deployments):
        of_row = deployment == row
        tokens[of_row] = cached_tokens(each.model, lengths[of_row])

    def column(values: Iterable[float]) -> Floats:
        return np.array(list(values), np.float64)[deployment]

    sides = [each.prefill_side for each in deployments]
    held = column(each.cached_element_bytes for each in deployments) * prompts * tokens
    cache = held * column(elements_per_token(each.model) for each in deployments)
    wire = held * column(elements_per_token(each.model, each.tp) * each.tp for each in deployments)
    senders, receivers = (
        column(each.tp * each.pp for each in ends)
        * np.minimum(prompts, column(each.attention_dp for each in ends))
        for ends in (sides, deployments)
    )
    sent, received = wire / senders, wire / receivers
    near = column(
        bool(each.disaggregated and each.disaggregated.same_domain) for each in deployments
    )
    transfer_s = np.zeros(len(deployment))
    for ends, num_bytes in ((sides, sent), (deployments, received)):
        seconds, _ = collective_time_columns(
            np.full(len(deployment), SEND_RECV), num_bytes, np.full(len(deployment), 2),
            np.where(near > 0.0, 2, 1), deployment,
            np.concatenate([fabric_record(each.cluster) for each in ends]),
        )  # fmt: skip
        transfer_s = np.maximum(transfer_s, seconds)
    return CacheTransfers(cache, wire, sent, received, transfer_s)


def exposed_transfer_s(
    transfer_s: Floats, prefill_s: Floats, layers: Floats, layerwise: Flags
) -> Floats:
    """Return what of a transfer lies behind its prefill.

    Layer by layer, each is sent once it is computed. Layers take equally long, so with L of them
    the last one is sent ``max(T / L, T - P (L - 1) / L)`` after the prefill P; otherwise T.
    """
    left = transfer_s - prefill_s * (layers - 1.0) / layers
    return np.where(layerwise, np.maximum(transfer_s / layers, left), transfer_s)
