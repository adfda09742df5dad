"""Latencies, throughput and largest batch of many deployments and loads at once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import ArrayLike

from projector.arrays import Flags, Floats, Ints
from projector.errors import ConfigError
from projector.kernels.grouping import group_rows
from projector.serving.deployment import Deployment
from projector.serving.disaggregated import exposed_transfer_s, transfers_of
from projector.serving.generation import cached_prefix
from projector.serving.memory import serving_memories
from projector.serving.points import StepGrid, grid_times
from projector.serving.speculation import SpeculatedTimes, speculated_grid_times
from projector.serving.totals import StepTimes


@dataclass(frozen=True, slots=True)
class LoadGrid:
    """Deployments under loads of equal requests, as columns: int64[points] each."""

    deployments: tuple[Deployment, ...]
    """Each distinct one once."""
    deployment: Ints
    """Row in ``deployments``."""
    batch: Ints
    """Sequences that generate at once, on the whole replica."""
    context: Ints
    """Tokens of a prompt."""
    output: Ints
    """Tokens that are generated for it; 0 where prompts take no part of the throughput."""
    prompts: Ints
    """Prompts that go through the model together; 0 means one in each attention group."""

    @classmethod
    def of(
        cls,
        deployments: Sequence[Deployment],
        *,
        deployment: ArrayLike = 0,
        batch: ArrayLike = 1,
        context: ArrayLike = 2048,
        output: ArrayLike = 0,
        prompts: ArrayLike = 0,
    ) -> "LoadGrid":
        """Return points whose columns are broadcast like numpy and flattened."""
        given = (deployment, batch, context, output, prompts)
        columns = np.broadcast_arrays(*(np.asarray(each, np.int64) for each in given))
        return cls(tuple(deployments), *(np.ascontiguousarray(each).ravel() for each in columns))

    def __len__(self) -> int:
        """Return the number of points."""
        return len(self.batch)

    def take(self, rows: Ints | slice) -> "LoadGrid":
        """Return some of the points."""
        return LoadGrid(
            self.deployments,
            self.deployment[rows],
            self.batch[rows],
            self.context[rows],
            self.output[rows],
            self.prompts[rows],
        )


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
    max_batch: Ints
    """int64[points]: sequences of prompt and output that fit; 0 if none does."""
    fits: Flags
    """bool[points]"""

    def take(self, rows: Ints) -> "Rates":
        """Return some of the points."""
        columns = {field.name: getattr(self, field.name)[rows] for field in fields(self)}
        return Rates(**columns)


def load_rates(grid: LoadGrid) -> Rates:
    """Project loads; each result equals that of the load alone, bit for bit.

    A decode step is timed at the context in the middle of a generation. Steps are linear in the
    context but for windows and where arithmetic takes longer than reading the cache. Where prefill
    has devices of its own, prompts hold no token up, and the cache is sent before the first one.
    """
    _check(grid)
    prefill, of_load = _prefill(grid)
    prompts = _prompts(grid)
    ttft_s, each_s = prefill.latency_s[of_load], prefill.interval_s[of_load] / prompts
    apart = np.flatnonzero(
        _of_deployment(grid, [each.disaggregated is not None for each in grid.deployments])
    )
    ttft_s[apart], each_s[apart] = _sent(
        grid.take(apart), prompts[apart], ttft_s[apart], each_s[apart]
    )
    stages = _of_deployment(grid, [each.pp for each in grid.deployments])
    gpus = _of_deployment(grid, [each.gpus for each in grid.deployments]).astype(np.float64)
    decode = decode_times(grid)
    tpot_s = decode.step_s_of(stages.astype(np.float64)) / decode.tokens
    replaced = grid.output > 0
    prompts_s = np.where(replaced, grid.batch * each_s / np.maximum(1, grid.output), 0.0)
    prompts_s[apart] = 0.0
    user = 1.0 / (tpot_s + prompts_s)
    # As many prefill replicas as keep up, parts of one included.
    requests = np.where(replaced, grid.batch * user / np.maximum(1, grid.output), 0.0)
    beside = _of_deployment(grid, [each.prefill_side.gpus for each in grid.deployments])
    gpus[apart] += (requests * each_s * beside)[apart]
    most = _max_batch(grid)
    return Rates(
        ttft_s=ttft_s,
        tpot_s=tpot_s,
        prompts_s=prompts_s,
        tokens_per_s_per_user=user,
        tokens_per_s_per_gpu=grid.batch * user / gpus,
        max_batch=most,
        fits=grid.batch <= most,
    )


def _check(grid: LoadGrid) -> None:
    for key, least in (("batch", 1), ("context", 1), ("output", 0), ("prompts", 0)):
        values = getattr(grid, key)
        if len(values) and values.min() < least:
            msg = f"{key} must be at least {least}, got {values.min()}"
            raise ConfigError(msg, key=key, value=int(values.min()), allowed=f">= {least}")


def _of_deployment(grid: LoadGrid, values: Sequence[int | bool]) -> Ints:
    return np.array(values, np.int64)[grid.deployment]


def _prompts(grid: LoadGrid) -> Ints:
    """Return the prompts that go through together."""
    groups = _of_deployment(grid, [each.prefill_prompts for each in grid.deployments])
    return np.where(grid.prompts > 0, grid.prompts, groups)


def _sent(
    grid: LoadGrid, prompts: Ints, prefill_s: Floats, each_s: Floats
) -> tuple[Floats, Floats]:
    """Return the time to first tokens of loads whose cache is sent, and that of each prompt."""
    if len(grid) == 0:
        return prefill_s, each_s
    sent = transfers_of(grid.deployments, grid.deployment, prompts, grid.context)
    layers = _of_deployment(grid, [each.model.num_layers for each in grid.deployments])
    settings = [each.disaggregated for each in grid.deployments]
    layerwise = _of_deployment(grid, [bool(each and each.layerwise) for each in settings]) == 1
    exposed_s = exposed_transfer_s(sent.transfer_s, prefill_s, layers.astype(np.float64), layerwise)
    return prefill_s + exposed_s, np.maximum(each_s, sent.transfer_s / prompts)


def prefill_grid(grid: LoadGrid) -> StepGrid:
    """Return the prefill of each load, without what a cached prefix spares."""
    prompts = _prompts(grid)
    grid = replace(grid, deployments=tuple(each.prefill_side for each in grid.deployments))
    share = np.array([each.prefix_share for each in grid.deployments])[grid.deployment]
    page = _of_deployment(grid, [each.page_tokens for each in grid.deployments])
    cached = cached_prefix(share, grid.context, page)
    return StepGrid.of(
        grid.deployments,
        deployment=grid.deployment,
        batch=0,
        prefill_batch=prompts,
        prefill_tokens=grid.context - cached,
        prefill_context=cached,
    )


def decode_grid(grid: LoadGrid) -> StepGrid:
    """Return the decode step in the middle of a generation, of one of ``pp`` parts of the batch."""
    stages = _of_deployment(grid, [each.pp for each in grid.deployments])
    return StepGrid.of(
        grid.deployments,
        deployment=grid.deployment,
        batch=-(-grid.batch // stages),
        context=grid.context + np.maximum(0, grid.output - 2) // 2,
        draft_tokens=_of_deployment(grid, [proposed(each) for each in grid.deployments]),
    )


def proposed(deployment: Deployment) -> int:
    """Return the tokens that a decode step verifies beside a sequence's own one."""
    return deployment.speculative.tokens if deployment.speculative else 0


