import numpy as np
import pytest

from projector.config.device_file import load_device
from projector.single.gemm import gemm_case, list_gemms


def words(*shape, device, dtype="bf16", batch=1, **kind):
    (report,) = gemm_case(device, dtype, **kind).explain(
        np.array([[*shape, batch]]), np.array([2.0])
    )
    return report, " ".join(report.explanation)


def test_an_amd_kernel_in_the_words_of_amd():
    report, text = words(8192, 8192, 8192, device="mi300x", dtype="fp8_block")
    tiles, waves = int(report.terms["tiles"]), int(report.terms["waves"])
    for part in (
        "AMD Instinct MI300X takes", "FP8 with block scales", "macro-tile",
        f"{tiles:,} work-groups", f"{waves:,} waves", "304 CUs (8 XCDs of 38)",
        "v_mfma_f32_32x32x16_fp8_fp8",
        "KiB of LDS", "L2 (4 MiB an XCD)", "Infinity Cache (256 MiB)", "pass HBM", "of 2,100 MHz",
    ):  # fmt: skip
        assert part in text
    assert not any(part in text for part in ("SM", "CTA", "TMA", "cluster"))


def test_block_scales_are_named_where_they_cost():
    device = {"extends": "mi300x", "gemm_scale_instructions": 12.0}
    report, text = words(8192, 8192, 8192, device=device, dtype="fp8_block", library="ck")
    assert report.terms["scale_s"] > 0.0
    assert "multiply the accumulators by the scales" in text
    _, default = words(8192, 8192, 8192, device=device, dtype="fp8_block")
    assert "holds the multiplications by the scales" in default
    assert "scales of each block" not in words(8192, 8192, 8192, device="mi300x")[1]


def test_an_nvidia_kernel_in_the_words_of_nvidia():
    report, text = words(4096, 4096, 4096, device="h100", tile="128x256:2x1")
    assert report.bound == "compute"
    for part in ("matrix pipes bound it", "CTAs in clusters of 2x1", "wgmma.m64nNk16", "132 SMs"):
        assert part in text
    assert not any(part in text for part in ("XCD", "work-group", "LDS", "Infinity Cache"))
    _, alone = words(4096, 4096, 4096, device="h100", tile="128x128")
    assert "cluster" not in alone


@pytest.mark.parametrize(
    ("shape", "bound", "part"),
    [
        ((16, 8192, 8192), "memory", "Memory bounds it"),
        ((4096, 4096, 64), "epilogue", "K is only 64"),
        ((16, 16, 16), "overhead", "Starting and ending the kernel"),
    ],
)
def test_every_bound_says_why(shape, bound, part):
    report, text = words(*shape, device="h100")
    assert report.bound == bound
    assert part in text


def test_a_kernel_that_no_part_alone_bounds():
    tile = {"m": 16, "n": 64, "k_bytes": 512, "step_clk": 700}
    device = {"extends": "mi308x", "gemm_tiles": [tile], "gemm_overlap_loss": 1.0}
    report, text = words(3, 4096, 12800, device=device, dtype="fp8_block")
    assert report.bound == "overhead"
    assert "No part alone bounds it" in text
    assert "Starting and ending the kernel bounds" not in text


@pytest.mark.parametrize(("tile", "named"), [("256x192", True), ("16x64", False)])
def test_an_instruction_is_named_where_whole_ones_make_the_tile(tile, named):
    _, text = words(4096, 4096, 4096, device="mi300x", dtype="fp8_block", tile=tile)
    assert ("v_mfma_f32_32x32x16_fp8_fp8" in text) == named


def test_parts_of_k_and_a_batch_are_counted():
    report, text = words(256, 256, 65536, device="h100")
    assert "split" in report.kernel
    parts = report.kernel.split()[-1]
    assert f"{parts} parts of K" in text
    assert f"adding up the {parts} parts costs" in text
    assert "x 12 of the batch" in words(256, 256, 256, device="h100", batch=12)[1]


def test_a_clock_is_as_given_or_says_its_watts():
    assert "as given" in words(4096, 4096, 4096, device="h100", clock_mhz=1000)[1]
    assert "W are allowed" in words(8192, 8192, 8192, device="h100", run="loaded")[1]


def test_units_that_clusters_leave_idle_are_named():
    device = load_device("h100")
    _, text = words(4096, 4096, 4096, device=device, tile="128x128:4x4")
    assert "of which whole clusters fill" in text


def test_every_shipped_instruction_is_of_a_type_that_the_device_has():
    for name in ("a100", "h100", "b200", "b300", "mi210", "mi250x", "mi300x", "mi308x", "mi355x"):
        device = load_device(name)
        assert device.matrix_instructions
        assert device.matrix_instructions.keys() <= device.matrix_flop_per_clk_per_cu.keys()


def test_only_operands_along_an_odd_k_are_loaded_slowly():
    (odd,) = list_gemms([4096, 7168, 257], None, gpu="b200").reports
    (across,) = list_gemms([4096, 7168, 257], None, gpu="b200", layout="nt").reports
    (even,) = list_gemms([4096, 7168, 264], None, gpu="b200").reports
    assert odd.terms["l2_s"] == pytest.approx(3.0 * across.terms["l2_s"] * 1.0, rel=0.35)
    assert odd.terms["l2_s"] > 2.0 * even.terms["l2_s"]
