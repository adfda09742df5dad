"""Architectures of many model types: parameters as published, and as the classes count them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from projector.config.formats.huggingface import FAMILIES, REFUSED, read_huggingface
from projector.config.formats.huggingface_file import UNSUPPORTED
from projector.config.load import load_job
from projector.config.model_file import load_model
from projector.errors import ConfigError, UnsupportedError
from reference.parameters import parameters_total
from thoroughness import examples

FILE = Path(__file__).parents[1] / "reference" / "huggingface_models.yaml"
MODELS: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
NUMERICS = (
    "rotary_base", "rotary_percent", "rope_scaling", "rotary_base_local", "norm_epsilon",
)  # fmt: skip
LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_attention_heads": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
}


def expanded(value: Any) -> Any:
    """Return a mapping with its repeated lists written out."""
    if not isinstance(value, Mapping):
        return value
    if value.keys() == {"repeat", "times"}:
        return value["repeat"] * value["times"]
    return {name: expanded(item) for name, item in value.items()}


def test_there_are_at_least_fifty() -> None:
    assert len(MODELS) >= 50
    assert len({expanded(entry["config"])["model_type"] for entry in MODELS.values()}) >= 30


@pytest.mark.parametrize("name", MODELS)
def test_parameters_are_the_published_ones(name: str) -> None:
    entry = MODELS[name]
    model, _ = read_huggingface(expanded(entry["config"]))
    total = parameters_total(model)
    assert total == pytest.approx(entry["published"], rel=1e-3)
    assert total == pytest.approx(entry.get("by_class", total), rel=4e-5)


@pytest.mark.parametrize("name", MODELS)
def test_no_key_of_a_real_file_is_unknown(name: str) -> None:
    _, notes = read_huggingface(expanded(MODELS[name]["config"]))
    assert not any("unknown key" in note for note in notes)


@pytest.mark.parametrize("name", [name for name, entry in MODELS.items() if "shipped" in entry])
def test_a_shipped_file_is_what_is_read(name: str) -> None:
    model, _ = read_huggingface(expanded(MODELS[name]["config"]))
    own = {"name", "source"}
    shipped = load_model(MODELS[name]["shipped"]).model_dump(exclude=own)
    given = model.model_dump(exclude=own)
    for field in NUMERICS:
        # The files here are reduced: most say nothing of rotations and norms.
        if given[field] is None:
            given[field] = shipped[field]
    if given["moe"] and given["moe"]["router_scaling_factor"] is None:
        given["moe"]["router_scaling_factor"] = shipped["moe"]["router_scaling_factor"]
    if given["moe"] and "norm_topk_prob" not in MODELS[name]["config"]:
        given["moe"]["router_pre_softmax"] = shipped["moe"]["router_pre_softmax"]
    assert shipped == given


def test_no_type_is_both_read_and_refused() -> None:
    assert not FAMILIES.keys() & REFUSED.keys()


@pytest.mark.parametrize(
    ("key", "value", "word"),
    [
        ("linear_attn_config", {"kda_layers": [1, 2]}, "linear attention"),
        ("compress_ratios", [0, 4, 128], "compressed sparse attention"),
        ("hc_mult", 4, "hyper-connections"),
        ("o_lora_rank", 1024, "low-rank output projection"),
        ("routed_expert_hidden_size", 2048, "latent space"),
        ("index_topk", 2048, "indexer"),
        ("mamba_d_state", 16, "state-space"),
        ("cross_attention_layers", [3, 8], "cross-attention"),
        ("num_kv_shared_layers", 15, "shared between layers"),
        ("zero_expert_num", 256, "experts that compute nothing"),
        ("block_configs", [{"ffn": {}}], "layers that all differ"),
        ("num_local_experts", 8, "mixtures of experts"),
        ("kv_lora_rank", 512, "latent attention"),
        ("use_qk_norm", True, "norm of queries and keys"),
        ("layer_types", ["linear_attention"] * 4, "linear_attention"),
    ],
)
def test_a_key_that_makes_another_model_is_refused(key: str, value: Any, word: str) -> None:
    with pytest.raises(UnsupportedError, match=word) as error:
        read_huggingface(LLAMA | {key: value})
    assert error.value.key == f"model.{key}"
    assert error.value.value == value


@pytest.mark.parametrize("off", [0, False, None, [], "none"])
def test_such_a_key_may_be_off(off: Any) -> None:
    plain = read_huggingface(LLAMA)[0]
    for key in ("linear_attn_config", "hc_mult", "use_qk_norm", "num_local_experts", "o_lora_rank"):
        model, notes = read_huggingface(LLAMA | {key: off})
        assert (model, notes) == (plain, [])


def test_unknown_keys_share_one_note() -> None:
    _, notes = read_huggingface(LLAMA | {"brand_new": 3, "also_new": "x", "rope_theta": 1e6})
    assert notes == ["2 unknown keys of the config.json cannot be followed: brand_new, also_new"]
    _, many = read_huggingface(LLAMA | {f"new_{i}": i + 1 for i in range(30)})
    assert len(many) == 1
    assert many[0].endswith("and 18 more")


@pytest.mark.parametrize(
    "field", ["hc_mult", "linear_attn_config", "moe.routed_expert_hidden_size"]
)
def test_the_command_line_refuses_them_too(field: str) -> None:
    job = {
        "model": "mixtral_8x7b",
        "training": {"micro_batch_size": 1, "global_batch_size": 8, "seq_length": 2048},
        "cluster": {"device": "h100"},
    }
    with pytest.raises(UnsupportedError, match="not supported") as error:
        load_job(job, {f"model.{field}": 4})
    assert error.value.key == f"model.{field}"
    assert load_job(job, {f"model.{field}": 0}) == load_job(job)
    with pytest.raises(ConfigError, match="unknown key"):
        load_job(job, {"model.brand_new": 4})


def test_a_rope_model_may_leave_its_longest_sequence_out() -> None:
    plain = {key: value for key, value in LLAMA.items() if key != "max_position_embeddings"}
    model = load_model(plain)
    assert "max_position_embeddings" not in model.model_fields_set
    assert parameters_total(model) == parameters_total(load_model(LLAMA))


def test_language_models_within_others_are_found() -> None:
    for place in ("text_config", "llm_config", "language_config"):
        model, _ = read_huggingface({"model_type": "any", place: LLAMA, "vision_config": {}})
        assert model.num_layers == 4
    nested = {"model_type": "omni", "thinker_config": {"text_config": LLAMA}}
    assert read_huggingface(nested)[0].num_layers == 4


def test_language_models_do_not_nest_for_ever() -> None:
    config: dict[str, Any] = {"model_type": "any"}
    config["text_config"] = config
    with pytest.raises(UnsupportedError, match="nests too deep"):
        read_huggingface(config)
    with pytest.raises(ConfigError):
        load_model(config)


def test_extends_goes_with_native_fields_alone() -> None:
    with pytest.raises(ConfigError, match="model_type is none") as error:
        load_model({"extends": "llama3_8b", **LLAMA})
    assert error.value.key == "model.extends"


VALUES = [None, True, 0, 1, -1, 2.5, 10**30, "", "x", "LLLG", [], [1], ["sparse"] * 4, {}, {"a": 1}]
KEYS = sorted({key for entry in MODELS.values() for key in entry["config"]} | UNSUPPORTED.keys())


@settings(max_examples=examples(300))
@given(
    name=st.sampled_from(sorted(MODELS)),
    model_type=st.none() | st.sampled_from(sorted(FAMILIES)),
    changes=st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES), max_size=3),
    without=st.sampled_from(KEYS),
)
def test_any_file_is_read_or_refused(
    name: str, model_type: str | None, changes: dict[str, Any], without: str
) -> None:
    config = expanded(MODELS[name]["config"]) | changes
    config.pop(without, None)
    if model_type is not None:
        config["model_type"] = model_type
    try:
        model = load_model(config)
    except ConfigError:
        return
    assert parameters_total(model) > 0


def test_the_outer_mapping_says_whether_weights_are_tied() -> None:
    inner = LLAMA | {"tie_word_embeddings": True}
    outer = {"model_type": "any", "tie_word_embeddings": False, "text_config": inner}
    assert not read_huggingface(outer)[0].tied_embeddings


def test_windows_of_exaone_follow_its_word() -> None:
    exaone = LLAMA | {"model_type": "exaone4", "num_hidden_layers": 8, "sliding_window": 4096}
    for pattern in ("LLLG", 4):
        model, _ = read_huggingface(exaone | {"sliding_window_pattern": pattern})
        assert model.sliding_window_layers == 6
    with pytest.raises(ConfigError, match="L and G"):
        read_huggingface(exaone | {"sliding_window_pattern": "LX"})


def test_layers_of_experts_are_where_the_file_says() -> None:
    entry = expanded(MODELS["zai-org/GLM-4.7-Flash"]["config"])
    listed = {key: value for key, value in entry.items() if key != "first_k_dense_replace"}
    kinds = ["dense"] * 2 + ["sparse"] * 45
    assert read_huggingface(listed | {"mlp_layer_types": kinds})[0].moe_layers[:3] == (
        False,
        False,
        True,
    )
    with pytest.raises(ConfigError, match="dense or sparse"):
        read_huggingface(listed | {"mlp_layer_types": ["sparse"]})
    hunyuan = expanded(MODELS["tencent/Hunyuan-A13B-Instruct"]["config"])
    with pytest.raises(UnsupportedError, match="differ in their experts"):
        read_huggingface(hunyuan | {"moe_topk": [8] * 31 + [4]})
    ernie = expanded(MODELS["baidu/ERNIE-4.5-21B-A3B-PT"]["config"])
    assert sum(read_huggingface(ernie | {"moe_layer_interval": 2})[0].moe_layers) == 14
    assert read_huggingface(ernie | {"moe_layer_end_index": -1})[0].moe_layers[-1]
