"""The fastest layout of a job in closed form: all degrees at once, as columns."""

from collections.abc import Mapping
from dataclasses import fields, replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from projector.arrays import Floats
from projector.config.first_order_job import AnyJob, load_first_order_job
from projector.config.parallelism import divisors
from projector.config.resources import settings_of
from projector.first_order.equations import Constants
from projector.first_order.results import FirstOrderPerformance, project_performance
from projector.first_order.training import TrainingColumns, train_columns, training_columns

MOST_STAGES = 128
"""More pipeline stages are not tried."""

UNSPLIT: Mapping[str, Any] = settings_of("first_order")["unsplit"]
"""What a search replaces."""


class Layout(NamedTuple):
    """Degrees of one candidate."""

    tp: int
    pp: int
    ep: int
    zero_stage: int
    full_recompute: bool

    @property
    def overrides(self) -> dict[str, object]:
        """Dotted fields of a job."""
        return {
            **UNSPLIT,
            "parallelism.tp": self.tp,
            "parallelism.pp": self.pp,
            "parallelism.ep": self.ep,
            "parallelism.zero_stage": self.zero_stage,
            "training.recompute": "full" if self.full_recompute else "none",
        }


def legal_layouts(job: AnyJob) -> list[Layout]:
    """Return every layout that divides heads, layers, experts, devices and batch of a job."""
    model, gpus, batch = job.model, job.cluster.gpus, job.training.global_batch_size
    experts = 1 if model.moe is None else model.moe.num_experts
    found = []
    for tp, pp, ep in product(
        divisors(model.num_attention_heads, gpus),
        divisors(model.num_layers, min(gpus, MOST_STAGES)),
        divisors(experts, gpus),
    ):
        replicas, left = divmod(gpus, tp * pp)
        # Experts are spread over the ranks of data parallelism, each divided over TP.
        if not left and replicas and not batch % replicas and not replicas % ep:
            found += [
                Layout(tp, pp, ep, stage, full)
                for stage, full in product((1, 3), (False, True))
                if stage < 3 or pp == 1
            ]
    return found


def fastest_layout(job: AnyJob) -> FirstOrderPerformance | None:
    """Return the step of the fastest layout that fits, of equals the least split; None without."""
    layouts = legal_layouts(job)
    if not layouts:
        return None
    columns = _columns_of(load_first_order_job(job, UNSPLIT), layouts)
    results = train_columns(columns, Constants.of(job.first_order))
    if not results.fits.any():
        return None
    time_s: Floats = np.where(results.fits, results.iteration_s, np.inf)
    splits = columns.tp * columns.pp * columns.ep
    best = np.lexsort((columns.sharding_stage, splits, columns.checkpointed, time_s))[0]
    return project_performance([load_first_order_job(job, layouts[int(best)].overrides)])[0]


def _columns_of(job: AnyJob, layouts: list[Layout]) -> TrainingColumns:
    """Return the columns of one job under many layouts."""
    one_replica = load_first_order_job(
        job, {"training.global_batch_size": job.cluster.gpus * job.training.global_batch_size}
    )
    whole = training_columns([one_replica])
    num = len(layouts)
    alike = TrainingColumns(
        **{field.name: np.repeat(getattr(whole, field.name), num) for field in fields(whole)}
    )
    tp, pp, ep, stage, full = (np.array(column) for column in zip(*layouts, strict=True))
    tp, pp = tp.astype(np.float64), pp.astype(np.float64)
    return replace(
        alike,
        tp=tp,
        pp=pp,
        ep=ep.astype(np.float64),
        etp=tp,
        dp=alike.gpus / (tp * pp),
        sharding_stage=stage.astype(np.float64),
        checkpointed=full.astype(np.bool_),
        global_batch=np.full(num, float(job.training.global_batch_size)),
    )