def decode_times(grid: LoadGrid) -> SpeculatedTimes:
    """Return the decode steps of loads, with what proposes tokens before them."""
    return speculated_grid_times(decode_grid(grid))


def _prefill(grid: LoadGrid) -> tuple[StepTimes, Ints]:
    """Return the distinct prefills, and which of them each load has."""
    if len(grid) == 0:
        return grid_times(prefill_grid(grid)), np.zeros(0, np.int64)
    first, of_load = group_rows(grid.deployment, grid.context, grid.prompts)
    return grid_times(prefill_grid(grid.take(first))), of_load


def _max_batch(grid: LoadGrid) -> Ints:
    """Return the largest batch that fits, once for each distinct deployment and length."""
    longest = grid.context + grid.output
    if len(grid) == 0:
        return longest
    first, of_load = group_rows(grid.deployment, longest)
    owners, lengths = grid.deployment[first], longest[first]
    most = np.empty(len(first), np.int64)
    memories = serving_memories(grid.deployments)
    for owner, rows in _by_owner(owners):
        most[rows] = memories[owner].max_batch(lengths[rows])
    found: Ints = most[of_load]
    return found


def _by_owner(owners: Ints) -> Iterator[tuple[int, Ints]]:
    """Yield each owner with its rows."""
    order = np.argsort(owners, kind="stable")
    cuts = np.flatnonzero(np.diff(owners[order])) + 1
    for rows in np.split(order, cuts):
        yield int(owners[rows[0]]), rows
