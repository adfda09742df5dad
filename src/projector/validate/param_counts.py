"""Rows that count the parameters of an architecture, built from the row's own dimensions."""

from collections.abc import Sequence
from typing import Any

from projector.config.model import ModelConfig
from projector.errors import ProjectorError
from projector.operations.counts import count_architecture
from projector.validate import kind as kinds
from projector.validate.kind import Kind, whole
from projector.validate.names import load_table_names, model_of
from projector.validate.words import number_said, said

_SHAPE = ("layers", "hidden", "ffn", "heads", "vocab")
_COLUMNS = ("model", *_SHAPE, "computed_total", "computed_active")

MAX_LAYERS = 10_000
MAX_PARAMETERS = 1 << 62


def project(rows: Sequence[kinds.Row]) -> list[kinds.Outcome]:
    """Count each row's architecture."""
    found = kinds.read_cases(rows, _project)
    return [kinds.failed(each) if isinstance(each, str) else each for each in found]


def _project(row: kinds.Row) -> kinds.Outcome:
    model, mark, note = architecture(row)
    counts = count_architecture(model)
    pairs = [
        (float(total), float(whole(row, column, MAX_PARAMETERS, what="a positive count")))
        for total, column in (
            (counts.parameters_total, "computed_total"),
            (counts.parameters_active, "computed_active"),
        )
    ]
    predicted, measured = max(pairs, key=lambda pair: abs(pair[0] / pair[1] - 1.0))
    return kinds.Outcome(kinds.OK, predicted, measured, predicted / measured, mark, note)


def architecture(row: kinds.Row) -> tuple[ModelConfig, str, str]:
    """Return the architecture of a row, where its features came from, and a remark.

    Dimensions are the row's. Features without a column (biases, norms, position table, sinks)
    are those of the shipped model of that name, and those that ``extra`` names.
    """
    data, mark, note = _features(row)
    for column, field in load_table_names().dimensions.items():
        value = kinds.integer(row, column)
        if value is not None:
            data[field] = value
    if int(data.get("num_layers", 0)) > MAX_LAYERS:
        raise ValueError(f"layers is {row.get('layers')!r}, more than {MAX_LAYERS:,}")
    for field in ("num_layers", "hidden_size", "num_attention_heads", "vocab_size"):
        if field not in data:
            raise ValueError(f"{field} is missing")
    tied = kinds.plain(row, "tied_embeddings")
    if tied:
        data["tied_embeddings"] = tied in {"true", "1", "yes"}
    data["mla"] = _mla(row)
    data["moe"] = _moe(row, data)
    data["mtp_num_layers"] = 0
    if data["mla"] is not None:
        data.pop("kv_channels", None)
        data.pop("num_query_groups", None)
    if int(data.get("sliding_window_layers") or 0) > int(data["num_layers"]):
        data["sliding_window_layers"] = 0
    return ModelConfig.parse(data), mark, note


def _features(row: kinds.Row) -> tuple[dict[str, Any], str, str]:
    name = (row.get("model") or "").strip()
    try:
        data, mark, note = model_of(name), kinds.FROM_ROW, ""
    except (ValueError, ProjectorError):
        data, mark = {"name": name}, kinds.FROM_RULE
        note = "no shipped model of that name: features from `extra` alone, gated MLP without it"
    for field in ("position_embedding", "attention_bias", "normalization"):
        if text := said(row, field):
            data[field] = text
    if positions := number_said(row, "max_position_embeddings"):
        data["max_position_embeddings"] = positions
    if said(row, "mlp_bias") == "true":
        data["mlp_bias"] = True
        data.setdefault("activation", "gelu")
        data.setdefault("normalization", "layernorm")
    if text := said(row, "qk_norm"):
        data.setdefault("qk_norm", text)
    if said(row, "attention_sinks") == "true":
        data["attention_sinks"] = True
    return data, mark, note


def _mla(row: kinds.Row) -> dict[str, int] | None:
    if kinds.integer(row, "kv_lora") is None:
        return None
    columns = load_table_names().latent_dimensions
    fields = {field: kinds.integer(row, column) for column, field in columns.items()}
    missing = [column for column, field in columns.items() if fields[field] is None]
    if missing:
        raise ValueError(f"{missing[0]} is missing beside kv_lora")
    stated = {field: value for field, value in fields.items() if value is not None}
    return {**stated, "q_lora_rank": kinds.integer(row, "q_lora") or 0}


def _moe(row: kinds.Row, data: dict[str, Any]) -> dict[str, Any] | None:
    experts = kinds.integer(row, "experts")
    if not experts:
        return None
    layers = int(data["num_layers"])
    dense = kinds.integer(row, "dense_layers")
    moe = dict(data.get("moe") or {})
    pattern = moe.get("layer_freq")
    if dense is not None and not 0 <= dense <= layers:
        raise ValueError(f"dense_layers is {dense}, but there are {layers} layers")
    if dense:
        moe["layer_freq"] = [0] * dense + [1] * (layers - dense)
    elif dense == 0 or (isinstance(pattern, list) and len(pattern) < layers):
        moe["layer_freq"] = 1
    moe["num_experts"] = experts
    moe["router_topk"] = kinds.integer(row, "topk") or moe.get("router_topk", 1)
    width = kinds.integer(row, "moe_ffn")
    moe["ffn_hidden_size"] = width or moe.get("ffn_hidden_size") or data["ffn_hidden_size"]
    shared = kinds.integer(row, "shared_ffn")
    if shared is not None:
        moe["shared_expert_ffn_hidden_size"] = shared
    if said(row, "router_bias") == "true":
        moe["router_bias"] = True
    groups = moe.get("num_groups")
    if groups and experts % groups:
        moe |= {"num_groups": 0, "group_topk": 0}
    return moe


KIND = Kind(name="param_counts", columns=_COLUMNS, project=project, device="", precision="")
