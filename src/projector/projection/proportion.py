"""A step by the proportion of copies, as Primus restores data parallelism, beside its replay."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from projector.config.job import Job
from projector.errors import ProjectorError
from projector.measure.reduction import Reduction
from projector.projection.evaluate import Evaluation
from projector.projection.terms import BREAKDOWN
from projector.units import to_ms

ONCE = ("dp_comm", "optimizer", "stragglers")
"""Terms that a step has once, however many microbatches there are, or that grow with the copies."""


@dataclass(frozen=True, slots=True)
class Proportion:
    """The closed form ``base * min_dp / target_dp + once``, and what the replay says."""

    min_dp: int
    target_dp: int
    base_s: float
    """What microbatches take on the fewest nodes that hold a copy."""
    once_s: float
    """What a step of the target takes besides: data parallelism, optimizer, stragglers, overhead of
    the framework."""
    step_s: float
    """The closed form."""
    replayed_s: float
    """The step as it is replayed."""

    def to_dict(self) -> dict[str, Any]:
        """Return the object that stands under ``closed_form`` in ``--json``."""
        return {
            "min_dp": self.min_dp,
            "target_dp": self.target_dp,
            "base_ms": to_ms(self.base_s),
            "once_ms": to_ms(self.once_s),
            "step_ms": to_ms(self.step_s),
            "replayed_ms": to_ms(self.replayed_s),
        }


def by_proportion(
    reduction: Reduction, evaluate: Callable[[Job], Evaluation], replayed: dict[str, float]
) -> Proportion | None:
    """Return the step of a target by the proportion of its copies.

    ``replayed`` are the terms of the target's step in seconds. None where the job cannot run on
    fewer nodes, for instance because a planned schedule does not fit there.
    """
    try:
        least = evaluate(reduction.least_job())
    except ProjectorError:
        return None
    overhead_s = float(least.batch.cluster.step_overhead_s[0])
    terms = dict(zip(BREAKDOWN, least.steps.breakdown_s[0].tolist(), strict=True))
    base_s = sum(seconds for name, seconds in terms.items() if name not in ONCE) - overhead_s
    once_s = sum(replayed[name] for name in ONCE) + overhead_s
    return Proportion(
        min_dp=reduction.min_dp,
        target_dp=reduction.target_dp,
        base_s=base_s,
        once_s=once_s,
        step_s=reduction.closed_form_s(base_s, once_s),
        replayed_s=sum(replayed.values()),
    )
