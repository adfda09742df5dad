"""Steps as columns: the extents of every deployment and step, one entry a step."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from projector.arrays import Flags, Floats, Ints, Records
from projector.config.device_kernels import MatrixType
from projector.config.engine import dequantising, weight_formats
from projector.config.model import ModelConfig, parts_of
from projector.errors import ConfigError
from projector.kernels.collectives import FABRIC, algorithm_mask
from projector.kernels.device import MATRIX_TYPES, OPERAND_BYTES
from projector.kernels.grouped import GROUPED
from projector.kernels.moe_exchange import DISPATCH, EXCHANGE, LOW_LATENCY
from projector.lower.batch import local_members
from projector.lower.cluster_columns import largest_of_normals
from projector.lower.columns import SectionTable
from projector.lower.fabrics import domain_gpus, exchange_record, fabric_record
from projector.lower.hardware import device_records, expert_kernels, grouped_record, native_type
from projector.lower.sections import ModelColumns
from projector.lower.workload_columns import WORKLOAD, expected_parts
from projector.operations.moe import NO_EXCHANGE
from projector.operations.recurrent import RECURRENT
from projector.operations.shapes import NARROW_LAYERS, InferenceShapes, StepShapes, ceil_div
from projector.serving.deployment import Deployment, is_further_token_module
from projector.units import TERA

T = TypeVar("T")


def elements_per_token(model: ModelConfig, tp: int = 1) -> int:
    """Return what one layer caches of one token on one rank, in elements.

    Key heads are split over ``tp`` ranks and repeated where there are fewer; the latent of MLA
    (and its shared rotary key, and the key of an indexer) is cached whole on every rank.
    """
    if model.mla is not None:
        return model.mla.cached_size
    return -(-model.query_groups // tp) * 2 * model.head_dim


def cached_tokens(model: ModelConfig, context: int | Ints) -> Ints:
    """Return the tokens of a sequence that all attention caches, int64; windows hold theirs."""
    windowed = model.sliding_window_layers
    windowed_tokens = np.minimum(context, model.sliding_window)
    attending = model.mixers.count("attention")
    return np.asarray((attending - windowed) * context + windowed * windowed_tokens)


MAX_TOKENS = 1 << 34


COUNTS = {
    "batch": 1,
    "new_tokens": 1,
    "context": 0,
    "prefill_tokens": 0,
    "prefill_context": 0,
    "prefill_batch": 1,
    "draft_tokens": 0,
}
"""What a step counts, as `StepGrid` explains it, and how many where nothing else is said."""


@dataclass(frozen=True, slots=True)
class StepColumns:
    """Extents of the steps, one entry a step, and the hardware that they run on."""

    shapes: InferenceShapes
    """Extents of the layers, as in training."""
    extents: StepShapes
    weight_share: Floats
    """float64[steps]: bytes of a weight over those of an operand; below 1 where kernels widen
    weights."""
    widen_s: Floats
    """float64[steps]: vector time of the whole device to widen one weight, that nothing hides."""
    devices: Records
    fabrics: Records
    exchanges: Records
    """Costs of exchanges between experts, a record beside that of each fabric."""
    grouped: Records
    grouped_class: Ints
    """int64[steps]: row of each step in ``grouped``."""
    exchange_codes: Ints
    """int64[steps, 2]: exchange between experts, without and with prompts."""

    def __len__(self) -> int:
        return len(self.weight_share)


def step_columns(deployments: Sequence[Deployment], **counts: Sequence[int]) -> StepColumns:
    """Gather what one step of each deployment needs, with `COUNTS` where no others are given."""
    each = {
        name: np.array(counts.get(name, [usual] * len(deployments)), np.int64)
        for name, usual in COUNTS.items()
    }
    check_counts(each)
    devices, device = device_records([deployment.cluster for deployment in deployments])
    fabrics, exchanges, fabric = _fabrics(deployments)
    kernel = {"low_latency": LOW_LATENCY, "deepep": DISPATCH}
    codes = [
        [
            kernel.get(each.dispatcher, usual) if each.exchanges else NO_EXCHANGE
            for usual in (LOW_LATENCY, DISPATCH)
        ]
        for each in deployments
    ]
    exchange_codes = np.array(codes, np.int64).reshape(-1, 2)
    extents = _step_shapes(deployments, each, exchange_codes)
    rows = layer_rows(deployments)
    rows["device"], rows["fabric"] = device, fabric
    shapes = InferenceShapes(rows, extents.tokens, extents.emitting)
    grouped, grouped_class = _grouped(deployments, shapes.dtype)
    weight_share, widen_s = _weights(deployments)
    hardware = devices, fabrics, exchanges, grouped, grouped_class, exchange_codes
    return StepColumns(shapes, extents, weight_share, widen_s, *hardware)


def check_counts(counts: Mapping[str, Ints]) -> None:
    """Refuse steps without tokens, with too many, or of two kinds at once."""
    batch, new_tokens = counts["batch"], counts["new_tokens"]
    drafted, chunk = counts["draft_tokens"], counts["prefill_tokens"]
    beside = counts["prefill_batch"] * (chunk + counts["prefill_context"])
    tokens = batch * (new_tokens + drafted + counts["context"]) + beside
    legal = ((batch > 0) | ((batch == 0) & (chunk > 0))) & (new_tokens > 0)
    legal &= (counts["prefill_batch"] > 0) & (chunk >= 0) & (drafted >= 0)
    legal &= (counts["context"] >= 0) & (counts["prefill_context"] >= 0)
    legal &= (tokens <= MAX_TOKENS) & (np.maximum(batch, new_tokens) <= MAX_TOKENS)
    for row in np.flatnonzero(~legal)[:1]:
        given = {name: int(column[row]) for name, column in counts.items()}
        msg = (
            f"a step has at least one sequence and one new token and at most {MAX_TOKENS} "
            f"tokens, got batch {given['batch']}, {given['new_tokens']} new, {given['context']} "
            f"cached, beside {given['prefill_batch']} prompts with {given['prefill_tokens']} new, "
            f"{given['prefill_context']} cached"
        )
        raise ConfigError(msg, key="batch", value=given["batch"])
    for row in np.flatnonzero((new_tokens > 1) & ((chunk > 0) | (drafted > 0)))[:1]:
        msg = "prompts beside a batch and drafted tokens need a batch that decodes (new_tokens 1)"
        value = int(new_tokens[row])
        raise ConfigError(msg, key="new_tokens", value=value, allowed=[1])


def each_once(sections: Sequence[T]) -> tuple[SectionTable[T], Ints]:
    """Return the table of distinct objects, and the row of each."""
    rows, index = _first_rows([id(section) for section in sections])
    return SectionTable([sections[row] for row in rows]), index


def _first_rows(keys: Sequence[Hashable]) -> tuple[list[int], Ints]:
    """Return the first row that has each key, and which of these has the key of each row."""
    first: dict[Hashable, int] = {}
    for row, key in enumerate(keys):
        first.setdefault(key, row)
    place = {key: number for number, key in enumerate(first)}
    return [*first.values()], np.array([place[key] for key in keys], np.int64)


def layer_rows(deployments: Sequence[Deployment]) -> Records:
    """Return WORKLOAD[deployments]: a layer with both parts; the caller sets batch and sequence."""
    model = ModelColumns(*each_once([deployment.model for deployment in deployments]))
    domain = np.array([domain_gpus(deployment.cluster) for deployment in deployments], np.int64)
    tp = np.array([deployment.tp for deployment in deployments], np.int64)
    rows = np.zeros(len(deployments), WORKLOAD)
    for name in OF_MODEL:
        rows[name] = getattr(model, name)
    rows["positions"] = model.max_positions * model.learned
    rows["tied"] = model.tied * np.array([deployment.pp == 1 for deployment in deployments])
    rows["mla"] = model.is_mla
    rows["tp"], rows["cp"], rows["tp_local"] = tp, 1, local_members(tp, 1, domain)
    rows["ep"] = [deployment.ep for deployment in deployments]
    rows["etp"] = [deployment.expert_tp for deployment in deployments]
    rows["eager"] = [deployment.runs.is_eager for deployment in deployments]
    for row, deployment in enumerate(deployments):
        # As the device computes them; attention, router and head in 16 bits.
        wide: MatrixType = "fp16" if deployment.dtype == "fp16" else "bf16"
        device = deployment.cluster.device
        for name, dtype in (("dtype", deployment.dtype), ("wide_dtype", wide)):
            rows[name][row] = MATRIX_TYPES.index(native_type(device, dtype))
    return rows


OF_MODEL = (
    "hidden", "ffn", "gated", "heads", "key_heads", "d_qk", "d_v", "rope", "qk_norm", "window",
    "norms", "norm_parameters", "attention_bias", "mlp_bias", "sinks", "shared_gate", "router_bias",
    "q_lora", "kv_lora", "d_nope", "d_rope", "index_heads", "index_width", "index_topk",
    "output_gate", "experts", "topk", "expert_hidden",
    "expert_ffn", "shared_ffn", "vocab", "state_heads", "state_width", "state_groups", "state_size",
    "state_conv", "state_chunk", "state_rank", "state_norm",
)  # fmt: skip
"""Columns of a workload that are those of its model."""


def _step_shapes(
    deployments: Sequence[Deployment], counts: Mapping[str, Ints], codes: Ints
) -> StepShapes:
    """Return the extents of each deployment's step, with how experts are divided and reached."""
    models = [deployment.model for deployment in deployments]

    def column(values: Iterable[int]) -> Ints:
        return np.array(list(values), np.int64)

    def reached(deployment: Deployment, parts: float) -> float:
        moe = deployment.model.moe
        if moe is None:
            return 1.0
        return expected_parts(
            parts, moe.num_experts, moe.router_topk, moe.num_groups, moe.group_topk
        )

    cached = column(elements_per_token(each.model, each.tp) for each in deployments)
    groups = column(each.attention_dp for each in deployments)
    tp = column(each.tp for each in deployments)
    stage = tp * groups
    domain = column(domain_gpus(each.cluster) for each in deployments)
    stage_local = local_members(stage, 1, domain)
    return StepShapes(
        layers=column(model.num_layers for model in models),
        narrow_layers=column([*NARROW_LAYERS].index(each.narrow_layers) for each in deployments),
        windowed=column(model.sliding_window_layers for model in models),
        mixed_layers=column(
            sum(bool(parts_of(kind)[0]) for kind in model.layer_kinds) for model in models
        ),
        attention_layers=column(model.mixers.count("attention") for model in models),
        dense_layers=column(model.feed_forwards.count("dense") for model in models),
        moe_layers=column(sum(model.moe_layers) for model in models),
        state_layers=np.array(
            [[model.mixers.count(mixer) for mixer in RECURRENT] for model in models], np.int64
        ),
        **step_counts(counts, groups, codes),
        cached=cached,
        cache_bytes=cached * np.array([each.cached_element_bytes for each in deployments]),
        layer_kernels=np.array([each.runs.layer_kernels for each in deployments], np.float64),
        layer_calls=np.array([each.runs.layer_calls for each in deployments], np.float64),
        pp=column(each.pp for each in deployments),
        # Neighbouring stages are as many ranks apart as a stage has.
        pp_local=np.where(2 * stage <= domain, 2, 1),
        joins=column(is_further_token_module(model) for model in models),
        attention_dp=groups,
        groups_local=local_members(groups, tp, domain),
        stage_local=stage_local,
        largest_part=np.array([largest_of_normals(each.ep) for each in deployments]),
        part_load=np.array([each.runs.expert_load for each in deployments]),
        gathers=column(
            each.attention_dp > 1 and each.model.moe is not None and not each.exchanges
            for each in deployments
        ),
        exchange_units=column(each.dispatcher_sms for each in deployments),
        ranks_reached=np.array([reached(each, each.ep) for each in deployments]),
        domains_reached=np.array(
            [
                reached(each, each.ep / local)
                for each, local in zip(deployments, stage_local.tolist(), strict=True)
            ]
        ),
    )


