import pytest

from projector.config.device_file import load_device
from projector.lower.hardware import gemm_menu
from projector.validate.gemm_benchmarks import NamedKernel, grouped_kernel, named_kernel, offer_of

CK_BLOCK = "a8w8_blockscale_1x128x128_256x64x128x256_16x16_32x32_1x2_8x32x1_1x32x1x8_8_1x1_v3"
CK_SHUFFLED = "a8w8_bpreshuffle_256x16x64x512_16x16_16x16_32x8x1_32x8x1_1x16x1x16_4x4x1_1x1_v1"
CK_FP4 = "a4w4_blockscale_256x64x384x128_16x16_16x16_8x32x1_8x32x1_1x32x1x8_8_2x2_intrawave_v3"
FLYDSL = "flydsl_gemm4_abf16_wbf16_bf16_t96x128x64_split_k4_block_m_warp2_block_n_warp2_async"


@pytest.mark.parametrize(
    ("config", "tile", "splits"),
    [
        # hipBLASLt's logic files.
        ("macro tile 256x128x64 global split-U 1", (256, 128, 64), (1,)),
        ("macro tile 96x64x64 global split-U 6", (96, 64, 64), (6,)),
        # More parts than the model has count as its most.
        ("macro tile 32x32x64 global split-U 18", (32, 32, 64), (18,)),
        # AITER: CK, whose name says nothing of none or one halving, and counts more of them.
        (CK_BLOCK, (64, 128, 256), (1, 2)),
        (f"{CK_BLOCK} splitK 3", (64, 128, 256), (8,)),
        (CK_SHUFFLED, (16, 64, 512), (1, 2)),
        (CK_FP4, (64, 384, 128), (1, 2)),
        ("a8w8_blockscale_cktile_192x256x128_4x2x1_16x16x128_intra_0x1x0_4", (192, 256, 128), (1,)),
        (
            "a8w8_bpreshuffle_cktile_0x0x8x4x1x0x0x0x0x2_32x64x512_1x4x1_16x16x128_default",
            (32, 64, 512),
            (1,),
        ),
        # AITER: assembly.
        ("bf16gemm_bf16_tn_256x192", (256, 192, 0), (1,)),
        ("bf16gemm_fp32bf16_tn_96x64_pf3_splitk", (96, 64, 0), (1,)),
        ("bf16gemm_fp32bf16_tn_80x64_splitk_clean splitK 5", (80, 64, 0), (5,)),
        ("fp8gemm_bf16_blockscale_BpreShuffle_48x128 splitK 8", (48, 128, 0), (8,)),
        ("I8gemm_bf16_perTokenI8_BpreShuffle_112x256", (112, 256, 0), (1,)),
        ("f4gemm_bf16_per1x32Fp4_BpreShuffle_32x128", (32, 128, 0), (1, 2)),
        ("f4gemm_bf16_per1x32Fp4_BpreShuffle_32x128 splitK 2", (32, 128, 0), (4,)),
        # AITER: FlyDSL and opus.
        (f"{FLYDSL} splitK 4", (96, 128, 64), (4,)),
        ("flydsl_bpreshuflle_64x128x256_F8_F8_B16_1x1x4x2_default", (64, 128, 256), (1,)),
        ("flydsl_bpreshuffle_8w_256x256x128_F8_F8_B16_2x8", (256, 256, 128), (1,)),
        ("opus_gemm_flatmm_splitk_256x64x96x64_2x1_16x16x32_0x0x0 splitK 4", (64, 96, 64), (4,)),
    ],
)
def test_a_tuners_kernel(config, tile, splits):
    assert named_kernel(config) == NamedKernel(*tile, splits=splits, tuned=True)


@pytest.mark.parametrize(
    ("config", "kernel"),
    [
        ("mma 128x64 cta 128x64 cluster 2x1 sf /0", (128, 64, 0, 2, 1, False)),
        ("mma 256x128 cta 128x128 cluster 2x2 sf e8m0/32", (128, 128, 0, 2, 2, True)),
        ("cta 64x64", (64, 64, 0, 1, 1, False)),
    ],
)
def test_the_only_kernel_of_a_row(config, kernel):
    assert named_kernel(config) == NamedKernel(*kernel, splits=(1,), tuned=False)


@pytest.mark.parametrize(
    "config", ["", "native", "auto", "accumulate=True grad=False", "256x128", "gemm", "x" * 5000]
)
def test_nothing_named(config):
    assert named_kernel(config) is None


@pytest.mark.parametrize(
    "config",
    ["macro tile 0x64x64 global split-U 1", "bf16gemm_bf16_tn_2048x64", f"{'9' * 99}gemm_a_0x1"],
)
def test_a_tile_that_no_unit_holds(config):
    with pytest.raises(ValueError, match=r"kernel_config: tile .* must be from 1x1 to 1024x1024"):
        named_kernel(config)


def test_a_step_that_no_main_loop_takes():
    with pytest.raises(ValueError, match="kernel_config: a step of 999999999 of K must be up to"):
        named_kernel("macro tile 64x64x999999999 global split-U 1")


@pytest.mark.parametrize(
    ("library", "in_dtype", "n", "groups", "kernel"),
    [
        ("Primus-Turbo grouped_gemm (CK), balanced", "bf16", 2816, 8, (256, 256, 64)),
        ("Primus-Turbo grouped_gemm (CK), balanced", "bf16", 1408, 8, (256, 128, 64)),
        (
            "Primus-Turbo grouped_gemm_fp8 tensorwise (CK), balanced",
            "fp8",
            2816,
            8,
            (256, 256, 128),
        ),
        (
            "Primus-Turbo grouped_gemm_fp8 tensorwise (CK), balanced",
            "fp8",
            4096,
            1,
            (256, 256, 128),
        ),
        ("Primus-Turbo grouped_gemm (CK), balanced", "bf16", 4096, 1, None),
        ("Primus-Turbo grouped_gemm (Triton), balanced", "bf16", 4096, 8, None),
        ("TransformerEngine grouped linear", "bf16", 4096, 8, None),
    ],
)
def test_a_kernel_taken_by_rule(library, in_dtype, n, groups, kernel):
    found = grouped_kernel({"library": library, "in_dtype": in_dtype}, n, groups)
    assert found == (NamedKernel(*kernel) if kernel else None)


def test_a_tile_of_the_menu_keeps_its_fields():
    menu = gemm_menu(load_device("mi300x"), "hipblaslt", "bf16")
    first = menu[0]
    known = offer_of(menu, NamedKernel(first.tile.m, first.tile.n, first.tile.k_bytes // 2))
    assert known == first
    # One that the library does not list has the step that its name says, in 16-bit elements, and
    # is as good as the first.
    other = offer_of(menu, NamedKernel(48, 112, 128))
    assert (other.tile.m, other.tile.n, other.tile.k_bytes) == (48, 112, 256)
    assert other.efficiency == first.efficiency / first.tile.efficiency
    assert offer_of(menu, NamedKernel(48, 112)).tile.k_bytes == first.tile.k_bytes


def test_clusters_and_pairs_are_taken_over():
    menu = gemm_menu(load_device("b200"), "cutedsl", "fp16")
    offer = offer_of(menu, NamedKernel(128, 64, 0, 2, 1, True, (1,), False))
    assert (offer.tile.cluster_m, offer.tile.cluster_n, offer.tile.pair) == (2, 1, "m")
    assert offer.efficiency == 1.0
