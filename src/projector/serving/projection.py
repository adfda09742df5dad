"""What serving a load looks like: latencies, throughput, memory, and what limits each step."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from projector.config.bands import DECODE, LATENCY, LOAD, PREFILL, Band, serving_band
from projector.config.device_file import origins_of
from projector.envelope import Told, envelope, told
from projector.runs.cost import cost_usd, usd_per_million_tokens
from projector.serving.capacity import CapacityResult
from projector.serving.deployment import Deployment, degrees
from projector.serving.generation import DisaggregatedTimes
from projector.serving.load import Traffic
from projector.serving.memory import ServingMemory
from projector.serving.points import SpeculatedTimes
from projector.serving.rates import Rates, ServingFront
from projector.serving.simulation import LoadResult
from projector.units import HOUR, to_gib, to_ms

FITS, DOES_NOT_FIT = "fits", "does_not_fit"


@dataclass(frozen=True, slots=True)
class StepProjection:
    """One step: the prefill of prompts, or the decode of a token of each sequence."""

    sequences: int
    """Sequences that go through the model together."""
    new_tokens: int
    """Tokens of each."""
    cached_tokens: int
    """Tokens of each that are cached already."""
    time_s: float
    """First pipeline stage to last."""
    interval_s: float
    """Between two such steps of the slowest stage."""
    breakdown_s: Mapping[str, float]
    """Terms, which add up to ``time_s``."""
    limits_s: Mapping[str, float]
    """The same seconds by what limits the operations."""

    @property
    def bound(self) -> str:
        """What limits most of the step."""
        return max(self.limits_s, key=lambda name: self.limits_s[name])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, seconds as milliseconds."""
        return {
            **told(self, "sequences new_tokens cached_tokens time_ms interval_ms breakdown_ms"),
            **told(self, "limits_ms bound"),
        }