def step_counts(counts: Mapping[str, Ints], groups: Ints, exchanges: Ints) -> dict[str, Any]:
    """Return the columns of `StepShapes` that not only deployments decide.

    ``counts`` are `COUNTS`, those of the fullest of the attention ``groups``. ``exchanges``,
    int64[steps, 2], are those between experts, of steps without and with prompts.
    """
    prompts, tokens, cached = _chunks(counts)
    sequences = np.where(counts["new_tokens"] > 1, 0, counts["batch"])
    queries = 1 + counts["draft_tokens"]
    return {
        "sequences": ceil_div(sequences, groups),
        "queries": queries,
        "context": counts["context"],
        "chunks": ceil_div(prompts, groups),
        "chunk_tokens": tokens,
        "chunk_context": cached,
        "stage_tokens": sequences * queries + prompts * tokens,
        "exchange": np.where(prompts > 0, exchanges[:, 1], exchanges[:, 0]),
    }


def scheduled(counts: Mapping[str, Ints], groups: Ints) -> Ints:
    """Return the sequences and prompts that the scheduler of an attention group has in a step."""
    decoding = np.where(counts["new_tokens"] > 1, 0, counts["batch"])
    return np.asarray(ceil_div(decoding + _chunks(counts)[0], groups))


def has_prompts(counts: Mapping[str, Ints]) -> Flags:
    """Return whether prompts go through, bool[steps]."""
    return _chunks(counts)[0] > 0


