import pytest

from projector.config.load import load_job
from projector.validate.jobs import JobRow
from projector.validate.recipes import framework_of


@pytest.mark.parametrize(
    ("row", "name", "release"),
    [
        ({"source": "NVIDIA-NeMo/Megatron-Bridge docs", "other_flags": "26.04.01 NeMo Container"},
         "megatron_bridge", "26.04.01"),
        ({"source": "NVIDIA-NeMo/Megatron-Bridge docs"}, "megatron_bridge", None),
        # A release nobody knows counts as the last one before it.
        ({"source": "NVIDIA-NeMo/Megatron-Bridge docs", "other_flags": "26.07 NeMo Container"},
         "megatron_bridge", "26.06"),
        ({"source": "NVIDIA/NeMo docs", "other_flags": "NeMo 24.07 container"}, "nemo", "24.07"),
        ({"source": "NVIDIA/dgxc-benchmarking v25.05.05 grok1/README.md"}, "nemo", "25.04"),
        ({"source": "NVIDIA/dgxc-benchmarking v25.04.02 x", "recipe_other": "NeMo 2 (25.02.01)"},
         "nemo", "25.02.01"),
        ({"source": "NVIDIA/dgxc-benchmarking v24.11.1 paxml/README_175b.md"}, "paxml", None),
        ({"source": "NVIDIA/dgxc-benchmarking v24.11.1 maxtext/README.md"}, "maxtext", None),
        ({"source": "somebody/else", "other_flags": "JAX"}, "maxtext", None),
        ({"source": "pytorch/torchtitan benchmarks/llama3_h100_202412_torchtitan.md"},
         "torchtitan", "2024-12"),
        ({"source": "pytorch/torchtitan benchmarks/asyncTP_llama3_h100_2025-06.md"},
         "torchtitan", "2025-06"),
        ({"source": "AMD-AGI/Primus torchtitan backend"}, "torchtitan", None),
        ({"source": "Primus-projection-blog table", "other_flags": "rocm/primus:v26.1; measured"},
         "primus", "26.1"),
        ({"source": "hisohara/ai-scripts training/04_megatron-pyxis/x.out"}, "megatron_lm", None),
        ({"source": "hisohara/ai-scripts training/03_primus/x.log"}, "primus", None),
        ({"source": "mosaicml/llm-foundry README"}, "llm_foundry", "0.3"),
        ({"source": "Zero Bubble PP paper (2401.10241) Table 4"}, "megatron_lm", "2022"),
        ({"source": "NVIDIA/Megatron-LM images/cases_april2021.png"}, "megatron_lm", "2021"),
        ({"source": "foundation-model-stack/fms-fsdp README"}, "fms_fsdp", "2024-03"),
        ({"source": "NVIDIA-NeMo/Automodel docs"}, "automodel", None),
    ],
)  # fmt: skip
def test_the_framework_of_a_source(row, name, release):
    assert framework_of(row) == ({"name": name, "release": release} if release else {"name": name})


@pytest.mark.parametrize("source", ["InternLM/InternEvo doc", "JaneLiCC/Notes eos.md", ""])
def test_a_source_without_a_known_framework(source):
    assert framework_of({"source": source}) is None


ROW = {
    "model": "Llama-3.1-70B", "gpu": "H100", "n_gpus": "64", "precision": "BF16",
    "seq_len": "8192", "micro_batch": "1", "global_batch": "128", "tp": "4", "pp": "4", "cp": "2",
    "source": "NVIDIA/dgxc-benchmarking v24.11.1 x", "other_flags": "NeMo 24.07",
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "kernel"),
    [
        ({}, "fa2"),
        ({"other_flags": "NeMo 24.09"}, "default"),
        # What the recipe says wins.
        ({"other_flags": "NeMo 24.09", "recipe_other": "NVTE_FUSED_ATTN=0"}, "fa2"),
        ({"source": "NVIDIA-NeMo/Automodel docs", "other_flags": "TE + DeepEP"}, "default"),
    ],
)
def test_attention_of_a_framework_and_release(changes, kernel):
    assert load_job(JobRow({**ROW, **changes}).job()).training.attention_kernel == kernel
