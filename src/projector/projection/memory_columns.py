"""Memory of every pipeline rank in its physical form, term by term."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from projector.config.job import Job
from projector.lower.stages import RECOMPUTE_FULL
from projector.lower.workloads import DENSE, MOE, Workloads
from projector.operations.cost import WorkloadCosts
from projector.projection.data_parallel import (
    DTYPE_BYTES,
    bucket_parameters,
    parameter_bytes,
)
from projector.schedule.placement import Placement

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MASTER_BYTES = {"fp32": 4.0, "split": 2.0, "none": 0.0}
MOMENTS = {"adam": 2, "sgd": 1, "muon": 1}


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Bytes of each pipeline rank of each job; lists have one float64[pp] for each job."""

    saved_bytes: Floats
    """float64[stages]: activations one microbatch keeps in one virtual stage."""
    weight_share: Floats
    """float64[jobs]: share of them that stays from B to W where the schedule splits the two."""
    parameters: list[Floats]
    """Parameters that a rank's layers have, before any sharding over data parallelism."""
    held_parameters: list[Floats]
    """Parameters stored in full (all of them below ZeRO 3)."""
    owned_parameters: list[Floats]
    """Parameters a rank updates (its shard from ZeRO 1 on)."""
    optimizer_state_bytes: list[float]
    """Bytes of optimizer state for each parameter."""
    weights_bytes: list[Floats]
    gradients_bytes: list[Floats]
    optimizer_bytes: list[Floats]
    transient_bytes: list[Floats]
    buffers_bytes: list[Floats]
    activation_peak_bytes: list[Floats]
    """Filled by the replay: the most that the schedule holds at one time."""
    in_flight: list[Ints]
    """Filled by the replay: microbatches, times chunks, held at that time."""

    def static_bytes(self, row: int) -> Floats:
        """Return what each rank of one job holds besides activations."""
        return np.asarray(
            self.weights_bytes[row]
            + self.gradients_bytes[row]
            + self.optimizer_bytes[row]
            + self.transient_bytes[row]
            + self.buffers_bytes[row]
        )

    def peak_bytes(self, row: int) -> Floats:
        """Return the allocated peak of each rank of one job."""
        return np.asarray(self.static_bytes(row) + self.activation_peak_bytes[row])


def usable_bytes(job: Job) -> float:
    """Return what a rank may allocate: what is left of its device memory, less fragmentation."""
    cluster = job.cluster
    left = cluster.device.hbm_gib * 2**30 - cluster.memory_reserve_gib * 2**30
    return max(0.0, left / (1.0 + cluster.fragmentation))


def stage_memory(
    jobs: Sequence[Job],
    workloads: Workloads,
    costs: WorkloadCosts,
    placements: Sequence[Placement],
) -> StageMemory:
    """Compute everything that does not depend on the schedule's order."""
    saved = costs.saved_bytes[workloads.run_workload] * workloads.run_count
    num_stages = len(workloads.run_offset) - 1
    stage_of_run = np.repeat(np.arange(num_stages), np.diff(workloads.run_offset))
    kept = np.bincount(stage_of_run, saved, num_stages)
    offload = np.array([1.0 - job.training.activation_offload_fraction for job in jobs])
    kept = kept * np.repeat(offload, np.diff(workloads.stage_offset))
    needed = costs.weight_bytes[workloads.run_workload] * workloads.run_count
    first = workloads.run_offset[workloads.stage_offset]
    share = np.array(
        [
            float(np.sum(needed[begin:end]) / np.sum(saved[begin:end]))
            for begin, end in itertools.pairwise(first)
        ]
    )
    memory = StageMemory(kept, share, [], [], [], [], [], [], [], [], [], [], [])
    for row, job in enumerate(jobs):
        _add_job(row, job, workloads, costs, stage_of_run, placements[row], memory)
    return memory


