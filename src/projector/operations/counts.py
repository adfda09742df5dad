"""What a model has and needs, whatever it runs on: parameters and FLOP, from the same table."""

from dataclasses import dataclass

import numpy as np

from projector.config.cluster import ClusterConfig
from projector.config.job import Job
from projector.config.model import ModelConfig
from projector.config.parallelism import ParallelismConfig
from projector.config.training import TrainingConfig
from projector.lower.batch import JobBatch
from projector.lower.jobs import job_columns
from projector.lower.workloads import Workloads, build_workloads, lay_out
from projector.operations.emit import emit_operations


@dataclass(frozen=True, slots=True)
class ModelCounts:
    """Counts of one model."""

    parameters_total: int
    """All parameters, multi-token-prediction modules left out."""

    parameters_active: int
    """Parameters a token meets: routed experts count topk / experts."""

    flop_per_sequence: float
    """Matrix FLOP of one sequence forward and backward, without recomputation; causal attention
    counts half, trained MTP modules count."""


def count_model(job: Job) -> ModelCounts:
    """Count the model of a job; equal models and sequence lengths are counted once."""
    return _count(job.model, job.training.seq_length, job.training.mtp_loss, job.cluster)


_cache: dict[tuple[ModelConfig, int, bool], ModelCounts] = {}


def _count(model: ModelConfig, seq: int, mtp_loss: bool, cluster: ClusterConfig) -> ModelCounts:
    key = (model, seq, mtp_loss)
    if key not in _cache:
        if len(_cache) > 4096:
            _cache.clear()
        _cache[key] = _count_uncached(model, seq, mtp_loss, cluster)
    return _cache[key]


def _count_uncached(
    model: ModelConfig, seq: int, mtp_loss: bool, cluster: ClusterConfig
) -> ModelCounts:
    unsplit = Job.model_construct(
        model=model.model_copy(update={"make_vocab_size_divisible_by": None}),
        parallelism=ParallelismConfig(),
        training=TrainingConfig(
            micro_batch_size=1, global_batch_size=1, seq_length=seq, mtp_loss=mtp_loss
        ),
        cluster=cluster.model_copy(update={"nodes": 1, "gpus_per_node": 1}),
    )
    batch = JobBatch.of([unsplit])
    workloads = build_workloads(batch, job_columns(batch), lay_out(batch))
    table = emit_operations(workloads.rows)
    layers = _layers(workloads)
    flop = float(np.sum(table.flop * layers[table.workload]))
    mtp = model.mtp_num_layers if mtp_loss else 0
    if mtp:
        without = _count_uncached(
            model.model_copy(update={"mtp_num_layers": 0}), seq, mtp_loss, cluster
        )
        return ModelCounts(without.parameters_total, without.parameters_active, flop)
    parameters = table.parameters * layers[table.workload]
    experts = float(np.sum(parameters[table.expert == 1]))
    total = float(np.sum(parameters))
    share = model.moe.router_topk / model.moe.num_experts if model.moe else 1.0
    return ModelCounts(round(total), round(total - experts + experts * share), flop)


def _layers(workloads: Workloads) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    count = np.bincount(workloads.run_workload, workloads.run_count, len(workloads.rows))
    return np.asarray(count, np.float64)
