"""How numbers and names of traces are written for people."""

import pytest

from projector.report.terminal.trace import ms, short, us


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("aten::mm", "aten::mm"),
        ("Memcpy HtoD (Host -> Device)", "Memcpy HtoD (Host -> Device)"),
        ("ncclKernel_AllReduce_RING_LL(ncclDevComm*)", "ncclKernel_AllReduce_RING_LL"),
        (
            "void at::native::elementwise_kernel<2, direct_copy_kernel_cuda(int)::{lambda()}>()",
            "elementwise_kernel<direct_copy>",
        ),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::CUDAFunctor_add<float>, 3>(int)",
            "vectorized_elementwise_kernel<CUDAFunctor_add>",
        ),
        ("void (anonymous namespace)::softmax_forward<float, 10>(float*)", "softmax_forward"),
        ("a < b", "a < b"),
        ("::<", "::<"),
        ("x" * 199, "x" * 199),
        ("_ZN2ck6device12_GLOBAL__N_110gemm_batchIfLi3EEEvPT_.kd", "gemm_batch"),
        ("_Zebra", "_Zebra"),
    ],
)  # fmt: skip
def test_names_are_short(name, written):
    assert short(name) == written


def test_numbers_have_sensible_digits():
    assert [ms(ns) for ns in (0, 1234.5, 12_345_678, 9_876_543_210)] == [
        "0.000", "0.001", "12.35", "9,876.5"
    ]  # fmt: skip
    assert [us(ns) for ns in (None, 850, 12_345, 9_876_543)] == ["", "0.85", "12.3", "9,877"]
