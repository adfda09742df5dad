"""Models with layers of several kinds, written for Megatron-LM and Primus and read again."""

import pytest

from projector import emit_job, load_job, project_performance
from projector.config import resources
from projector.config.formats.emit.emitted import unsaid
from projector.config.model_file import load_model
from projector.errors import UnsupportedError

HYBRIDS = [
    name
    for name in resources.shipped("models")
    if (model := load_model(name)).diffusion is None
    and (model.layer_types is not None or model.has_unfamiliar_layers)
]
WRITTEN = {
    "megatron": {
        "deepseek_v3.2", "gdn_300m", "glm5", "mamba2_2.7b", "mamba_370m",
        "nemotron3.5_lightning_30b_a3b", "nemotron3_nano_30b_a3b", "nemotron3_super_120b_a12b",
        "nemotron3_ultra_550b_a55b", "nemotron_h_47b", "nemotron_h_56b", "nemotron_h_8b",
        "nemotron_nano_12b_v2", "nemotron_nano_9b_v2", "olmo_hybrid_7b", "qwen3.5_35b_a3b",
        "qwen3.5_397b_a17b", "qwen3_next_80b_a3b", "zebra_llama_1b", "zebra_llama_1b_gdn",
        "zebra_llama_3b", "zebra_llama_8b",
    }
}  # fmt: skip
WRITTEN["primus"] = WRITTEN["megatron"] | {"kda_300m"}


def job_of(model, fields=None, nodes=4):
    return load_job(
        {
            "model": model,
            "training": {"micro_batch_size": 1, "global_batch_size": 256, "seq_length": 4096},
            "cluster": {"device": "h100", "nodes": nodes},
        },
        fields or {},
    )


def read_again(emitted, folder):
    path = folder / f"job{emitted.suffix}"
    path.write_text(emitted.text, encoding="utf-8")
    return load_job(path)


def same_step(job, again):
    results = [project_performance(each).to_dict() for each in (job, again)]
    for result in results:
        del result["provenance"], result["warnings"], result["ignored_settings"]
    return results[0] == results[1]


@pytest.mark.parametrize("kind", ["megatron", "primus"])
@pytest.mark.parametrize("name", HYBRIDS)
def test_a_published_hybrid_is_the_same_job_again(name, kind, tmp_path):
    job = job_of(name, {"parallelism.pp": 2} if name != "deepseek_v3.2" else {})
    if name not in WRITTEN[kind]:
        with pytest.raises(UnsupportedError) as caught:
            emit_job(job, kind)
        assert caught.value.key == "model.layer_types"
        return
    emitted = emit_job(job, kind)
    again = read_again(emitted, tmp_path)
    assert again.model.layer_kinds == job.model.layer_kinds
    assert same_step(job, again)
    recurrent, said = job.model.recurrent, unsaid(emitted, job)
    if recurrent is not None and recurrent.chunk_size == 256:
        assert "recurrent.chunk_size=256 cannot be said" in said
    elif job.model.qk_norm == "full":
        assert 'qk_norm="full" cannot be said' in said
    else:
        assert not said


