"""Latencies, throughput and largest batch of many deployments and loads, and their front.

A front has the splits and batches that no other beats in both throughput and speed.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from projector.arrays import Flags, Floats, Ints, front_rows
from projector.errors import ConfigError
from projector.kernels.grouping import group_rows
from projector.serving import points, transfers
from projector.serving.deployment import Deployment, degrees
from projector.serving.load import MAX_BATCH, Traffic
from projector.serving.memory import ServingMemory, serving_memories
from projector.units import to_ms


@dataclass(frozen=True, slots=True)
class LoadGrid(points.Grid):
    """Deployments under loads of equal requests; ``batch`` sequences generate on a replica."""

    context: Ints
    """Tokens of a prompt."""
    output: Ints
    """Tokens that are generated for it; 0 where prompts take no part of the throughput."""
    prompts: Ints
    """Prompts that go through the model together; 0 means one in each attention group."""
    chunk: Ints
    """Most new tokens of a step of prompts, for each attention group; 0 means whole prompts."""

    usual: ClassVar = {
        "deployment": 0, "batch": 1, "context": 2048, "output": 0, "prompts": 0, "chunk": 0,
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rates:
    """What loads look like, float64[points] unless stated."""

    ttft_s: Floats
    """From prompts that wait for nothing to their first tokens."""
    tpot_s: Floats
    """Between two tokens of a sequence while no prompt goes through the model. With pipeline
    stages the batch is dealt to as many groups, one in each stage."""
    prompts_s: Floats
    """What the prompts of others add to each token of a sequence: while one sequence generates its
    output, each of the batch is replaced once."""
    tokens_per_s_per_user: Floats
    """Generated tokens of a sequence, prompts of others included."""
    tokens_per_s_per_gpu: Floats
    """Generated tokens of the replica over its devices, and over those of as much as prefills for
    it elsewhere."""
    bound_prefill: Ints
    """int64[points]: what limits most of a prefill, as a place in `LIMITS`."""
    bound_decode: Ints
    """The same of a decode step of the model, in the middle of a generation."""
    peak_bytes: Floats
    """Of the fullest rank: weights, activations and cache, reserve included."""
    usable_bytes: Floats
    """What an engine takes of the device, reserve included."""
    max_batch: Ints
    """int64[points]: sequences of prompt and output that fit; 0 if none does."""
    fits: Flags
    """bool[points]"""


def load_rates(grid: LoadGrid) -> Rates:
    """Project loads; each result equals that of the load alone, bit for bit.

    A decode step is timed at the context in the middle of a generation. Steps are linear in the
    context but for windows and where arithmetic takes longer than reading the cache. Where prefill
    has devices of its own, prompts hold no token up, and the cache is sent before the first one.
    """
    for key, least in (("batch", 1), ("context", 1), ("output", 0), ("prompts", 0)):
        values = getattr(grid, key)
        if len(values) and values.min() < least:
            msg = f"{key} must be at least {least}, got {values.min()}"
            raise ConfigError(msg, key=key, value=int(values.min()), allowed=f">= {least}")
    prompts = prompts_of(grid)
    ttft_s, interval_s, bound = prefill_times(grid)
    each_s = interval_s / prompts
    apart = np.flatnonzero(_of_deployment(grid, lambda each: each.disaggregated is not None))
    if len(apart):
        sent, exposed_s = sent_caches(grid.take(apart), prompts[apart], ttft_s[apart])
        ttft_s[apart] += exposed_s
        each_s[apart] = np.maximum(each_s[apart], sent.transfer_s / prompts[apart])
    stages = _of_deployment(grid, lambda each: each.pp)
    gpus = _of_deployment(grid, lambda each: each.gpus).astype(np.float64)
    decode = decode_times(grid)
    tpot_s = decode.step_s_of(stages.astype(np.float64)) / decode.tokens
    replaced = grid.output > 0
    prompts_s = np.where(replaced, grid.batch * each_s / np.maximum(1, grid.output), 0.0)
    prompts_s[apart] = 0.0
    user = 1.0 / (tpot_s + prompts_s)
    # As many prefill replicas as keep up, parts of one included.
    requests = np.where(replaced, grid.batch * user / np.maximum(1, grid.output), 0.0)
    beside = _of_deployment(grid, lambda each: each.prefill_side.gpus)
    gpus[apart] += (requests * each_s * beside)[apart]
    most, peak, usable = _memory(grid)
    return Rates(
        ttft_s=ttft_s,
        tpot_s=tpot_s,
        prompts_s=prompts_s,
        tokens_per_s_per_user=user,
        tokens_per_s_per_gpu=grid.batch * user / gpus,
        bound_prefill=bound,
        bound_decode=decode.limits_s.argmax(axis=1),
        peak_bytes=peak,
        usable_bytes=usable,
        max_batch=most,
        fits=grid.batch <= most,
    )


def _of_deployment(grid: LoadGrid, read: Callable[[Deployment], int | bool]) -> Ints:
    return np.array([read(each) for each in grid.deployments], np.int64)[grid.deployment]


def prompts_of(grid: LoadGrid) -> Ints:
    """Return the prompts that go through together."""
    groups = _of_deployment(grid, lambda each: each.prefill_prompts)
    return np.where(grid.prompts > 0, grid.prompts, groups)


def sent_caches(
    grid: LoadGrid, prompts: Ints, prefill_s: Floats
) -> tuple[transfers.CacheTransfers, Floats]:
    """Return the caches that loads send, and what of the time lies behind their prefill."""
    sent = transfers.transfers_of(grid.deployments, grid.deployment, prompts, grid.context)
    layers = _of_deployment(grid, lambda each: each.model.num_layers)
    layerwise = _of_deployment(
        grid, lambda each: bool(each.disaggregated and each.disaggregated.layerwise)
    )
    layers_s = sent.transfer_s, prefill_s, layers.astype(np.float64), layerwise == 1
    return sent, transfers.exposed_transfer_s(*layers_s)


def prefill_grid(grid: LoadGrid) -> points.StepGrid:
    """Return the prefill of each load in one step, without what a cached prefix spares."""
    prompts = prompts_of(grid)
    grid = replace(grid, deployments=tuple(each.prefill_side for each in grid.deployments))
    share = np.array([each.prefix_share for each in grid.deployments])[grid.deployment]
    page = _of_deployment(grid, lambda each: each.page_tokens)
    cached = transfers.cached_prefix(share, grid.context, page)
    return points.StepGrid.of(
        grid.deployments,
        deployment=grid.deployment,
        batch=0,
        prefill_batch=prompts,
        prefill_tokens=grid.context - cached,
        prefill_context=cached,
    )


def decode_grid(grid: LoadGrid) -> points.StepGrid:
    """Return the decode step in the middle of a generation, of one of ``pp`` parts of the batch."""
    stages = _of_deployment(grid, lambda each: each.pp)
    return points.StepGrid.of(
        grid.deployments,
        deployment=grid.deployment,
        batch=-(-grid.batch // stages),
        context=grid.context + np.maximum(0, grid.output - 2) // 2,
        draft_tokens=_of_deployment(grid, proposed),
    )


def proposed(deployment: Deployment) -> int:
    """Return the tokens that a decode step verifies beside a sequence's own one."""
    return deployment.speculative.tokens if deployment.speculative else 0


