"""Single steps, their seconds, and the steps of one prefill."""

from collections.abc import Sequence
from dataclasses import dataclass

from projector.serving.columns import COUNTS, step_columns
from projector.serving.deployment import Deployment
from projector.serving.points import StepGrid, grid_times, speculated_grid_times
from projector.serving.rates import LoadGrid, chunk_grid


@dataclass(frozen=True)
class Step:
    """One step, with the counts of `StepGrid`.

    ``Step(d, 8, 512)`` prefills eight prompts, ``Step(d, 8, 1, 512)`` decodes one token of each of
    eight sequences, and ``Step(d, 8, 1, 512, prefill_tokens=256)`` does so beside 256 tokens of
    one prompt, in one step of continuous batching.
    """

    deployment: Deployment
    batch: int
    new_tokens: int = 1
    context: int = 0
    prefill_tokens: int = 0
    prefill_context: int = 0
    prefill_batch: int = 1
    draft_tokens: int = 0


def counts_of(steps: Sequence[Step]):
    return {name: [getattr(step, name) for step in steps] for name in COUNTS}


def grid_of_steps(steps: Sequence[Step]):
    distinct = list({id(step.deployment): step.deployment for step in steps}.values())
    places = {id(deployment): place for place, deployment in enumerate(distinct)}
    deployment = [places[id(step.deployment)] for step in steps]
    return StepGrid.of(distinct, deployment=deployment, **counts_of(steps))


def step_of(grid, row):
    values = {name: int(getattr(grid, name)[row]) for name in grid.usual}
    return Step(grid.deployments[values.pop("deployment")], **values)


def columns_of(steps: Sequence[Step]):
    return step_columns([step.deployment for step in steps], **counts_of(steps))


def step_times(steps: Sequence[Step]):
    return grid_times(grid_of_steps(steps))


def speculated_times(steps: Sequence[Step]):
    return speculated_grid_times(grid_of_steps(steps))


def prompt_grid(deployment, batch, tokens, chunk_tokens=None):
    """Return the steps that prefill prompts."""
    load = LoadGrid.of([deployment], context=tokens, prompts=batch, chunk=chunk_tokens or 0)
    return chunk_grid(load)[0]


def prefill_time_s(*prompts, **chunks):
    return float(grid_times(prompt_grid(*prompts, **chunks)).latency_s.sum())


def decode_time_s(deployment, batch, context):
    return float(speculated_times([Step(deployment, batch, 1, context)]).token_s[0])
