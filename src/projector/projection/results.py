"""The scalars of projections as columns: what ``--json`` says of each job of a batch."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from projector.kernels.grouping import group_rows
from projector.lower.stages import LayerSettings, LayerSplit
from projector.operations.counts import count_model
from projector.projection import measures
from projector.projection.documented import documented_forms, documented_gib
from projector.projection.evaluate import Evaluation
from projector.projection.measures import Coded
from projector.projection.performance import recompute_flop
from projector.projection.step import BREAKDOWN
from projector.units import to_gib, to_ms

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

BOOL, INT, FLOAT, TEXT = "bool", "int", "float", "text"

OK, DOES_NOT_FIT = "ok", "does_not_fit"

_DEGREES = ("tp", "pp", "vpp", "cp", "ep", "etp", "dp")

RESULTS: dict[str, str] = {
    "iteration_time_ms": FLOAT,
    "tokens_per_s_per_gpu": FLOAT,
    "tflops_per_gpu": FLOAT,
    "mfu": FLOAT,
    "hfu": FLOAT,
    "bubble_fraction": FLOAT,
    "busiest_stage": INT,
    "schedule": TEXT,
    "microbatches": INT,
    "nodes": INT,
    "gpus": INT,
    **{f"parallelism.{name}": INT for name in _DEGREES},
    **{f"breakdown_ms.{name}": FLOAT for name in BREAKDOWN},
    "bound": TEXT,
    "parameters_total": INT,
    "parameters_active": INT,
    "device_memory_gib": FLOAT,
    "usable_gib": FLOAT,
    "peak_gib": FLOAT,
    "headroom_gib": FLOAT,
    "fits": BOOL,
    "peak_stage": INT,
    "documented.parameters_total": INT,
    "documented.parameters_per_rank": INT,
    "documented.param_optimizer_gib": FLOAT,
    "documented.activation_gib": FLOAT,
    "documented.total_gib": FLOAT,
    "status": TEXT,
}
"""Column -> kind, under the keys of ``performance --json`` and ``memory --json``.

What ``performance --json`` says of memory stands there under the keys of ``memory --json``."""


def result_columns(evaluation: Evaluation) -> dict[str, NDArray[Any] | Coded]:
    """Return every column of `RESULTS`, one entry for each job.

    Each equals what the projection of the job alone says, bit for bit. What is not finite means
    that there is no such number.
    """
    batch, steps, jobs = evaluation.batch, evaluation.steps, evaluation.workloads.jobs
    training, cluster = batch.training, batch.cluster
    counts = _counts(evaluation)
    model_flop = counts["flop_per_sequence"] * jobs.global_batch
    tflops = measures.tflops_per_gpu(model_flop, steps.iteration_s, jobs.gpus)
    mfu = tflops / cluster.peak_tflops[np.arange(len(batch)), training.dtype]
    headroom = cluster.usable_bytes - steps.peak_bytes
    fits = headroom >= 0.0
    degrees = {name: getattr(jobs, name) for name in _DEGREES}
    columns: dict[str, NDArray[Any] | Coded] = {
        "iteration_time_ms": to_ms(steps.iteration_s),
        "tokens_per_s_per_gpu": measures.tokens_per_s_per_gpu(
            jobs.global_batch, jobs.seq, steps.iteration_s, jobs.gpus
        ),
        "tflops_per_gpu": tflops,
        "mfu": mfu,
        "hfu": measures.hardware_utilisation(mfu, recompute_flop(evaluation), model_flop),
        "bubble_fraction": measures.bubble_fraction(steps.pipeline_s, steps.busiest_s),
        "busiest_stage": steps.busiest_rank,
        "schedule": Coded(
            evaluation.setting_of_job, [setting.name for setting in evaluation.settings]
        ),
        "microbatches": jobs.microbatches,
        "nodes": cluster.nodes,
        "gpus": jobs.gpus,
        **{f"parallelism.{name}": column for name, column in degrees.items()},
        **{
            f"breakdown_ms.{name}": to_ms(steps.breakdown_s[:, term])
            for term, name in enumerate(BREAKDOWN)
        },
        "bound": measures.bounds(
            steps.breakdown_s,
            steps.iteration_s,
            jobs.pp,
            jobs.microbatches,
            steps.busiest_s,
            steps.ending_s,
            steps.busiest_rank,
        ),
        "parameters_total": counts["parameters_total"],
        "parameters_active": counts["parameters_active"],
        "device_memory_gib": to_gib(cluster.memory_bytes),
        "usable_gib": to_gib(cluster.usable_bytes),
        "peak_gib": to_gib(steps.peak_bytes),
        "headroom_gib": to_gib(headroom),
        "fits": fits,
        "peak_stage": steps.peak_rank,
        **_documented(evaluation),
        "status": Coded(np.where(fits, 0, 1), [OK, DOES_NOT_FIT]),
    }
    assert columns.keys() == RESULTS.keys()
    return columns


def _counts(evaluation: Evaluation) -> dict[str, NDArray[Any]]:
    workloads = evaluation.workloads
    jobs = workloads.first_jobs()
    first, group = group_rows(jobs.model.index, jobs.training.seq, jobs.training.layout_key)
    found = [count_model(evaluation.job(row)) for row in workloads.first[first].tolist()]
    names: Mapping[str, type] = {
        "parameters_total": np.int64,
        "parameters_active": np.int64,
        "flop_per_sequence": np.float64,
    }
    return {
        name: np.array([getattr(each, name) for each in found], kind)[group[workloads.pipeline]]
        for name, kind in names.items()
    }


def _documented(evaluation: Evaluation) -> dict[str, NDArray[Any]]:
    workloads, jobs = evaluation.workloads, evaluation.workloads.jobs
    batch, columns = workloads.first_jobs(), jobs.take(workloads.first)
    model, split, training = batch.model, batch.parallelism, batch.training
    first, group = group_rows(
        model.index, split.layout_key, training.layout_key, columns.tp, columns.ep
    )
    forms = [
        documented_forms(
            model.of(row),
            int(columns.tp[row]),
            int(columns.ep[row]),
            LayerSplit.of(split.of(row)),
            LayerSettings.of(training.of(row)),
        )
        for row in first.tolist()
    ]
    total, per_rank, per_token = np.array(forms, np.int64).T[:, group]
    tokens = columns.micro_batch * columns.seq // columns.tp // columns.cp
    of_job = workloads.pipeline
    states_gib, activation_gib = documented_gib(
        per_rank[of_job],
        (tokens * per_token)[of_job],
        jobs.gpus,
        jobs.ep,
        jobs.pp,
        jobs.vpp,
        jobs.microbatches,
    )
    return {
        "documented.parameters_total": total[of_job],
        "documented.parameters_per_rank": per_rank[of_job],
        "documented.param_optimizer_gib": states_gib,
        "documented.activation_gib": activation_gib,
        "documented.total_gib": states_gib + activation_gib,
    }
