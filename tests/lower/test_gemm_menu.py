"""What a GEMM library offers for a type."""

from projector.config.device_file import load_device
from projector.config.device_kernels import GemmLibrary, GemmTile
from projector.lower.hardware import device_record, gemm_menu

LARGE, SMALL, OTHER = (
    GemmTile(m=side, n=side, k_bytes=128) for side in (256, 64, 96)
)  # fmt: skip


def device_with(**libraries):
    return load_device("mi300x").model_copy(update={"gemm_libraries": libraries})


def test_a_tuner_takes_only_kernels_that_exist_for_the_type():
    device = device_with(
        general=GemmLibrary(tiles=(LARGE,)),
        narrow=GemmLibrary(tiles_of={"int8": (SMALL,)}),
        wide=GemmLibrary(tiles=(LARGE,), tiles_of={"bf16": (OTHER,)}),
        tuner=GemmLibrary(members=("general", "narrow", "wide")),
    )
    menus = {
        kind: [(offer.library, offer.tile) for offer in gemm_menu(device, "tuner", kind)]
        for kind in ("int8", "bf16", "fp8")
    }
    assert menus == {
        "int8": [("general", LARGE), ("narrow", SMALL)],
        "bf16": [("general", LARGE), ("wide", OTHER)],
        "fp8": [("general", LARGE)],
    }


def test_a_narrow_type_that_nobody_names_has_the_menu_of_fp8():
    device = device_with(
        general=GemmLibrary(tiles=(LARGE,), tiles_of={"bf16": (OTHER,)}),
        narrow=GemmLibrary(tiles_of={"fp8": (SMALL,)}),
        tuner=GemmLibrary(members=("general", "narrow")),
    )
    device = device.model_copy(
        update={
            field: getattr(device, field) | {"mxfp4": 1.0}
            for field in ("matrix_flop_per_clk_per_cu", "gemm_efficiency")
        }
    )
    for library in ("tuner", "narrow"):
        menus = {
            kind: [(offer.tile.m, offer.tile.k_bytes) for offer in gemm_menu(device, library, kind)]
            for kind in ("int8", "mxfp4")
        }
        # Of four bits, a step of as many bytes has twice the elements.
        assert menus == {"int8": [(64, 128)], "mxfp4": [(64, 256)]}


def test_a_tuner_without_kernels_for_a_type_takes_what_there_is():
    device = device_with(
        wide=GemmLibrary(tiles=(LARGE,), tiles_of={"bf16": (OTHER,)}),
        tuner=GemmLibrary(members=("wide",)),
    )
    assert [offer.tile for offer in gemm_menu(device, "tuner", "fp8")] == [LARGE]


def test_a_library_that_is_asked_for_by_name_offers_what_it_has():
    device = device_with(wide=GemmLibrary(tiles=(LARGE,), tiles_of={"bf16": (OTHER,)}))
    assert [offer.tile for offer in gemm_menu(device, "wide", "fp8")] == [LARGE]
    assert [offer.tile for offer in gemm_menu(device, "wide", "bf16")] == [OTHER]


def test_a_library_leaves_k_whole_of_the_types_that_it_names():
    device = device_with(ours=GemmLibrary(split_k=(2, 3), whole_k=("int8",)))
    parts = [
        int(device_record(device, gemm_library="ours", gemm_type=kind)["num_gemm_splits"][0])
        for kind in ("bf16", "int8")
    ]
    assert parts == [2, 0]
