import pytest

from projector.validate.names import (
    device_name,
    device_of,
    model_name,
    precision_name,
    precision_of,
    source_of,
)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("BF16", "bf16"),
        ("fp8 (128-block scales)", "fp8"),
        ("fp8-blockwise", "fp8_block"),
        ("FP8-CS", "fp8"),
        ("FP8-MX", "mxfp8"),
        ("fp8mx", "mxfp8"),
        ("MX FP8", "mxfp8"),
        ("nvfp4(e2m1)", "nvfp4"),
        ("mxfp4 (32-block scales)", "mxfp4"),
        ("fp6", "mxfp6"),
        ("int8 (per-token, per-channel scales)", "int8"),
    ],
)
def test_a_precision_by_its_published_name(text, kind):
    assert precision_of(text) == kind


@pytest.mark.parametrize(
    "text", ["B300", "NVIDIA B300 SXM6", "HGX B300 NVL16", "B300 Ultra", "Blackwell Ultra B300"]
)
def test_a_device_by_its_published_name(text):
    assert device_of(text) == "b300"


def test_a_longer_number_is_another_type():
    with pytest.raises(ValueError, match="unknown precision 'FP64'"):
        precision_of("FP64")


@pytest.mark.parametrize("read", [precision_of, device_of])
def test_what_nobody_knows(read):
    with pytest.raises(ValueError, match="unknown"):
        read("posit7")


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("mosaicml/llm-foundry scripts/train/README.md / H100", "mosaicml/llm-foundry"),
        ("AMD-AGI/Primus@fd1eeabb examples/run.sh comment", "AMD-AGI/Primus"),
        ("AMD-AGI/Primus-Turbo@03b9a809 gemm.csv", "AMD-AGI/Primus-Turbo"),
        ("SimuMax assets/A100-Pcie.png", "MooreThreads/SimuMax"),
        ("MooreThreads/SimuMax docs/b200", "MooreThreads/SimuMax"),
        ("torchtitan docs/performance.md", "pytorch/torchtitan"),
        ("Zero Bubble PP paper (2401.10241) Table 4", "Zero Bubble"),
        ("sail-sg/zero-bubble-pipeline-parallelism README", "Zero Bubble"),
        ("calculon validation.py (Korthikanti 2022 Table 5)", "Korthikanti"),
        ("HF spaces nanotron/ultrascale-playbook fragments", "Ultra-Scale Playbook"),
        ("2 (Primus projection blog) Validation table", "Primus-projection-blog"),
        ("https://github.com/NVIDIA/nccl-tests/issues/309", "NVIDIA/nccl-tests"),
        ("Azure ND_H100_v5_results.md", "Azure/AI-benchmarking-guide"),
        ("egmsft/AI-benchmarking-guide GB300", "egmsft/AI-benchmarking-guide"),
        ("somebody/else page", "somebody/else"),
        ("", ""),
    ],
)
def test_one_name_for_each_origin(text, origin):
    assert source_of(text) == origin


@pytest.mark.parametrize("name", ["BF16", "bf16", "amp_bf16", "BF16 (assumed)", "bfloat16"])
def test_spellings_of_a_precision_are_one_group(name):
    assert precision_name(name) == "bf16"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("FP8-CS", "fp8 tensorwise"),
        ("fp8cs", "fp8 tensorwise"),
        ("FP8 (float8 linear)", "fp8 tensorwise"),
        ("FP8 rowwise", "fp8 rowwise"),
        ("FP8-SC", "fp8 block"),
        ("fp8 (128-block scales)", "fp8 block"),
        ("FP8-DS", "fp8 delayed"),
        ("amp_fp8", "fp8"),
        ("FP8-MX", "mxfp8"),
        ("mxfp4 weights, fp8 activations", "mxfp4 weights, fp8 activations"),
        ("FP8 (W8A8, FP8 KV)", "FP8 (W8A8, FP8 KV)"),
        ("posit7", "posit7"),
    ],
)
def test_scaling_keeps_groups_of_fp8_apart(text, name):
    assert precision_name(text) == name


def test_spellings_of_devices_and_models_are_one_group():
    assert {device_name(text) for text in ("H100", "H100-80GB", "H100-80GB-SXM")} == {"h100"}
    assert device_name("a machine") == "a machine"
    names = ("Llama-3.1-70B", "LLAMA3.1_70B", "llama31_70b")
    assert {model_name(text) for text in names} == {"llama3.1_70b"}
    assert model_name("llama3-70b-L12") == "llama3_70b, 12 layers"
    assert model_name("Llama-3.1-405B (num_layers<126 = proxy)") == "llama3.1_405b, proxy"
    # One name, two models: other columns tell them apart.
    assert model_name("GPT-1.7B") == "GPT-1.7B"
    assert model_name("a model") == "a model"
