"""Reading config.json: equal to the shipped architecture, or an error that names the key."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.huggingface_configs import (
    COMMAND_R,
    DEEPSEEK_V3,
    FALCON_7B,
    GEMMA_2_9B,
    GEMMA_3_4B,
    GPT2_XL,
    GPT_NEOX_20B,
    GPT_OSS_20B,
    LLAMA_2_7B,
    LLAMA_3_1_70B,
    LLAMA_4_MAVERICK,
    MISTRAL_7B,
    MPT_7B,
    OPT_1_3B,
    PHI_4,
    PUBLISHED,
    QWEN2_5_7B,
    QWEN3_8B,
    QWEN3_30B_A3B,
    SHIPPED,
)
from projector.config.formats.huggingface import read_huggingface
from projector.config.model import ModelConfig
from projector.config.resources import find
from projector.config.yaml_file import read_yaml
from projector.errors import ConfigError, UnsupportedError
from reference.parameters import parameters_active, parameters_total

NUMERICS = {
    "rotary_base", "rotary_percent", "rope_scaling", "rotary_base_local", "norm_epsilon",
}  # fmt: skip
SCORES = {"router_score_function", "router_pre_softmax", "router_scaling_factor"}


def read(data: dict[str, Any], **changes: Any) -> ModelConfig:
    return read_huggingface(data | changes)[0]


def without(data: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name != key}


def same_shape(model: ModelConfig) -> dict[str, Any]:
    """Return the architecture with what may be spelt in two ways written out.

    Rotations, epsilons and scores are left out: the reduced files have none of their own.
    """
    fields = model.model_dump(exclude={"name", "source", *NUMERICS})
    if fields["moe"]:
        fields["moe"] = {name: value for name, value in fields["moe"].items() if name not in SCORES}
    return fields | {"num_query_groups": model.query_groups, "kv_channels": model.head_dim}


@pytest.mark.parametrize("name", SHIPPED)
def test_equals_the_shipped_architecture(name: str) -> None:
    model, _ = read_huggingface(SHIPPED[name])
    shipped = ModelConfig.parse(read_yaml(find("models", name, key="model")))
    expected = same_shape(shipped)
    given = same_shape(model)
    if shipped.mla is not None:
        given["num_query_groups"] = expected["num_query_groups"]
    if model.moe is not None and all(model.moe_layers):
        # The width of dense layers is unused, and Mixtral's file gives the experts' there.
        given["ffn_hidden_size"] = expected["ffn_hidden_size"]
    assert given == expected
    assert parameters_total(model) == parameters_total(shipped)
    assert parameters_active(model) == parameters_active(shipped)


@pytest.mark.parametrize(
    ("data", "total"), [row[1:] for row in PUBLISHED], ids=[row[0] for row in PUBLISHED]
)
def test_has_the_parameters_of_the_checkpoint(data: dict[str, Any], total: int) -> None:
    assert parameters_total(read(data)) == total


def test_names_itself() -> None:
    assert read(LLAMA_3_1_70B).name == "llama"
    assert read(LLAMA_3_1_70B, _name_or_path="org/model").name == "org/model"
    assert read_huggingface(LLAMA_3_1_70B, name="mine")[0].name == "mine"


def test_plain_models_have_no_warnings() -> None:
    for name in ("llama3.1_70b", "mixtral_8x7b", "qwen3_30b_a3b", "gpt_oss_20b", "opt_1.3b"):
        assert read_huggingface(SHIPPED[name])[1] == [], name


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (DEEPSEEK_V3, ["quantised", "multi-token-prediction"]),
        (LLAMA_4_MAVERICK, ["vision", "chunks of 8192"]),
        (GEMMA_3_4B, ["vision"]),
        (GEMMA_2_9B, ["soft cap"]),
        (FALCON_7B, ["side by side"]),
        (COMMAND_R, ["side by side"]),
        (GPT_NEOX_20B, ["side by side"]),
    ],
)
def test_warns_of_what_is_not_modelled(data: dict[str, Any], words: list[str]) -> None:
    warnings = read_huggingface(data)[1]
    assert len(warnings) == len(words)
    for word in words:
        assert any(word in warning for warning in warnings)


def test_absent_key_value_heads_are_the_query_heads() -> None:
    assert read(without(LLAMA_2_7B, "num_key_value_heads")).query_groups == 32
    assert read(LLAMA_2_7B, num_key_value_heads=None).query_groups == 32


def test_tied_embeddings_default_differs_by_class() -> None:
    assert not read(without(LLAMA_3_1_70B, "tie_word_embeddings")).tied_embeddings
    assert read(GEMMA_2_9B).tied_embeddings
    assert read(GPT2_XL).tied_embeddings


def test_multimodal_file_may_untie_the_embeddings() -> None:
    assert not read(GEMMA_3_4B, tie_word_embeddings=False).tied_embeddings


def test_qwen_windows_count_from_the_end() -> None:
    model = read(QWEN2_5_7B, use_sliding_window=True, sliding_window=4096, max_window_layers=20)
    assert (model.sliding_window, model.sliding_window_layers) == (4096, 8)


def test_window_defaults_follow_the_class() -> None:
    assert read(without(MISTRAL_7B, "sliding_window")).sliding_window == 4096
    assert read(without(GPT_OSS_20B, "layer_types")).sliding_window_layers == 12
    assert read(PHI_4).sliding_window_layers == 0


def test_dense_layers_between_experts() -> None:
    model = read(QWEN3_30B_A3B, decoder_sparse_step=2, mlp_only_layers=[1])
    assert model.moe_layers[:6] == (False, False, False, True, False, True)
    assert read(QWEN3_30B_A3B, mlp_only_layers=list(range(48))).moe is None
    listed = LLAMA_4_MAVERICK["text_config"] | {"moe_layers": [0, 5]}
    assert [i for i, flag in enumerate(read(listed).moe_layers) if flag] == [0, 5]


def test_deepseek_without_experts_is_dense() -> None:
    assert read(DEEPSEEK_V3, n_routed_experts=None).moe is None


def test_group_limited_routing_is_read() -> None:
    moe = read(DEEPSEEK_V3).moe
    assert moe is not None
    assert (moe.num_groups, moe.group_topk) == (8, 4)


def test_biased_llama() -> None:
    model = read(LLAMA_2_7B, attention_bias=True, mlp_bias=True)
    assert (model.attention_bias, model.mlp_bias) == ("qkv+out", True)


def test_falcon_variants() -> None:
    sequential = read(FALCON_7B, parallel_attn=False, alibi=True, multi_query=False, bias=True)
    assert sequential.norms_per_layer == 2
    assert sequential.position_embedding == "alibi"
    assert sequential.query_groups == 71
    assert sequential.mlp_bias


def test_mpt_with_learned_positions_and_biases() -> None:
    # The 125M of llm-foundry's benchmark, whose count is published.
    data = MPT_7B | {"d_model": 768, "n_heads": 12, "n_layers": 12, "vocab_size": 50368}
    model = read(data, no_bias=False, attn_config={"alibi": False})
    assert parameters_total(model) == 125_311_488


def test_mpt_key_value_heads() -> None:
    one = read(MPT_7B, attn_config={"attn_type": "multiquery_attention"})
    assert one.query_groups == 1
    grouped = {"attn_type": "grouped_query_attention"}
    assert read(MPT_7B, attn_config=grouped | {"kv_n_heads": 8}).query_groups == 8
    with pytest.raises(ConfigError) as error:
        read(MPT_7B, attn_config=grouped)
    assert error.value.key == "model.attn_config.kv_n_heads"


HYBRIDS = ["zamba2", "recurrent_gemma", "rwkv"]


@pytest.mark.parametrize("model_type", HYBRIDS)
def test_hybrids_are_refused(model_type: str) -> None:
    with pytest.raises(UnsupportedError, match="hybrid or recurrent layers") as error:
        read_huggingface({"model_type": model_type}, key="model")
    assert error.value.key == "model.model_type"
    assert error.value.value == model_type


def test_unknown_type_names_the_known_ones() -> None:
    with pytest.raises(UnsupportedError, match=r"known: .*deepseek_v3.*llama.*qwen3_moe") as error:
        read_huggingface({"model_type": "my_own"})
    assert "mixtral" in error.value.allowed


def test_bloom_is_refused_with_the_reason() -> None:
    with pytest.raises(UnsupportedError, match="norm behind its embedding"):
        read_huggingface({"model_type": "bloom"})


@pytest.mark.parametrize(
    ("data", "changes", "key"),
    [
        (OPT_1_3B, {"word_embed_proj_dim": 512}, "word_embed_proj_dim"),
        (OPT_1_3B, {"do_layer_norm_before": False}, "do_layer_norm_before"),
        (DEEPSEEK_V3, {"attention_bias": True}, "attention_bias"),
        (LLAMA_2_7B, {"hidden_act": "tanh"}, "hidden_act"),
        (QWEN3_8B, {"layer_types": ["linear_attention"] * 36}, "layer_types"),
        (MPT_7B, {"attn_config": {"qk_ln": True}}, "attn_config.qk_ln"),
    ],
)
def test_variants_that_cannot_be_described(
    data: dict[str, Any], changes: dict[str, Any], key: str
) -> None:
    with pytest.raises(UnsupportedError) as error:
        read(data, **changes)
    assert error.value.key == f"model.{key}"


@pytest.mark.parametrize(
    ("data", "key"),
    [
        (LLAMA_3_1_70B, "hidden_size"),
        (LLAMA_3_1_70B, "vocab_size"),
        (LLAMA_3_1_70B, "num_hidden_layers"),
        (LLAMA_3_1_70B, "model_type"),
        (QWEN3_30B_A3B, "num_experts"),
        (DEEPSEEK_V3, "kv_lora_rank"),
        (DEEPSEEK_V3, "q_lora_rank"),
        (DEEPSEEK_V3, "first_k_dense_replace"),
        (GPT2_XL, "n_embd"),
    ],
)
def test_missing_key_is_named(data: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match="missing") as error:
        read(without(data, key))
    assert error.value.key == f"model.{key}"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_size", "8192"),
        ("hidden_size", 8192.0),
        ("hidden_size", True),
        ("hidden_size", None),
        ("hidden_size", 0),
        ("hidden_size", 10**30),
        ("num_hidden_layers", 10**9),
        ("num_hidden_layers", -1),
        ("num_key_value_heads", 7),
        ("tie_word_embeddings", "no"),
        ("attention_bias", 1),
        ("hidden_act", 3),
        ("layer_types", "full_attention"),
        ("layer_types", [1]),
        ("model_type", ["llama"]),
    ],
)
def test_bad_values_are_named(key: str, value: object) -> None:
    renamed = {
        "num_key_value_heads": "num_query_groups",
        "num_hidden_layers": "num_layers",
    }
    with pytest.raises(ConfigError) as error:
        read(LLAMA_3_1_70B, **{key: value})
    assert error.value.key in {f"model.{key}", f"model.{renamed.get(key, key)}"}


def test_too_many_layers_are_refused_before_patterns_are_built() -> None:
    with pytest.raises(ConfigError) as error:
        read(QWEN3_30B_A3B, num_hidden_layers=10**9)
    assert error.value.key == "model.num_hidden_layers"


def test_too_many_heads_are_refused_before_their_divisors_are_listed() -> None:
    # 10**11 heads once ran for minutes, collecting the key/value heads that would fit.
    with pytest.raises(ConfigError) as error:
        read(LLAMA_2_7B, num_attention_heads=10**11)
    assert error.value.key == "model.num_attention_heads"


def test_nested_keys_are_named_with_their_path() -> None:
    text = without(LLAMA_4_MAVERICK["text_config"], "num_local_experts")
    with pytest.raises(ConfigError) as error:
        read(LLAMA_4_MAVERICK, text_config=text)
    assert error.value.key == "model.text_config.num_local_experts"
    with pytest.raises(ConfigError):
        read(LLAMA_4_MAVERICK, text_config=[1])


@pytest.mark.parametrize("data", [None, [], "llama", 3])
def test_not_a_mapping(data: Any) -> None:
    with pytest.raises(ConfigError, match="mapping"):
        read_huggingface(data)


def test_an_error_is_ready_for_json() -> None:
    with pytest.raises(ConfigError) as error:
        read(LLAMA_3_1_70B, hidden_size="wide")
    assert error.value.to_dict()["value"] == "wide"


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2**70),
    st.floats(),
    st.text(max_size=4),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


@given(name=st.sampled_from(sorted(SHIPPED)), data=st.data(), value=JUNK)
def test_any_change_is_read_or_refused(name: str, data: st.DataObject, value: object) -> None:
    config = SHIPPED[name]
    key = data.draw(st.sampled_from(sorted(config)))
    try:
        model, _ = read_huggingface(config | {key: value})
    except ConfigError:
        return
    assert parameters_active(model) <= parameters_total(model)


YARN = {
    "type": "yarn",
    "factor": 40,
    "original_max_position_embeddings": 4096,
    "beta_fast": 32,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("llama3.1_70b", {"rope_scaling": {
            "factor": 8.0, "rope_type": "llama3", "original_max_position_embeddings": 8192,
        }}),
        ("mixtral_8x7b", {"rope_theta": 1e6}),
        ("qwen3_30b_a3b", {"rope_theta": 1e6, "rms_norm_eps": 1e-6, "norm_topk_prob": True}),
        ("deepseek_v3", {
            "rope_theta": 10000, "rms_norm_eps": 1e-6, "rope_scaling": YARN,
            "scoring_func": "sigmoid", "routed_scaling_factor": 2.5, "norm_topk_prob": True,
        }),
        ("deepseek_v2_lite", {
            "rope_theta": 10000, "rms_norm_eps": 1e-6, "scoring_func": "softmax",
            "rope_scaling": YARN | {"mscale": 0.707, "mscale_all_dim": 0.707},
            "routed_scaling_factor": 1.0, "norm_topk_prob": False,
        }),
        ("gpt_oss_20b", {"rope_parameters": {
            "rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096,
            "rope_theta": 150000, "truncate": False, "beta_fast": 32.0, "beta_slow": 1.0,
        }, "rope_theta": None}),
        ("kimi_k2", {
            "rope_theta": 50000, "rms_norm_eps": 1e-6,
            "rope_scaling": YARN | {"factor": 32.0, "beta_fast": 1.0, "beta_slow": 1.0},
            "scoring_func": "sigmoid", "routed_scaling_factor": 2.827, "norm_topk_prob": True,
        }),
        ("glm4.5_air", {"rope_theta": 1e6, "partial_rotary_factor": 0.5,
                        "routed_scaling_factor": 1.0}),
        ("llama4_maverick", {}),
        ("gemma3_4b", {"rope_theta": 1e6, "rms_norm_eps": 1e-6}),
    ],
)  # fmt: skip
def test_rotations_epsilon_and_scores_are_those_of_the_shipped_model(name, published):
    """As the files of the models have them on the hub."""
    data = SHIPPED[name]
    data = data | (
        {"text_config": data["text_config"] | published} if "text_config" in data else published
    )
    model, _ = read_huggingface(data)
    shipped = ModelConfig.parse(read_yaml(find("models", name, key="model")))
    assert model.model_dump(include=NUMERICS) == shipped.model_dump(include=NUMERICS)
    if model.moe is not None:
        given, expected = (
            {field: getattr(each.moe, field) for field in SCORES} for each in (model, shipped)
        )
        # A sigmoid has no softmax that could come first.
        if expected["router_score_function"] == "sigmoid":
            assert not given["router_pre_softmax"]
            del given["router_pre_softmax"], expected["router_pre_softmax"]
        assert given == expected


@pytest.mark.parametrize(
    ("changes", "period", "warns"),
    [
        ({}, 4, False),
        ({"no_rope_layers": [1, 1, 0] * 12}, 3, False),
        ({"no_rope_layers": [1] * 36}, None, False),
        ({"no_rope_layer_interval": 6}, 6, False),
        ({"no_rope_layers": [1, 0, 0] * 12}, None, True),
    ],
)
def test_layers_without_rotations_are_a_period(changes, period, warns):
    smollm = {
        "model_type": "smollm3", "num_hidden_layers": 36, "hidden_size": 2048,
        "intermediate_size": 11008, "num_attention_heads": 16, "num_key_value_heads": 4,
        "vocab_size": 128256,
    }  # fmt: skip
    model, notes = read_huggingface(smollm | changes)
    assert model.no_rope_freq == period
    assert any("irregular" in note for note in notes) == warns


def test_rotations_of_each_kind_of_layer_have_a_mapping():
    rotations = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
    }
    text = SHIPPED["gemma3_4b"]["text_config"] | {"rope_parameters": rotations}
    model, _ = read_huggingface(SHIPPED["gemma3_4b"] | {"text_config": text})
    assert (model.rotary_base, model.rotary_base_local) == (1e6, 2e4)
    assert model.rope_scaling is not None
    assert model.rope_scaling.factor == 8.0
    assert model.zero_centered_norms


def test_a_published_llama_4_is_read_with_its_norm_without_weights():
    text = SHIPPED["llama4_maverick"]["text_config"] | {"use_qk_norm": True}
    model, _ = read_huggingface(SHIPPED["llama4_maverick"] | {"text_config": text})
    assert (model.qk_norm, model.no_rope_freq) == ("none", 4)


@pytest.mark.parametrize(("turned", "percent"), [(64, 0.5), (128, None), (None, None)])
def test_the_turned_part_of_a_head_may_be_a_width(turned, percent):
    assert read(QWEN3_8B, head_dim=128, rotary_dim=turned).rotary_percent == percent


@pytest.mark.parametrize("value", [[], {}, ["yarn"], 3])
def test_values_of_another_type_where_words_stand(value):
    for config in (
        LLAMA_3_1_70B | {"rope_scaling": {"rope_type": value, "factor": 8.0}},
        DEEPSEEK_V3 | {"scoring_func": value},
    ):
        assert read_huggingface(config, name="x")[0]
