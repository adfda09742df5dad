"""Memory of every pipeline rank in its physical form, term by term."""

from dataclasses import dataclass

import numpy as np

from projector.arrays import Array, Floats, Ints
from projector.kernels.state_memory import MAXIMA, REPLICA, STATE, SUMS, hold_state
from projector.lower.workload_columns import padded_vocab
from projector.operations.linear import NF4_BYTES
from projector.projection.data_parallel import bucket_parameters
from projector.projection.memory_terms import MemoryTerms
from projector.projection.pipeline_costs import PipelineCosts
from projector.projection.replicas import Replicas


@dataclass(frozen=True, slots=True)
class StateMemory(MemoryTerms[Floats, None]):
    """What ranks hold besides activations, float64[kinds of ranks]."""

    parameters: Floats
    """Parameters that a rank's layers have, before any sharding over data parallelism."""
    held_parameters: Floats
    """Parameters stored in full (all of them below ZeRO 3)."""
    owned_parameters: Floats
    """Parameters a rank updates (its shard from ZeRO 1 on)."""
    unplaced_bytes: Floats
    """Freed blocks of the smaller of the working sets of layers and of the model's ends, which the
    other has no use for."""
    embedding_bytes: Floats
    """The embedding's gradient, which no freed block is large enough for."""
    sharding_excess_bytes: Floats
    """What sharded weights take more than whole ones under ZeRO 2; below 0 where they save."""
    gathered_bytes: Floats
    """What of the working set is gathered weights, and gradients before they are sharded."""
    updating_bytes: Floats
    """Working set of the update."""


@dataclass(frozen=True, slots=True)
class RankMemory(MemoryTerms[Floats, Floats]):
    """Bytes of each pipeline rank of one job, float64[pp]."""

    parameters: Floats
    in_flight: Ints
    """int64[pp]: microbatches, times chunks, held at the peak."""


def state_memory(replicas: Replicas, costs: PipelineCosts) -> StateMemory:
    """Compute everything that does not depend on the schedule's order."""
    alike = replicas.alike(replicas.jobs.cluster.workspace_bytes.view(np.int64))
    state = _state_memory(alike.replicas, costs)
    if alike.replicas is replicas:
        return state
    columns = {name: getattr(state, name).take(alike.of_rank_kind) for name in STATE}
    return StateMemory(activations_bytes=None, **columns)


def _state_memory(replicas: Replicas, costs: PipelineCosts) -> StateMemory:
    found = np.empty((len(STATE), int(replicas.first_rank_kind[-1])))
    hold_state(
        replicas.pattern,
        replicas.row_first,
        _of_replicas(replicas),
        replicas.patterns,
        np.stack([getattr(costs, name) for name in SUMS]),
        np.stack([getattr(costs, name) for name in MAXIMA]),
        NF4_BYTES,
        found,
    )
    return StateMemory(activations_bytes=None, **dict(zip(STATE, found, strict=True)))


def _of_replicas(replicas: Replicas) -> Floats:
    """Return what ranks of each replica have in common, float64[len(REPLICA), replicas]."""
    columns, jobs = replicas.columns, replicas.jobs
    training, split = jobs.training, jobs.parallelism
    # Lowering gives the head of a pipeline a copy of a tied embedding; it may lie beside it.
    tied = jobs.model.tied * (columns.pp > 1)
    copied = padded_vocab(jobs, columns) // columns.tp * jobs.model.hidden * tied
    # The copies of a model that runs in several directions share their gradients and shards.
    dense_ranks = columns.dp * columns.cp // columns.copies * replicas.directions
    expert_ranks = columns.edp // columns.copies * replicas.directions
    ranks = columns.dp * columns.cp
    staged = (training.reduce_bytes != training.gradient_bytes) & (ranks > 1)
    tokens = columns.micro_batch * columns.seq // columns.cp
    rows = tokens // np.where(split.splits_sequence == 1, columns.tp, 1)
    # One message each way in both directions.
    messages = 4 * 2.0 * rows * jobs.model.hidden * (columns.pp > 1)
    # PyTorch's workspace and that of a library of fused layers.
    workspaces = 2.0 * jobs.cluster.workspace_bytes
    fsdp = split.fsdp > 0

    own: dict[str, Array] = {
        "zero": columns.zero_stage,
        "fsdp": fsdp,
        "waits": fsdp & (columns.pp > 1),
        "again": split.regathers == 1,
        "frozen": training.adapted == 1,
        "keeps_quantised": training.keeps_quantised != 0,
        "copied": copied,
        "dense_ranks": dense_ranks,
        "expert_ranks": expert_ranks,
        "gradient_bytes": training.gradient_bytes,
        "reduce_bytes": training.reduce_bytes,
        "weight_bytes": training.weight_bytes,
        "held_bytes": training.held_weight_bytes,
        "quantised_bytes": training.quantised_copies,
        "state_bytes": training.state_bytes,
        "update_bytes": training.update_bytes,
        "on_device": 1.0 - training.optimizer_offload,
        "layers": 1.0 + np.maximum(split.forward_ahead, split.backward_ahead),
        "bucket": bucket_parameters(split.bucket, ranks),
        "staged_bytes": training.reduce_bytes * staged,
        "fixed_bytes": messages + workspaces,
    }
    return np.stack([own[name] for name in REPLICA], dtype=np.float64)
