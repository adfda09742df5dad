"""Prefill and decode on devices of their own, with the cache sent from one to the other."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from projector.arrays import Flags, Floats
from projector.errors import ConfigError
from projector.kernels.collective_algorithms import SEND_RECV
from projector.kernels.collectives import collective_time_columns
from projector.lower.hardware import fabric_record
from projector.serving.cache import cached_tokens, elements_per_token, kv_cache_bytes
from projector.serving.columns import Step
from projector.serving.deployment import Deployment, DisaggregatedConfig
from projector.serving.prompts import prompt_steps
from projector.serving.speculation import speculated_times
from projector.serving.step import step_times


@dataclass(frozen=True, slots=True)
class DisaggregatedLoad:
    """Equal requests on a deployment whose prefill has devices of its own."""

    deployment: Deployment
    """What decodes; its ``disaggregated`` says what prefills."""
    batch: int
    """Sequences that a decode replica generates tokens for at once."""
    input_len: int
    output_len: int


@dataclass(frozen=True, slots=True)
class CacheTransfers:
    """Caches of some prompts on their way from prefill to decode, float64[loads] each."""

    cache_bytes: Floats
    """All layers of all prompts of a prefill step, each element once."""
    wire_bytes: Floats
    """What the decode ranks take; more where several of them hold the same elements."""
    sent_bytes: Floats
    """Of each sending rank."""
    received_bytes: Floats
    """Of each receiving rank."""
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
    """Of a decode replica."""
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

    def balanced(self, row: int = 0, most: int = 8) -> tuple[int, int]:
        """Return the replicas of prefill and decode that yield most for each device.

        Up to ``most`` of either are tried; of equal ones the fewest devices win.
        """
        one = np.arange(1, most + 1)
        prefill, decode = (grid.ravel() for grid in np.meshgrid(one, one, indexing="ij"))
        requests = np.minimum(
            prefill * self.prefill_requests_per_s[row], decode * self.decode_requests_per_s[row]
        )
        gpus = prefill * self.prefill_gpus[row] + decode * self.decode_gpus[row]
        best = np.lexsort((gpus, -np.round(requests / gpus, 9)))[0]
        return int(prefill[best]), int(decode[best])


def _settings(load: DisaggregatedLoad) -> DisaggregatedConfig:
    """Return what prefills for a load, or refuse it."""
    settings = load.deployment.disaggregated
    if settings is None:
        msg = "the deployment prefills on the devices that decode; give disaggregated"
        raise ConfigError(msg, key="disaggregated", allowed="fields of what prefills")
    return settings


def cache_transfers(loads: Sequence[DisaggregatedLoad]) -> CacheTransfers:
    """Return what is sent of the prompts of one prefill step, and how long it takes.

    The ranks that hold the prompts send, each its even part. Each decode rank takes the heads and
    layers that it will read; the latent of MLA, and key heads that repeat, several times.
    """
    rows = [_transfer(load) for load in loads]
    cache, wire, senders, receivers = np.array(rows, np.float64).T
    sent, received = wire / senders, wire / receivers
    local = np.array([2 if _settings(load).same_domain else 1 for load in loads], np.int64)
    ends = (
        ([load.deployment.prefill_side.cluster for load in loads], sent),
        ([load.deployment.cluster for load in loads], received),
    )
    transfer_s = np.zeros(len(loads))
    for clusters, num_bytes in ends:
        seconds, _ = collective_time_columns(
            np.full(len(loads), SEND_RECV), num_bytes, np.full(len(loads), 2), local,
            np.arange(len(loads)), np.concatenate([fabric_record(each) for each in clusters]),
        )  # fmt: skip
        transfer_s = np.maximum(transfer_s, seconds)
    return CacheTransfers(cache, wire, sent, received, transfer_s)


def _transfer(load: DisaggregatedLoad) -> tuple[float, float, int, int]:
    """Return unique and received bytes, sending and receiving ranks, of one prefill step."""
    decode, prefill = load.deployment, load.deployment.prefill_side
    prompts, model, element = _settings(load).batch, decode.model, decode.cached_element_bytes
    cache = kv_cache_bytes(model, prompts, load.input_len, element)
    tokens = prompts * cached_tokens(model, load.input_len)
    wire = float(tokens) * elements_per_token(model, decode.tp) * decode.tp * element
    senders = prefill.tp * prefill.pp * min(prompts, prefill.attention_dp)
    receivers = decode.tp * decode.pp * min(prompts, decode.attention_dp)
    return cache, wire, senders, receivers


def exposed_transfer_s(
    transfer_s: Floats, prefill_s: Floats, layers: Floats, layerwise: Flags
) -> Floats:
    """Return what of a transfer lies behind its prefill.

    Layer by layer, each is sent once it is computed. Layers take equally long, so with L of them
    the last one is sent ``max(T / L, T - P (L - 1) / L)`` after the prefill P; otherwise T.
    """
    left = transfer_s - prefill_s * (layers - 1.0) / layers
    return np.where(layerwise, np.maximum(transfer_s / layers, left), transfer_s)


def disaggregated_times(loads: Sequence[DisaggregatedLoad]) -> DisaggregatedTimes:
    """Time loads on a prefill and a decode replica, and what rates these keep up.

    The first token comes from the prefill, decode steps give the others. A prefill replica waits
    for its links where a transfer takes longer than a prefill.

    Raises
    ------
    ConfigError
        If a deployment is not disaggregated, or a step has no tokens.
    """
    settings = [_settings(load) for load in loads]
    sides = [load.deployment.prefill_side for load in loads]
    prompts = np.array([float(each.batch) for each in settings])
    layerwise = np.array([each.layerwise for each in settings], np.bool_)
    prefills = step_times(
        [
            step
            for load, side, each in zip(loads, sides, settings, strict=True)
            for step in prompt_steps(side, each.batch, load.input_len)
        ]
    )
    decodes = speculated_times([_decode_step(load) for load in loads])
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
        prefill_requests_per_s=prompts / interval_s,
        decode_requests_per_s=decode_rate,
        prefill_gpus=np.array([float(side.gpus) for side in sides]),
        decode_gpus=np.array([float(load.deployment.gpus) for load in loads]),
        output_len=outputs,
    )


def _decode_step(load: DisaggregatedLoad) -> Step:
    """Return the step in the middle of a generation; with stages each has its part of the batch."""
    middle = load.input_len + max(0, load.output_len - 2) // 2
    return Step(load.deployment, ceil(load.batch / load.deployment.pp), 1, middle)
