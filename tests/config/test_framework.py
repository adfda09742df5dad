"""Frameworks: what they set, what wins over them, and what is refused."""

import pytest
from pydantic import TypeAdapter

from projector.config.cluster import ClusterConfig
from projector.config.device_file import load_device
from projector.config.framework import profile_named, profiles
from projector.config.load import Variants, load_job
from projector.config.parallelism import ParallelismConfig
from projector.config.resources import data_dir
from projector.config.training import TrainingConfig
from projector.config.yaml_file import read_yaml
from projector.errors import ConfigError
from projector.projection.provenance import provenance_of

JOB = {
    "model": "llama3.1_8b",
    "parallelism": {"fsdp": 2},
    "training": {"micro_batch_size": 1, "global_batch_size": 64, "seq_length": 4096},
    "cluster": {"device": "h100"},
}
SECTIONS = {"parallelism": ParallelismConfig, "training": TrainingConfig, "cluster": ClusterConfig}


def with_framework(framework, **overrides):
    return load_job(JOB, {"training.framework": framework, **overrides})


def test_a_name_or_a_mapping_names_a_framework():
    named = with_framework("torchtitan")
    mapped = with_framework({"name": "TorchTitan", "release": None})
    assert named == mapped
    assert str(with_framework({"name": "mcore", "release": "0.12.1"}).training.framework) == (
        "megatron_lm 0.12.1"
    )


def test_attention_follows_framework_release_and_architecture():
    kernel = "training.attention_kernel"

    def of(framework, device):
        return with_framework(framework, **{"cluster.device": device}).training.attention_kernel

    assert load_job(JOB).training.attention_kernel == "default"
    assert of("torchtitan", "h100") == "default"
    assert of({"name": "torchtitan", "release": "2025-10"}, "h100") == "fa2"
    assert of("torchtitan", "b200") == "default"
    assert of({"name": "torchtitan", "release": "2025-02"}, "b200") == "fa2"
    assert of("nemo", "h100") == "default"
    assert of({"name": "nemo", "release": "24.07"}, "h100") == "fa2"
    assert of({"name": "nemo", "release": "24.07"}, "a100") == "default"
    assert with_framework("torchtitan", **{kernel: "cudnn"}).training.attention_kernel == "cudnn"


def test_what_a_job_states_is_not_changed_by_a_framework():
    stated = load_job(JOB, {"training.framework": "torchtitan"})
    assert stated.training.model_fields_set == {*JOB["training"], "framework"}
    assert "parallelism" in stated.model_fields_set
    without = load_job(stated, {"training.framework": None})
    assert without == load_job(JOB)
    assert load_job(stated, {"training.framework": "llm_foundry"}) == with_framework("llm_foundry")
    assert load_job(stated, {"cluster.device": "b200"}) == with_framework(
        "torchtitan", **{"cluster.device": "b200"}
    )


def test_variants_follow_the_framework_and_the_device():
    variants = Variants(with_framework({"name": "torchtitan", "release": "2025-02"}))
    changes = [
        {"cluster.device": "b200"},
        {"cluster.device": "a100", "training.framework.release": "2025-06"},
        {"training.framework": "llm_foundry"},
        {"training.framework": None},
        {"training.attention_kernel": "cudnn"},
        {"parallelism.tp": 2},
    ]
    base = with_framework({"name": "torchtitan", "release": "2025-02"})
    for overrides in changes:
        wanted = load_job(base, overrides)
        assert variants.job(overrides) == wanted
        for name in SECTIONS:
            assert variants.section(name, overrides) == getattr(wanted, name)


def test_provenance_names_framework_and_release():
    job = with_framework({"name": "llm_foundry", "release": "0.3"})
    derived = provenance_of(job).derived
    assert derived["training.attention_kernel"] == "triton (framework llm_foundry 0.3)"
    assert derived["parallelism.fsdp_backward_prefetch"] == "0 (framework llm_foundry 0.3)"
    stated = load_job(job, {"training.attention_kernel": "fa2"})
    assert "training.attention_kernel" not in provenance_of(stated).derived


@pytest.mark.parametrize(
    ("framework", "key", "words"),
    [
        ("torchtitam", "training.framework.name", "did you mean 'torchtitan'"),
        ("x", "training.framework.name", "known: megatron_lm"),
        ({"name": "nemo", "release": "1999"}, "training.framework.release", "known: 24.01"),
        ({"name": "nemo", "release": 24.1}, "training.framework.release", "in quotes"),
        (
            {"name": "torchtitan", "release": "2023-01"},
            "training.framework.release",
            "known: 2024",
        ),
        ({"release": "24.01"}, "training.framework.name", "is required"),
        ({"name": "nemo", "version": "24.01"}, "training.framework.version", "unknown key"),
        (3, "training.framework", "a name, or a mapping of name and release .got 3"),
    ],
)
def test_unknown_frameworks_and_releases_are_refused(framework, key, words):
    with pytest.raises(ConfigError, match=words) as caught:
        with_framework(framework)
    assert caught.value.key == key


def test_patches_count_as_their_release_and_months_as_the_last_before():
    assert profile_named("nemo").position("24.03.01") == profile_named("nemo").position("24.03")
    titan = profile_named("torchtitan")
    assert titan.position("2025-08") == titan.position("2025-06")
    assert titan.position(None) == len(titan.releases) - 1
    assert titan.month("2025-08") == "2025-06"


def test_every_value_of_every_profile_is_one_of_its_field():
    architectures = {load_device(name).architecture for name in ("a100", "h100", "b200", "mi300x")}
    for key, profile in profiles().by_key.items():
        months = [*profile.releases.values()]
        assert months == sorted(months), key
        for rule in profile.rules:
            assert set(rule.architectures or ()) <= architectures | {"cdna2", "cdna4"}
            for dotted, stated in rule.set.items():
                section, *names = dotted.split(".")
                owner, field = SECTIONS[section], None
                for name in names:
                    field = owner.model_fields[name]
                    owner = field.annotation
                TypeAdapter(field.annotation).validate_python(stated.value)


def test_every_source_is_used():
    data = read_yaml(data_dir("hardware") / "software.yaml")
    used = {
        stated.source
        for profile in profiles().by_key.values()
        for rule in profile.rules
        for stated in rule.set.values()
    }
    assert used == set(data["sources"])


@pytest.mark.parametrize("device", ["a100", "h100", "b200", "mi300x", "mi355x"])
def test_every_framework_projects_on_every_device(device):
    for key, profile in profiles().by_key.items():
        for release in profile.releases:
            job = with_framework({"name": key, "release": release}, **{"cluster.device": device})
            kernel = job.training.attention_kernel
            assert kernel == "default" or kernel in job.cluster.device.attention_kernels
