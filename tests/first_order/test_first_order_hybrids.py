"""Recurrent layers in closed form, against their definitions and against the tile models."""

import pytest

import projector as pj
from projector.config.model import ModelConfig
from projector.config.model_file import load_model
from projector.config.recurrence import WEIGHTS
from projector.first_order.equations import count_parameters, layer_channels, state_bytes
from projector.first_order.serving import project_serving
from projector.operations.counts import count_architecture
from reference.parameters import parameters_total

JOB = {
    "training": {"micro_batch_size": 1, "global_batch_size": 64, "seq_length": 4096},
    "cluster": {"device": "h100", "nodes": 8},
}


def test_a_transformer_has_the_channels_of_the_formula():
    assert layer_channels(load_model("llama3.1_8b")) == 4096
    assert state_bytes(load_model("llama3.1_8b")) == 0


@pytest.mark.parametrize(
    ("name", "mib"),
    [
        ("nemotron_h_8b", 24 * 4.08),
        ("nemotron3_nano_30b_a3b", 23 * 2.05),
        ("qwen3_next_80b_a3b", 36 * 2.06),
        ("kimi_linear_48b_a3b", 20 * 2.09),
        ("jamba_v0.1", 28 * 0.56),
    ],
)
def test_states_are_those_that_models_keep(name, mib):
    """From their widths: states in FP32, inputs of the convolution in 16 bits."""
    assert state_bytes(load_model(name)) / 2**20 == pytest.approx(mib, rel=0.01)


@pytest.mark.parametrize(
    "name", ["nemotron_h_8b", "nemotron_nano_9b_v2", "mamba2_2.7b", "bamba_9b", "zebra_llama_3b"]
)
def test_activations_are_near_those_of_the_tile_models(name):
    job = pj.load_job(JOB | {"model": name})
    forms = pj.project_memory(job, fidelity="first-order").terms_bytes["activations"]
    assert forms == pytest.approx(pj.project_memory(job).stages[0].activations_bytes, rel=0.15)


def test_a_step_is_six_times_the_active_parameters():
    job = pj.load_job(JOB | {"model": "nemotron3_nano_30b_a3b"})
    step = pj.project_performance(job, fidelity="first-order")
    active = count_parameters(job.model).active
    expected = 6 * active * 64 * 4096 / (64 * 0.45 * 989.4e12)
    assert step.results.compute_s[0] == pytest.approx(expected, rel=1e-3)


def test_decoding_reads_a_state_where_it_would_read_a_cache():
    near, far = (
        project_serving("nemotron_h_8b", "h100", batch=8, context=context)
        for context in (4096, 262144)
    )
    plain = [
        project_serving("llama3.1_8b", "h100", batch=8, context=context)
        for context in (4096, 262144)
    ]
    # Four of 52 layers have keys and values; 32 of 32 in the transformer.
    assert far.tpot_s / near.tpot_s < 0.35 * plain[1].tpot_s / plain[0].tpot_s
    states, element = state_bytes(load_model("nemotron_h_8b")), 2 * 2 * 8 * 128
    assert near.kv_cache_bytes == 8 * (states + 4 * 4096 * element)
    assert far.max_batch > 6 * plain[1].max_batch


def test_without_attention_there_is_no_cache_but_states():
    model = load_model("mamba2_2.7b")
    one, long = (
        project_serving(model, "h100", context=context).kv_cache_bytes for context in (1, 1 << 20)
    )
    assert one == long == state_bytes(model)


@pytest.mark.parametrize("mixer", WEIGHTS)
def test_rows_and_closed_forms_count_the_same_weights(mixer):
    model = ModelConfig.parse(
        {
            "num_layers": 3, "hidden_size": 512, "ffn_hidden_size": 1536, "vocab_size": 4096,
            "num_attention_heads": 8, "layer_types": [mixer, f"{mixer}_dense", "dense"],
            "recurrent": {"num_heads": 16, "head_dim": 48, "num_groups": 4, "state_size": 64,
                          "dt_rank": 32},
        }
    )  # fmt: skip
    total = count_parameters(model).total
    assert total == count_architecture(model).parameters_total == parameters_total(model)


@pytest.mark.parametrize("mixer", WEIGHTS)
def test_what_a_mixer_keeps_is_what_its_rows_keep(mixer):
    """But for scores of MLPs and logits, which are none of it."""
    rank = 64 if mixer in {"mamba1", "rwkv7"} else 0
    recurrent = {
        "num_heads": 16, "head_dim": 64, "num_groups": 16, "state_size": 64, "dt_rank": rank,
        "conv_kernel": 0 if mixer in {"linear", "rwkv7"} else 4,
    }  # fmt: skip
    model = {
        "num_layers": 2, "hidden_size": 1024, "ffn_hidden_size": 1024, "vocab_size": 64,
        "num_attention_heads": 8, "layer_types": [mixer], "recurrent": recurrent,
    }  # fmt: skip
    one, two = (
        pj.project_memory(pj.load_job(JOB | {"model": model | {"num_layers": layers}}))
        for layers in (2, 4)
    )
    a_layer = (two.stages[0].activations_bytes - one.stages[0].activations_bytes) / 2
    said = 34 * layer_channels(ModelConfig.parse(model)) * 4096
    # Mamba-1 keeps a state of each 2048 tokens, Kimi's thin products their inputs.
    assert said == pytest.approx(a_layer, rel=0.03)
