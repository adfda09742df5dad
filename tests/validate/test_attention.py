import numpy as np
import pytest

from projector.config.device_file import load_device
from projector.single.attention import attention_time
from projector.validate.attention import KIND, default_or_name
from projector.validate.kind import FROM_ROW, FROM_RULE, OK

COUNT = "4*b*s^2*h*d, halved if causal; fwd+bwd x3.5"
ROW = {
    "gpu": "H100-80GB-SXM",
    "impl": "FlashAttention-3",
    "dtype": "FP16/BF16",
    "pass": "fwd",
    "seq_len": "1024",
    "head_dim": "64",
    "v_head_dim": "64",
    "q_heads": "8",
    "kv_heads": "8",
    "batch": "2",
    "causal": "True",
    "tflops": "100",
    "time_ms": "",
    "flops_convention": COUNT,
    "notes": "",
}
FULL_FLOP = 4.0 * 2 * 1024**2 * 8 * 64


def project(**changes):
    (outcome,) = KIND.project([{**ROW, **changes}])
    return outcome


BRIEF = 2e-3
"""A kernel of a tenth of a millisecond barely leaves the boost clock."""


def time_ms(**changes):
    fields = {"head_dim": 64, "device": "h100", "impl": "fa3", "clock_mhz": 1980, **changes}
    return attention_time(2, 8, 1024, **fields) * 1e3


def test_a_plain_row_is_the_kernel_in_milliseconds():
    outcome = project()
    assert outcome.status == OK
    assert outcome.mark == FROM_ROW
    assert outcome.predicted == pytest.approx(time_ms(), rel=BRIEF)
    assert outcome.ratio == pytest.approx(outcome.predicted / outcome.measured)


@pytest.mark.parametrize(
    ("convention", "name", "causal", "factor"),
    [
        (COUNT, "fwd", "True", 0.5),
        (COUNT, "fwd", "False", 1.0),
        (COUNT, "fwd+bwd", "False", 3.5),
        (COUNT, "fwd+bwd", "True", 1.75),
        (COUNT, "bwd", "False", 2.5),
        ("4*b*s^2*h*d (/2 causal); bwd x2.5", "fwd", "True", 0.5),
        ("4*b*s^2*h*d (/2 causal); bwd x2.5", "bwd", "True", 1.25),
        ("4*b*s^2*h*d (/2 causal); bwd x2.5", "fwd+bwd", "False", 3.5),
        ("4*b*s^2*h*d", "fwd", "True", 1.0),
        ("flash-attention benchmark script", "fwd+bwd (a script)", "not stated", 3.5),
    ],
)
def test_a_rate_becomes_a_time_by_its_convention(convention, name, causal, factor):
    outcome = project(**{"flops_convention": convention, "pass": name, "causal": causal})
    assert outcome.measured == pytest.approx(FULL_FLOP * factor / 100e12 * 1e3)


def test_a_time_needs_no_convention():
    outcome = project(time_ms="0.25", flops_convention="")
    assert outcome.measured == 0.25


def test_forward_and_backward_add_up():
    outcome = project(**{"pass": "fwd+bwd"})
    expected = time_ms() + time_ms(backward=True)
    assert outcome.predicted == pytest.approx(expected, rel=BRIEF)
    assert project(**{"pass": "backward"}).predicted == pytest.approx(
        time_ms(backward=True), rel=BRIEF
    )


def test_masks_windows_and_widths_are_read():
    assert project(causal="False").predicted == pytest.approx(time_ms(causal=False), rel=BRIEF)
    notes = "sliding window 128; paged KV cache"
    assert project(notes=notes).predicted == pytest.approx(time_ms(window=128), rel=BRIEF)
    outcome = project(head_dim="192", v_head_dim="128", kv_heads="2")
    assert outcome.predicted == pytest.approx(
        time_ms(head_dim=192, v_head_dim=128, kv_heads=2), rel=BRIEF
    )


@pytest.mark.parametrize("causal", ["assumed causal", "not stated", ""])
def test_an_unstated_mask_follows_a_rule(causal):
    outcome = project(causal=causal)
    assert outcome.mark == FROM_RULE
    assert outcome.predicted == project(causal=str(causal.startswith("assumed"))).predicted


def test_passes_and_devices_mix_in_one_batch():
    rows = [{**ROW, "gpu": gpu, "pass": name} for gpu in ("H100", "MI355X") for name in (
        "fwd", "bwd", "fwd+bwd",
    )]  # fmt: skip
    assert KIND.project(rows) == [project(**row) for row in rows]


def test_a_bad_row_fails_alone():
    rows = [
        ROW,
        {**ROW, "gpu": "abacus"},
        {**ROW, "dtype": "int5"},
        {**ROW, "pass": "decode"},
        {**ROW, "causal": "sometimes"},
        {**ROW, "seq_len": "long"},
        {**ROW, "seq_len": "0"},
        {**ROW, "batch": "1e300"},
        {**ROW, "kv_heads": "3"},
        {**ROW, "tflops": ""},
        {**ROW, "tflops": "0"},
        {**ROW, "time_ms": "-1"},
        {**ROW, "time_ms": "inf"},
        {**ROW, "flops_convention": "who knows"},
        {**ROW, "pass": "bwd", "flops_convention": "4*b*s^2*h*d"},
        ROW,
    ]
    outcomes = KIND.project(rows)
    assert [outcome.status == OK for outcome in outcomes] == [True] + [False] * 14 + [True]
    assert outcomes[0] == outcomes[-1] == project()
    assert "abacus" in outcomes[1].status


