"""The architecture's schema: what it derives, what it accepts, what it refuses."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector.config.model import MLAConfig, ModelConfig, MoEConfig
from projector.errors import ConfigError

SMALL: dict[str, Any] = {
    "num_layers": 4,
    "hidden_size": 512,
    "ffn_hidden_size": 1024,
    "num_attention_heads": 8,
    "vocab_size": 1000,
}
EXPERTS: dict[str, Any] = {"num_experts": 8, "router_topk": 2, "ffn_hidden_size": 256}
LATENT: dict[str, Any] = {
    "kv_lora_rank": 64,
    "qk_head_dim": 32,
    "qk_pos_emb_head_dim": 16,
    "v_head_dim": 48,
}


def parse(**changes: Any) -> ModelConfig:
    return ModelConfig.parse(SMALL | changes, path="model")


def refuse(**changes: Any) -> ConfigError:
    with pytest.raises(ConfigError) as error:
        parse(**changes)
    return error.value


def test_defaults_are_those_of_a_dense_llama() -> None:
    model = parse()
    assert model.query_groups == 8
    assert model.head_dim == 64
    assert model.gated
    assert model.moe_layers == (False,) * 4
    assert not model.tied_embeddings


def test_there_is_no_default_vocabulary() -> None:
    without = {name: value for name, value in SMALL.items() if name != "vocab_size"}
    with pytest.raises(ConfigError) as error:
        ModelConfig.parse(without, path="model")
    assert error.value.key == "model.vocab_size"


def test_head_width_may_differ_from_the_hidden_share() -> None:
    assert parse(kv_channels=128).head_dim == 128
    assert parse(head_dim=128).head_dim == 128
    assert parse(mla=LATENT).head_dim == 48


@pytest.mark.parametrize(
    ("activation", "gated"),
    [("swiglu", True), ("geglu", True), ("gelu", False), ("relu", False), ("squared_relu", False)],
)
def test_gated_activations(activation: str, gated: bool) -> None:
    assert parse(activation=activation).gated is gated


def test_every_nth_layer_has_experts() -> None:
    # Megatron's rule: moe_layer_freq n makes layer i a mixture when i % n == 0.
    assert parse(moe=EXPERTS | {"layer_freq": 2}).moe_layers == (True, False, True, False)
    assert parse(moe=EXPERTS).moe_layers == (True,) * 4


def test_listed_layers_have_experts() -> None:
    model = parse(moe=EXPERTS | {"moe_layer_freq": [0, 1, 1, 0]})
    assert model.moe_layers == (False, True, True, False)


@pytest.mark.parametrize(
    ("multiple", "tp", "padded"), [(None, 8, 1000), (128, 1, 1024), (128, 8, 1024), (128, 16, 2048)]
)
def test_vocabulary_is_padded_only_when_asked(multiple: int | None, tp: int, padded: int) -> None:
    assert parse(make_vocab_size_divisible_by=multiple).padded_vocab_size(tp) == padded


@given(vocab=st.integers(1, 300_000), multiple=st.integers(1, 256), tp=st.integers(1, 64))
def test_padding_is_the_least_multiple(vocab: int, multiple: int, tp: int) -> None:
    model = parse(vocab_size=vocab, make_vocab_size_divisible_by=multiple)
    padded = model.padded_vocab_size(tp)
    assert padded % (multiple * tp) == 0
    assert 0 <= padded - vocab < multiple * tp


def test_megatron_and_hugging_face_spellings() -> None:
    moe = MoEConfig.parse(
        {
            "num_experts": 8,
            "moe_router_topk": 2,
            "moe_ffn_hidden_size": 256,
            "moe_shared_expert_intermediate_size": 512,
        }
    )
    assert (moe.router_topk, moe.ffn_hidden_size) == (2, 256)
    assert moe.shared_expert_ffn_hidden_size == 512
    mla = MLAConfig.parse(
        {"kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 48}
    )
    assert (mla.qk_head_dim, mla.qk_pos_emb_head_dim) == (32, 16)
    assert parse(kv_heads=2).query_groups == 2


def test_field_and_alias_together_are_refused() -> None:
    assert "twice" in refuse(kv_heads=2, num_query_groups=2).message


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"num_query_groups": 3}, "model.num_query_groups"),
        ({"hidden_size": 510}, "model.kv_channels"),
        ({"sliding_window": 128, "sliding_window_layers": 5}, "model.sliding_window_layers"),
        ({"sliding_window_layers": 2}, "model.sliding_window"),
        ({"moe": EXPERTS | {"layer_freq": [1, 0]}}, "model.moe.layer_freq"),
        ({"num_layers": 0}, "model.num_layers"),
        ({"num_layers": 10_001}, "model.num_layers"),
        ({"hidden_size": "wide"}, "model.hidden_size"),
        ({"activation": "tanh"}, "model.activation"),
        ({"vocab_size": 1.5}, "model.vocab_size"),
        ({"moe": {"num_experts": 8, "router_topk": 2}}, "model.moe.ffn_hidden_size"),
    ],
)
def test_refused_with_the_key(changes: dict[str, Any], key: str) -> None:
    assert refuse(**changes).key == key


def test_key_value_heads_must_divide_says_what_would() -> None:
    assert refuse(num_query_groups=3).allowed == [1, 2, 4, 8]


def test_misspelt_key_gets_a_suggestion() -> None:
    error = refuse(hiden_size=512)
    assert error.key == "model.hiden_size"
    assert "hidden_size" in error.message


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"router_topk": 9}, "router_topk"),
        ({"num_groups": 3}, "num_groups"),
        ({"num_groups": 4, "group_topk": 1, "router_topk": 3}, "group_topk"),
        ({"layer_freq": [0, 2, 1, 1]}, "layer pattern"),
    ],
)
def test_impossible_experts(changes: dict[str, Any], words: str) -> None:
    assert words in refuse(moe=EXPERTS | changes).message


def test_models_are_immutable() -> None:
    model = parse()
    with pytest.raises(ValueError, match="frozen"):
        model.num_layers = 5  # type: ignore[misc]  # that is the point
