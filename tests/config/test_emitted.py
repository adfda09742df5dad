"""Jobs written for frameworks, and read again."""

import os
from pathlib import Path
from threading import Thread

import pytest
import yaml

from projector import emit_job, load_job, project_performance
from projector.config.formats.detect import MARK, carried_fields, comment_lines
from projector.config.formats.emit import FORMATS
from projector.config.formats.emit.emitted import unsaid
from projector.config.yaml_file import read_yaml
from projector.errors import ConfigError, ProjectorError, UnsupportedError
from sweeps.variants import BASES, variants

ROOT = Path(__file__).parents[2]
EXAMPLES = [
    path
    for path in sorted([*ROOT.glob("examples/*.yaml"), *ROOT.glob("examples/megatron/**/*.yaml")])
    if ("training" in (data := read_yaml(path)) or "modules" in data) and "rollout" not in data
]
TITLES = {"cluster.device", "name", "model.name", "training.framework"}
SMALL = {
    "name": "small",
    "model": "llama3.1_8b",
    "parallelism": {"tp": 2, "pp": 2, "vpp": 2, "overlap_grad_reduce": False},
    "training": {
        "micro_batch_size": 1,
        "global_batch_size": 32,
        "seq_length": 4096,
        "gradient_accumulation_fusion": False,
        "recompute": "full",
        "framework": "megatron_lm",
    },
    "cluster": {"device": "h100", "nodes": 2},
}


def sharded(kind):
    """Return the parallelism of `SMALL` as a framework shards."""
    return {"parallelism": SMALL["parallelism"] | ({"fsdp": 2} if kind == "torchtitan" else {})}


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch):
    for name in ("PRIMUS_TP", "PRIMUS_PP", "PRIMUS_EP", "NNODES", "GPUS_PER_NODE"):
        monkeypatch.delenv(name, raising=False)


def read_again(emitted, folder):
    path = folder / f"job{emitted.suffix}"
    path.write_text(emitted.text, encoding="utf-8")
    return load_job(path)


@pytest.mark.rotated
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_reads_back_as_the_same_job(path, kind, tmp_path):
    sharding = {"parallelism.fsdp": 2, "parallelism.zero_stage": 3}
    job = load_job(path, sharding if kind == "torchtitan" else {})
    if job.training.adapter and kind != "primus":
        return
    try:
        emitted = emit_job(job, kind)
    except UnsupportedError as error:
        # Megatron's FSDP 2 takes no expert parallelism; torchtitan lacks architectures.
        sharded_experts = job.parallelism.fsdp == 2 and job.parallelism.ep > 1
        refused = "model" if kind == "torchtitan" else sharded_experts and "parallelism.fsdp"
        if error.key != refused:
            raise
        return
    again = read_again(emitted, tmp_path)
    assert not again.notes, "what is written is said without a warning"
    assert again.model.name == job.model.name
    expected, result = (project_performance(each).to_dict() for each in (job, again))
    for known in (expected, result):
        del known["provenance"], known["warnings"], known["ignored_settings"]
    assert result == expected


@pytest.mark.rotated
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("base", [base for base in BASES if base != "adapters"])
def test_a_change_of_any_field_survives(base, kind, tmp_path):
    try:
        emit_job(load_job(BASES[base]), kind)
    except UnsupportedError as error:
        if error.key == "emit":
            raise
        # The framework has no such layout or architecture.
        return
    written = 0
    for variant in variants(base, device=False)[::41]:
        # A network goes by the name of the one that it extends.
        if ".sources." in variant.field or variant.field == "cluster.network.name":
            continue
        try:
            emitted = emit_job(variant.job, kind)
        except ProjectorError:
            continue
        written += 1
        again = read_again(emitted, tmp_path)
        assert again.parallelism.sharding_stage == variant.job.parallelism.sharding_stage
        for section, field in (("model", "ffn_hidden_size"), ("training", "precision")):
            assert getattr(getattr(again, section), field) == getattr(
                getattr(variant.job, section), field
            ), variant
        assert again.cluster == variant.job.cluster, variant
        assert again.run == variant.job.run, variant
        assert again.training.moe == variant.job.training.moe or variant.job.model.moe is None
    assert written > 5


