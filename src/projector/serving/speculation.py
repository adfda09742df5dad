"""Time of decode steps in which proposed tokens are verified."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from projector.arrays import Floats
from projector.config.model import ModelConfig
from projector.serving.columns import Step
from projector.serving.deployment import MTP, Deployment, further_token_module
from projector.serving.points import StepGrid, grid_times


@dataclass(frozen=True, slots=True)
class SpeculatedTimes:
    """Times of decode steps, float64[steps] each."""

    verify_s: Floats
    """The model's own step; without speculation that of one token."""
    draft_s: Floats
    """Proposing tokens before it; 0 without speculation."""
    tokens: Floats
    """Expected tokens that each sequence gains; 1 without speculation."""
    interval_s: Floats
    """Between two of the model's own steps of the slowest stage, with a batch in each stage."""

    def step_s_of(self, stages: Floats) -> Floats:
        """Return the seconds between two steps of a sequence, with a batch in each stage."""
        return np.maximum(self.verify_s, stages * self.interval_s) + self.draft_s

    @property
    def step_s(self) -> Floats:
        """Seconds from one step to the next."""
        return self.verify_s + self.draft_s

    @property
    def token_s(self) -> Floats:
        """Seconds of a token of a sequence."""
        return self.step_s / self.tokens


def draft_deployment(deployment: Deployment) -> Deployment | None:
    """Return what proposes tokens, on the devices of one stage; None where it is no model."""
    speculative = deployment.speculative
    if speculative is None or speculative.draft is None:
        return None
    changes: dict[str, object] = {"speculative": None, "pp": 1}
    changes |= {"step_overhead_us": 0.0, "sequence_overhead_us": 0.0}
    if speculative.draft == MTP:
        return deployment.model_copy(
            update={**changes, "model": further_token_module(deployment.model)}
        )
    assert isinstance(speculative.draft, ModelConfig)
    tp = speculative.draft_tp or deployment.tp
    groups = {"ep": 1, "attention_dp": deployment.attention_dp, "tp": tp, "dispatcher": "auto"}
    return deployment.model_copy(update={**changes, **groups, "model": speculative.draft})


def speculated_times(steps: Sequence[Step]) -> SpeculatedTimes:
    """Time decode steps, of deployments with and without speculative decoding."""
    return speculated_grid_times(StepGrid.of_steps(steps))


def speculated_grid_times(grid: StepGrid) -> SpeculatedTimes:
    """Time decode steps, of deployments with and without speculative decoding.

    A step verifies the proposed tokens of each sequence together, as that many more queries that
    read the cache once. Before it a small model proposes them, one after the other; the tokens
    that it has to catch up with are part of its first pass and cost nothing more. Steps that
    prefill are timed as they are.
    """
    settings = [each.speculative for each in grid.deployments]
    drafts = [draft_deployment(each) for each in grid.deployments]
    proposed = np.array([each.tokens if each else 0 for each in settings], np.int64)
    gained = np.array([each.tokens_per_step if each else 1.0 for each in settings])
    # Passes of what drafts, or steps of the deployment itself that a stated share is of.
    passes = np.array(
        [
            0.0 if each is None else float(each.tokens if draft else each.draft_share or 0.0)
            for each, draft in zip(settings, drafts, strict=True)
        ]
    )
    decodes = (grid.batch > 0) & (grid.new_tokens == 1)
    speculates = decodes & (proposed[grid.deployment] > 0)
    drafted = np.where(speculates, proposed[grid.deployment], grid.draft_tokens)
    own = grid_times(replace(grid, draft_tokens=drafted))
    draft_s = np.zeros(len(grid))
    rows = np.flatnonzero(speculates)
    if len(rows):
        drafters = [draft or each for draft, each in zip(drafts, grid.deployments, strict=True)]
        owner = grid.deployment[rows]
        one = StepGrid.of(
            drafters, deployment=owner, batch=grid.batch[rows], context=grid.context[rows]
        )
        draft_s[rows] = passes[owner] * grid_times(one).latency_s
    tokens = np.where(decodes, gained[grid.deployment], 1.0)
    return SpeculatedTimes(own.latency_s, draft_s, tokens, own.interval_s)
