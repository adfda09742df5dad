"""Jobs as columns, and their memory and step time in closed form."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from projector.arrays import Flags, Floats
from projector.config.adapter import refuse_adapter
from projector.config.first_order import FirstOrderDevice, first_order_device
from projector.config.first_order_job import AnyJob
from projector.config.job import Job
from projector.errors import ConfigError
from projector.first_order import equations as eq
from projector.first_order.equations import all_reduce_s, bubble_fraction, compute_s


@dataclass(frozen=True, slots=True)
class TrainingColumns:
    """Columns of jobs, float64[jobs] unless stated otherwise."""

    parameters: Floats
    active_parameters: Floats
    expert_parameters: Floats
    layers: Floats
    channels: Floats
    """Of an average layer, as the activations count them."""
    heads: Floats
    """The same of heads with scores."""
    seq: Floats
    micro_batch: Floats
    global_batch: Floats
    gpus: Floats
    tp: Floats
    pp: Floats
    vpp: Floats
    cp: Floats
    ep: Floats
    etp: Floats
    dp: Floats
    sharding_stage: Floats
    gradient_wire_bytes: Floats
    narrow_gradients: Flags
    """bool[jobs]: gradients are kept in 16 bits."""
    accumulates_beside: Flags
    """bool[jobs]: FP32 sums lie beside 16-bit gradients."""
    keeps_scores: Flags
    """bool[jobs]: attention is not fused, and its scores are not recomputed."""
    checkpointed: Flags
    """bool[jobs]: whole layers are recomputed."""
    peak_flop_per_s: Floats
    memory_bytes: Floats
    scale_up_domain: Floats
    scale_up_bytes_per_s: Floats
    scale_out_bytes_per_s: Floats

    @property
    def microbatches(self) -> Floats:
        """Microbatches of one data-parallel rank in a step."""
        return np.asarray(self.global_batch / (self.micro_batch * self.dp))

    @property
    def tokens_per_step(self) -> Floats:
        """Tokens of a step."""
        return np.asarray(self.global_batch * self.seq)


_FLAGS = {"narrow_gradients", "accumulates_beside", "keeps_scores", "checkpointed"}


def training_columns(jobs: Sequence[AnyJob]) -> TrainingColumns:
    """Return the columns of some jobs."""
    rows = [_row(job) for job in jobs]
    return TrainingColumns(
        **{
            name: np.array([row[name] for row in rows], bool if name in _FLAGS else np.float64)
            for name in (field.name for field in fields(TrainingColumns))
        }
    )


def device_of(job: AnyJob) -> FirstOrderDevice:
    """Return the device of a job as the first-order model sees it."""
    if isinstance(job, Job):
        return first_order_device(job.cluster.device, job.cluster.network)
    return job.cluster.device


def data_parallel(job: AnyJob) -> int:
    """Return the data-parallel degree."""
    split, training, gpus = job.parallelism, job.training, job.cluster.gpus
    world = split.tp * split.pp * split.cp
    if gpus % world:
        least = split.least_nodes(job.cluster.gpus_per_node, experts=False)
        msg = (
            f"tp * pp * cp ({world}) must divide the {gpus} devices of the cluster; a multiple of "
            f"{least} nodes of {job.cluster.gpus_per_node} would do"
        )
        raise ConfigError(msg, key="parallelism", value=world, allowed=f"a divisor of {gpus}")
    dp = gpus // world
    if split.dp not in (None, dp):
        msg = f"parallelism.dp is {split.dp}, but {gpus} / (tp * pp * cp) = {dp}"
        raise ConfigError(msg, key="parallelism.dp", value=split.dp, allowed=dp)
    together = training.micro_batch_size * dp
    if training.global_batch_size % together:
        msg = (
            f"training.global_batch_size ({training.global_batch_size}) must be a multiple of "
            f"micro_batch_size * dp ({together})"
        )
        key = "training.global_batch_size"
        allowed = f"a multiple of {together}"
        raise ConfigError(msg, key=key, value=training.global_batch_size, allowed=allowed)
    return dp


def _row(job: AnyJob) -> dict[str, float]:
    model, split, training = job.model, job.parallelism, job.training
    refuse_adapter(training.adapter, "the closed forms train every weight")
    device, counts = device_of(job), eq.count_parameters(model)
    attending = eq.layer_parts(model)[0]["attention"]
    selective = training.recompute.granularity == "selective"
    narrow = training.gradient_dtype == "bf16"
    return {
        "parameters": counts.total,
        "active_parameters": counts.active,
        "expert_parameters": counts.experts,
        "layers": model.num_layers,
        "channels": eq.layer_channels(model),
        "heads": model.num_attention_heads * attending / model.num_layers,
        "seq": training.seq_length,
        "micro_batch": training.micro_batch_size,
        "global_batch": training.global_batch_size,
        "gpus": job.cluster.gpus,
        "tp": split.tp,
        "pp": split.pp,
        "vpp": split.vpp,
        "cp": split.cp,
        "ep": split.ep,
        "etp": split.expert_tp,
        "dp": data_parallel(job),
        "sharding_stage": split.sharding_stage,
        "gradient_wire_bytes": 2.0 if training.reduce_dtype == "bf16" else 4.0,
        "narrow_gradients": narrow,
        "accumulates_beside": not narrow and not training.gradient_accumulation_fusion,
        "keeps_scores": not training.flash_attention
        and not (selective and "core_attn" in training.recompute.modules),
        "checkpointed": training.recompute.granularity == "full",
        "peak_flop_per_s": device.peak_flop_per_s(training.precision),
        "memory_bytes": device.memory_bytes,
        "scale_up_domain": device.scale_up_domain,
        "scale_up_bytes_per_s": device.scale_up_bytes_per_s,
        "scale_out_bytes_per_s": device.scale_out_bytes_per_s,
    }


NARROW_GRADIENT_BYTES = 2.0


@dataclass(frozen=True, slots=True)
class TrainingResults:
    """Closed forms of a batch of jobs, float64[jobs]."""

    columns: TrainingColumns
    constants: eq.Constants
    states: eq.StateBytes
    """Of one rank, sharded."""
    activations: Floats
    """Bytes of one rank."""
    compute_s: Floats
    all_reduce_s: Floats
    bubble_fraction: Floats
    crossing: Floats
    """What the step is multiplied by where tensor parallelism leaves its domain."""

    @property
    def peak_bytes(self) -> Floats:
        """What one rank holds."""
        return np.asarray(self.states.total + self.activations)

    @property
    def fits(self) -> Flags:
        """Whether that is less than the memory of a device; nothing else is reserved."""
        return np.asarray(self.peak_bytes <= self.columns.memory_bytes)

    @property
    def bubble_s(self) -> Floats:
        """Idle seconds of the pipeline."""
        return self.bubble_fraction * self.compute_s

    @property
    def communication_s(self) -> Floats:
        """All-reduce and bubble together, as the methodology adds them."""
        return np.asarray(self.all_reduce_s + self.bubble_s)

    @property
    def iteration_s(self) -> Floats:
        """Seconds of a step."""
        within_s = eq.step_s(self.compute_s, self.communication_s, self.constants.overlap)
        return np.asarray(within_s * self.crossing)

    @property
    def model_flop(self) -> Floats:
        """FLOP of a step."""
        return eq.training_flop(self.columns.tokens_per_step, self.columns.active_parameters)

    @property
    def breakdown_s(self) -> dict[str, Floats]:
        """Terms of the step: the longer of both, what does not hide of the other, the crossing."""
        leads = self.compute_s >= self.communication_s
        left = 1.0 - self.constants.overlap
        compute, waits = np.where(leads, 1.0, left), np.where(leads, left, 1.0)
        within_s = eq.step_s(self.compute_s, self.communication_s, self.constants.overlap)
        return {
            "compute": self.compute_s * compute,
            "dp_comm": self.all_reduce_s * waits,
            "pp_bubble": self.bubble_s * waits,
            "tp_comm": within_s * (self.crossing - 1.0),
        }


def train(jobs: Sequence[AnyJob]) -> TrainingResults:
    """Project jobs; each result equals that of the job alone."""
    constants = eq.Constants.of_jobs([job.first_order for job in jobs])
    return train_columns(training_columns(jobs), constants)


def train_columns(columns: TrainingColumns, constants: eq.Constants) -> TrainingResults:
    """Project jobs that are columns already."""
    replicas = columns.dp * columns.cp
    # Divide parameters evenly over the ranks that hold different ones.
    dense = columns.parameters - columns.expert_parameters
    experts = columns.expert_parameters / (columns.ep * columns.etp)
    held = np.asarray((dense / columns.tp + experts) / columns.pp)
    flop = eq.training_flop(columns.tokens_per_step, columns.active_parameters)
    near = np.floor(columns.scale_up_domain / columns.tp)
    each = eq.bytes_per_parameter(constants, accumulates_beside=columns.accumulates_beside)
    gradients = np.where(columns.narrow_gradients, NARROW_GRADIENT_BYTES, each.gradients)
    whole = eq.StateBytes(held * each.weights, held * gradients, held * each.optimizer)
    return TrainingResults(
        columns=columns,
        constants=constants,
        states=eq.sharded_states(whole, replicas, columns.sharding_stage),
        activations=_activations(columns, constants),
        compute_s=compute_s(flop, columns.gpus, constants.training_mfu, columns.peak_flop_per_s),
        all_reduce_s=all_reduce_s(
            replicas,
            near,
            held * columns.gradient_wire_bytes,
            columns.scale_up_bytes_per_s,
            columns.scale_out_bytes_per_s,
        ),
        bubble_fraction=bubble_fraction(columns.pp, columns.microbatches, columns.vpp),
        crossing=eq.crossing_factor(columns.tp, columns.scale_up_domain, constants),
    )


def _activations(columns: TrainingColumns, constants: eq.Constants) -> Floats:
    """Return activations of the first stage, which holds those of PP microbatches."""
    held = np.minimum(columns.pp, columns.microbatches)
    kept = eq.activation_bytes(
        columns.layers / columns.pp * held,
        columns.seq,
        columns.micro_batch,
        columns.channels,
        columns.heads,
        keeps_scores=columns.keeps_scores,
    )
    whole = np.where(columns.checkpointed, eq.checkpointed_bytes(kept, constants), kept)
    return np.asarray(whole / (columns.tp * columns.cp))
