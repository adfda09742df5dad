import pytest

from projector.trace.counter_join import BARE, FULL, FUNCTION, common_level, spelled

FILL = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, \
std::array<char*, 1ul> >(int, at::native::FillFunctor<float>, std::array<char*, 1ul>)"
TENSILE = "Cijk_Alik_Bljk_SB_MT64x16x32_MI16x16x1_SN"


@pytest.mark.parametrize(
    "name",
    [
        FILL,
        FILL + " [clone .kd]",
        FILL + " (.kd)",
        FILL.replace("> >", ">>"),
        "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_T1_",
        "at::native::vectorized_elementwise_kernel",
    ],
)
def test_spellings_of_one_kernel(name):
    assert spelled(name, BARE) == "at::native::vectorized_elementwise_kernel"
    assert spelled(name, FUNCTION) == "vectorized_elementwise_kernel"


def test_spaces_and_ends_do_not_count():
    plain = spelled(FILL, FULL)
    assert spelled(FILL.replace("> >", ">>") + ".kd", FULL) == plain
    assert spelled(FILL.replace("<4,", "<8,"), FULL) != plain


@pytest.mark.parametrize(
    ("name", "bare"),
    [
        (TENSILE, TENSILE),
        (TENSILE + ".kd", TENSILE),
        ("triton_poi_fused_add_0", "triton_poi_fused_add_0"),
        ("_Z4gemmPf", "gemm"),
        ("gemm(float *)", "gemm"),
        ("void (anonymous namespace)::softmax_warp<c10::Half, 10>(c10::Half*)",
         "anonymous::softmax_warp"),
        ("void at::native::(anonymous namespace)::apply<at::F<2>, std::plus<float>, 1>(at::F<2>)",
         "at::native::anonymous::apply"),
        ("_ZN2at6native12_GLOBAL__N_15applyINS1_1FIfEEEEvT_", "at::native::anonymous::apply"),
        ("std::enable_if<true, void>::type ck::kernel_gemm<ck::G<1>, true>(ck::Arg)",
         "ck::kernel_gemm"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
         "ncclDevKernel_AllGather_RING_LL"),
        ("", ""),
        ("_Z", "_Z"),
        ("_ZN", "_ZN"),
    ],
)  # fmt: skip
def test_names_without_templates(name, bare):
    assert spelled(name, BARE) == bare


def test_the_most_exact_level_at_which_names_agree():
    short = ["vectorized_elementwise_kernel", TENSILE]
    assert common_level([FILL, TENSILE], [FILL, TENSILE]) == FULL
    assert common_level([FILL], ["at::native::vectorized_elementwise_kernel"]) == BARE
    assert common_level([FILL, TENSILE], short) == FUNCTION
    assert common_level([FILL], ["something else"]) == FULL
    assert common_level([], []) == FULL