@dataclass(frozen=True, slots=True)
class ServingProjection:
    """A deployment under a load of equal requests. Times are seconds."""

    deployment: Deployment
    traffic: Traffic
    batch: int
    """Sequences that generate at once, on the whole replica."""
    prefill: StepProjection
    decode: StepProjection
    rates: Rates
    """Of the load alone."""
    memory: ServingMemory
    max_context: int
    """Longest prompt that fits with this batch and output; 0 if none does."""
    derived: Mapping[str, str]
    """Dotted field -> the value that was chosen for it, and why."""
    warnings: tuple[str, ...]
    decoding: SpeculatedTimes
    """Of the decode step: what proposes tokens before it, and the tokens that it yields."""
    front: ServingFront | None = None
    """Throughput against speed, where a batch or a split was left open."""
    under_load: LoadResult | None = None
    """A replica with its share of the load, where requests arrive at a rate."""
    capacity: CapacityResult | None = None
    """Replicas for the load, where users are promised something."""
    disaggregated: DisaggregatedTimes | None = None
    """Where prefill has devices of its own."""

    @property
    def gpus(self) -> int:
        """Devices of the replica."""
        return self.deployment.gpus

    @property
    def scalars(self) -> dict[str, Any]:
        """The columns of `rates`, which has one row."""
        return {each.name: getattr(self.rates, each.name)[0] for each in fields(self.rates)}

    ttft_s = Told(float)
    """Seconds from prompts that wait for nothing to their first tokens."""
    tpot_s = Told(float)
    """Seconds between two tokens of a sequence while no prompt goes through the model."""
    prompts_s = Told(float)
    """Seconds that the prompts of others add to each token of a sequence."""
    tokens_per_s_per_user = Told(float)
    """Generated tokens of one sequence, prompts of others included."""
    tokens_per_s_per_gpu = Told(float)
    """Generated tokens of the replica over its devices."""
    peak_bytes = Told(float)
    """Weights, cache, and activations of the fullest rank, reserve included."""
    usable_bytes = Told(float)
    """What an engine takes of the device, reserve included."""
    max_batch = Told(int)
    """Sequences of prompt and output that fit; 0 if none does."""

    @property
    def usd_per_million_tokens(self) -> float | None:
        """Rent of the devices over the tokens that they generate; None without a price."""
        price = self.traffic.usd_per_gpu_hour
        if price is None:
            return None
        hours, tokens = np.ones(1), np.array([HOUR * self.tokens_per_s_per_gpu])
        return float(usd_per_million_tokens(cost_usd(hours, np.array([price])), tokens)[0])

    @property
    def kv_cache_bytes(self) -> float:
        """Cache of the fullest rank when all sequences have their full length."""
        return float(self.memory.cache_bytes(self.batch, self.traffic.longest))

    @property
    def fits(self) -> bool:
        """Whether the batch fits at its full length."""
        return self.batch <= self.max_batch

    @property
    def verdict(self) -> str:
        """``fits`` or ``does_not_fit``; memory of serving has no published band."""
        return FITS if self.fits else DOES_NOT_FIT

    def band_of(self, phase: str) -> Band:
        """Return where measured times of a phase lie, as factors of the projected ones."""
        deployment = self.deployment
        return serving_band(deployment.cluster.device, phase, deployment.model.moe is not None)

    @property
    def band(self) -> Band:
        """The band of generating: of decode alone, with prompts, or under a load."""
        if self.under_load is not None:
            return self.band_of(LOAD)
        return self.band_of(DECODE if self.traffic.output is None else LATENCY)

    @property
    def uncertainty(self) -> dict[str, Any]:
        """The band of generating as ``--json`` has it; ``prefill`` and ``decode`` have theirs."""
        return self.band.to_dict()

    def to_dict(self) -> dict[str, Any]:
        """Return exactly the object that ``projector serve --json`` prints."""
        deployment = self.deployment
        return {
            **envelope(self.warnings, self.uncertainty),
            "model": deployment.model.name,
            "device": deployment.cluster.device.name,
            "gpus": self.gpus,
            "parallelism": degrees(deployment),
            "dtype": deployment.dtype,
            "load": {**self.traffic.model_dump(mode="json"), "batch": self.batch},
            **told(self, "ttft_ms tpot_ms tokens_per_s_per_gpu tokens_per_s_per_user"),
            "prompts_ms_per_token": to_ms(self.prompts_s),
            **told(self, "max_batch max_context kv_cache_gib"),
            "bound_prefill": self.prefill.bound,
            "bound_decode": self.decode.bound,
            **told(self, "fits verdict"),
            "prefill": {**self.prefill.to_dict(), "uncertainty": self.band_of(PREFILL).to_dict()},
            "decode": {**self.decode.to_dict(), "uncertainty": self.band_of(DECODE).to_dict()},
            "memory": {
                **told(self.memory, "weights_gib"),
                **told(self, "kv_cache_gib"),
                **told(self.memory, "workspace_gib reserve_gib"),
                **told(self, "peak_gib usable_gib"),
                "device_memory_gib": float(self.deployment.cluster.device.hbm_gib),
            },
            "usd_per_million_tokens": self.usd_per_million_tokens,
            **self._parts(),
            "provenance": self.provenance,
        }

    def _parts(self) -> dict[str, Any]:
        """Return what only some loads have."""
        found: dict[str, Any] = {}
        if self.deployment.speculative is not None:
            found["speculative"] = {
                "tokens_per_step": float(self.decoding.tokens[0]),
                "verify_ms": to_ms(float(self.decoding.verify_s[0])),
                "draft_ms": to_ms(float(self.decoding.draft_s[0])),
            }
        if self.disaggregated is not None:
            found["disaggregated"] = self._disaggregated(self.disaggregated)
        if self.front is not None:
            found["front"] = self.front.to_dict()
        if self.under_load is not None:
            found["under_load"] = self.under_load.to_dict()
        if self.capacity is not None:
            found["replicas"] = self.capacity.replicas
            found["replica_rate_per_s"] = self.capacity.replica_rate_per_s
        return found

    def _disaggregated(self, times: DisaggregatedTimes) -> dict[str, Any]:
        prefill, decode = times.balanced()
        return {
            "prefill_replicas": prefill,
            "decode_replicas": decode,
            "prefill_gpus": float(times.prefill_gpus[0]) * prefill,
            "decode_gpus": float(times.decode_gpus[0]) * decode,
            "prefill_per_decode": float(times.prefill_per_decode[0]),
            "transfer_ms": to_ms(float(times.transfers.transfer_s[0])),
            "exposed_ms": to_ms(float(times.exposed_s[0])),
            "cache_gib": to_gib(float(times.transfers.cache_bytes[0])),
        }

    @property
    def provenance(self) -> dict[str, Any]:
        """Where values that nobody stated come from."""
        device = self.deployment.cluster.device
        stated = self.deployment.model_fields_set
        defaults = self.deployment.model_dump(mode="json", exclude={"model", "cluster", *stated})
        return {
            "derived": dict(self.derived),
            "defaults": {key: value for key, value in defaults.items() if value is not None},
            "device": {"name": device.name, **told(origins_of(device), "borrowed assumed")},
        }

    def __repr__(self) -> str:
        return (
            f"ServingProjection({self.deployment.model.name} on {self.gpus} x "
            f"{self.deployment.cluster.device.name}, batch {self.batch}: TTFT "
            f"{to_ms(self.ttft_s):,.1f} ms, TPOT {to_ms(self.tpot_s):,.2f} ms, "
            f"{self.tokens_per_s_per_gpu:,.0f} tokens/s/GPU, largest batch {self.max_batch}, "
            f"{self.verdict.replace('_', ' ')})"
        )

    def _repr_html_(self) -> str:
        from projector.frames import html_table

        rows = [
            {"term": name, "prefill ms": to_ms(value), "decode ms": to_ms(decode)}
            for (name, value), decode in zip(
                self.prefill.breakdown_s.items(), self.decode.breakdown_s.values(), strict=True
            )
        ]
        return html_table(repr(self), rows)