@pytest.mark.parametrize(
    ("name", "fields", "words"),
    [
        ("nemotron_h_8b", {}, ["--spec megatron.core.models.hybrid.hybrid_layer_specs",
                               "--mamba-num-groups 8", "pretrain_hybrid.py"]),
        ("zebra_llama_1b", {"parallelism.pp": 2, "parallelism.vpp": 2},
         ["'+-M-M-M-|+-M-M-M-|+-M-M-M-|+-M-M-M-'"]),
        ("gdn_300m", {"model.layer_types": "MG*-"},
         ["--mamba-num-heads 8", "--linear-num-value-heads 8", "MG*-MG*-"]),
        ("llama3.1_8b", {"model.layer_types": "*-"}, ["'*-*-"]),
        ("gdn_300m", {"parallelism.pp": 4}, ["'G-G-G-|G-G-G-|G-G-G-|G-G-G-'"]),
        ("gdn_300m", {"model.num_layers": 6, "parallelism.pp": 4}, ["'G-|G-|G|-'"]),
        ("gdn_300m", {"model.num_layers": 6, "parallelism.pp": 2,
                      "parallelism.pipeline_model_parallel_layout": "Et*2|ttttL"}, ["'G-|G-G-'"]),
        ("gdn_300m", {"parallelism.pp": 2, "parallelism.decoder_first_pipeline_num_layers": 10},
         ["--hybrid-layer-pattern G-G-G-G-G-G-G-G-G-G-G-G-\n",
          "--decoder-first-pipeline-num-layers 10"]),
        ("nemotron_nano_9b_v2", {"model.mtp_num_layers": 2}, ["/*-/*-'"]),
        ("nemotron3_super_120b_a12b", {"model.mtp_num_layers": 1},
         ["/*E'", "--moe-latent-size 1024"]),
        ("qwen3_next_80b_a3b", {}, ["--experimental-attention-variant gdn", "pretrain_gpt.py",
                                    "--linear-attention-freq 4", "--attention-output-gate"]),
        ("qwen3_next_80b_a3b", {"model.layer_types": ["moe", "gdn_moe"]},
         ["--linear-attention-freq '([0]*1+[1]*1"]),
        ("deepseek_v3.2", {}, ["--experimental-attention-variant dsa", "--dsa-indexer-topk 2048",
                               "--no-rope-fusion"]),
    ],
)  # fmt: skip
def test_megatron_is_told(name, fields, words, tmp_path):
    job = job_of(name, fields)
    emitted = emit_job(job, "megatron")
    for word in words:
        assert word in emitted.text, word
    again = read_again(emitted, tmp_path)
    assert again.model.mtp_num_layers == job.model.mtp_num_layers
    assert same_step(job, again)


@pytest.mark.parametrize(
    ("name", "specification"),
    [
        ("zebra_llama_1b", "hybrid_mamba_mla_layer_specs\n      - hybrid_stack_spec"),
        ("zebra_llama_1b_gdn", "- gdn_hybrid_stack_spec"),
        ("kda_300m", "- kda_hybrid_stack_spec"),
        ("nemotron_h_8b", "mamba.mamba_layer_specs\n      - mamba_stack_spec"),
    ],
)
def test_primus_is_told_what_m_is(name, specification):
    text = emit_job(job_of(name), "primus").text
    assert specification in text
    assert "model_type: mamba" in text
    letters = text.partition("hybrid_layer_pattern: ")[2].split()[0].strip("'")
    assert {*letters} <= {*"M*-"}


@pytest.mark.parametrize(
    ("name", "fields", "kind", "key"),
    [
        ("bamba_9b", {}, "megatron", "model.layer_types"),
        ("gdn_300m", {"model.layer_types": "G-*-"}, "primus", "model.layer_types"),
        ("kda_300m", {"parallelism.tp": 2}, "primus", "parallelism.tp"),
        ("gdn_300m", {"parallelism.tp": 4, "parallelism.cp": 2}, "megatron", "parallelism.cp"),
        ("deepseek_v3.2", {"parallelism.cp": 2}, "megatron", "parallelism.cp_comm_type"),
        (
            "gdn_300m",
            {"parallelism.pp": 2, "parallelism.account_for_loss_in_pipeline_split": True},
            "megatron",
            "parallelism.account_for_loss_in_pipeline_split",
        ),
        (
            "gdn_300m",
            {"parallelism.pp": 2, "parallelism.pipeline_model_parallel_layout": "E(tt)*6|t*12L"},
            "megatron",
            "parallelism.pipeline_model_parallel_layout",
        ),
        (
            "gdn_300m",
            {
                "parallelism.pp": 2,
                "parallelism.vpp": 2,
                "parallelism.decoder_first_pipeline_num_layers": 10,
            },
            "megatron",
            "parallelism.vpp",
        ),
    ],
)
def test_what_cannot_be_told_is_refused(name, fields, kind, key):
    with pytest.raises(UnsupportedError) as caught:
        emit_job(job_of(name, fields), kind)
    assert caught.value.key == key


def test_a_mixer_and_its_feed_forward_are_two_letters():
    with pytest.raises(UnsupportedError, match="a mixer and its feed-forward are two layers"):
        emit_job(job_of("bamba_9b"), "megatron")
    with pytest.raises(UnsupportedError, match="no flavour"):
        emit_job(job_of("nemotron_h_8b", {"parallelism.fsdp": 2}), "torchtitan")
    assert emit_job(job_of("jamba_v0.1"), "deepspeed").carried["model"] == "jamba_v0.1"
