"""Whole generations, and rates of prefill and decode on devices of their own."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from projector.arrays import Floats
from projector.errors import ConfigError
from projector.serving import rates
from projector.serving.columns import each_once
from projector.serving.deployment import Deployment
from projector.serving.points import StepGrid, grid_times, speculated_grid_times
from projector.serving.transfers import CacheTransfers

DECODE_POINTS = 9
"""Context lengths at which a generation's decode step is timed, evenly spaced; the step is taken
as linear in between."""


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


def _grid(generations: Sequence[Generation]) -> rates.LoadGrid:
    distinct, owner = each_once([each.deployment for each in generations])
    columns = {"batch": "batch", "context": "input_len", "output": "output_len"}
    values = {name: [getattr(each, own) for each in generations] for name, own in columns.items()}
    return rates.LoadGrid.of(distinct.items, deployment=owner, **values)


def generation_times(generations: Sequence[Generation]) -> GenerationTimes:
    """Time generations: the prefill gives the first token, decode steps the further ones.

    With speculative decoding a sequence gains the expected tokens of a step. That all of a batch
    end together is kept.
    """
    grid, contexts = _grid(generations), [_contexts(each) for each in generations]
    prefill = rates.prefill_grid(replace(grid, prompts=grid.batch))
    count = [len(each) for each in contexts]
    row = np.repeat(np.arange(len(grid)), count)
    steps = StepGrid.of(
        grid.deployments,
        deployment=grid.deployment[row],
        batch=grid.batch[row],
        context=[context for each in contexts for context in each],
    )
    token_s = np.split(speculated_grid_times(steps).token_s, np.cumsum(count)[:-1])
    decode_s = [
        np.interp(each.input_len + np.arange(each.output_len - 1), visited, visited_s).sum()
        if visited
        else 0.0
        for each, visited, visited_s in zip(generations, contexts, token_s, strict=True)
    ]
    return GenerationTimes(grid_times(prefill).latency_s, np.array(decode_s, np.float64))


def _contexts(item: Generation) -> list[int]:
    """List the distinct context lengths at which the decode steps of a generation are timed."""
    if item.output_len < 2:
        return []
    last = item.input_len + item.output_len - 2
    points = np.linspace(item.input_len, last, DECODE_POINTS).round().astype(np.int64)
    return [int(point) for point in np.unique(points)]


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


def disaggregated_times(loads: Sequence[Generation]) -> DisaggregatedTimes:
    """Time loads on a prefill and a decode replica, and what rates these keep up.

    The first token comes from the prefill, decode steps give the others. A prefill replica waits
    for its links where a transfer takes longer than a prefill.
    """
    if any(load.deployment.disaggregated is None for load in loads):
        msg = "the deployment prefills on the devices that decode; give disaggregated"
        raise ConfigError(msg, key="disaggregated", allowed="fields of what prefills")
    grid = _grid(loads)
    prompts, (prefill_s, interval_s, _) = rates.prompts_of(grid), rates.prefill_times(grid)
    sent, exposed_s = rates.sent_caches(grid, prompts, prefill_s)
    decode = rates.decode_times(grid)
    own = [load.deployment for load in loads]
    token_s = decode.step_s_of(np.array([float(each.pp) for each in own])) / decode.tokens
    with np.errstate(divide="ignore"):
        decode_rate = grid.batch / (token_s * (grid.output - 1.0))
    return DisaggregatedTimes(
        transfers=sent,
        prefill_s=prefill_s,
        exposed_s=exposed_s,
        token_s=token_s,
        prefill_requests_per_s=prompts / np.maximum(interval_s, sent.transfer_s),
        decode_requests_per_s=decode_rate,
        prefill_gpus=np.array([float(each.prefill_side.gpus) for each in own]),
        decode_gpus=np.array([float(each.gpus) for each in own]),
        output_len=grid.output.astype(np.float64),
    )