def test_the_script_says_what_megatron_has_words_for():
    emitted = emit_job(load_job(SMALL), "megatron")
    words = emitted.text.split()
    for argument, value in {
        "--num-layers": "32",
        "--ffn-hidden-size": "14336",
        "--num-query-groups": "8",
        "--tensor-model-parallel-size": "2",
        "--num-virtual-stages-per-pipeline-rank": "2",
        "--recompute-granularity": "full",
        "--recompute-method": "uniform",
        "--recompute-num-layers": "1",
        "--global-batch-size": "32",
        "--nnodes": "2",
        "--nproc-per-node": "8",
    }.items():
        assert words[words.index(argument) + 1] == value, argument
    assert {"--swiglu", "--disable-bias-linear", "--no-gradient-accumulation-fusion"} < set(words)
    assert {"--bf16", "--sequence-parallel", "--use-distributed-optimizer"} < set(words)
    assert "--overlap-grad-reduce" not in words
    assert emitted.carried.keys() <= TITLES


def test_the_experiment_states_switches_that_are_off():
    """The presets of a trainer would decide them otherwise."""
    emitted = emit_job(load_job(SMALL), "primus")
    assert "overlap_grad_reduce: false" in emitted.text
    assert "framework: megatron\n" in emitted.text
    assert emitted.carried.keys() <= TITLES | {"cluster.nodes"}


def test_a_device_of_ones_own_is_carried_along(tmp_path):
    job = load_job(SMALL, {"cluster.device.hbm_gib": 100, "cluster.gpu_clock_mhz": 1500})
    emitted = emit_job(job, "megatron")
    assert emitted.carried["cluster.device"] == "h100"
    assert read_again(emitted, tmp_path).cluster == job.cluster
    own = load_job(SMALL, {"cluster.device.name": "nobody's chip"})
    assert read_again(emit_job(own, "primus"), tmp_path).cluster.device.name == "nobody's chip"


@pytest.mark.parametrize("kind", [kind for kind in FORMATS if kind != "primus"])
def test_adapters_are_no_comment(kind):
    """The framework would read past it and train every weight."""
    with pytest.raises(UnsupportedError, match="would train every weight"):
        emit_job(load_job(SMALL | sharded(kind), {"training.adapter": "lora"}), kind)


def test_an_unknown_format_is_refused():
    with pytest.raises(ConfigError, match="known: megatron, primus"):
        emit_job(load_job(SMALL), "fortran")


def test_overrides_win_over_what_a_comment_carries(tmp_path):
    emitted = emit_job(load_job(SMALL), "megatron")
    path = tmp_path / "job.sh"
    path.write_text(emitted.text, encoding="utf-8")
    job = load_job(path, {"cluster.device": "h200"})
    assert job.cluster.device.name.startswith("NVIDIA H200")
    assert load_job(path).origins["cluster.device"] == "comment of the file"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes")
def test_what_a_comment_carries_comes_through_a_pipe(tmp_path):
    emitted = emit_job(load_job(SMALL), "megatron")
    pipe = tmp_path / "job.sh"
    os.mkfifo(pipe)
    writer = Thread(target=pipe.write_text, args=(emitted.text,))
    writer.start()
    job = load_job(pipe)
    writer.join()
    assert job.origins["cluster.device"] == "comment of the file"


def test_carried_fields_survive_quoting():
    fields = {"name": 'it\'s # a "name"', "run": {"tokens": 1e12}, "training.framework": None}
    path = Path("job.sh")
    assert carried_fields(f"x\n{comment_lines(fields)}y\n", path) == fields
    for bad in ("no_value", "'open"):
        with pytest.raises(ConfigError, match="key=value"):
            carried_fields(f"{MARK} {bad}\n", path)


def test_text_of_several_lines_stays_within_its_comment():
    fields = {
        "name": 'two\nlines, "quotes"\n# projector: parallelism.tp=2',
        "run": {"note": "a\nb"},
    }
    text = f"x\n{comment_lines(fields)}y\n"
    assert carried_fields(text, Path("job.sh")) == fields
    lines = text.splitlines()[1:-1]
    assert all(line.startswith(MARK) for line in lines)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_job_whose_name_has_several_lines_is_written(kind, tmp_path):
    names = {"name": "mine\nrm -rf x", "model.name": "a 'model\nfoo\""}
    job = load_job(SMALL | sharded(kind), names)
    again = read_again(emit_job(job, kind), tmp_path)
    assert (again.name, again.model.name) == (job.name, job.model.name)


