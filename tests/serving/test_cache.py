import pytest

from projector.config.model_file import load_model
from serving.cached import kv_cache_bytes


def test_llama_3_70b_caches_43_gb():
    model = load_model("llama3_70b")
    assert kv_cache_bytes(model, 16, 8192) == 2 * 80 * 8 * 128 * 2 * 16 * 8192
    assert kv_cache_bytes(model, 16, 8192) == pytest.approx(43e9, rel=0.002)


def test_key_heads_are_split_then_repeated():
    model = load_model("llama3_70b")
    whole = kv_cache_bytes(model, 1, 1000)
    assert kv_cache_bytes(model, 1, 1000, tp=8) == whole / 8
    assert kv_cache_bytes(model, 1, 1000, tp=16) == whole / 8


def test_latent_attention_caches_its_latent_on_every_rank():
    model = load_model("deepseek_v3")
    for tp in (1, 8):
        assert kv_cache_bytes(model, 1, 1, tp=tp) == 61 * (512 + 64) * 2


def test_windowed_layers_keep_their_window():
    model = load_model("gemma2_2b")
    layers, windowed, window = model.num_layers, model.sliding_window_layers, model.sliding_window
    assert windowed > 0
    per_layer = kv_cache_bytes(model, 1, 1) / layers
    expected = (layers - windowed) * 2 * window + windowed * window
    assert kv_cache_bytes(model, 1, 2 * window) == pytest.approx(expected * per_layer)
