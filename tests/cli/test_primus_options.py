"""Options of Primus' projection as other names of ours."""

import json
from pathlib import Path

import pytest

from projector.cli.job import JobRequest
from projector.cli.main import run as run_command
from projector.config.load import load_job
from projector.errors import ConfigError

EXAMPLES = Path(__file__).parents[2] / "examples"
MIXTRAL = str(EXAMPLES / "mixtral_8x22b_mi355x.yaml")
PRIMUS = str(EXAMPLES / "megatron" / "configs" / "MI355X" / "mixtral_8x22B_v0.1-BF16-pretrain.yaml")


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch):
    for name in ("PRIMUS_TP", "PRIMUS_PP", "PRIMUS_EP", "NNODES", "GPUS_PER_NODE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("options", "field", "value"),
    [
        ({"target_ep_size": 4}, "parallelism.ep", 4),
        ({"virtual_stages": 7}, "parallelism.vpp", 7),
        ({"enable_deepep": True}, "training.moe.dispatcher", "deepep"),
        ({"enable_zero_bubble": True}, "training.schedule", "zerobubble"),
        ({"enable_zero_bubble": True, "schedule": "v-min"}, "training.schedule", "zbv-greedy-min"),
        ({"schedule": "zerobubble-heuristic"}, "training.schedule", "seaailab"),
        ({"sync_free_stage": 1}, "training.moe.permute_fusion", True),
        ({"sync_free_stage": 1}, "training.moe.host_sync", True),
        ({"sync_free_stage": 2}, "training.moe.host_sync", False),
        ({"sync_free_stage": 3}, "training.moe.dispatcher", "deepep"),
        ({"gpu_arch": "gfx942"}, "cluster.device.name", "AMD Instinct MI300X"),
        ({"gpu_arch": "gfx950"}, "cluster.device.name", "AMD Instinct MI355X"),
    ],
)
def test_option_becomes_field(options, field, value):
    found = JobRequest(config=MIXTRAL, **options).load()
    for part in field.split("."):
        found = getattr(found, part)
    assert found == value


def test_a_stage_that_does_not_exist():
    with pytest.raises(ConfigError, match="--sync-free-stage is 4, not 0 to 3"):
        JobRequest(config=MIXTRAL, sync_free_stage=4).load()


@pytest.mark.parametrize("options", [{"enable_deepep": True}, {"sync_free_stage": 2}])
def test_a_dense_model_has_no_experts_to_change(options):
    job = JobRequest(config=MIXTRAL, assignments=("model=llama3.1_8b", "parallelism.ep=1"),
                     **options).load()  # fmt: skip
    assert any("changes nothing: Llama-3.1-8B has no experts" in note for note in job.notes)


def run(capsys, *arguments):
    code = run_command([*arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_spellings_on_the_command_line(capsys):
    code, result = run(
        capsys, "memory", "--config", MIXTRAL, "--target-num-nodes", "16", "--memory-mode",
        "simulate", "--num-virtual-stages-per-pipeline-rank", "7", "--enable-deepep",
        "--gpu-arch", "gfx950", "--sync-free-stage", "2", "--target-ep-size", "4",
    )  # fmt: skip
    assert code == 0
    assert result["device_memory_gib"] == pytest.approx(287.98, abs=0.01)
    code, result = run(capsys, "memory", "--config", MIXTRAL, "--memory-mode", "never")
    assert code == 2
    assert "never" in result["error"]


def test_options_without_effect_say_so(capsys):
    given = ("--data_path", "data", "--backend_path", "megatron", "--gemm-backend", "origami")
    _, plain = run(capsys, "performance", "--config", MIXTRAL)
    _, found = run(capsys, "performance", "--exp", MIXTRAL, *given)
    said = [text for text in found["warnings"] if text not in plain["warnings"]]
    assert [text.split(":")[0] for text in said] == [
        f"{name} changes nothing" for name in ("--data_path", "--backend_path", "--gemm-backend")
    ]
    assert found["iteration_time_ms"] == plain["iteration_time_ms"]
    code, refused = run(capsys, "memory", "--exp", MIXTRAL, "--gemm-backend", "cutlass")
    assert code == 2
    assert "'origami'" in refused["error"]


def test_device_by_environment(monkeypatch):
    monkeypatch.setenv("PRIMUS_GPU_ARCH", "gfx942")
    monkeypatch.setenv("PRIMUS_GPU_CLOCK_MHZ", "1500")
    job = load_job(PRIMUS)
    assert job.cluster.device.name == "AMD Instinct MI300X"
    assert job.cluster.gpu_clock_mhz == 1500
    assert job.origins["cluster.device"] == "environment variable PRIMUS_GPU_ARCH"
    assert load_job(PRIMUS, {"cluster.device": "h100"}).cluster.device.name.startswith("NVIDIA")
    assert load_job(MIXTRAL).cluster.device.name == "AMD Instinct MI355X"
    monkeypatch.setenv("PRIMUS_GPU_ARCH", "gfx000")
    with pytest.raises(ConfigError, match="gfx000"):
        load_job(PRIMUS)
