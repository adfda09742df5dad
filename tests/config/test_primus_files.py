"""Files of Primus that extend others, and presets at hand or taken from the tables."""

import pytest

from projector.config.formats.primus_files import BASES, preset
from projector.config.load import load_job
from projector.config.resources import index, normalise
from projector.errors import ConfigError
from projector.projection.api import project_memory

VARIABLES = ("PRIMUS_TP", "PRIMUS_PP", "PRIMUS_EP", "NNODES", "GPUS_PER_NODE", "PRIMUS_GPU_ARCH")
EXPERIMENT = """\
work_group: research
user_name: someone
exp_name: a_run
workspace: ./output
modules:
  pre_trainer:
    framework: megatron
    config: {config}
    model: {model}.yaml
    overrides:
      micro_batch_size: 1
      global_batch_size: 64
      {more}
"""


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a file below a folder named like a GPU."""

    def write_file(name, text):
        file = tmp_path / "MI355X" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    return write_file


def experiment(model, config="pre_trainer.yaml", **settings):
    more = "\n      ".join(f"{name}: {value}" for name, value in settings.items()) or "lr: 1.0e-5"
    return EXPERIMENT.format(model=model, config=config, more=more)


@pytest.mark.parametrize(
    ("model", "billions"),
    [
        # 128,256 x 2,048 more than the published 1.236 B: the output layer has its own weights.
        ("llama3.2_1B", 1.498),
        ("llama3.2_3B", 3.607),
        # Heads of 80 and 40, not of 128.
        ("qwen3_32B", 30.500),
        ("qwen3_4B", 4.057),
        ("qwen2.5_3B", 3.397),
        # Shared experts of 2,880, and the vocabulary of another tokenizer.
        ("gpt_oss_20B", 20.936),
        ("gpt_oss_120B", 117.157),
        ("grok1", 315.281),
        ("llama3.1_8B", 8.030),
    ],
)
def test_parameters_are_those_of_the_preset(write, model, billions):
    job = load_job(write("x.yaml", experiment(model)))
    assert project_memory(job).to_dict()["parameters_total"] / 1e9 == pytest.approx(
        billions, rel=1e-3
    )
    told = [note for note in job.notes if "projected as Primus sets it" in note]
    assert bool(told) == (model != "llama3.1_8B")


def test_a_difference_is_told_with_the_settings_that_make_it(write):
    job = load_job(write("x.yaml", experiment("qwen3_32B")))
    (told,) = job.notes
    assert told.startswith("qwen3_32B.yaml is projected as Primus sets it, unlike Qwen3-32B: ")
    assert "kv_channels null" in told
    assert "qk_layernorm false" in told
    assert job.origins["model.qk_norm"] == "Primus preset qwen3_32B.yaml"


def test_an_experiment_outranks_the_preset(write):
    stated = {"kv_channels": 128, "qk_layernorm": "true"}
    job = load_job(write("x.yaml", experiment("qwen3_32B", **stated)))
    assert job.notes == ()
    assert project_memory(job).to_dict()["parameters_total"] == pytest.approx(32.76e9, rel=1e-3)


def test_presets_bring_settings_of_the_run(write):
    job = load_job(write("x.yaml", experiment("deepseek_v2_lite")))
    assert job.parallelism.ep == 8
    assert job.parallelism.moe_shared_expert_overlap
    assert job.training.moe.permute_fusion
    assert job.origins["parallelism.ep"] == "Primus preset deepseek_v2_lite.yaml"
    assert not load_job(
        write("x.yaml", experiment("mixtral_8x7B_v0.1"))
    ).training.moe.permute_fusion


@pytest.mark.parametrize(
    ("config", "micro_batch", "seq"),
    [("pre_trainer.yaml", 2, 1024), ("sft_trainer.yaml", 1, 2048), ("other.yaml", 2, 1024)],
)
def test_trainers_bring_a_step(write, config, micro_batch, seq):
    text = experiment("llama3.1_8B", config).replace("      micro_batch_size: 1\n", "")
    job = load_job(write("x.yaml", text))
    assert (job.training.micro_batch_size, job.training.seq_length) == (micro_batch, seq)
    assert job.origins["training.seq_length"] == "Primus preset (assumed)"


def test_vocabulary_is_padded_as_in_megatron(write):
    job = load_job(write("x.yaml", experiment("llama3.1_8B", tensor_model_parallel_size=4)))
    assert job.model.make_vocab_size_divisible_by == 128
    stated = experiment("llama3.1_8B", make_vocab_size_divisible_by=64)
    assert load_job(write("x.yaml", stated)).model.make_vocab_size_divisible_by == 64


@pytest.mark.parametrize(
    ("settings", "size"),
    [
        ({"tokenizer_model": "Qwen/Qwen3-8B"}, 151936),
        ({"tokenizer_model": "someone/else"}, 128256),
        ({"tokenizer_model": "Qwen/Qwen3-8B", "vocab_size": 50000}, 50000),
        ({"padded_vocab_size": 50048}, 50048),
    ],
)
def test_vocabulary_of_a_tokenizer(write, settings, size):
    assert load_job(write("x.yaml", experiment("llama3.1_8B", **settings))).model.vocab_size == size


PRESET = """\
extends: [llama_base.yaml]
num_layers: 4
hidden_size: 256
num_attention_heads: 4
ffn_hidden_size: 1024
kv_channels: 32
tokenizer_model: meta-llama/Llama-3.1-8B
"""


@pytest.mark.parametrize(
    "place",
    ["tiny.yaml", "models/tiny.yaml", "../primus/configs/models/megatron/tiny.yaml"],
)
def test_a_preset_at_hand_is_read(write, place):
    write(place, PRESET)
    job = load_job(write("x.yaml", experiment("tiny")))
    assert (job.model.num_layers, job.model.head_dim) == (4, 32)
    assert job.model.vocab_size == 128256
    assert job.origins["model.vocab_size"] == "tokenizer meta-llama/Llama-3.1-8B"


def test_a_preset_at_hand_outranks_the_shipped_architecture(write):
    write("models/llama3.1_8B.yaml", PRESET)
    job = load_job(write("x.yaml", experiment("llama3.1_8B")))
    assert job.model.num_layers == 4
    assert job.notes == ()


def test_a_preset_may_extend_one_that_is_not_at_hand(write):
    write("models/short.yaml", "extends: [qwen3_32B.yaml]\nnum_layers: 2\n")
    job = load_job(write("x.yaml", experiment("short")))
    assert (job.model.num_layers, job.model.hidden_size, job.model.head_dim) == (2, 5120, 80)


def test_an_experiment_is_no_preset_of_itself(write):
    job = load_job(write("llama3.1_8B.yaml", experiment("llama3.1_8B")))
    assert job.model.num_layers == 32


def test_a_trainer_at_hand_is_read(write):
    write("../primus/configs/modules/megatron/mine.yaml", "extends: base.yaml\nseq_length: 512\n")
    write("../primus/configs/modules/megatron/base.yaml", "overlap_grad_reduce: true\n")
    job = load_job(write("x.yaml", experiment("llama3.1_8B", "mine.yaml")))
    assert job.training.seq_length == 512
    assert job.parallelism.overlap_grad_reduce


def test_a_preset_that_is_nowhere(write):
    with pytest.raises(ConfigError, match=r"grok2\.yaml in a folder models") as caught:
        load_job(write("x.yaml", experiment("grok2")))
    assert "grok1" in caught.value.message


def test_experiments_extend_others(write):
    write("base.yaml", experiment("llama3.1_8B", seq_length=4096))
    write(
        "middle.yaml",
        "extends: base.yaml\nmodules: {pre_trainer: {overrides: {seq_length: 2048}}}\n",
    )
    job = load_job(
        write(
            "top.yaml",
            "extends:\n  - middle.yaml\nexp_name: top\n"
            "modules: {pre_trainer: {overrides: {micro_batch_size: 2}}}\n",
        )
    )
    assert job.name == "top"
    assert job.training.seq_length == 2048
    assert (job.training.micro_batch_size, job.training.global_batch_size) == (2, 64)
    assert job.cluster.device.name.endswith("MI355X")
    assert job.notes == ()


def test_settings_at_the_top_are_overrides_and_said(write):
    write("base.yaml", experiment("llama3.1_8B"))
    job = load_job(write("x.yaml", "extends: [base.yaml]\nmicro_batch_size: 4\nlr: 2.0e-4\n"))
    assert job.training.micro_batch_size == 4
    (note,) = job.notes
    assert note.startswith("micro_batch_size, lr: at the top of the file")


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"x.yaml": "extends: [x.yaml]\n"}, "x.yaml -> x.yaml"),
        (
            {"x.yaml": "extends: [y.yaml]\n", "y.yaml": "extends: [x.yaml]\n"},
            "x.yaml -> y.yaml -> x.yaml",
        ),
        ({"x.yaml": "extends: [nowhere.yaml]\n"}, "nowhere.yaml does not exist"),
        ({"x.yaml": "extends: [[1]]\n"}, "should list the names of files"),
        ({"x.yaml": "extends: 3\n"}, "should list the names of files"),
        ({"x.yaml": "extends: [y.yaml]\n", "y.yaml": "seed: 1\n"}, "x.yaml: modules should name"),
    ],
)
def test_malformed_chains(write, files, expected):
    for name, text in files.items():
        write(name, text)
    with pytest.raises(ConfigError) as caught:
        load_job(write("x.yaml", files["x.yaml"]))
    assert expected in caught.value.message


def test_files_that_double_at_every_step_are_bounded(write):
    for step in range(40):
        write(f"{step}.yaml", f"extends: [{step + 1}.yaml, {step + 1}.yaml]\n")
        write(f"models/{step}.yaml", f"extends: [{step + 1}.yaml, {step + 1}.yaml]\n")
    write("40.yaml", "exp_name: deep\n")
    write("models/40.yaml", "num_layers: 2\n")
    with pytest.raises(ConfigError, match="more than 256 files"):
        load_job(write("x.yaml", "extends: [0.yaml]\n"))
    with pytest.raises(ConfigError, match="more than 256 files"):
        load_job(write("y.yaml", experiment("models/0")))


def test_circular_presets_are_named(write):
    write("models/a.yaml", "extends: [b.yaml]\n")
    write("models/b.yaml", "bases: a.yaml\n")
    with pytest.raises(ConfigError, match=r"a\.yaml -> b\.yaml -> a\.yaml"):
        load_job(write("x.yaml", experiment("a")))


def test_a_layout_without_a_place_for_the_preset_s_mtp_module(write):
    layout = {"pipeline_model_parallel_size": 2, "pipeline_model_parallel_layout": "Et*30|t*31L"}
    job = load_job(write("x.yaml", experiment("deepseek_v3", **layout)))
    assert job.model.mtp_num_layers == 0
    assert any("no place (m) for the MTP module" in note for note in job.notes)
    layout["pipeline_model_parallel_layout"] = "Et*30|t*31mL"
    job = load_job(write("x.yaml", experiment("deepseek_v3", **layout)))
    assert job.model.mtp_num_layers == 1


@pytest.mark.parametrize(("folder", "device"), [("MI355", "MI355X"), ("mi325", "MI325X")])
def test_folders_with_the_short_name_of_a_device(tmp_path, folder, device):
    file = tmp_path / folder / "x.yaml"
    file.parent.mkdir()
    file.write_text(experiment("llama3.1_8B"))
    assert load_job(file).cluster.device.name.endswith(device)


def test_presets_of_the_tables_are_shipped():
    named = ("deepseek_v2_lite", "gpt_oss_120B", "grok1", "llama4_17B16E", "minimax_m2.5")
    assert all(normalise(name) in index("models") for name in named)
    assert all(preset(name).run for name in named)
    assert set(BASES) >= {"llama_base", "qwen2.5_base", "deepseek_v3_base"}


def test_fused_softmax_matters_only_where_attention_is_not_fused(write):
    off = {"masked_softmax_fusion": "false"}
    assert load_job(write("x.yaml", experiment("llama3.1_8B", **off))).notes == ()
    job = load_job(write("x.yaml", experiment("llama3.1_8B", **off, attention_backend="unfused")))
    assert "masked_softmax_fusion" in job.notes[0]
