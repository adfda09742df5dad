"""Reading torchtitan's TOML files: models, degrees, batches, precision, stages and errors."""

import pytest

from projector.config.formats.torchtitan import read_torchtitan
from projector.config.load import job_data, load_job
from projector.errors import ConfigError, UnsupportedError

MINIMAL = """
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 2
seq_len = 4096
"""


def file(tmp_path, text, name="job.toml"):
    path = tmp_path / name
    path.write_text(text)
    return path


def data(tmp_path, text="", **overrides):
    given = {"cluster.device": "h100"} | {k.replace("__", "."): v for k, v in overrides.items()}
    return job_data(file(tmp_path, MINIMAL + text), given)


def job(tmp_path, text="", **overrides):
    given = {"cluster.device": "h100"} | {k.replace("__", "."): v for k, v in overrides.items()}
    return load_job(file(tmp_path, MINIMAL + text), given)


def test_all_devices_share_one_copy(tmp_path):
    found = job(tmp_path, cluster__nodes=4)
    assert found.model.name == "Llama-3.1-8B"
    assert found.parallelism.fsdp == 2
    assert found.parallelism.fsdp_reshard_after_forward
    assert found.training.micro_batch_size == 2
    assert found.training.global_batch_size == 2 * 32
    assert found.training.optimizer.master_weights == "shared"
    assert found.training.precision == "bf16"
    assert found.origins["training.global_batch_size"] == "derived as torchtitan does"


