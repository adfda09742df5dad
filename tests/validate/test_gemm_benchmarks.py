import pytest

from projector.validate.gemm_benchmarks import library_of, loop_of


@pytest.mark.parametrize(
    ("library", "name"),
    [
        ("hipBLASLt, fastest of the tuner", "hipblaslt"),
        ("hipBLASLt db8e93b4, hipblaslt-bench, trig_float data, warm", "hipblaslt"),
        ("rocBLAS (2024-10)", "hipblaslt"),
        ("torch.matmul (hipBLASLt Tensile), ROCm 7.2", "hipblaslt"),
        ("torch.mm / _scaled_mm 2.5.1 rocm6.3 tunableop on", "hipblaslt"),
        ("Primus-Turbo gemm (hipBLASLt), torch Timer x100", "hipblaslt"),
        ("Primus-Turbo gemm_fp8 tensorwise, torch Timer x100, 2026-04", "hipblaslt"),
        ("Primus-Turbo gemm_fp8 blockwise (Triton 3.7.0), torch Timer x100", "triton"),
        ("Primus-Turbo gemm_fp8 blockwise, torch Timer x100, baseline 2026-04", "ck"),
        ("Primus-Turbo grouped_gemm (CK), balanced groups, torch Timer x100", "ck"),
        ("Primus-Turbo grouped_gemm_fp8 tensorwise (CK), balanced groups", "ck"),
        ("tritonBLAS work-stealing persistent, ROCm 7.2", "triton"),
        ("Triton", "triton"),
        ("CK", "ck"),
        ("AITER ck, fastest of the tuner", "aiter"),
        ("AITER torch, fastest of the tuner", "hipblaslt"),
        ("HipKittens", "hipkittens"),
        ("PyTorch", "pytorch"),
        ("CUTLASS CuTeDSL persistent", "cutedsl"),
        ("DeepGEMM", "deepgemm"),
        ("cuBLASLt", "default"),
        ("", "default"),
    ],
)
def test_the_library_of_a_row(library, name):
    assert library_of({"library": library}, "bf16") == name


def test_an_inference_library_has_one_for_each_type():
    row = {"library": "TensorRT-LLM 1.3.0rc20 (torch_flow)"}
    assert [library_of(row, kind) for kind in ("bf16", "fp8", "fp8_block", "nvfp4")] == [
        "default", "default", "deepgemm", "trtllm_nvfp4",
    ]  # fmt: skip


DEVICES = {"nvidia": "H100", "amd": "MI355X"}


@pytest.mark.parametrize(
    ("vendor", "row", "added_us", "least_us", "run"),
    [
        ("nvidia", {"library": "cuBLASLt"}, 3.0, 0.0, None),
        ("nvidia", {"library": "PyTorch"}, 11.0, 0.0, None),
        ("amd", {"library": "PyTorch"}, 28.0, 0.0, None),
        ("amd", {"library": "HipKittens"}, 4.0, 0.0, None),
        # A tuner reads the profiler: the kernel alone.
        ("amd", {"library": "AITER ck, fastest of the tuner"}, 0.0, 0.0, None),
        ("nvidia", {"library": "CUTLASS CuTeDSL persistent", "in_dtype": "fp8"}, 0.0, 0.0, None),
        (
            "nvidia",
            {"library": "CUTLASS CuTeDSL persistent", "in_dtype": "nvfp4(e2m1)"},
            0.0,
            24.0,
            None,
        ),
        ("nvidia", {"library": "TransformerEngine/cuBLAS"}, 0.0, 0.0, "training"),
        ("amd", {"library": "HipKittens", "op": "gemm", "in_dtype": "fp6"}, 14.0, 0.0, None),
        (
            "amd",
            {"library": "HipKittens", "op": "gemm", "in_dtype": "bf16", "gpu": "MI325X"},
            14.0,
            0.0,
            None,
        ),
        ("amd", {"library": "hipBLASLt, fastest of the tuner", "gpu": "MI210"}, 31.0, 0.0, None),
        (
            "amd",
            {"library": "hipBLASLt, fastest of the tuner", "gpu": "MI250X (one die)"},
            0.0,
            0.0,
            None,
        ),
        (
            "amd",
            {"library": "Primus-Turbo grouped_gemm (CK), balanced", "op": "grouped gemm (fwd)"},
            0.0,
            64.0,
            "training",
        ),
        (
            "amd",
            {
                "library": "Primus-Turbo grouped_gemm (CK), balanced",
                "op": "grouped gemm (bwd dgrad+wgrad)",
            },
            0.0,
            140.0,
            "training",
        ),
        (
            "amd",
            {
                "library": "Primus-Turbo grouped_gemm_fp8 tensorwise (CK)",
                "op": "grouped linear (fwd; time includes quantising from bf16)",
            },
            0.0,
            114.0,
            "training",
        ),
        ("amd", {"library": "Primus-Turbo gemm (hipBLASLt)"}, 0.0, 0.0, "training"),
        ("amd", {}, 0.0, 0.0, None),
    ],
)
def test_the_loop_of_a_row(vendor, row, added_us, least_us, run):
    loop = loop_of({"gpu": DEVICES[vendor], **row})
    assert (loop.added_us, loop.least_us, loop.run) == (added_us, least_us, run)
