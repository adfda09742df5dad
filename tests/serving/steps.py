"""Seconds of one step, or of the steps of one prefill."""

from projector.serving.columns import Step
from projector.serving.points import grid_times, speculated_times
from projector.serving.rates import LoadGrid, chunk_grid


def prompt_grid(deployment, batch, tokens, chunk_tokens=None):
    """Return the steps that prefill prompts."""
    load = LoadGrid.of([deployment], context=tokens, prompts=batch, chunk=chunk_tokens or 0)
    return chunk_grid(load)[0]


def prefill_time_s(*prompts, **chunks):
    return float(grid_times(prompt_grid(*prompts, **chunks)).latency_s.sum())


def decode_time_s(deployment, batch, context):
    return float(speculated_times([Step(deployment, batch, 1, context)]).token_s[0])