def test_degrees_decide_how_many_nodes(tmp_path):
    found = job(
        tmp_path,
        """[parallelism]
data_parallel_replicate_degree = 2
data_parallel_shard_degree = 4
tensor_parallel_degree = 8
context_parallel_degree = 2
context_parallel_rotate_method = "alltoall"
""",
    )
    split = found.parallelism
    assert (split.tp, split.cp, found.cluster.nodes) == (8, 2, 2 * 4 * 8 * 2 // 8)
    assert split.num_distributed_optimizer_instances == 2
    assert split.cp_comm_type == "p2p"
    assert found.training.global_batch_size == 16


def test_copies_need_devices_of_their_own(tmp_path):
    found = job(
        tmp_path,
        "[parallelism]\ndata_parallel_replicate_degree = 3\ntensor_parallel_degree = 8\n",
    )
    assert found.cluster.nodes == 3
    assert found.training.global_batch_size == 6


def test_given_nodes_win_over_the_degrees_of_the_file(tmp_path):
    text = "[parallelism]\ndata_parallel_shard_degree = 8\ntensor_parallel_degree = 2\n"
    assert job(tmp_path, text).cluster.nodes == 2
    more = job(tmp_path, text, cluster__nodes=8)
    assert (more.cluster.nodes, more.training.global_batch_size) == (8, 2 * 32)


def test_a_part_of_a_node(tmp_path):
    found = job(tmp_path, "[parallelism]\ndata_parallel_shard_degree = 4\n")
    assert (found.cluster.nodes, found.cluster.gpus_per_node) == (1, 4)


def test_without_sharding_there_is_no_fsdp(tmp_path):
    found = job(
        tmp_path,
        "[parallelism]\ndata_parallel_shard_degree = 1\ndata_parallel_replicate_degree = 8\n",
    )
    assert (found.parallelism.fsdp, found.parallelism.zero_stage) == (False, 0)
    assert (found.cluster.gpus, found.training.global_batch_size) == (8, 16)


PIPELINE = """[parallelism]
pipeline_parallel_degree = 4
data_parallel_shard_degree = 2
"""


@pytest.mark.parametrize(
    ("lines", "vpp", "schedule", "layout"),
    [
        ("", 1, "1f1b", "Et*8|t*9|t*8|t*7L"),
        ('pipeline_parallel_schedule = "Interleaved1F1B"', 2, "interleaved",
         "Et*4|t*5|t*4|t*4|t*4|t*4|t*4|t*3L"),
        ('pipeline_parallel_schedule = "ZBVZeroBubble"', 2, "zbv-formatted",
         "Et*4|t*5|t*4|t*4|t*4|t*4|t*4|t*3L"),
        ('pipeline_parallel_schedule = "Interleaved1F1B"\npipeline_parallel_layers_per_stage = 3',
         3, "interleaved", "Et*2|t*3|t*3|t*3|t*3|t*3|t*3|t*3|t*3|t*3|t*2|t*1L"),
        (("pipeline_parallel_first_stage_less_layers = 0\n"
          "pipeline_parallel_last_stage_less_layers = 1"), 1, "1f1b", "Et*9|t*8|t*8|t*7L"),
    ],
)  # fmt: skip
def test_layers_are_dealt_as_torchtitan_does(tmp_path, lines, vpp, schedule, layout):
    found = data(tmp_path, PIPELINE + lines)
    assert found["parallelism"]["vpp"] == vpp
    assert found["parallelism"]["pipeline_model_parallel_layout"] == layout
    assert found["training"]["schedule"] == schedule
    # A pipeline cuts the local batch into microbatches of one sequence.
    assert found["training"]["micro_batch_size"] == 1
    assert found["training"]["global_batch_size"] == 4
    assert found["parallelism"]["fsdp_reshard_after_forward"] is False


def test_overrides_of_the_pipeline_leave_the_stages_of_the_file(tmp_path):
    assert (
        "pipeline_model_parallel_layout"
        not in data(tmp_path, PIPELINE, parallelism__pp=2, parallelism__dp=4)["parallelism"]
    )
    found = data(tmp_path, PIPELINE, training__schedule="interleaved")["parallelism"]
    assert (found["vpp"], found.get("pipeline_model_parallel_layout")) == (2, None)
    found = data(tmp_path, PIPELINE, model__num_layers=14)["parallelism"]
    assert found["pipeline_model_parallel_layout"] == "Et*3|t*4|t*4|t*3L"


def test_even_stages_need_no_layout(tmp_path):
    lines = "pipeline_parallel_first_stage_less_layers = 0\n"
    lines += "pipeline_parallel_last_stage_less_layers = 0\n"
    assert job(tmp_path, PIPELINE + lines).parallelism.pipeline_model_parallel_layout is None
    none = {"parallelism.pipeline_model_parallel_layout": None}
    found = load_job(file(tmp_path, MINIMAL + PIPELINE), {"cluster.device": "h100", **none})
    assert found.parallelism.pipeline_model_parallel_layout is None


def test_stages_beyond_the_layers_are_refused_at_once(tmp_path):
    with pytest.raises(ConfigError, match="pp"):
        job(tmp_path, f"[parallelism]\npipeline_parallel_degree = {10**18}\n", cluster__nodes=1)


def test_listed_modules_are_the_stages(tmp_path):
    parts = [["tok_embeddings", "layers.0", "layers.1"], ["layers.2", "norm", "output"]]
    found = data(
        tmp_path,
        f"[parallelism]\npipeline_parallel_degree = 2\nmodule_fqns_per_model_part = {parts}\n",
        cluster__nodes=1,
    )
    assert found["parallelism"]["pipeline_model_parallel_layout"] == "Et*2|t*1L"


@pytest.mark.parametrize(
    ("lines", "recompute"),
    [
        ('mode = "full"', "full"),
        ('mode = "none"', "none"),
        ('selective_ac_option = "8"', {"granularity": "full", "layers": [7, 15, 23, 31]}),
        ("selective_ac_option = 'op'", {"granularity": "selective", "modules": ["per_op"]}),
        ("", {"granularity": "full", "layers": list(range(1, 32, 2))}),
        ('selective_ac_option = "1"', "full"),
    ],
)
def test_recomputed_layers(tmp_path, lines, recompute):
    found = data(tmp_path, f"[activation_checkpoint]\n{lines}\n", cluster__nodes=1)
    assert found["training"]["recompute"] == recompute


@pytest.mark.parametrize(
    ("text", "dotted", "value"),
    [
        ('[quantize.linear.float8]\nrecipe_name = "rowwise"\n', "fp8_recipe", "rowwise"),
        ("[float8]\nenable_fsdp_float8_all_gather = true\n", "fp8_param_gather", True),
        ("[float8]\nfilter_fqns = ['output']\n", "precision", "fp8"),
    ],
)
def test_float8_converters(tmp_path, text, dotted, value):
    named = MINIMAL.replace('"8B"', '"8B"\nconverters = ["float8"]') + text
    found = job_data(file(tmp_path, named), {"cluster.device": "h100", "cluster.nodes": 1})
    assert found["training"]["precision"] == "fp8"
    assert found["training"][dotted] == value


def test_whole_training_in_bf16(tmp_path):
    text = MINIMAL + 'dtype = "bfloat16"\n'
    training = load_job(
        file(tmp_path, text), {"cluster.device": "h100", "cluster.nodes": 1}
    ).training
    assert (training.optimizer.master_weights, training.optimizer.moment_dtype) == ("none", "bf16")
    assert training.gradient_dtype == "bf16"


def test_settings_of_early_releases_are_found(tmp_path):
    text = """
[model]
name = "llama3"
flavor = "70B"
[training]
batch_size = 8
seq_len = 8192
data_parallel_degree = 4
tensor_parallel_degree = 8
compile = true
enable_float8_linear = true
[experimental]
pipeline_parallel_degree = 4
enable_async_tensor_parallel = true
"""
    found = load_job(file(tmp_path, text), {"cluster.device": "h100"})
    assert (found.parallelism.tp, found.parallelism.pp, found.cluster.gpus) == (8, 4, 8 * 4 * 4)
    assert found.parallelism.tp_comm_overlap == "async_tp"
    assert found.training.precision == "fp8"
    assert found.training.torch_compile
    # As many microbatches as stages, where releases of 2024 leave their number open.
    assert found.training.micro_batch_size == 2
    assert found.training.global_batch_size == 32


def test_unknown_settings_are_grouped_and_harmless_ones_listed(tmp_path):
    found = data(
        tmp_path,
        "[metrics]\nlog_freq = 3\n[optimizer]\nlr = 1.0\n[new]\na = 1\n"
        "[parallelism]\ntensor_paralel_degree = 2\n",
        cluster__nodes=1,
    )
    assert [note for note in found["notes"] if "unknown" in note] == [
        (
            "2 unknown settings of torchtitan were ignored: new.a, "
            "parallelism.tensor_paralel_degree (did you mean parallelism.tensor_parallel_degree?)"
        )
    ]
    assert set(found["ignored"]) == {"metrics.log_freq", "optimizer.lr"}


def test_a_flavour_that_is_not_known_can_be_given(tmp_path):
    path = file(tmp_path, MINIMAL.replace("8B", "9B"))
    overrides = {"cluster.device": "h100", "cluster.nodes": 1}
    with pytest.raises(
        ConfigError, match=r"model.flavor '9B' of llama3 is not known; known: debug"
    ):
        load_job(path, overrides)
    assert load_job(path, {**overrides, "model": "qwen3_8b"}).model.name == "Qwen3-8B"


@pytest.mark.parametrize("schedule", ["LoopedBFS", "DualPipeV", "InterleavedZeroBubble", "made_up"])
def test_schedules_that_are_not_supported_can_be_replaced(tmp_path, schedule):
    text = f'{PIPELINE}pipeline_parallel_schedule = "{schedule}"\n'
    with pytest.raises(UnsupportedError, match=f"{schedule}.*give training.schedule=NAME"):
        data(tmp_path, text)
    assert data(tmp_path, text, training__schedule="gpipe")["training"]["schedule"] == "gpipe"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[parallelism]\ntensor_parallel_degree = 0\n", "parallelism.tensor_parallel_degree"),
        ("[parallelism]\ntensor_parallel_degree = 'x'\n", "parallelism.tensor_parallel_degree"),
        ("[parallelism]\ndata_parallel_shard_degree = -2\n",
         "parallelism.data_parallel_shard_degree"),
        ("[activation_checkpoint]\nmode = 'some'\n", "activation_checkpoint.mode"),
        ("[activation_checkpoint]\nselective_ac_option = '-1'\n",
         "activation_checkpoint.selective_ac_option"),
        ("[parallelism]\nmodule_fqns_per_model_part = [1]\npipeline_parallel_degree = 2\n",
         "parallelism.module_fqns_per_model_part"),
    ],
)  # fmt: skip
def test_malformed_settings_are_named(tmp_path, text, key):
    with pytest.raises(ConfigError) as caught:
        data(tmp_path, text)
    assert caught.value.key == key


@pytest.mark.parametrize(
    "text",
    ["", "a = ", "[tool.ruff]\nline-length = 3\n", "[model]\nx = 1\n", "x = " + "[" * 5000],
)
def test_other_files_are_refused(tmp_path, text):
    with pytest.raises(ConfigError, match=r"TOML|torchtitan"):
        load_job(file(tmp_path, text))


def test_adapters_are_refused():
    with pytest.raises(UnsupportedError, match="adapters"):
        read_torchtitan({"model": {"converters": ["lora"]}, "training": {}})
