"""A deployment under a load: times of its requests, and what it puts through."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from projector.arrays import Array, Floats, Ints
from projector.errors import ConfigError
from projector.kernels import serving_load as kernel
from projector.serving.deployment import Deployment
from projector.serving.load import Drawn, Load, Scheduler
from projector.serving.memory import serving_memory
from projector.serving.prompts import cached_prefix_tokens
from projector.serving.step_table import step_table
from projector.units import to_ms

PERCENTILES = (50, 90, 99)

SATURATED = 0.05
"""A load counts as more than the replica holds where the work that arrives exceeds what is served
by more than this share, over the counted time."""

_PROMPTS = {"chunked": kernel.CHUNKED, "whole": kernel.WHOLE, "first": kernel.FIRST}


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What became of a load on one replica; columns have an entry for each counted request."""

    deployment: Deployment
    load: Load
    scheduler: Scheduler
    ttft_s: Floats
    """float64[counted]: arrival to first token."""
    tpot_s: Floats
    """float64[counted]: from first to last token, for each token after the first; NaN where there
    is none."""
    e2e_s: Floats
    """float64[counted]: arrival to last token."""
    queued_s: Floats
    """float64[counted]: arrival to the first step that holds the request."""
    requests: int
    """Simulated, counted or not."""
    window_s: float
    """The counted time."""
    output_tokens_per_s: float
    """Generated in the counted time, of the replica."""
    requests_per_s: float
    """That rate over the mean output."""
    offered_tokens_per_s: float
    """Output tokens of the requests that arrive in the counted time, over it; infinite where all
    are there at the start."""
    makespan_s: float
    """First arrival to last token of all requests."""
    mean_batch: float
    """Running requests, over the time in steps."""
    utilisation: float
    """Share of the makespan in steps."""
    prompt_share: float
    """Share of the time in steps that is in steps with prompts."""
    cache_peak: float
    """Most of the cache that is held, as a share."""
    preemptions: int
    """Of all requests."""
    recomputed_share: float
    """Tokens computed again after a preemption, over all computed."""
    steps: int

    @property
    def saturated(self) -> bool:
        """Whether work arrives faster than it is served."""
        offered = self.offered_tokens_per_s
        return bool(np.isfinite(offered) and self.output_tokens_per_s < (1.0 - SATURATED) * offered)

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Generated tokens per second and device."""
        return self.output_tokens_per_s / self.deployment.gpus

    def percentile_s(self, name: str, percentile: float) -> float:
        """Return a percentile of ``ttft``, ``tpot``, ``e2e`` or ``queued``, in seconds.

        NaN where no request has the quantity.
        """
        column: Floats = getattr(self, f"{name}_s")
        column = column[~np.isnan(column)]
        return float(np.percentile(column, percentile)) if len(column) else float("nan")

    def to_dict(self) -> dict[str, Any]:
        """Return what ``--json`` prints: percentiles in ms, rates, and the state of the engine."""
        found: dict[str, Any] = {}
        for name in ("ttft", "tpot", "e2e", "queued"):
            values = {f"p{p}": to_ms(self.percentile_s(name, p)) for p in PERCENTILES}
            column: Floats = getattr(self, f"{name}_s")
            if not np.all(np.isnan(column)):
                values["mean"] = to_ms(float(np.nanmean(column)))
            found[f"{name}_ms"] = {
                key: value if np.isfinite(value) else None for key, value in values.items()
            }
        offered = self.offered_tokens_per_s
        return found | {
            "requests": self.requests,
            "requests_counted": len(self.ttft_s),
            "requests_per_s": self.requests_per_s,
            "output_tokens_per_s": self.output_tokens_per_s,
            "tokens_per_s_per_gpu": self.tokens_per_s_per_gpu,
            "offered_tokens_per_s": offered if np.isfinite(offered) else None,
            "saturated": self.saturated,
            "makespan_s": self.makespan_s,
            "mean_batch": self.mean_batch,
            "utilisation": self.utilisation,
            "prompt_share": self.prompt_share,
            "cache_peak": self.cache_peak,
            "preemptions": self.preemptions,
            "recomputed_share": self.recomputed_share,
            "steps": self.steps,
        }


class Replica(NamedTuple):
    """What stays the same between loads: steps' times and the cache's size."""

    deployment: Deployment
    scheduler: Scheduler
    limits: kernel.Limits
    table: kernel.StepTable
    longest: int
    """Most tokens of one sequence that the table was made for."""


def simulate_load(
    deployment: Deployment, load: Load, scheduler: Scheduler | None = None
) -> LoadResult:
    """Serve a load with one replica, request by request."""
    return simulate_loads([(deployment, load, scheduler)])[0]


def simulate_loads(
    cases: Sequence[tuple[Deployment, Load, Scheduler | None]], threads: int | None = None
) -> list[LoadResult]:
    """Serve several loads, each with its own replica.

    ``threads`` run at a time, all cores unless given. A result does not depend on the others.
    """
    schedulers = [scheduler or Scheduler() for _, _, scheduler in cases]
    drawn = [load.draw() for _, load, _ in cases]
    replicas = [
        replica_of(deployment, scheduler, longest_of(requests))
        for (deployment, _, _), scheduler, requests in zip(cases, schedulers, drawn, strict=True)
    ]
    loads = [load for _, load, _ in cases]
    return serve_all(list(zip(replicas, loads, drawn, strict=True)), threads)


def longest_of(requests: Drawn) -> int:
    """Return the most tokens that one of the requests has in the end."""
    return int((requests.input_tokens + requests.output_tokens).max())


def replica_of(deployment: Deployment, scheduler: Scheduler, longest: int) -> Replica:
    """Time the steps of a replica and count the pages of its cache."""
    if deployment.disaggregated is not None:
        msg = "a load is simulated on devices that prefill and decode; leave out disaggregated"
        raise ConfigError(
            msg, key="disaggregated", value=deployment.disaggregated, allowed="not stated"
        )
    if scheduler.page_tokens is not None:
        deployment = deployment.model_copy(update={"page_tokens": scheduler.page_tokens})
    memory = serving_memory(deployment)
    memory.check_fits(longest)
    model, groups = deployment.model, deployment.attention_dp
    page = deployment.page_tokens
    # A unit is one page of one layer; stages have layers of both kinds in proportion.
    unit_bytes = memory.page_bytes / float(memory.stage_layers.max())
    share = memory.stage_layers / model.num_layers
    units = int(np.floor(memory.stage_room_bytes / (share * unit_bytes)).min()) * groups
    max_seqs = scheduler.max_num_seqs * groups
    max_tokens = scheduler.max_num_batched_tokens * groups
    limits = kernel.Limits(
        max_seqs=max_seqs,
        max_tokens=max_tokens,
        chunk_tokens=scheduler.chunk_tokens or max_tokens,
        prompts=_PROMPTS[scheduler.prompts],
        reserve=int(scheduler.admission == "whole_sequence"),
        page_tokens=page,
        units=units,
        layers=model.num_layers - model.sliding_window_layers,
        windowed=model.sliding_window_layers,
        window_pages=-(-model.sliding_window // page) if model.sliding_window_layers else 0,
        concurrency=0,
    )
    # A whole prompt can be longer than a step is meant to be.
    largest = max_tokens if scheduler.prompts == "chunked" else max(max_tokens, longest)
    return Replica(
        deployment, scheduler, limits, step_table(deployment, max_seqs, largest, longest), longest
    )


def serve_all(
    cases: Sequence[tuple[Replica, Load, Drawn]], threads: int | None = None
) -> list[LoadResult]:
    """Serve loads with replicas that are known already."""
    with ThreadPoolExecutor(threads or os.cpu_count() or 1) as pool:
        return list(pool.map(lambda case: _serve(*case), cases))


def _serve(replica: Replica, load: Load, drawn: Drawn) -> LoadResult:
    count = len(drawn.arrival_s)
    served = kernel.Served(
        admitted_s=np.empty(count),
        first_s=np.empty(count),
        finish_s=np.empty(count),
        preemptions=np.zeros(count, np.int64),
        arrival_s=np.empty(count),
        totals=np.empty(kernel.TOTALS),
    )
    limits = replica.limits._replace(concurrency=load.concurrency or 0)
    requests = kernel.Requests(*drawn, _prefixes(replica, drawn))
    status = kernel.serve_requests(requests, limits, replica.table, served)
    if status != kernel.OK:
        msg = f"a request of {longest_of(drawn)} tokens does not fit in the cache"
        raise ConfigError(msg, key="input_tokens", value=longest_of(drawn))
    return _result(replica, load, drawn, served)


def _prefixes(replica: Replica, drawn: Drawn) -> Ints:
    """Return int64[n]: tokens of each prompt that are cached already."""
    lengths, which = np.unique(drawn.input_tokens, return_inverse=True)
    cached = [cached_prefix_tokens(replica.deployment, int(length)) for length in lengths]
    return np.array(cached, np.int64)[which]


def _result(replica: Replica, load: Load, drawn: Drawn, served: kernel.Served) -> LoadResult:
    counted, begin_s, end_s = _counted(load, served)
    arrival_s, outputs = served.arrival_s, drawn.output_tokens
    window_s = end_s - begin_s
    made = _tokens_between(served, outputs, begin_s, end_s)
    arrived = (arrival_s >= begin_s) & (arrival_s < end_s)
    rated = load.rate_per_s is not None
    totals = served.totals
    makespan_s = float(totals[kernel.END] - arrival_s[0])
    later = outputs[counted] - 1
    with np.errstate(divide="ignore", invalid="ignore"):
        tpot_s = np.where(later > 0, (served.finish_s - served.first_s)[counted] / later, np.nan)
    prompts = drawn.input_tokens - _prefixes(replica, drawn)
    needed = float((prompts + outputs - 1).sum())
    busy_s = float(totals[kernel.BUSY])
    rate = made / window_s if window_s > 0 else 0.0
    return LoadResult(
        deployment=replica.deployment,
        load=load,
        scheduler=replica.scheduler,
        ttft_s=(served.first_s - arrival_s)[counted],
        tpot_s=tpot_s,
        e2e_s=(served.finish_s - arrival_s)[counted],
        queued_s=(served.admitted_s - arrival_s)[counted],
        requests=len(outputs),
        window_s=window_s,
        output_tokens_per_s=rate,
        requests_per_s=rate / float(outputs.mean()),
        offered_tokens_per_s=float(outputs[arrived].sum()) / window_s if rated else np.inf,
        makespan_s=makespan_s,
        mean_batch=float(totals[kernel.BATCH_S]) / busy_s,
        utilisation=busy_s / makespan_s,
        prompt_share=float(totals[kernel.PROMPT_S]) / busy_s,
        cache_peak=float(totals[kernel.PEAK_UNITS]) / replica.limits.units,
        preemptions=int(served.preemptions.sum()),
        recomputed_share=1.0 - needed / float(totals[kernel.COMPUTED]),
        steps=int(totals[kernel.STEPS]),
    )


def _counted(load: Load, served: kernel.Served) -> tuple[Array, float, float]:
    """Return the counted requests and the counted time.

    Without the first and last ``warm_up`` of the requests, by arrival; the time lies between the
    arrivals of the first and the last that count.
    """
    count = len(served.arrival_s)
    if load.arrival == "offline":
        return np.arange(count), 0.0, float(served.totals[kernel.END])
    skipped = int(load.warm_up * count)
    counted = np.arange(skipped, count - skipped)
    begin_s, end_s = served.arrival_s[counted[0]], served.arrival_s[counted[-1]]
    if end_s <= begin_s or len(counted) < 2:
        return counted, float(served.arrival_s[0]), float(served.totals[kernel.END])
    return counted, float(begin_s), float(end_s)


def _tokens_between(served: kernel.Served, outputs: Array, begin_s: float, end_s: float) -> float:
    """Return the tokens given between two times, the later of a request evenly."""
    first_s, finish_s = served.first_s, served.finish_s
    firsts = np.count_nonzero((first_s >= begin_s) & (first_s <= end_s))
    inside_s = np.minimum(finish_s, end_s) - np.maximum(first_s, begin_s)
    length_s = finish_s - first_s
    # The only token of a request is its first, at which it ends.
    share = np.divide(inside_s, length_s, out=np.zeros_like(length_s), where=length_s > 0.0)
    return float(firsts + ((outputs - 1) * np.clip(share, 0.0, 1.0)).sum())
