"""Workloads: the distinct pieces of work that jobs are made of.

A workload is one layer of one kind, an embedding, a head or an MTP projection, for one
microbatch on one rank. Operations are emitted once for each distinct workload, however many
jobs, stages and layers share it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from projector.config.job import Job
from projector.config.training import RECOMPUTE_MODULES
from projector.kernels.device import MATRIX_TYPES
from projector.lower.hardware import device_records, fabric_record, native_type
from projector.lower.jobs import JobColumns, local_members, lower_jobs
from projector.lower.stages import (
    RECOMPUTE_NONE,
    RECOMPUTE_SELECTIVE,
    LayerKind,
    Stage,
    stage_layout,
)

DENSE, MOE, EMBEDDING, HEAD, MTP = range(5)
"""Workload kinds; the first two are transformer layers."""

ACTIVATIONS = ("swiglu", "geglu", "gelu", "relu", "squared_relu")
CP_TYPES = ("p2p", "all_gather", "a2a")
DISPATCHERS = ("alltoall", "allgather", "deepep")
FP8_RECIPES = ("delayed", "tensorwise", "rowwise", "blockwise")

WORKLOAD = np.dtype(
    [
        (name, np.int64)
        for name in (
            "kind",
            "device",
            "fabric",
            # Batch, sequence and the degrees that divide them.
            "micro_batch",
            "seq",
            "tp",
            "cp",
            "ep",
            "etp",
            "tp_local",
            "cp_local",
            "ep_local",
            "etp_local",
            "domain",
            "sequence_parallel",
            # Architecture.
            "hidden",
            "ffn",
            "gated",
            "mlp_bias",
            "heads",
            "key_heads",
            "d_qk",
            "d_v",
            "rope",
            "attention_bias",  # 0 none, 1 qkv, 2 qkv and out
            "qk_norm",  # 0 none, 1 a head, 2 the full width
            "sinks",
            "window",
            "norm_parameters",  # 1 scale, 2 scale and shift
            "norms",
            "mla",
            "q_lora",
            "kv_lora",
            "d_nope",
            "d_rope",
            "experts",
            "topk",
            "expert_ffn",
            "shared_ffn",
            "shared_gate",
            "router_bias",
            "group_topk",
            "vocab",
            "positions",  # rows of a learned position table, 0 without
            "tied",
            # Training switches.
            "dtype",  # matrix type code of linear layers
            "wide_dtype",  # matrix type code of attention, head, router
            "fp8_recipe",
            "fp8_transpose",
            "accumulate_bytes",  # bytes of a main-gradient element
            "recompute",  # 0 none, 1 selective, 2 full
            "recompute_mask",  # bit i: RECOMPUTE_MODULES[i] is dropped
            "flash",
            "fused_loss",
            "cp_type",
            "dispatcher",
            "dispatch_bytes",
            "permute_fusion",
            "host_sync",
            "compiled",
            "tp_overlap",
            "ep_overlap",
        )
    ]
    # Load of the fullest expert rank over the average one, in parts per 2**20, so that the
    # record stays integer and compares exactly.
    + [("load_2e20", np.int64)]
    # Rate of a GEMM within the step over that of the same GEMM alone, in the same parts.
    + [("gemm_share_2e20", np.int64)]
)
LOAD_ONE = 1 << 20


@dataclass(frozen=True, slots=True)
class Workloads:
    """Everything the operation table is made from.

    ``stage_*`` describe virtual stages, job after job (CSR with ``stage_offset``); ``run_*``
    describe the runs of equal layers of each virtual stage (CSR with ``run_offset``), where an
    embedding, a head or an MTP projection is a run of one.
    """

    jobs: JobColumns
    rows: NDArray[np.void]
    """WORKLOAD[workloads], distinct."""
    devices: NDArray[np.void]
    """DEVICE[devices]."""
    slowdown: NDArray[np.float64]
    """float64[devices]: share by which a collective slows the compute beside it."""
    fabrics: NDArray[np.void]
    """FABRIC[jobs]."""
    device_of_job: NDArray[np.int64]
    stage_offset: NDArray[np.int64]
    """int64[jobs + 1]."""
    stages: tuple[tuple[Stage, ...], ...]
    run_offset: NDArray[np.int64]
    """int64[stages + 1]."""
    run_workload: NDArray[np.int64]
    """Workload of each run."""
    run_count: NDArray[np.int64]
    """Layers of each run."""
    run_copies: NDArray[np.int64]
    """Copies of the run's parameters: its layers, but an MTP module shares the head's weights."""


def lower(jobs: Sequence[Job]) -> Workloads:
    """Turn jobs into distinct workloads and the stages that are made of them.

    Raises
    ------
    ConfigError
        For the first job that cannot exist.
    """
    columns = lower_jobs(jobs)
    devices, device_of_job = device_records(
        [job.cluster for job in jobs], [job.training.attention_kernel for job in jobs]
    )
    # Jobs of a batch mostly share a few clusters.
    fabric_of = {id(job.cluster): job.cluster for job in jobs}
    known = {key: fabric_record(cluster) for key, cluster in fabric_of.items()}
    fabrics = _joined([known[id(job.cluster)] for job in jobs])
    index: dict[bytes, int] = {}
    records: list[NDArray[np.void]] = []
    stage_offset, run_offset = [0], [0]
    run_workload: list[int] = []
    run_count: list[int] = []
    run_copies: list[int] = []
    layouts = []
    for row, job in enumerate(jobs):
        base = _base_record(job, columns, row, int(device_of_job[row]))
        # Fabrics are compared by content, so that jobs on equal clusters share workloads.
        base["fabric"] = next(i for i in range(row + 1) if fabrics[i] == fabrics[row])
        layout = layout_of(job)
        layouts.append(layout)
        local: dict[object, int] = {}
        for stage in layout:
            for key, count, copies in _runs(stage, job):
                if key not in local:
                    record = _specialise(base, key, job)
                    content = record.tobytes()
                    if content not in index:
                        index[content] = len(records)
                        records.append(record)
                    local[key] = index[content]
                run_workload.append(local[key])
                run_count.append(count)
                run_copies.append(copies)
            run_offset.append(len(run_workload))
        stage_offset.append(stage_offset[-1] + len(layout))
    return Workloads(
        jobs=columns,
        rows=_joined(records),
        devices=devices,
        slowdown=_slowdowns(jobs, device_of_job, len(devices)),
        fabrics=fabrics,
        device_of_job=device_of_job,
        stage_offset=np.array(stage_offset, np.int64),
        stages=tuple(layouts),
        run_offset=np.array(run_offset, np.int64),
        run_workload=np.array(run_workload, np.int64),
        run_count=np.array(run_count, np.int64),
        run_copies=np.array(run_copies, np.int64),
    )


def _joined(records: Sequence[NDArray[np.void]]) -> NDArray[np.void]:
    """Join records of one type; np.concatenate would compare their fields one by one."""
    content = b"".join(record.tobytes() for record in records)
    return np.frombuffer(content, records[0].dtype).copy()


def _slowdowns(
    jobs: Sequence[Job], device_of_job: NDArray[np.int64], num_devices: int
) -> NDArray[np.float64]:
    slowdown = np.zeros(num_devices)
    slowdown[device_of_job] = [job.cluster.device.comm_compute_slowdown for job in jobs]
    return slowdown


def layout_of(job: Job) -> tuple[Stage, ...]:
    """Return the virtual stages of one job, in model order."""
    return stage_layout(
        job.model,
        job.parallelism,
        job.training.recompute,
        job.training.precision in {"fp8", "mxfp8", "nvfp4"},
        job.training.first_last_layers_bf16,
        job.training.mtp_loss,
    )


def _runs(stage: Stage, job: Job) -> list[tuple[object, int, int]]:
    """List the (workload key, count, parameter copies) of one stage in model order."""
    runs: list[tuple[object, int, int]] = []
    if stage.embedding:
        runs.append((EMBEDDING, 1, 1))
    runs.extend((kind, count, count) for kind, count in stage.layers)
    if stage.mtp:
        # An MTP module is a projection, a layer of the last kind and the shared head once more.
        kind = LayerKind(
            moe=job.model.moe_layers[-1],
            windowed=False,
            recompute=RECOMPUTE_NONE,
            narrow=stage.layers[-1][0].narrow if stage.layers else False,
        )
        shared_head = 0 if stage.head else 1
        runs.extend(
            [
                (MTP, stage.mtp, stage.mtp),
                (kind, stage.mtp, stage.mtp),
                (HEAD, stage.mtp, shared_head),
            ]
        )
    if stage.head:
        runs.append((HEAD, 1, 1))
    return runs


def _base_record(job: Job, columns: JobColumns, row: int, device: int) -> NDArray[np.void]:
    """Fill what all workloads of one job share."""
    model, split, training = job.model, job.parallelism, job.training
    device_config = job.cluster.device
    wide = training.precision if training.precision in {"bf16", "fp16", "fp32"} else "bf16"
    record = np.zeros(1, WORKLOAD)
    values = {
        "device": device,
        "micro_batch": training.micro_batch_size,
        "seq": training.seq_length,
        "sequence_parallel": int(split.splits_sequence),
        "hidden": model.hidden_size,
        "mlp_bias": int(model.mlp_bias),
        "gated": int(model.gated),
        "heads": model.num_attention_heads,
        "key_heads": model.query_groups,
        "rope": int(model.position_embedding == "rope"),
        "attention_bias": ("none", "qkv", "qkv+out").index(model.attention_bias),
        "qk_norm": ("none", "head", "full").index(model.qk_norm),
        "sinks": int(model.attention_sinks),
        "norm_parameters": 1 if model.normalization == "rmsnorm" else 2,
        "norms": model.norms_per_layer,
        "vocab": model.padded_vocab_size(split.tp),
        "positions": model.max_position_embeddings if model.position_embedding == "learned" else 0,
        # With a pipeline the head holds a copy of the embedding.
        "tied": int(model.tied_embeddings and split.pp == 1),
        "wide_dtype": MATRIX_TYPES.index(native_type(device_config, wide)),
        "fp8_recipe": FP8_RECIPES.index(training.fp8_recipe),
        "fp8_transpose": int(training.fp8_weight_transpose_cache),
        "accumulate_bytes": 4 if training.gradient_dtype == "fp32" else 2,
        "flash": int(training.flash_attention),
        "fused_loss": int(training.cross_entropy_fusion),
        "cp_type": CP_TYPES.index(split.cp_comm_type),
        "compiled": int(training.torch_compile),
        "tp_overlap": int(split.tp_comm_overlap),
        "load_2e20": LOAD_ONE,
        "gemm_share_2e20": round(job.cluster.software.gemm_share * LOAD_ONE),
    }
    for name in ("tp", "cp", "tp_local", "cp_local", "domain"):
        values[name] = int(getattr(columns, name)[row])
    for name, value in values.items():
        record[name] = value
    return record


def _specialise(base: NDArray[np.void], key: object, job: Job) -> NDArray[np.void]:
    """Complete the record of one workload; fields that do not matter to it stay 0."""
    record = base.copy()
    model, training = job.model, job.training
    record["dtype"] = record["wide_dtype"]
    if isinstance(key, int):
        record["kind"] = key
        if key == MTP and training.precision in {"fp8", "mxfp8", "nvfp4"}:
            record["dtype"] = MATRIX_TYPES.index(training.precision)
        return record
    assert isinstance(key, LayerKind)
    record["kind"] = MOE if key.moe else DENSE
    record["recompute"] = key.recompute
    record["ffn"] = model.ffn_hidden_size
    record["window"] = model.sliding_window if key.windowed else 0
    if key.narrow:
        record["dtype"] = MATRIX_TYPES.index(training.precision)
    if key.recompute == RECOMPUTE_SELECTIVE:
        record["recompute_mask"] = sum(
            1 << RECOMPUTE_MODULES.index(module) for module in set(training.recompute.modules)
        )
    if model.mla is not None:
        mla = model.mla
        record["mla"] = 1
        record["q_lora"] = mla.q_lora_rank
        record["kv_lora"] = mla.kv_lora_rank
        record["d_nope"] = mla.qk_head_dim
        record["d_rope"] = mla.qk_pos_emb_head_dim
        record["d_qk"] = mla.qk_head_dim + mla.qk_pos_emb_head_dim
        record["d_v"] = mla.v_head_dim
        record["key_heads"] = record["heads"]
    else:
        record["d_qk"] = record["d_v"] = model.head_dim
    if key.moe:
        _specialise_moe(record, job)
    return record


def _specialise_moe(record: NDArray[np.void], job: Job) -> None:
    moe, routing, split = job.model.moe, job.training.moe, job.parallelism
    assert moe is not None
    record["ffn"] = 0
    record["experts"] = moe.num_experts
    record["topk"] = moe.router_topk
    record["expert_ffn"] = moe.ffn_hidden_size
    record["shared_ffn"] = moe.shared_expert_ffn_hidden_size
    record["shared_gate"] = int(moe.shared_expert_gate)
    record["router_bias"] = int(moe.router_bias)
    record["group_topk"] = moe.group_topk
    record["ep"] = split.ep
    record["etp"] = split.expert_tp
    domain = int(record["domain"][0])
    record["ep_local"] = local_members(split.ep, split.expert_tp, domain)
    record["etp_local"] = local_members(split.expert_tp, 1, domain)
    record["dispatcher"] = DISPATCHERS.index(routing.dispatcher)
    record["dispatch_bytes"] = 1 if routing.dispatch_precision == "fp8" else 2
    record["permute_fusion"] = int(routing.permute_fusion)
    record["host_sync"] = int(routing.host_sync)
    record["ep_overlap"] = int(split.overlap_moe_expert_parallel_comm)
    load = fullest_rank_load(moe.num_experts, split.ep, routing.load, routing.zipf_exponent)
    if routing.capacity_factor is not None:
        load = min(load, max(routing.capacity_factor, 1.0))
    record["load_2e20"] = round(load * LOAD_ONE)


def fullest_rank_load(experts: int, ep: int, load: str, exponent: float) -> float:
    """Tokens of the fullest expert rank over the average rank's.

    Zipf weights (i + 1)**-exponent are dealt to ranks in turn, so rank 0 is the fullest.
    """
    if load == "balanced" or ep == 1:
        return 1.0
    weights = [(i + 1.0) ** -exponent for i in range(experts)]
    return float(sum(weights[::ep]) * ep / sum(weights))
