"""Prompts and generations: on the same devices, or prefill and decode on devices of their own.

Prompts go through whole or in chunks, less a cached prefix. Apart, the cache is sent from prefill
to decode.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from projector.arrays import Flags, Floats, Ints
from projector.errors import ConfigError
from projector.kernels.collective_algorithms import SEND_RECV
from projector.kernels.collectives import collective_time_columns
from projector.lower.fabrics import fabric_record
from projector.serving.columns import Step, cached_tokens, elements_per_token
from projector.serving.deployment import Deployment, DisaggregatedConfig
from projector.serving.points import speculated_times
from projector.serving.step import step_times


def cached_prefix(share: Floats, tokens: Ints, page: Ints) -> Ints:
    """Return tokens that a cached prefix spares, whole pages of a ``share``; one token is left."""
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
    """Return seconds until ``batch`` prompts have a first token, or in chunks (`prompt_steps`)."""
    return float(step_times(prompt_steps(deployment, batch, tokens, chunk_tokens)).latency_s.sum())


def decode_time_s(deployment: Deployment, batch: int, context: int) -> float:
    """Return the seconds of a token of each sequence, ``context`` cached: its share of a step."""
    return float(speculated_times([Step(deployment, batch, 1, context)]).token_s[0])


@dataclass(frozen=True, slots=True)
class Generation:
    """Equal requests that start together (`generation_times`); prefill may have own devices."""

    deployment: Deployment
    batch: int
    """Sequences that generate at once, of a decode replica where prefill lies apart."""
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
            visited = item.input_len + np.arange(item.output_len - 1)
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


@dataclass(frozen=True, slots=True)
class DisaggregatedTimes:
    """Times and rates of loads, float64[loads] each."""

    transfers: CacheTransfers
    prefill_s: Floats
    """Prompt to its last layer."""
    exposed_s: Floats
    """What of the transfer lies behind the prefill."""
    token_s: Floats
    """Between two tokens of a sequence that decodes."""
    prefill_requests_per_s: Floats
    """Of a prefill replica, whose links may hold it up."""
    decode_requests_per_s: Floats
    prefill_gpus: Floats
    decode_gpus: Floats
    output_len: Floats

    @property
    def ttft_s(self) -> Floats:
        """Seconds to the first token, which prefill computes and decode hands out."""
        return self.prefill_s + self.exposed_s

    @property
    def prefill_per_decode(self) -> Floats:
        """Prefill replicas that keep one decode replica busy."""
        return self.decode_requests_per_s / self.prefill_requests_per_s

    def tokens_per_s_per_gpu(self, prefill: Floats | int, decode: Floats | int) -> Floats:
        """Return the generated tokens of so many replicas of both over all their devices."""
        requests = np.minimum(
            prefill * self.prefill_requests_per_s, decode * self.decode_requests_per_s
        )
        gpus = prefill * self.prefill_gpus + decode * self.decode_gpus
        rate: Floats = requests * self.output_len / gpus
        return rate

    def balanced(self, most: int = 8) -> tuple[int, int]:
        """Return the fewest replicas, up to ``most`` of either, that yield most for each device."""
        one = np.arange(1, most + 1)
        prefill, decode = (grid.ravel() for grid in np.meshgrid(one, one, indexing="ij"))
        requests = np.minimum(
            prefill * self.prefill_requests_per_s[0], decode * self.decode_requests_per_s[0]
        )
        gpus = prefill * self.prefill_gpus[0] + decode * self.decode_gpus[0]
        best = np.lexsort((gpus, -np.round(requests / gpus, 9)))[0]
        return int(prefill[best]), int(decode[best])


def _settings(load: Generation) -> DisaggregatedConfig:
    """Return what prefills for a load, or refuse it."""
    settings = load.deployment.disaggregated
    if settings is None:
        msg = "the deployment prefills on the devices that decode; give disaggregated"
        raise ConfigError(msg, key="disaggregated", allowed="fields of what prefills")
    return settings


def cache_transfers(loads: Sequence[Generation]) -> CacheTransfers:
    """Return what is sent of the prompts of one prefill step of each load, see `transfers_of`."""
    for load in loads:
        _settings(load)
    prompts = np.array([load.deployment.prefill_prompts for load in loads], np.int64)
    lengths = np.array([load.input_len for load in loads], np.int64)
    deployments = [load.deployment for load in loads]
    return transfers_of(deployments, np.arange(len(loads)), prompts, lengths)


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


def disaggregated_times(loads: Sequence[Generation]) -> DisaggregatedTimes:
    """Time loads on a prefill and a decode replica, and what rates these keep up.

    The first token comes from the prefill, decode steps give the others. A prefill replica waits
    for its links where a transfer takes longer than a prefill.
    """
    settings = [_settings(load) for load in loads]
    sides = [load.deployment.prefill_side for load in loads]
    prompts = [load.deployment.prefill_prompts for load in loads]
    layerwise = np.array([each.layerwise for each in settings], np.bool_)
    prefills = step_times(
        [
            step
            for load, side, together in zip(loads, sides, prompts, strict=True)
            for step in prompt_steps(side, together, load.input_len)
        ]
    )
    # In the middle of a generation; with stages each has its part of the batch.
    decodes = speculated_times(
        [
            Step(
                load.deployment,
                ceil(load.batch / load.deployment.pp),
                context=load.input_len + max(0, load.output_len - 2) // 2,
            )
            for load in loads
        ]
    )
    transfers = cache_transfers(loads)
    layers = np.array([float(load.deployment.model.num_layers) for load in loads])
    stages = np.array([float(load.deployment.pp) for load in loads])
    token_s = decodes.step_s_of(stages) / decodes.tokens
    batch = np.array([float(load.batch) for load in loads])
    outputs = np.array([float(load.output_len) for load in loads])
    interval_s = np.maximum(prefills.interval_s, transfers.transfer_s)
    with np.errstate(divide="ignore"):
        decode_rate = batch / (token_s * (outputs - 1.0))
    return DisaggregatedTimes(
        transfers=transfers,
        prefill_s=prefills.latency_s,
        exposed_s=exposed_transfer_s(transfers.transfer_s, prefills.latency_s, layers, layerwise),
        token_s=token_s,
        prefill_requests_per_s=np.array(prompts, np.float64) / interval_s,
        decode_requests_per_s=decode_rate,
        prefill_gpus=np.array([float(side.gpus) for side in sides]),
        decode_gpus=np.array([float(load.deployment.gpus) for load in loads]),
        output_len=outputs,
    )
