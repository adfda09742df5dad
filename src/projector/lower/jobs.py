"""Jobs as columns: one row a job, every derived degree, each checked once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from projector.config.job import Job
from projector.errors import ConfigError
from projector.lower.hardware import domain_gpus

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class JobColumns:
    """Degrees and batch of each job, int64[jobs] each.

    ``*_local`` counts the members of a group that share one scale-up domain, with Megatron's
    rank order tp-cp-dp-pp for dense and etp-ep-edp-pp for expert parameters.
    """

    tp: Ints
    pp: Ints
    vpp: Ints
    cp: Ints
    ep: Ints
    etp: Ints
    dp: Ints
    edp: Ints
    """Replicas of each expert: world / (etp * ep * pp)."""
    gpus: Ints
    domain: Ints
    """Devices of one scale-up domain."""
    micro_batch: Ints
    global_batch: Ints
    microbatches: Ints
    """Microbatches of one data-parallel rank in one step."""
    seq: Ints
    tp_local: Ints
    cp_local: Ints
    ep_local: Ints
    etp_local: Ints
    shard_local: Ints
    """Local members of the group that shares dense gradients: dp * cp."""
    edp_local: Ints
    zero_stage: Ints
    fsdp: Ints


def lower_jobs(jobs: Sequence[Job]) -> JobColumns:
    """Derive every degree of ``jobs`` and refuse those that cannot exist.

    Raises
    ------
    ConfigError
        For the first rule a job breaks; see `RULES`.
    """
    for job in jobs:
        for rule in RULES:
            error = rule(job)
            if error is not None:
                raise error
    rows = [_derive(job) for job in jobs]
    columns = {
        field.name: np.array([row[field.name] for row in rows], np.int64)
        for field in fields(JobColumns)
    }
    return JobColumns(**columns)


def data_parallel(job: Job) -> int:
    """Data-parallel degree of the dense parameters."""
    split = job.parallelism
    return job.cluster.gpus // (split.tp * split.pp * split.cp)


def local_members(size: int, stride: int, domain: int) -> int:
    """Members of a group within one scale-up domain, ranks ``stride`` apart."""
    return max(1, min(size, domain // stride))


def _derive(job: Job) -> dict[str, int]:
    split, training = job.parallelism, job.training
    dp = data_parallel(job)
    etp = split.expert_tp if job.model.moe else 1
    gpus, domain = job.cluster.gpus, domain_gpus(job.cluster)
    edp = gpus // (etp * split.ep * split.pp)
    return {
        "tp": split.tp,
        "pp": split.pp,
        "vpp": split.vpp,
        "cp": split.cp,
        "ep": split.ep,
        "etp": etp,
        "dp": dp,
        "edp": edp,
        "gpus": gpus,
        "domain": domain,
        "micro_batch": training.micro_batch_size,
        "global_batch": training.global_batch_size,
        "microbatches": training.global_batch_size // (training.micro_batch_size * dp),
        "seq": training.seq_length,
        "tp_local": local_members(split.tp, 1, domain),
        "cp_local": local_members(split.cp, split.tp, domain),
        "ep_local": local_members(split.ep, etp, domain),
        "etp_local": local_members(etp, 1, domain),
        "shard_local": local_members(dp * split.cp, split.tp, domain),
        "edp_local": local_members(edp, etp * split.ep, domain),
        "zero_stage": split.sharding_stage,
        "fsdp": int(split.fsdp),
    }


def divisors(number: int, limit: int = 1 << 20) -> list[int]:
    """Return the divisors of ``number`` up to ``limit``, ascending."""
    small = [value for value in range(1, int(number**0.5) + 1) if number % value == 0]
    return [
        value for value in sorted({*small, *(number // value for value in small)}) if value <= limit
    ]


def _error(key: str, value: Any, message: str, allowed: Any) -> ConfigError:
    return ConfigError(f"{key}: {message}", key=key, value=value, allowed=allowed)


def _heads_divide(job: Job) -> ConfigError | None:
    tp, heads = job.parallelism.tp, job.model.num_attention_heads
    if heads % tp == 0:
        return None
    legal = divisors(heads)
    text = f"tp ({tp}) does not divide num_attention_heads ({heads}); legal: {_list(legal)}"
    return _error("parallelism.tp", tp, text, legal)


def _key_heads_divide(job: Job) -> ConfigError | None:
    tp, groups = job.parallelism.tp, job.model.query_groups
    if job.model.mla is not None or groups % tp == 0 or tp % groups == 0:
        return None
    legal = [
        value
        for value in divisors(job.model.num_attention_heads)
        if groups % value == 0 or value % groups == 0
    ]
    text = (
        f"tp ({tp}) neither divides num_query_groups ({groups}) nor is a multiple; "
        f"legal: {_list(legal)}"
    )
    return _error("parallelism.tp", tp, text, legal)


def _mlp_divides(job: Job) -> ConfigError | None:
    tp, width = job.parallelism.tp, job.model.ffn_hidden_size
    if all(job.model.moe_layers) or width % tp == 0:
        return None
    legal = [value for value in divisors(width) if job.model.num_attention_heads % value == 0]
    text = f"tp ({tp}) does not divide ffn_hidden_size ({width}); legal: {_list(legal)}"
    return _error("parallelism.tp", tp, text, legal)


def _world_divides(job: Job) -> ConfigError | None:
    split, gpus = job.parallelism, job.cluster.gpus
    dense = split.tp * split.pp * split.cp
    if gpus % dense == 0:
        return None
    below = gpus // dense * dense
    nearest = f"{below} or {below + dense}" if below else f"{dense}"
    text = (
        f"tp ({split.tp}) * pp ({split.pp}) * cp ({split.cp}) = {dense} must divide the {gpus} "
        f"GPUs of {job.cluster.nodes} nodes with {job.cluster.gpus_per_node} each; nearest that "
        f"fit: {nearest} GPUs"
    )
    return _error("cluster.nodes", job.cluster.nodes, text, f"a multiple of {dense} GPUs")


def _dp_agrees(job: Job) -> ConfigError | None:
    given, derived = job.parallelism.dp, data_parallel(job)
    if given is None or given == derived:
        return None
    text = f"dp ({given}) contradicts the cluster, which leaves dp = {derived}; leave dp out"
    return _error("parallelism.dp", given, text, [derived])


def _experts_divide(job: Job) -> ConfigError | None:
    split, moe, gpus = job.parallelism, job.model.moe, job.cluster.gpus
    if moe is None:
        if split.ep > 1:
            text = f"ep ({split.ep}) spreads experts, but {job.model.name} is a dense model"
            return _error("parallelism.ep", split.ep, text, [1])
        return None
    if moe.num_experts % split.ep:
        legal = divisors(moe.num_experts)
        text = (
            f"ep ({split.ep}) does not divide num_experts ({moe.num_experts}); "
            f"legal: {_list(legal)}"
        )
        return _error("parallelism.ep", split.ep, text, legal)
    expert_tp = split.expert_tp
    if moe.ffn_hidden_size % expert_tp:
        legal = divisors(moe.ffn_hidden_size)
        text = (
            f"etp ({expert_tp}) does not divide the expert width ({moe.ffn_hidden_size}); "
            f"legal: {_list(legal)}"
        )
        return _error("parallelism.etp", expert_tp, text, legal)
    if moe.shared_expert_ffn_hidden_size % split.tp:
        text = (
            f"tp ({split.tp}) does not divide the shared experts' width "
            f"({moe.shared_expert_ffn_hidden_size})"
        )
        return _error("parallelism.tp", split.tp, text, divisors(moe.shared_expert_ffn_hidden_size))
    world = expert_tp * split.ep * split.pp
    if gpus % world:
        text = (
            f"etp ({expert_tp}) * ep ({split.ep}) * pp ({split.pp}) = {world} must divide the "
            f"{gpus} GPUs"
        )
        legal = [v for v in divisors(moe.num_experts) if gpus % (expert_tp * v * split.pp) == 0]
        return _error("parallelism.ep", split.ep, text, legal)
    if split.tp > 1 and not split.splits_sequence:
        text = "mixture-of-experts layers with tp > 1 need sequence_parallel, as in Megatron"
        return _error("parallelism.sequence_parallel", split.sequence_parallel, text, [True])
    return None


def _sequence_divides(job: Job) -> ConfigError | None:
    split, seq = job.parallelism, job.training.seq_length
    parts = split.cp * (2 if split.cp > 1 and split.cp_comm_type != "a2a" else 1)
    if seq % parts:
        why = " (2 chunks a rank balance the causal mask)" if parts != split.cp else ""
        text = f"cp ({split.cp}) needs seq_length ({seq}) to be a multiple of {parts}{why}"
        return _error("training.seq_length", seq, text, f"a multiple of {parts}")
    if split.splits_sequence and (seq // split.cp) % split.tp:
        text = (
            f"sequence_parallel needs seq_length / cp ({seq // split.cp}) to be a multiple of tp "
            f"({split.tp})"
        )
        return _error("training.seq_length", seq, text, f"a multiple of {split.cp * split.tp}")
    heads = job.model.num_attention_heads // split.tp
    if split.cp_comm_type == "a2a" and heads % split.cp:
        text = f"cp_comm_type a2a exchanges heads: cp ({split.cp}) must divide heads / tp ({heads})"
        return _error("parallelism.cp", split.cp, text, divisors(heads))
    if job.model.position_embedding == "learned" and seq > job.model.max_position_embeddings:
        text = (
            f"seq_length ({seq}) exceeds max_position_embeddings "
            f"({job.model.max_position_embeddings}), the size of the learned position table"
        )
        allowed = f"at most {job.model.max_position_embeddings}, or a larger table"
        return _error("training.seq_length", seq, text, allowed)
    return None


def _batch_divides(job: Job) -> ConfigError | None:
    training, dp = job.training, data_parallel(job)
    step = training.micro_batch_size * dp
    if training.global_batch_size % step == 0:
        return None
    below = training.global_batch_size // step * step
    nearest = [value for value in (below, below + step) if value]
    text = (
        f"global_batch_size ({training.global_batch_size}) is not a multiple of micro_batch_size "
        f"({training.micro_batch_size}) * dp ({dp}) = {step}; nearest: "
        f"{' or '.join(map(str, nearest))}"
    )
    return _error("training.global_batch_size", training.global_batch_size, text, nearest)


def _precision_is_native(job: Job) -> ConfigError | None:
    precision, device = job.training.precision, job.cluster.device
    if precision in device.matrix_flop_per_clk_per_cu:
        return None
    legal = [name for name in device.matrix_flop_per_clk_per_cu if name != "tf32"]
    text = f"{device.name} has no native {precision} matrix rate; it has {_list(legal)}"
    return _error("training.precision", precision, text, legal)


def _attention_is_known(job: Job) -> ConfigError | None:
    name, device = job.training.attention_kernel, job.cluster.device
    if name == "default" or name in device.attention_kernels:
        return None
    legal = ["default", *device.attention_kernels]
    text = f"{device.name} describes no attention kernel {name!r}; it has {_list(legal)}"
    return _error("training.attention_kernel", name, text, legal)


def _list(values: Sequence[object]) -> str:
    shown = [str(value) for value in values[:16]]
    return ", ".join(shown) + (" ..." if len(values) > len(shown) else "")


RULES: tuple[Callable[[Job], ConfigError | None], ...] = (
    _heads_divide,
    _key_heads_divide,
    _mlp_divides,
    _experts_divide,
    _world_divides,
    _dp_agrees,
    _sequence_divides,
    _batch_divides,
    _precision_is_native,
    _attention_is_known,
)
"""Every rule that spans sections; each returns the error of a job that breaks it."""
