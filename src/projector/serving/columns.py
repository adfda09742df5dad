"""Steps as columns: the extents of every deployment and step, one entry a step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from projector.config.cluster import ClusterConfig
from projector.errors import ConfigError
from projector.kernels.collectives import FABRIC, algorithm_mask
from projector.kernels.device import MATRIX_TYPES, OPERAND_BYTES
from projector.kernels.grouped import GROUPED
from projector.lower.hardware import (
    device_records,
    domain_gpus,
    expert_kernels,
    fabric_record,
    grouped_record,
    native_type,
)
from projector.lower.jobs import local_members
from projector.serving.cache import elements_per_token
from projector.serving.deployment import Deployment

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MAX_TOKENS = 1 << 34
"""Tokens of one step beyond this are no step."""

_ENGINE_ALGORITHMS = algorithm_mask("ring", "tree", "in_network", "pairwise", "direct")


@dataclass(frozen=True, slots=True)
class Step:
    """One pass of a batch through the model."""

    deployment: Deployment
    batch: int
    """Sequences."""
    new_tokens: int = 1
    """Tokens of each sequence that go through the model; 1 is a decode step."""
    context: int = 0
    """Tokens of each sequence that are cached already."""


@dataclass(frozen=True, slots=True)
class StepColumns:
    """Extents of the steps (int64[steps]); hardware is in records of its own."""

    columns: dict[str, Ints]
    operand_bytes: Floats
    weight_share: Floats
    """Bytes of a weight over those of an operand; below 1 with weight-only quantisation."""
    head_share: Floats
    cache_bytes: Floats
    """Bytes that one layer reads for each cached token of a sequence."""
    devices: NDArray[np.void]
    fabrics: NDArray[np.void]
    grouped: NDArray[np.void]
    """Grouped GEMMs, by the column ``grouped_class``."""

    def __len__(self) -> int:
        """Return the number of steps."""
        return len(self.operand_bytes)

    def __getattr__(self, name: str) -> Any:
        """Return a column."""
        try:
            return self.columns[name]
        except KeyError:
            raise AttributeError(name) from None


def lower_steps(steps: Sequence[Step]) -> StepColumns:
    """Gather what the steps need.

    Raises
    ------
    ConfigError
        If a step has no tokens, or more than can be.
    """
    for step in steps:
        tokens = step.batch * (step.new_tokens + step.context)
        if step.batch < 1 or step.new_tokens < 1 or step.context < 0 or tokens > MAX_TOKENS:
            msg = (
                f"a step has at least one sequence and one new token and at most {MAX_TOKENS} "
                f"tokens, got batch {step.batch}, {step.new_tokens} new, {step.context} cached"
            )
            raise ConfigError(msg, key="batch", value=step.batch)
    known: dict[int, dict[str, int]] = {}
    for step in steps:
        if id(step.deployment) not in known:
            known[id(step.deployment)] = _extents(step.deployment)
    rows = [known[id(step.deployment)] for step in steps]
    names = rows[0] if rows else {}
    columns = {name: np.array([row[name] for row in rows], np.int64) for name in names}
    for name in ("batch", "new_tokens", "context"):
        columns[name] = np.array([getattr(step, name) for step in steps], np.int64)
    columns["tokens"] = columns["batch"] * columns["new_tokens"]
    clusters = [step.deployment.cluster for step in steps]
    devices, columns["device"] = device_records(clusters)
    fabrics, columns["fabric"] = _fabrics(clusters)
    grouped, columns["grouped_class"] = _grouped(clusters, columns["dtype"])
    operand = OPERAND_BYTES[columns["dtype"]]
    bits = np.array([step.deployment.weight_bits or 0 for step in steps], np.float64)
    share = np.where(bits > 0, bits / 8.0 / operand, 1.0)
    element = np.array([step.deployment.kv_cache_bytes for step in steps], np.float64)
    return StepColumns(
        columns=columns,
        operand_bytes=operand,
        weight_share=share,
        head_share=np.where(bits > 0, share, 1.0),
        cache_bytes=element * columns["cached"],
        devices=devices,
        fabrics=fabrics,
        grouped=grouped,
    )


def _extents(deployment: Deployment) -> dict[str, int]:
    model, tp = deployment.model, deployment.tp
    device = deployment.cluster.device
    mla, moe = model.mla, model.moe
    domain = domain_gpus(deployment.cluster)
    moe_layers = sum(model.moe_layers)
    wide = "fp16" if deployment.dtype == "fp16" else "bf16"
    return {
        "layers": model.num_layers,
        "windowed": model.sliding_window_layers,
        "window": model.sliding_window,
        "moe_layers": moe_layers,
        "hidden": model.hidden_size,
        "ffn": -(-model.ffn_hidden_size // tp),
        "gated": int(model.gated),
        "norms": model.norms_per_layer,
        "heads": model.num_attention_heads // tp,
        "key_heads": -(-model.query_groups // tp),
        "d_qk": mla.qk_head_dim + mla.qk_pos_emb_head_dim if mla else model.head_dim,
        "d_v": model.head_dim,
        "rope": int(model.position_embedding == "rope"),
        "qk_norm": int(model.qk_norm != "none"),
        "mla": int(mla is not None),
        "q_lora": mla.q_lora_rank if mla else 0,
        "kv_lora": mla.kv_lora_rank if mla else 0,
        "d_nope": mla.qk_head_dim if mla else 0,
        "d_rope": mla.qk_pos_emb_head_dim if mla else 0,
        "cached": elements_per_token(model, tp),
        "experts": moe.num_experts if moe else 0,
        "topk": moe.router_topk if moe else 0,
        "expert_ffn": -(-moe.ffn_hidden_size // tp) if moe else 0,
        "shared_ffn": -(-moe.shared_expert_ffn_hidden_size // tp) if moe else 0,
        "vocab": -(-model.vocab_size // tp),
        "tp": tp,
        "tp_local": local_members(tp, 1, domain),
        "pp": deployment.pp,
        # Neighbouring stages are tp ranks apart.
        "pp_local": 2 if 2 * tp <= domain else 1,
        "dtype": MATRIX_TYPES.index(native_type(device, deployment.dtype)),
        "wide_dtype": MATRIX_TYPES.index(native_type(device, wide)),
    }


def _fabrics(clusters: Sequence[ClusterConfig]) -> tuple[NDArray[np.void], Ints]:
    """Return one record for each distinct cluster, with the all-reduce of inference engines."""
    index: dict[int, int] = {}
    records: list[NDArray[np.void]] = []
    for cluster in clusters:
        if id(cluster) not in index:
            index[id(cluster)] = len(records)
            record = fabric_record(cluster)
            record["algorithms"] |= _ENGINE_ALGORITHMS
            records.append(record)
    fabrics = np.concatenate(records) if records else np.zeros(0, FABRIC)
    return fabrics, np.array([index[id(cluster)] for cluster in clusters], np.int64)


def _grouped(clusters: Sequence[ClusterConfig], dtype: Ints) -> tuple[NDArray[np.void], Ints]:
    """Return one record for each distinct cluster and matrix type, at the sustained clock."""
    index: dict[tuple[int, int], int] = {}
    records: list[NDArray[np.void]] = []
    keys = [(id(cluster), int(code)) for cluster, code in zip(clusters, dtype, strict=True)]
    for cluster, key in zip(clusters, keys, strict=True):
        if key not in index:
            index[key] = len(records)
            device, name = cluster.device, MATRIX_TYPES[key[1]]
            clock = cluster.gpu_clock_mhz or device.sustained_clock_mhz[name]  # type: ignore[index]
            records.append(grouped_record(device, name, expert_kernels(device, name), clock))
    grouped = np.concatenate(records) if records else np.zeros(0, GROUPED)
    return grouped, np.array([index[key] for key in keys], np.int64)
