"""Time of decode steps in which proposed tokens are verified."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from projector.arrays import Floats
from projector.config.model import ModelConfig
from projector.serving.columns import Step
from projector.serving.deployment import Deployment
from projector.serving.speculative import MTP, further_token_module
from projector.serving.step import step_times


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
    """Time decode steps, of deployments with and without speculative decoding.

    A step verifies the proposed tokens of each sequence together, as that many more queries that
    read the cache once. Before it a small model proposes them, one after the other; the tokens
    that it has to catch up with are part of its first pass and cost nothing more.
    """
    timed: list[Step] = []
    owner: list[int] = []
    count: list[float] = []
    gained = np.ones(len(steps))
    for row, step in enumerate(steps):
        speculative = step.deployment.speculative
        if speculative is None or not step.decodes:
            continue
        gained[row] = speculative.tokens_per_step
        draft = draft_deployment(step.deployment)
        if draft is None:
            timed.append(step)
            count.append(speculative.draft_share or 0.0)
        else:
            timed.append(Step(draft, step.batch, 1, step.context))
            count.append(float(speculative.tokens))
        owner.append(row)
    times = step_times([*(verification(step) for step in steps), *timed])
    own = slice(0, len(steps))
    each_s = times.latency_s[len(steps) :] * np.array(count, np.float64)
    draft_s = np.bincount(np.array(owner, np.int64), each_s, len(steps)).astype(np.float64)
    return SpeculatedTimes(times.latency_s[own], draft_s, gained, times.interval_s[own])


def verification(step: Step) -> Step:
    """Return the model's own step, in which sequences that decode have their proposed tokens."""
    speculative = step.deployment.speculative
    if speculative is None or not step.decodes:
        return step
    return replace(step, draft_tokens=speculative.tokens)
