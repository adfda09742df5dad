"""What a model has and needs, whatever it runs on: parameters and FLOP, from the same table."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from projector.config.adapter import AdapterConfig
from projector.config.cluster import ClusterConfig
from projector.config.job import Job
from projector.config.model import ModelConfig
from projector.config.parallelism import ParallelismConfig
from projector.config.training import TrainingConfig
from projector.lower.batch import JobBatch, job_columns
from projector.lower.workloads import build_workloads, lay_out
from projector.operations.emit import emit_operations


@dataclass(frozen=True, slots=True)
class ModelCounts:
    """Counts of one model."""

    parameters_total: int
    """All parameters, multi-token-prediction modules left out."""
    parameters_active: int
    """Parameters a token meets: routed experts count topk / experts."""
    parameters_trained: int
    """Parameters that are updated: all of the model, or adapters, which the others leave out."""
    flop_per_sequence: float
    """Matrix FLOP of one sequence forward and backward, without recomputation; causal attention
    counts half, trained MTP modules count, and gradients of frozen weights do not."""


def count_model(job: Job) -> ModelCounts:
    """Count the model of a job; equal models and sequences are counted once."""
    training, adapter = job.training, job.training.adapter
    shared = adapter is not None and adapter.expert_adapters == "shared"
    copies = job.parallelism.ep if shared else 1
    seq, packed = training.seq_length, training.packed_tokens
    return _count(job.model, _Counted(seq, packed, training.mtp_loss, adapter, copies), job)


def count_architecture(model: ModelConfig) -> ModelCounts:
    """Count a model that no job trains yet: its parameters depend on nothing else."""
    job = Job.model_construct(
        model=model,
        parallelism=ParallelismConfig(),
        training=TrainingConfig(micro_batch_size=1, global_batch_size=1, seq_length=_ANY_SEQ),
        cluster=ClusterConfig.parse({"device": _ANY_DEVICE}),
    )
    return count_model(job)


_ANY_SEQ, _ANY_DEVICE = 128, "h100"
"""A job has a sequence and a device; they enter no count of parameters."""


class _Counted(NamedTuple):
    """What of a step counts depend on."""

    seq: int
    packed: int | None
    mtp_loss: bool
    adapter: AdapterConfig | None
    copies: int
    """Ranks that have an adapter of their own beside all of their experts."""


_cache: dict[tuple[ModelConfig, _Counted], ModelCounts] = {}


def _count(model: ModelConfig, step: _Counted, job: Job) -> ModelCounts:
    key = (model, step)
    if key not in _cache:
        if len(_cache) > 4096:
            _cache.clear()
        _cache[key] = _count_uncached(model, step, job.cluster)
    return _cache[key]


def _count_uncached(model: ModelConfig, step: _Counted, cluster: ClusterConfig) -> ModelCounts:
    unsplit = Job.model_construct(
        model=model.model_copy(update={"make_vocab_size_divisible_by": None}),
        parallelism=ParallelismConfig(),
        training=TrainingConfig(
            micro_batch_size=1,
            global_batch_size=1,
            seq_length=step.seq,
            packed_tokens=step.packed,
            mtp_loss=step.mtp_loss,
            adapter=step.adapter,
        ),
        cluster=cluster.model_copy(update={"nodes": 1, "gpus_per_node": 1}),
    )
    batch = JobBatch.of([unsplit])
    workloads = build_workloads(batch, job_columns(batch), lay_out(batch))
    table = emit_operations(workloads.rows)
    count = np.bincount(workloads.run_workload, workloads.run_count, len(workloads.rows))
    layers = np.asarray(count, np.float64)
    flop = float(np.sum(table.flop * layers[table.workload]))
    mtp = model.mtp_num_layers if step.mtp_loss else 0
    if mtp:
        without = _count_uncached(model.model_copy(update={"mtp_num_layers": 0}), step, cluster)
        return replace(without, flop_per_sequence=flop)
    parameters = table.parameters * layers[table.workload]
    # Each expert-parallel rank trains the one beside its experts.
    copies = np.where(table.expert == 1, step.copies, 1)
    adapters = float(np.sum((parameters * copies)[table.adapter == 1]))
    parameters = parameters * (table.adapter == 0)
    experts = float(np.sum(parameters[table.expert == 1]))
    total = float(np.sum(parameters))
    share = model.moe.router_topk / model.moe.num_experts if model.moe else 1.0
    frozen = workloads.columns.frozen[table.workload] == 1
    trained = float(np.sum(parameters[~frozen])) if step.adapter is None else adapters
    return ModelCounts(round(total), round(total - experts + experts * share), round(trained), flop)
