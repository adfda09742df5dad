import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector.config import resources
from projector.config.device_file import load_device
from projector.config.yaml_file import read_yaml
from projector.validate.jobs import JobRow
from projector.validate.names import load_table_names
from projector.validate.recipes import Layout, virtual_stages
from projector.validate.words import said

DOCUMENT = read_yaml(resources.data_dir("models") / "recipes.yaml")


def layout(device, tp, pp, cp=1, ep=1, precision="bf16", release=""):
    return Layout(device, tp, pp, cp, ep, precision, release)


@pytest.mark.parametrize("model", DOCUMENT["pipelines"])
def test_every_recipe_names_what_exists(model):
    resources.find("models", model, key="model")
    for recipe in DOCUMENT["pipelines"][model]:
        load_device(recipe["device"])
        assert set(recipe.get("types", ())) <= set(load_table_names().precisions.values())
        assert recipe["since"] <= recipe["until"]
        assert recipe["pp"] > 1


@pytest.mark.parametrize(
    ("model", "layers", "split", "vpp"),
    [
        ("llama3.1_70b", 80, layout("h100", 4, 4, cp=2), 5),
        ("llama3_70b", 80, layout("gb300", 1, 4, precision="nvfp4"), 5),
        ("llama3.1_405b", 126, layout("gb200", 4, 8, cp=2, release="25.09"), 8),
        ("llama3.1_405b", 126, layout("gb300", 4, 8, cp=2, precision="nvfp4"), 4),
        # A release without virtual stages, then one with them.
        ("qwen3_235b_a22b", 94, layout("b200", 1, 8, ep=8, release="26.02", precision="mxfp8"), 1),
        ("qwen3_235b_a22b", 94, layout("b200", 1, 8, ep=8, release="25.09", precision="mxfp8"), 2),
        ("deepseek_v3", 61, layout("b200", 1, 16, ep=8), 1),
        ("deepseek_v3", 61, layout("h100", 2, 8, ep=64), 4),
        # Fewer stages than any recipe: its two layers a virtual stage stay.
        ("llama3.1_405b", 126, layout("h100", 8, 9, cp=2), 7),
        ("llama3.1_405b", 21, layout("h100", 8, 3, cp=2), 7),
        # No recipe of the model: two layers, and one stage where layers do not divide.
        ("llama2_70b", 80, layout("h100", 4, 8), 5),
        ("llama2_70b", 79, layout("h100", 4, 8), 1),
    ],
)
def test_virtual_stages_of_recipes(model, layers, split, vpp):
    assert virtual_stages(model, layers, split)[0] == vpp


@given(
    model=st.sampled_from([*DOCUMENT["pipelines"], "llama2_7b"]),
    layers=st.integers(1, 200),
    pp=st.integers(2, 64),
    tp=st.sampled_from([1, 2, 4, 8]),
    device=st.sampled_from(["a100", "h100", "gb300"]),
    release=st.sampled_from(["", "24.09", "26.02.01", "27.01"]),
)
def test_any_split_has_virtual_stages(model, layers, pp, tp, device, release):
    vpp, origin = virtual_stages(model, layers, layout(device, tp, pp, release=release))
    assert 1 <= vpp <= max(64, layers + 2)
    assert origin


@pytest.mark.parametrize(
    ("row", "release"),
    [
        ({"other_flags": "dropless; 26.04.01 NeMo Container"}, "26.04.01"),
        ({"other_flags": "NeMo 24.09"}, "24.09"),
        ({"other_flags": "NeMo 25.04.rc2; published DP"}, "25.04"),
        ({"recipe_other": "NeMo 2 (25.02.01); NVLS off"}, "25.02.01"),
        ({"source": "NVIDIA/dgxc-benchmarking v25.05.05 grok1/README.md"}, "25.05.05"),
        ({"recipe_source": "NVIDIA-NeMo/Megatron-Bridge@v0.4.2 scripts"}, "26.04.01"),
        ({"source": "Zero Bubble PP paper (2401.10241) Table 4"}, ""),
        ({}, ""),
    ],
)
def test_container_of_a_row(row, release):
    assert said(row, "container") == release


ROW = {
    "model": "Llama-3.1-405B", "gpu": "H100", "n_gpus": "1024", "precision": "BF16",
    "seq_len": "8192", "micro_batch": "1", "global_batch": "512", "tp": "8", "pp": "8", "cp": "2",
    "source": "NVIDIA/dgxc-benchmarking v25.04.02 llama3.1/README.md",
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "vpp"),
    [
        ({}, 8),
        ({"vpp": "2"}, 2),
        ({"source": "pytorch/torchtitan benchmarks"}, 1),
        ({"source": "NVIDIA/dgxc-benchmarking paxml/README"}, 1),
        # Megatron interleaves whole rounds of microbatches alone.
        ({"global_batch": "32"}, 1),
        ({"model": "Llama-2-70B"}, 5),
        # Its tables have the column, and leave it blank where a pipeline has none.
        ({"model": "Llama-2-70B", "source": "NVIDIA-NeMo/Megatron-Bridge docs"}, 1),
        ({"source": "NVIDIA-NeMo/Megatron-Bridge docs"}, 8),
    ],
)
def test_blank_virtual_stages_of_a_row(changes, vpp):
    row = JobRow({**ROW, **changes})
    assert row.job()["parallelism"]["vpp"] == vpp
    assert any("vpp" in note for note in row.notes) == ("vpp" not in changes and row.vpp > 1)


def test_paxml_shares_states_within_its_mesh():
    row = {
        **ROW, "model": "GPT3-175B (Paxml/JAX)", "tp": "1", "pp": "1", "cp": "1",
        "fsdp_zero": "FSDP+DP", "recipe_recompute": "selective:SAVE_DOT_ONLY (JAX)",
        "source": "NVIDIA/dgxc-benchmarking v24.11.1 paxml/README_175b.md",
    }  # fmt: skip
    job = JobRow({**row, "global_batch": "2048"}).job()
    assert job["parallelism"]["sharding_group_size"] == 128
    assert "mlp" in job["training"]["recompute"]["modules"]
    small = {**row, "model": "GPT3-5B (Paxml/JAX)", "n_gpus": "64", "global_batch": "256"}
    assert JobRow(small).job()["parallelism"]["sharding_group_size"] == 8
    assert "sharding_group_size" not in JobRow({**row, "n_gpus": "128"}).job()["parallelism"]
