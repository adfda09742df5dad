"""A deployment under a load: times of its requests, and what it puts through.

The times of its steps are interpolated on a grid.
"""

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from projector.arrays import Array, Floats, Ints
from projector.envelope import told
from projector.errors import ConfigError
from projector.kernels import serving_load as kernel
from projector.kernels.serving_load import StepTable
from projector.serving.columns import scheduled
from projector.serving.deployment import Deployment
from projector.serving.load import Drawn, Load, Scheduler
from projector.serving.memory import serving_memory
from projector.serving.points import StepGrid, grid_times, speculated_grid_times
from projector.serving.step import BREAKDOWN, between_steps_us, hosts_of
from projector.serving.transfers import cached_prefix_tokens
from projector.units import MICROSECOND, MILLISECOND, to_ms

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
    """Time the steps that a load can meet, for one replica.

    A step has at most ``max_seqs`` sequences and ``max_tokens`` new tokens; the ``longest``
    sequence has so many tokens. A step with prompts is composed: kernels without attention for all
    its new tokens, as in the prefill of one prompt of so many tokens; the attention of each part;
    what sequences add that decode beside them. With ``pp`` stages a step stands for ``pp`` smaller
    ones that follow each other through the stages, each with its share of the sequences and tokens.

    With speculative decoding a step of decode alone is the share of a verified step that each of
    its expected tokens has; beside prompts a sequence gets one token.
    """
    groups, stages = deployment.attention_dp, deployment.pp
    batch, context = (
        _spread(1, max_seqs),
        np.concatenate([[0], _closed(FIRST_CONTEXT << np.arange(40), FIRST_CONTEXT, longest)]),
    )
    tokens, chunk = _dense(2, max_tokens), _closed(2 << np.arange(40), 2, max_tokens)

    def timed(many: Any, new: Any = 1, past: Any = 0, **beside: Any) -> _Timed:
        return _Timed.of(
            StepGrid.of([deployment], batch=many, new_tokens=new, context=past, **beside)
        )

    def prompts(many: Ints) -> _Timed:
        """Time steps with so many new tokens, all of prompts, one for each attention group."""
        return timed(groups, np.maximum(2, many // groups))

    decoding = np.maximum(1, -(-batch // stages))
    decode = timed(decoding[:, np.newaxis], 1, context)
    base, parts = prompts(tokens // stages), timed(groups, chunk[:, np.newaxis], context)
    decode_s, beside = decode.latency_s, {"prefill_batch": groups}
    mixed = timed(decoding, 1, BESIDE_CONTEXT, prefill_tokens=BESIDE_TOKENS, **beside)
    alone = prompts(decoding + BESIDE_TOKENS * groups)
    small = timed(groups, 1, BESIDE_CONTEXT, prefill_tokens=2, **beside)
    if deployment.speculative is not None:
        steps = StepGrid.of([deployment], batch=decoding[:, np.newaxis], context=context)
        decode_s = speculated_grid_times(steps).token_s
    square = (len(batch), len(context))
    return StepTable(
        batch=batch,
        context=context,
        decode_s=decode_s.reshape(square),
        decode_attention_s=decode.attention_s.reshape(square),
        tokens=tokens,
        base_s=base.other_s,
        chunk=chunk,
        past=context,
        chunk_attention_s=parts.attention_s.reshape(len(chunk), -1) / (groups * stages),
        beside_s=mixed.other_s - alone.other_s,
        host_s=float(base.host_s[0]),
        host_beside_s=float(small.host_s[0]),
        overhead_s=between_steps_us(deployment) * MICROSECOND,
        sequence_s=deployment.runs.sequence_us * MICROSECOND / groups,
    )


class _Timed(NamedTuple):
    """Times of steps, float64[steps] each."""

    latency_s: Floats
    attention_s: Floats
    other_s: Floats
    """Of the device, without attention."""
    host_s: Floats
    """What the host needs, where that shows; else 0."""

    @classmethod
    def of(cls, grid: StepGrid) -> "_Timed":
        """Time steps of one deployment."""
        times, hosts = grid_times(grid), hosts_of(grid.deployments)
        attention_s, host_s = times.breakdown_s[:, [_ATTENTION, _HOST]].T
        overhead_s = hosts.step_s + hosts.sequence_s * scheduled(grid.counts, hosts.groups)
        waits_s, device_s = host_s - overhead_s, times.latency_s - host_s
        shown_s = np.where(waits_s > ROUNDING_S, device_s + waits_s, 0.0)
        return cls(times.latency_s, attention_s, device_s - attention_s, shown_s)


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


def _closed(grid: Ints, first: int, last: int) -> Ints:
    """Cut a grid at ``last``, with two points at least."""
    inside = grid[grid < last]
    points: Ints = np.append(inside, last) if len(inside) else np.array([first, first + 1])
    return points.astype(np.int64)


PERCENTILES = (50, 90, 99)

_ENGINE = (
    "makespan_s", "mean_batch", "utilisation", "prompt_share", "cache_peak", "preemptions",
    "recomputed_share", "steps",
)  # fmt: skip
"""Attributes of a result that say what the engine did."""

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
        """Return a percentile of ``ttft``, ``tpot``, ``e2e`` or ``queued``, s; NaN without any."""
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
            **told(self, "requests_per_s output_tokens_per_s tokens_per_s_per_gpu"),
            "offered_tokens_per_s": offered if np.isfinite(offered) else None,
            "saturated": self.saturated,
            **{name: getattr(self, name) for name in _ENGINE},
        }


class Replica(NamedTuple):
    """What stays the same between loads: steps' times and the cache's size."""

    deployment: Deployment
    scheduler: Scheduler
    limits: kernel.Limits
    table: kernel.StepTable
    longest: int
    """Most tokens of one sequence that the table was made for."""


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
    # A unit is one page of one layer; stages have layers of all kinds in proportion. A state that
    # does not grow stands for as many units.
    attending, states = model.mixers.count("attention"), memory.stage_state_bytes
    unit_bytes = memory.page_bytes / float(memory.stage_layers.max()) if attending else states.sum()
    share = np.maximum(memory.stage_layers / attending if attending else states / unit_bytes, 1e-9)
    window_pages = -(-model.sliding_window // page) if model.sliding_window_layers else 1
    standing = math.ceil(states.sum() / unit_bytes / window_pages)
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
        layers=attending - model.sliding_window_layers,
        windowed=model.sliding_window_layers + standing,
        window_pages=window_pages,
        concurrency=0,
        overlaps=int(deployment.runs.overlaps),
    )
    # A whole prompt can be longer than a step is meant to be.
    largest = max_tokens if scheduler.prompts == "chunked" else max(max_tokens, longest)
    return Replica(
        deployment, scheduler, limits, step_table(deployment, max_seqs, largest, longest), longest
    )


def simulate_load(
    deployment: Deployment,
    load: Load,
    scheduler: Scheduler | None = None,
    replicas: Callable[..., Replica] = replica_of,
) -> LoadResult:
    """Serve a load with one replica, request by request."""
    drawn = load.draw()
    replica = replicas(deployment, scheduler or Scheduler(), longest_of(drawn))
    return serve_all([(replica, load, drawn)])[0]


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
    if kernel.serve_requests(requests, limits, replica.table, served) != kernel.OK:
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
    first_s, finish_s = served.first_s, served.finish_s
    firsts = np.count_nonzero((first_s >= begin_s) & (first_s <= end_s))
    inside_s = np.minimum(finish_s, end_s) - np.maximum(first_s, begin_s)
    length_s = finish_s - first_s
    # The only token of a request is its first, at which it ends.
    share = np.divide(inside_s, length_s, out=np.zeros_like(length_s), where=length_s > 0.0)
    made = float(firsts + ((outputs - 1) * np.clip(share, 0.0, 1.0)).sum())
    arrived = (arrival_s >= begin_s) & (arrival_s < end_s)
    rated = load.rate_per_s is not None
    totals = served.totals
    makespan_s = float(totals[kernel.END] - arrival_s[0])
    later = outputs[counted] - 1
    with np.errstate(divide="ignore", invalid="ignore"):
        tpot_s = np.where(later > 0, (served.finish_s - served.first_s)[counted] / later, np.nan)
    needed = float((drawn.input_tokens - _prefixes(replica, drawn) + outputs - 1).sum())
    busy_s = float(totals[kernel.BUSY])
    rate = made / window_s if window_s > 0 else 0.0
    request_s = replica.deployment.runs.request_ms * MILLISECOND
    return LoadResult(
        deployment=replica.deployment,
        load=load,
        scheduler=replica.scheduler,
        ttft_s=(served.first_s - arrival_s)[counted] + request_s,
        tpot_s=tpot_s,
        e2e_s=(served.finish_s - arrival_s)[counted] + request_s,
        queued_s=(served.admitted_s - arrival_s)[counted],
        requests=len(outputs),
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
    """Return the requests but ``warm_up`` of them at either end, and the time between them."""
    count = len(served.arrival_s)
    if load.arrival == "offline":
        return np.arange(count), 0.0, float(served.totals[kernel.END])
    skipped = int(load.warm_up * count)
    counted = np.arange(skipped, count - skipped)
    begin_s, end_s = served.arrival_s[counted[0]], served.arrival_s[counted[-1]]
    if end_s <= begin_s or len(counted) < 2:
        return counted, float(served.arrival_s[0]), float(served.totals[kernel.END])
    return counted, float(begin_s), float(end_s)