def test_no_rows_no_outcomes():
    assert KIND.project([]) == []


@pytest.mark.parametrize(
    ("impl", "eligible"),
    [
        ("FlashAttention-2", True),
        ("cuDNN", True),
        ("TransformerEngine DotProductAttention", True),
        ("TensorRT-LLM FMHA 1.0.0 (torch_flow)", True),
        ("vLLM 0.24.0 (vllm_flash_attn_fa3)", True),
        ("CK", True),
        ("AITER (json ref)", True),
        ("HipKittens", True),
        ("Primus-Turbo flash_attn (AITER asm/CK), 2026-04-02", True),
        ("FlashAttention", False),
        ("aiter_gluon", False),
        ("PyTorch SDPA", False),
        ("Triton", False),
    ],
)
def test_mature_implementations_are_eligible(impl, eligible):
    assert (KIND.why_not_eligible({**ROW, "impl": impl}) == "") is eligible


def test_a_row_needs_all_dimensions():
    assert KIND.why_not_eligible({**ROW, "v_head_dim": ""}) == "no v_head_dim"


@pytest.mark.parametrize(
    ("gpu", "impl", "dtype", "kernel"),
    [
        ("H100", "FlashAttention-2", "fp16", "fa2"),
        ("H100", "FlashAttention-3", "bf16", "fa3"),
        ("H100", "cuDNN", "bf16", "default"),
        ("B200", "TransformerEngine DotProductAttention", "bf16", "default"),
        ("H100", "TensorRT-LLM FMHA 1.3 (torch_flow)", "bf16", "trtllm_fmha"),
        ("H100", "TensorRT-LLM FMHA 1.3 (torch_flow)", "fp8", "trtllm_fmha_fp8"),
        ("B200", "TensorRT-LLM FMHA 1.3 (torch_flow_flashinfer)", "bf16", "trtllm_flashinfer"),
        ("GB300", "vLLM 0.24 (vllm_flashinfer_trtllmprefill)", "bf16", "vllm_flashinfer"),
        ("H200", "vLLM 0.24 (vllm_flash_attn_fa3)", "bf16", "vllm_fa3"),
        ("H200", "vLLM 0.24 (vllm_flash_attn_fa4)", "bf16", "vllm_fa4"),
        ("B200", "vLLM 0.24 (vllm_flash_attn_fa4)", "bf16", "fa4"),
        ("A100", "vLLM 0.14 (vllm_flash_attn)", "bf16", "vllm_fa2"),
        ("MI300X", "FlashAttention-2", "fp16", "ck"),
        ("MI355X", "HipKittens", "bf16", "hipkittens"),
        ("MI355X", "AITER (json ref)", "bf16", "default"),
        ("MI300X", "Primus-Turbo flash_attn (AITER asm/CK)", "bf16", "default"),
        ("MI300X", "Primus-Turbo flash_attn_fp8 (Triton)", "fp8", "primus_turbo_fp8"),
    ],
)
def test_an_implementation_is_the_kernel_that_the_device_describes(gpu, impl, dtype, kernel):
    device = load_device(gpu)
    name = default_or_name({"impl": impl, "dtype": dtype}, device)
    assert name == kernel or device.attention_kernels[name] == device.attention_kernels[kernel]


def test_an_implementation_that_no_device_describes_is_the_default_and_says_so():
    outcome = project(gpu="MI300X", impl="FlashAttention-3")
    assert outcome.mark == FROM_RULE
    assert "default kernel" in outcome.note


def test_a_long_kernel_runs_at_the_clock_of_training():
    assert project().predicted < 0.95 * time_ms(clock_mhz=None)
    many = project(batch="60000", q_heads="16", kv_heads="16")
    slow = attention_time(60000, 16, 1024, head_dim=64, device="h100", impl="fa3") * 1e3
    assert many.predicted == pytest.approx(slow, rel=0.02)


# FlashAttention-2 2.7.4 on B200, heads of 64 of a width of 2,048, no mask, 16,384 tokens: sequence
# length, TFLOP/s forward and backward (github.com/Dao-AILab/flash-attention, issue 1589).
ON_B200 = (
    (512, 308.40, 243.05),
    (1024, 359.30, 280.64),
    (2048, 380.99, 301.61),
    (4096, 306.94, 314.71),
    (8192, 343.07, 329.09),
    (16384, 379.44, 333.95),
)


@pytest.mark.parametrize(
    ("name", "column", "median", "most"), [("fwd", 1, 0.105, 0.126), ("bwd", 2, 0.044, 0.083)]
)
def test_published_rates_outside_the_table_are_met_as_the_page_says(name, column, median, most):
    shape = {"gpu": "B200", "impl": "FlashAttention-2", "causal": "False", "pass": name}
    shape |= {"q_heads": "32", "kv_heads": "32", "flops_convention": "4*b*s^2*h*d; bwd x2.5"}
    ratios = [
        project(
            **shape, seq_len=str(row[0]), batch=str(16384 // row[0]), tflops=str(row[column])
        ).ratio
        for row in ON_B200
    ]
    errors = np.abs(np.array(ratios) - 1.0)
    assert np.median(errors) == pytest.approx(median, abs=2e-3)
    assert np.max(errors) == pytest.approx(most, abs=2e-3)