def _chunks(counts: Mapping[str, Ints]) -> tuple[Ints, Ints, Ints]:
    """Return prompts that prefill, new tokens of each, and cached tokens of each."""
    prefills, beside = counts["new_tokens"] > 1, counts["prefill_tokens"] > 0

    def either(alone: str, mixed: str) -> Ints:
        return np.where(prefills, counts[alone], np.where(beside, counts[mixed], 0))

    return (
        either("batch", "prefill_batch"),
        either("new_tokens", "prefill_tokens"),
        either("context", "prefill_context"),
    )


def _fabrics(deployments: Sequence[Deployment]) -> tuple[Records, Records, Ints]:
    """Return fabrics of each distinct cluster and engine, for all-reduces and for exchanges."""
    rows, index = _first_rows([(id(each.cluster), each.runs.collectives) for each in deployments])
    records, exchanges = [np.zeros(0, FABRIC)], [np.zeros(0, EXCHANGE)]
    for deployment in (deployments[row] for row in rows):
        record, algorithms = fabric_record(deployment.cluster), deployment.runs.collectives
        record["algorithms"] = algorithm_mask(*algorithms)
        if "direct" in algorithms:
            # The engine's own kernel has flags, and writes to all peers at once.
            record["flagged_algorithms"] |= algorithm_mask("direct")
            record["exchange_issue_s"] = 0.0
        records.append(record)
        exchanges.append(exchange_record(deployment.cluster))
    return np.concatenate(records), np.concatenate(exchanges), index