def _add_job(
    row: int,
    job: Job,
    workloads: Workloads,
    costs: WorkloadCosts,
    stage_of_run: Ints,
    placement: Placement,
    memory: StageMemory,
) -> None:
    columns = workloads.jobs
    begin, end = workloads.stage_offset[row], workloads.stage_offset[row + 1]
    runs = slice(workloads.run_offset[begin], workloads.run_offset[end])
    pp = int(columns.pp[row])
    stage_of = stage_of_run[runs] - begin
    num_stages = int(end - begin)
    held = placement.model_stage
    workload = workloads.run_workload[runs]
    copies = workloads.run_copies[runs]

    def per_rank(values: Floats) -> Floats:
        per_stage = np.bincount(stage_of, values * copies, num_stages)
        return np.asarray(per_stage[held].sum(axis=1), np.float64)

    def largest(values: Floats) -> Floats:
        per_stage = np.zeros(num_stages)
        np.maximum.at(per_stage, stage_of, values)
        return np.asarray(per_stage[held].max(axis=1), np.float64)

    dense_layer, expert_layer = costs.dense_parameters[workload], costs.expert_parameters[workload]
    dense, experts = per_rank(dense_layer), per_rank(expert_layer)
    if job.model.tied_embeddings and pp > 1:
        # Lowering gives the head of a pipeline a copy; it may lie beside the embedding.
        vocab = job.model.padded_vocab_size(job.parallelism.tp) // job.parallelism.tp
        dense -= placement.joins_ends * float(vocab * job.model.hidden_size)
    # The copies of a model that runs in several directions share their gradients and shards.
    dense_ranks = int(columns.dp[row] * columns.cp[row]) * placement.directions
    expert_ranks = int(columns.edp[row]) * placement.directions
    stage = int(columns.zero_stage[row])
    owned = dense / dense_ranks + experts / expert_ranks
    everything = dense + experts
    training = job.training
    weight = parameter_bytes(job)
    gradient = DTYPE_BYTES[training.gradient_dtype]
    moments = MOMENTS[training.optimizer.name] * DTYPE_BYTES[training.optimizer.moment_dtype]
    master = MASTER_BYTES[training.optimizer.master_weights] if weight < 4.0 else 0.0
    state = master + moments
    sharded_weights = stage >= 3
    weights = weight * (owned if sharded_weights else everything)
    record = workloads.rows[workload]
    narrow = (record["dtype"] >= 4) & ((record["kind"] == DENSE) | (record["kind"] == MOE))
    if not sharded_weights:
        # Quantised copies of the linear layers' weights live through the step.
        copies_bytes = (
            0.0 if training.fp8_param_gather else 1.0
        ) + training.fp8_weight_transpose_cache
        weights = weights + copies_bytes * per_rank((dense_layer + expert_layer) * narrow)
    gradients = gradient * (owned if stage >= 2 else everything)
    on_device = 1.0 - training.optimizer.offload_fraction
    optimizer = state * on_device * (owned if stage >= 1 else everything)
    memory.parameters.append(everything)
    memory.held_parameters.append(owned if sharded_weights else everything)
    memory.owned_parameters.append(owned if stage >= 1 else everything)
    memory.optimizer_state_bytes.append(state)
    memory.weights_bytes.append(weights)
    memory.gradients_bytes.append(gradients)
    memory.optimizer_bytes.append(optimizer)
    layer = dense_layer + expert_layer
    recomputed = record["recompute"] == RECOMPUTE_FULL
    unit = training.recompute.num_layers or 1 if training.recompute.method == "uniform" else 1
    again = np.where(recomputed, costs.unchecked_bytes[workload] * unit, 0.0)
    transient = largest(np.maximum(costs.transient_bytes[workload], 0.0) + again)
    if sharded_weights:
        # Two gathered layers and the full gradients of one.
        wire = DTYPE_BYTES[training.reduce_dtype]
        transient = transient + largest(layer * (2.0 * weight + wire))
    memory.transient_bytes.append(transient)
    memory.buffers_bytes.append(_buffers(row, job, workloads, everything))
    memory.activation_peak_bytes.append(np.zeros(pp))
    memory.in_flight.append(np.zeros(pp, np.int64))


def _buffers(row: int, job: Job, workloads: Workloads, parameters: Floats) -> Floats:
    """Staging of gradients whose wire type differs, and of pipeline messages."""
    columns = workloads.jobs
    training = job.training
    ranks = int(columns.dp[row] * columns.cp[row])
    size = bucket_parameters([job], np.zeros(1, np.int64), np.array([ranks]))
    bucket = np.minimum(parameters, size)
    staged = training.reduce_dtype != training.gradient_dtype and ranks > 1
    gradients = bucket * DTYPE_BYTES[training.reduce_dtype] * staged
    pp = int(columns.pp[row])
    tokens = columns.micro_batch[row] * columns.seq[row] // columns.cp[row]
    split = job.parallelism.tp if job.parallelism.splits_sequence else 1
    # One message each way in both directions.
    messages = 4 * 2.0 * (tokens // split) * job.model.hidden_size if pp > 1 else 0.0
    return np.asarray(gradients + messages, np.float64)
