"""Reading SimuMax: strategies as jobs, models as architectures."""

import json

import pytest

from projector.config.formats.simumax import read_strategy
from projector.config.load import load_job
from projector.config.model_file import load_model
from projector.errors import ConfigError

STRATEGY = {
    "seq_len": 4096,
    "micro_batch_size": 1,
    "micro_batch_num": 8,
    "dtype": "bf16",
    "world_size": 16,
    "tp_size": 2,
    "pp_size": 2,
    "ep_size": 4,
    "etp_size": 1,
    "zero_state": 1,
    "enable_recompute": True,
    "recompute_granularity": "full_block",
    "recompute_layer_num": 3,
    "mem_factor": 0.94,
}
MODEL = {
    "model_type": "moe",
    "model_name": "small",
    "attention_type": "mla",
    "hidden_size": 1024,
    "head_num": 8,
    "kv_head_num": 8,
    "head_size": 128,
    "intermediate_size": 4096,
    "moe_ffn_hidden_size": 512,
    "moe_shared_expert_intermediate_size": 1024,
    "layer_num": 6,
    "dense_layers": 2,
    "expert_num": 16,
    "v_head_dim": 128,
    "qk_head_dim": 128,
    "qk_pos_emb_head_dim": 64,
    "q_lora_rank": 256,
    "kv_lora_rank": 128,
    "topk": 4,
    "vocab_size": 32000,
    "use_swiglu": True,
}
DENSE = {
    "model_type": "dense", "hidden_size": 1024, "head_num": 8, "kv_head_num": 2, "head_size": 64,
    "intermediate_size": 4096, "layer_num": 6, "vocab_size": 32000, "use_swiglu": False,
}  # fmt: skip


def write(folder, name, data):
    path = folder / name
    path.write_text(json.dumps(data))
    return path


def job(tmp_path, changes=None, **overrides):
    path = write(tmp_path, "strategy.json", {**STRATEGY, **(changes or {})})
    model = write(tmp_path, "model.json", MODEL)
    given = {name.replace("__", "."): value for name, value in overrides.items()}
    return load_job(path, {"model": str(model), "cluster.device": "a100", **given})


def test_a_strategy_is_a_job(tmp_path):
    found = job(tmp_path)
    split = found.parallelism
    assert (split.tp, split.pp, split.ep, split.etp, split.zero_stage) == (2, 2, 4, 1, 1)
    assert found.cluster.nodes == 2
    # Eight microbatches on each of 16 / (2 * 2) data-parallel ranks.
    assert found.training.global_batch_size == 8 * 4
    assert found.training.recompute.method == "block"
    assert found.training.recompute.num_layers == 3
    assert found.training.framework.name == "megatron_lm"
    assert found.notes == ()
    assert found.ignored == ("mem_factor",)


@pytest.mark.parametrize(
    ("changes", "modules"),
    [
        ({"recompute_granularity": "sdp_only"}, ("core_attn",)),
        ({"recompute_granularity": "selective_recompute", "mlp_recompute": True}, ("mlp", "moe")),
        (
            {
                "recompute_granularity": "selective_recompute",
                "megatron_recompute": True,
                "megatron_recompute_modules": ["moe_act", "layernorm"],
            },
            ("layernorm", "moe_act"),
        ),
    ],
)
def test_selective_recomputation_is_said_to_be_of_all_layers(tmp_path, changes, modules):
    found = job(tmp_path, changes)
    assert found.training.recompute.modules == modules
    assert "is projected for all layers" in found.notes[0]


def test_no_recomputation(tmp_path):
    found = job(tmp_path, {"enable_recompute": False})
    assert found.training.recompute.granularity == "none"


def test_a_model_is_an_architecture(tmp_path):
    found = load_model(str(write(tmp_path, "model.json", MODEL)))
    assert found.moe.layer_freq == (0, 0, 1, 1, 1, 1)
    assert (found.moe.num_experts, found.moe.router_topk) == (16, 4)
    assert (found.mla.kv_lora_rank, found.mla.q_lora_rank) == (128, 256)
    dense = load_model(DENSE)
    assert (dense.query_groups, dense.head_dim, dense.activation) == (2, 64, "gelu")


def test_a_model_is_no_job(tmp_path):
    with pytest.raises(ConfigError, match="name it as the model of a job"):
        load_job(write(tmp_path, "model.json", DENSE))


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"world_size": 6}, "world_size"),
        ({"tp_size": 0}, "tp_size"),
        ({"dtype": "int4"}, "dtype"),
        ({"recompute_granularity": "half"}, "recompute_granularity"),
        ({"pp_schedule": "wave"}, "pp_schedule"),
    ],
)
def test_malformed_fields_are_named(changes, key):
    with pytest.raises(ConfigError) as caught:
        read_strategy({**STRATEGY, **changes})
    assert caught.value.key == key


def test_a_model_without_its_sizes_is_named():
    with pytest.raises(ConfigError, match="vocab_size is missing from the model of SimuMax"):
        load_model({name: value for name, value in DENSE.items() if name != "vocab_size"})