def _weights(deployments: Sequence[Deployment]) -> tuple[Floats, Floats]:
    """Return the bytes of a weight over those of an operand, and the time to widen one."""
    share, widen_s = np.ones(len(deployments)), np.zeros(len(deployments))
    for row, deployment in enumerate(deployments):
        name = deployment.narrow_weights
        if name is None:
            continue
        kept = weight_formats()[name]
        operand = OPERAND_BYTES[MATRIX_TYPES.index(deployment.native_dtype)]
        share[row] = kept.bytes_per_weight(deployment.weight_group) / operand
        # A lane's multiply-add counts as two FLOP.
        lanes_per_s = deployment.cluster.device.vector_tflops * TERA / 2.0
        instructions = kept.instructions[deployment.runs.weight_kernels]
        stated = deployment.widening_share
        exposed = dequantising().exposed_share if stated is None else stated
        widen_s[row] = exposed * instructions / lanes_per_s
    return share, widen_s


def _grouped(deployments: Sequence[Deployment], dtype: Ints) -> tuple[Records, Ints]:
    """Return one record for each distinct cluster and matrix type, at the sustained clock.

    MXFP4 experts run in kernels for few tokens, where a device has them (TensorRT-LLM's, which all
    engines take for it on Blackwell).
    """
    keys = [
        (id(each.cluster), int(code), each.dtype == "mxfp4")
        for each, code in zip(deployments, dtype, strict=True)
    ]
    rows, index = _first_rows(keys)
    records = [np.zeros(0, GROUPED)]
    for row in rows:
        cluster, name = deployments[row].cluster, MATRIX_TYPES[keys[row][1]]
        device, few = cluster.device, f"{name}_low_latency"
        clock = cluster.gpu_clock_mhz or device.sustained_clock_mhz[name]  # type: ignore[index]
        kernels = few if keys[row][2] and few in device.expert_layer.kernels else name
        records.append(grouped_record(device, name, expert_kernels(device, kernels), clock))
    return np.concatenate(records), index