def decode_times(grid: LoadGrid) -> points.SpeculatedTimes:
    """Return the decode steps of loads, with what proposes tokens before them."""
    return points.speculated_grid_times(decode_grid(grid))


def chunk_grid(grid: LoadGrid) -> tuple[points.StepGrid, Ints]:
    """Return the steps that prefill each load, and the first of each load.

    Each chunk reads what was cached before it.
    """
    whole = prefill_grid(grid)
    groups = _of_deployment(grid, lambda each: each.prefill_side.attention_dp)
    size = np.maximum(1, grid.chunk // -(-whole.prefill_batch // groups))
    size = np.where(grid.chunk > 0, size, whole.prefill_tokens)
    count = -(-whole.prefill_tokens // size)
    first = np.cumsum(count) - count
    load = np.repeat(np.arange(len(grid)), count)
    done = (np.arange(len(load)) - first[load]) * size[load]
    steps = whole.take(load)
    left = np.minimum(size[load], steps.prefill_tokens - done)
    cached = steps.prefill_context + done
    return replace(steps, prefill_tokens=left, prefill_context=cached), first


def prefill_times(grid: LoadGrid) -> tuple[Floats, Floats, Ints]:
    """Return the latency of each load's prefill, the time between two, and what limits most of it.

    Equal ones are timed once.
    """
    if len(grid) == 0:
        return np.zeros(0), np.zeros(0), np.zeros(0, np.int64)
    rows, of_load = group_rows(grid.deployment, grid.context, grid.prompts, grid.chunk)
    steps, first = chunk_grid(grid.take(rows))
    times = points.grid_times(steps)
    latency_s, interval_s = (
        np.add.reduceat(each, first)[of_load] for each in (times.latency_s, times.interval_s)
    )
    limits_s = np.add.reduceat(times.limits_s, first)
    return latency_s, interval_s, limits_s.argmax(axis=1)[of_load]


def largest_batches(grid: LoadGrid, memories: Sequence[ServingMemory] | None = None) -> Ints:
    """Return the largest batch that fits, once for each distinct deployment and length."""
    longest = grid.context + grid.output
    if len(grid) == 0:
        return longest
    first, of_load = group_rows(grid.deployment, longest)
    owners, lengths = grid.deployment[first], longest[first]
    most = np.empty(len(first), np.int64)
    memories = memories or serving_memories(grid.deployments)
    for owner, rows in _rows_of(owners):
        most[rows] = memories[owner].max_batch(lengths[rows])
    found: Ints = most[of_load]
    return found


def _memory(grid: LoadGrid) -> tuple[Ints, Floats, Floats]:
    """Return the largest batch that fits, the peak, and what is usable."""
    memories = serving_memories(grid.deployments) if len(grid) else []
    peak, usable = np.zeros(len(grid)), np.zeros(len(grid))
    for owner, rows in _rows_of(grid.deployment):
        memory, longest = memories[owner], grid.context[rows] + grid.output[rows]
        peak[rows] = memory.peak_bytes(grid.batch[rows], longest)
        usable[rows] = memory.usable_bytes + memory.reserve_bytes
    return largest_batches(grid, memories), peak, usable


def _rows_of(owners: Ints) -> Iterator[tuple[int, Ints]]:
    """Yield each owner with its rows."""
    order = np.argsort(owners, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(owners[order])) + 1):
        if len(rows):
            yield int(owners[rows[0]]), rows


LARGEST_BATCH = 1 << 16
"""Sequences of the largest batch that a front tries."""


@dataclass(frozen=True, slots=True)
class ServingFront:
    """Points of a front, those with the most tokens a second and device first."""

    grid: LoadGrid
    """Every point that was evaluated."""
    rates: Rates
    rows: Ints
    """int64[front]: those that no other beats in throughput and speed."""
    knee: int
    """Place in ``rows`` of the point that is named; -1 where the front is empty."""
    fitting: int

    def deployment(self, row: int) -> Deployment:
        """Return the deployment of a point."""
        return self.grid.deployments[int(self.grid.deployment[row])]

    def overrides(self, row: int) -> dict[str, int]:
        """Return the split and the batch of a point."""
        split = {
            name: degree
            for name, degree in degrees(self.deployment(row)).items()
            if name in {"tp", "pp"} or degree > 1
        }
        return {**split, "load.batch": int(self.grid.batch[row])}

    def to_dict(self) -> dict[str, Any]:
        """Return what ``--json`` prints, without the envelope."""
        return {
            "evaluated": len(self.grid),
            "fitting": self.fitting,
            "knee": self.knee if self.knee >= 0 else None,
            "points": [self.point(row) for row in self.rows.tolist()],
        }

    def point(self, row: int) -> dict[str, Any]:
        """Return one point as plain values."""
        rates = self.rates
        deployment = self.deployment(row)
        return {
            **degrees(deployment),
            "gpus": deployment.gpus,
            "batch": int(self.grid.batch[row]),
            "max_batch": int(rates.max_batch[row]),
            "ttft_ms": to_ms(float(rates.ttft_s[row])),
            "tpot_ms": to_ms(float(rates.tpot_s[row])),
            "tokens_per_s_per_user": float(rates.tokens_per_s_per_user[row]),
            "tokens_per_s_per_gpu": float(rates.tokens_per_s_per_gpu[row]),
            "overrides": self.overrides(row),
        }


def serving_front(deployments: Sequence[Deployment], traffic: Traffic) -> ServingFront:
    """Project every deployment with batches up to the largest that fits, and return the front.

    The knee is the point whose product of throughput and speed is largest: beyond it one percent
    of throughput costs more than one percent of speed.
    """
    grid = _grid(deployments, traffic)
    rates = load_rates(grid)
    fits = np.flatnonzero(rates.fits)
    rows = fits[front_rows(-rates.tokens_per_s_per_gpu[fits], -rates.tokens_per_s_per_user[fits])]
    product = rates.tokens_per_s_per_gpu[rows] * rates.tokens_per_s_per_user[rows]
    return ServingFront(grid, rates, rows, int(np.argmax(product)) if len(rows) else -1, len(fits))


def batches_up_to(most: int) -> Ints:
    """Return the powers of two, the middles between them, and the largest batch."""
    powers = 1 << np.arange(max(1, int(most)).bit_length())
    both = np.union1d(powers, powers[1:] + powers[1:] // 2)
    return np.union1d(both[both <= most], [max(1, most)]).astype(np.int64)


def load_columns(traffic: Traffic) -> dict[str, int]:
    """Return the columns of `LoadGrid` that the requests decide."""
    return {
        "context": traffic.context,
        "output": traffic.output or 0,
        "prompts": traffic.prompts or 0,
        "chunk": traffic.chunk_tokens or 0,
    }


def _grid(deployments: Sequence[Deployment], traffic: Traffic) -> LoadGrid:
    """Return each deployment with its batches; one of 1 where nothing fits."""
    owners, batch = np.arange(len(deployments)), traffic.batch or 1
    grid = LoadGrid.of(deployments, deployment=owners, batch=batch, **load_columns(traffic))
    return grid if traffic.batch is not None else _with_batches(grid)[0]


def _with_batches(grid: LoadGrid) -> tuple[LoadGrid, Ints]:
    """Return each load with every batch up to the largest that fits, and which load it is of."""
    most, index = np.unique(np.minimum(largest_batches(grid), LARGEST_BATCH), return_inverse=True)
    tried = [batches_up_to(int(each)) for each in most]
    batches = [tried[each] for each in index.tolist()]
    of_load = np.repeat(np.arange(len(grid)), [len(each) for each in batches])
    batch = np.concatenate([np.zeros(0, np.int64), *batches])
    return replace(grid.take(of_load), batch=batch), of_load


def settled(grid: LoadGrid, options: Ints) -> LoadGrid:
    """Return loads with what they leave open chosen, each as that of the load alone.

    A load may run on any of so many ``options`` of the deployments, from its own on; its batch is
    open where it is 0. Chosen is the knee of throughput against speed, of options alone the first
    that fits. Where nothing does, it is the last one, with a batch of 1 where that is open.
    """
    rows, of_load = group_rows(*(getattr(grid, name) for name in grid.usual))
    one, count = grid.take(rows), options[rows]
    of_one = np.repeat(np.arange(len(one)), count)
    place = np.arange(len(of_one)) - np.repeat(np.cumsum(count) - count, count)
    every = one.take(of_one)
    every = replace(every, deployment=every.deployment + place)
    deployment, batch = one.deployment + count - 1, np.maximum(1, one.batch)
    if len(stated := np.flatnonzero((every.batch > 0) & (count[of_one] > 1))):
        some = every.take(stated)
        fitting = stated[largest_batches(some) >= some.batch]
        owner, first = np.unique(of_one[fitting], return_index=True)
        deployment[owner] = every.deployment[fitting[first]]
    if len(opened := np.flatnonzero(every.batch == 0)):
        tried, of_opened = _with_batches(replace(every.take(opened), batch=np.ones_like(opened)))
        rates, owner = load_rates(tried), of_one[opened[of_opened]]
        fits = np.flatnonzero(rates.fits)
        speed, rate = rates.tokens_per_s_per_user[fits], rates.tokens_per_s_per_gpu[fits]
        order = fits[np.lexsort((-speed, -rate, -(rate * speed), owner[fits]))]
        knees, first = np.unique(owner[order], return_index=True)
        deployment[knees] = tried.deployment[order[first]]
        batch[knees] = tried.batch[order[first]]
    return replace(one, deployment=deployment, batch=batch).take(of_load)


def legal_deployments(base: Deployment, gpus: int) -> list[Deployment]:
    """Return every way to serve a model with replicas on at most ``gpus`` devices.

    Tensor and pipeline split are those that divide heads and stay within the layers. Models with
    routed experts are also split over ``ep`` and ``attention_dp`` of the devices of a stage.
    Replicas of other sizes than a power of two are left out. Degrees that the base states are kept.
    """
    if gpus < 1:
        msg = f"gpus must be at least 1, got {gpus}"
        raise ConfigError(msg, key="gpus", value=gpus, allowed=">= 1")
    sizes = [1 << power for power in range(gpus.bit_length()) if 1 << power <= gpus]
    stated = {name: getattr(base, name) for name in base.model_fields_set}

    def tried(name: str, values: Iterable[int]) -> Iterable[int]:
        return [stated[name]] if name in stated else values

    groups = sizes if base.model.moe is not None else [1]
    found = []
    for tp in tried("tp", sizes):
        for pp in tried("pp", sizes):
            for attention_dp in tried("attention_dp", groups):
                if tp * pp * attention_dp > gpus:
                    continue
                # Experts are whole on a device, or divided over those of a stage.
                stage = tp * attention_dp
                parts = dict.fromkeys((1, stage)) if base.model.moe is not None else (1,)
                for ep in tried("ep", parts):
                    split = {"tp": tp, "pp": pp, "attention_dp": attention_dp, "ep": ep}
                    with suppress(ConfigError):
                        found.append(Deployment.parse({**stated, **split}))
    return found


assert LARGEST_BATCH <= MAX_BATCH
