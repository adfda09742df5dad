"""Jobs as columns: what the closed forms read."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from projector.arrays import Flags, Floats
from projector.config.adapter import refuse_adapter
from projector.config.first_order_device import FirstOrderDevice, first_order_device
from projector.config.first_order_job import AnyJob
from projector.config.job import Job
from projector.errors import ConfigError
from projector.first_order.parameters import count_parameters


@dataclass(frozen=True, slots=True)
class TrainingColumns:
    """Columns of jobs, float64[jobs] unless stated otherwise."""

    parameters: Floats
    active_parameters: Floats
    expert_parameters: Floats
    layers: Floats
    hidden: Floats
    heads: Floats
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
    """Bytes of a gradient on the wire."""
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
    device, counts = device_of(job), count_parameters(model)
    selective = training.recompute.granularity == "selective"
    narrow = training.gradient_dtype == "bf16"
    return {
        "parameters": counts.total,
        "active_parameters": counts.active,
        "expert_parameters": counts.experts,
        "layers": model.num_layers,
        "hidden": model.hidden_size,
        "heads": model.num_attention_heads,
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