FSDP = {"parallelism": {"fsdp": 2, "fsdp_reshard_after_forward": False}}


@pytest.mark.parametrize(
    ("fields", "has", "has_not"),
    [
        (
            FSDP,
            ["--torch-fsdp2-no-reshard-after-forward", "--no-gradient-accumulation-fusion"],
            ["--overlap-param-gather", "--use-distributed-optimizer"],
        ),
        ({"parallelism": {"zero_stage": 3}}, ["--ckpt-format fsdp_dtensor"], []),
        ({"parallelism": {"zero_stage": 0}}, [], ["--overlap-param-gather"]),
        (
            {"training": {"optimizer": {"offload_fraction": 0.5}}},
            ["--optimizer-cpu-offload", "--use-precision-aware-optimizer"],
            [],
        ),
    ],
)
def test_megatron_starts_with_the_arguments(fields, has, has_not, tmp_path):
    """Megatron-LM ends at the start where these arguments do not go together."""
    base = {section: {**SMALL[section]} for section in ("training", "cluster")}
    base["training"].pop("gradient_accumulation_fusion")
    base["training"] |= fields.get("training", {})
    parts = {"parallelism": fields.get("parallelism", {})}
    job = load_job({"model": SMALL["model"], **base, **parts})
    emitted = emit_job(job, "megatron")
    assert all(f"  {argument}\n" in emitted.text for argument in has)
    assert not any(f"  {argument}\n" in emitted.text for argument in has_not)
    again = read_again(emitted, tmp_path)
    assert again.training.gradient_accumulation_fusion == job.training.gradient_accumulation_fusion
    assert again.parallelism == job.parallelism.model_copy(
        update={"zero_stage": again.parallelism.zero_stage, "dp": again.parallelism.dp}
        | {"sequence_parallel": again.parallelism.sequence_parallel, "etp": again.parallelism.etp}
    )


def test_a_padded_vocabulary_is_what_the_script_makes(tmp_path):
    """Its NullTokenizer adds one token before Megatron pads."""
    job = load_job(SMALL, {"model.vocab_size": 32768, "model.make_vocab_size_divisible_by": 128})
    emitted = emit_job(job, "megatron")
    assert "--vocab-size 32767\n" in emitted.text
    assert read_again(emitted, tmp_path).model.padded_vocab_size(2) == 32768


@pytest.mark.parametrize("kind", ["megatron", "primus"])
@pytest.mark.parametrize(
    ("layers", "by_work", "expected"),
    [(30, False, "Et*8|t*8|t*7|t*7L"), (32, True, "Et*9|t*9|t*8|t*6L")],
)
def test_stages_that_differ_have_the_layout_that_megatron_asks_for(
    kind, layers, by_work, expected, tmp_path
):
    sizes = {"parallelism.vpp": 1, "parallelism.pp": 4, "model.num_layers": layers}
    job = load_job(SMALL, {**sizes, "parallelism.divide_pipeline_by_work": by_work})
    emitted = emit_job(job, kind)
    assert expected in emitted.text
    again = read_again(emitted, tmp_path)
    assert again.parallelism.pipeline_model_parallel_layout is None
    assert project_performance(again).iteration_time_s == project_performance(job).iteration_time_s


