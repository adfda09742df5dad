"""The table of names: every pattern has a source, and known names mean what they should."""

import re

import pytest

from projector.trace import names as tables
from projector.trace.activity import ATTENTION, COLLECTIVE, GEMM, PHASES, TYPES


def patterns(value):
    if isinstance(value, tables.Pattern):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from patterns(each)
    elif isinstance(value, tuple):
        for each in value:
            yield from patterns(each)


def test_every_pattern_compiles_and_has_a_source():
    table = tables.load_trace_names()
    found = [each for field in type(table).model_fields for each in patterns(getattr(table, field))]
    assert len(found) > 60
    for each in found:
        re.compile(each.pattern)
        assert each.source in table.sources
    assert set(table.phases) | set(table.phase_kernels) <= set(PHASES)
    assert {each.type for each in [*table.kernel_types, *table.operator_types]} <= set(TYPES)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4>(Params)", GEMM),
        ("Cijk_Ailk_Bljk_BBS_BH_MT32x32x64_MI16x16x16x1_SN", GEMM),
        ("nvjet_tst_144x128_64x6_2x1_v_bz_bias_TNN", GEMM),
        ("void cublasLt::splitKreduce_kernel<32, 16, int, float>", GEMM),
        ("fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausalP16VarSeqQ128Kv128", ATTENTION),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16", ATTENTION),
        ("void flash::flash_bwd_dot_do_o_kernel<true>", ATTENTION),
        ("void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>", TYPES.index("vector")),
        ("void at::native::vectorized_elementwise_kernel<4>", -1),
    ],
)
def test_types_of_kernels(name, expected):
    assert tables.types([name], tables.load_trace_names().kernel_types).tolist() == [expected]


@pytest.mark.parametrize(
    ("name", "talks"),
    [
        ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", True),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)", True),
        ("void deep_ep::internode_ll::dispatch<true, 3, 10, 7168>", True),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>", True),
        ("void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<c10::BFloat16>", True),
        ("kuserbuffers_pushrecv", True),
        ("void deep_ep::layout::get_dispatch_layout<256>", False),
        ("void at::native::reduce_kernel<512, 1>", False),
    ],
)
def test_kernels_that_communicate(name, talks):
    table = tables.load_trace_names().communication_kernels
    assert tables.fits([name], table).tolist() == [talks]


def test_numbers_of_absurd_length_count_nothing():
    table = tables.load_trace_names().iterations
    names = ["ProfilerStep#7", "ProfilerStep#" + "9" * 40, "step 12", "stepwise"]
    assert tables.numbers(names, table).tolist() == [7, -1, 12, -1]


def test_operators_of_communication():
    found = tables.types(
        ["c10d::allreduce_", "aten::add"], tables.load_trace_names().operator_types
    )
    assert found.tolist() == [COLLECTIVE, -1]
