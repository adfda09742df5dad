"""The documented closed forms, to the digit of the published sample report.

Primus projection blog, "Memory Projection Output" (which prints GiB under the label GB).
"""

from pathlib import Path

import pytest

from projector.config.load import load_job
from projector.projection.api import project_memory

SAMPLE = Path(__file__).resolve().parents[2] / "examples" / "mixtral_8x22b_seed_sample.yaml"

COMPONENTS = {
    "embedding": (616_562_688, 0.1875),
    "dense_transformer_layer": (390_107_136, 3.25),
    "self_attention": (88_080_384, 0.625),
    "mlp": (301_989_888, 1.6875),
    "moe_transformer_layer": (390_156_288, 5.125),
    "moe_mlp": (301_989_888, 3.375),
    "output_layer": (616_562_688, 3.0625),
}
SMALL = ("layer_norm", "residual_add", "router", "final_layernorm")
"""Printed as 0.000 billion parameters and 0.1875."""


def test_sample_report():
    forms = project_memory(load_job(SAMPLE)).documented
    assert forms.parameters_total == 140_845_350_912
    assert forms.parameters_per_rank == 6_078_750_720
    assert round(forms.param_optimizer_gib, 2) == 79.26
    assert round(forms.activation_gib, 2) == 503.56
    assert round(forms.total_gib, 2) == 582.82
    for name, (parameters, activation_gib) in COMPONENTS.items():
        assert forms.components[name] == {
            "parameters": parameters,
            "activation_gib": activation_gib,
        }
    for name in SMALL:
        assert forms.components[name]["activation_gib"] == 0.1875
        assert round(forms.components[name]["parameters"] / 1e9, 3) == 0.0


def large_moe(recompute="none"):
    """The large MoE layer of the blog; query width 4096 and KV width 128 are our reading."""
    return load_job(
        {
            "model": {
                "num_layers": 1, "hidden_size": 8192, "ffn_hidden_size": 2048,
                "num_attention_heads": 32, "kv_channels": 128, "num_query_groups": 1,
                "vocab_size": 1024,
                "moe": {
                    "num_experts": 64, "router_topk": 36, "ffn_hidden_size": 2048,
                    "num_shared_experts": 1, "shared_expert_ffn_hidden_size": 2048,
                },
            },
            "parallelism": {"cp": 4},
            "training": {
                "micro_batch_size": 4, "global_batch_size": 4, "seq_length": 16384,
                "recompute": recompute,
            },
            "cluster": {"device": "mi355x", "gpus_per_node": 4},
        }
    )  # fmt: skip


def test_large_moe_layer():
    components = project_memory(large_moe()).documented.components
    assert round(components["moe_mlp"]["activation_gib"], 2) == 16.19
    assert round(components["self_attention"]["activation_gib"], 2) == 0.51
    assert round(components["moe_transformer_layer"]["activation_gib"]) == 18


def test_full_recomputation_keeps_the_layer_input():
    job = large_moe(recompute="full")
    kept_gib = project_memory(job).documented.activation_gib
    # The embedding's 0.25 GiB and the layer's checkpoint of 0.25 GiB.
    assert kept_gib == pytest.approx(0.5)


@pytest.mark.parametrize("model", ["flux.1_dev", "wan2.1_t2v_1.3b", "nemotron_h_8b"])
def test_layers_that_the_forms_do_not_know_have_none(model):
    training = {"micro_batch_size": 1, "global_batch_size": 8, "seq_length": 4096}
    job = {"model": model, "training": training, "cluster": {"device": "h100"}}
    documented = project_memory(load_job(job)).documented
    assert documented.total_gib == documented.parameters_total == 0
    assert documented.components == {}