def test_the_router_and_rotations_are_arguments():
    """DeepSeek-V3 must not parse as a router of softmaxes."""
    split = {"parallelism": {"pp": 8, "ep": 8, "tp": 2, "etp": 1}, "model": "deepseek_v3"}
    job = load_job(SMALL | split, {"cluster.nodes": 16, "training.recompute": "none"})
    emitted = emit_job(job, "megatron")
    words = emitted.text.split()
    for argument, value in {
        "--moe-router-score-function": "sigmoid",
        "--moe-router-num-groups": "8",
        "--moe-router-group-topk": "4",
        "--moe-router-topk-scaling-factor": "2.5",
        "--rotary-base": "10000",
        "--rotary-scaling-factor": "40.0",
        "--norm-epsilon": "1e-06",
    }.items():
        assert words[words.index(argument) + 1] == value, argument
    assert "--moe-router-enable-expert-bias" in words
    assert "--moe-router-pre-softmax" not in words
    scout = load_job(SMALL | {"model": "mixtral_8x7b"}, {"model.moe.router_topk": 1})
    assert "--moe-router-pre-softmax" in emit_job(scout, "megatron").text


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "export CUDA_DEVICE_MAX_CONNECTIONS=1"),
        ({"cluster.device": "b200"}, None),
        ({"parallelism.zero_stage": 3}, "unset CUDA_DEVICE_MAX_CONNECTIONS"),
        ({"parallelism.tp": 1}, None),
    ],
)
def test_the_script_sets_the_queues_that_megatron_checks(changes, line):
    text = emit_job(load_job(SMALL, changes), "megatron").text
    lines = [each for each in text.splitlines() if "CUDA_DEVICE_MAX_CONNECTIONS" in each]
    assert lines == ([line] if line else [])


def test_what_cannot_be_said_is_one_line_of_the_model_first():
    job = load_job(SMALL | {"model": "gemma3_27b"}, {"parallelism.pp": 1, "parallelism.vpp": 1})
    said = unsaid(emit_job(job, "megatron"), job)
    assert said == (
        'Gemma-3-27B: norms_per_layer=4, rope_scaling={"kind": "linear", "factor": 8.0}, '
        "rotary_base_local=10000.0 cannot be said to Megatron"
    )


@pytest.mark.parametrize(
    ("model", "changes", "words", "unspoken"),
    [
        ("gpt_oss_20b", {"model.rope_scaling.beta_fast": 16.0},
         "--yarn-beta-fast 16.0 --yarn-beta-slow 1.0 --mscale 1.0 --mscale-all-dim 0.0", None),
        ("gpt_oss_20b", {}, "--no-yarn-correction-range-round-to-int", None),
        ("llama4_maverick", {}, "--no-rope-freq 4", None),
        ("llama4_maverick", {"model.num_layers": 46},
         f"--no-rope-freq '({'[0]*3+[1]*1+' * 11}[0]*2)'", None),
        ("llama4_scout", {}, "--rope-scaling-factor 16.0", "rope_scaling.high_freq_factor=1.0"),
        ("kimi_k2", {}, "--rotary-scaling-factor 32.0", "rope_scaling.beta_fast=1.0"),
        ("glm4.7_flash", {}, "--kv-channels 192", None),
        ("gemma2_2b", {}, "--apply-layernorm-1p", "norms_per_layer=4"),
        ("nemotron4_15b", {}, "--apply-layernorm-1p", None),
    ],
)  # fmt: skip
def test_rotations_and_norms_are_arguments_where_megatron_has_them(
    model, changes, words, unspoken, tmp_path
):
    split = {"parallelism.vpp": 1, "parallelism.pp": 1, "training.recompute": "none"}
    job = load_job(SMALL | {"model": model}, split | changes)
    for kind in ("megatron", "primus"):
        emitted = emit_job(job, kind)
        again = read_again(emitted, tmp_path)
        # Open choices, of a router and of heads that latent attention has of its own, are made.
        besides = {"source", "moe", *(["kv_channels"] if job.model.mla else [])}
        ours, theirs = (each.model.model_dump(exclude=besides) for each in (job, again))
        assert theirs == ours
        said = unsaid(emitted, job)
        assert unspoken in said if unspoken else not said, said
    lines = [line.strip() for line in emit_job(job, "megatron").text.splitlines()]
    switches = " ".join(line for line in lines if line.startswith("--"))
    for word in words.split(" --"):
        assert f"--{word.removeprefix('--')}" in switches


def test_primus_is_told_names_that_are_read():
    """Of its presets ``norm_epsilon`` reaches no model of Megatron-LM's."""
    text = emit_job(load_job(SMALL | {"model": "gemma2_2b"}), "primus").text
    settings = next(iter(yaml.safe_load(text)["modules"].values()))["overrides"]
    assert settings["layernorm_epsilon"] == 1e-6
    assert settings["layernorm_zero_centered_gamma"] is True
    assert not {"norm_epsilon", "apply_layernorm_1p"} & settings.keys()
