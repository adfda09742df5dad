from dataclasses import replace

import pytest

from projector.config.device_file import load_device
from projector.single.gemm import gemm_time
from projector.validate.gemm import KIND, case_times, read_case
from projector.validate.kind import FROM_ROW, FROM_RULE, OK

ROW = {
    "gpu": "B200",
    "clock_note": "",
    "op": "gemm",
    "in_dtype": "bf16",
    "out_dtype": "bf16",
    "m": "4096",
    "n": "7168",
    "k": "2048",
    "groups": "",
    "kernel_config": "",
    "runtime_us": "100",
    "tflops": "",
}


def project(**changes):
    (outcome,) = KIND.project([{**ROW, **changes}])
    return outcome


def test_a_plain_row_is_the_kernel_in_microseconds():
    outcome = project()
    expected_us = gemm_time(4096, 7168, 2048, device="b200", run="loaded") * 1e6
    assert outcome.status == OK
    assert outcome.mark == FROM_ROW
    assert outcome.predicted == pytest.approx(expected_us)
    assert outcome.measured == 100.0
    assert outcome.ratio == pytest.approx(expected_us / 100.0)


def test_a_host_that_launches_slowly_is_waited_for():
    small = {"m": "192", "n": "4096", "k": "4096", "library": "CUTLASS CuTeDSL persistent"}
    cutedsl = project(**small, in_dtype="nvfp4(e2m1)", clock_note="locked 1300 MHz")
    assert cutedsl.predicted == pytest.approx(24.0)
    assert project(**small, in_dtype="fp8", clock_note="locked 1300 MHz").predicted < 24.0
    large = project(**{**small, "m": "16384"}, in_dtype="nvfp4(e2m1)", clock_note="locked 1300 MHz")
    assert large.predicted > 24.0


def test_a_rate_becomes_a_time():
    # 2 * 1000 * 2000 * 500 FLOP at 100 TFLOP/s.
    outcome = project(m="1000", n="2000", k="500", runtime_us="", tflops="100")
    assert outcome.measured == pytest.approx(20.0)


def test_the_groups_count_in_a_rate():
    outcome = project(m="1000", n="2000", k="500", groups="3", runtime_us="", tflops="100")
    assert outcome.measured == pytest.approx(60.0)


@pytest.mark.parametrize(
    ("out_dtype", "config", "out_bytes"),
    [("fp32", "", 4.0), ("fp32", "accumulate=True", 8.0), ("fp8", "", 1.0)],
)
def test_the_output_has_its_own_width(out_dtype, config, out_bytes):
    outcome = project(out_dtype=out_dtype, kernel_config=config)
    expected = gemm_time(4096, 7168, 2048, device="b200", out_bytes=out_bytes, run="loaded")
    assert outcome.predicted == pytest.approx(expected * 1e6)


def test_an_unstated_output_follows_a_rule():
    outcome = project(out_dtype="")
    assert outcome.predicted == project().predicted
    assert outcome.mark == FROM_RULE
    assert "16 bits" in outcome.note


@pytest.mark.parametrize(
    ("kind", "kernel"),
    [("fp8", "fp8"), ("fp8 (128-block scales)", "fp8_block"), ("nvfp4", "nvfp4")],
)
def test_a_linear_row_quantises_its_activation(kind, kernel):
    quantising = load_device("b200").quantising[kernel]
    linear = project(op="linear (time includes quantising A from bf16)", in_dtype=kind)
    plain = project(in_dtype=kind)
    moved = 4096 * 2048 * quantising.bytes_per_element
    expected_us = quantising.start_us + moved / quantising.tb_per_s * 1e-6
    assert linear.predicted - plain.predicted == pytest.approx(expected_us)


def test_a_device_without_quantising_kernels_passes_over_the_activation():
    device = load_device("mi300x")
    row = {"gpu": "MI300X", "in_dtype": "bf16"}
    linear = project(op="linear", **row)
    moved_us = 4096 * 2048 * 4.0 / (device.hbm_peak_tb_per_s * device.hbm_efficiency) * 1e-6
    expected_us = moved_us + device.kernel_start_us
    assert linear.predicted - project(**row).predicted == pytest.approx(expected_us)


@pytest.mark.parametrize(
    ("changes", "run"),
    [
        ({}, "loaded"),
        ({"clock_note": "short run, clocks at maximum"}, "short"),
        ({"library": "TransformerEngine/cuBLAS"}, "training"),
    ],
)
def test_how_long_a_row_ran_decides_its_clock(changes, run):
    expected_us = gemm_time(4096, 7168, 2048, device="b200", run=run) * 1e6
    assert project(**changes).predicted == pytest.approx(expected_us)


def test_a_library_brings_its_menu():
    row = {"gpu": "H100", "in_dtype": "fp8 (128-block scales)", "library": "DeepGEMM"}
    shape = 4096, 7168, 2048
    expected = gemm_time(*shape, device="h100", dtype="fp8", run="loaded", library="deepgemm")
    assert project(**row).predicted == pytest.approx(expected * 1e6)
    assert expected > gemm_time(*shape, device="h100", dtype="fp8", run="loaded")


def test_grouped_passes_transpose_the_extents_of_the_forward():
    fields = {"groups": "8", "m": "512", "n": "7168", "k": "2048", "out_dtype": "bf16"}
    forward = project(op="grouped gemm (fwd)", **fields)
    swapped = project(op="grouped gemm (fwd)", **{**fields, "n": "2048", "k": "7168"})
    assert project(op="grouped gemm (bwd_grad_act)", **fields).predicted == pytest.approx(
        swapped.predicted
    )
    weight = project(op="grouped gemm (bwd_grad_w)", **fields)
    dense = gemm_time(7168, 2048, 512, batch=8, device="b200", run="loaded")
    assert weight.predicted > dense * 1e6
    dense = gemm_time(512, 7168, 2048, batch=8, device="b200", run="loaded")
    assert forward.predicted > dense * 1e6


LOCKED = {"clock_note": "locked 1300 MHz", "in_dtype": "fp16", "out_dtype": "fp16"}


def test_a_locked_clock_bounds_the_rate():
    fields = {**LOCKED, "m": "8192", "n": "8192", "k": "8192"}
    outcome = project(kernel_config="mma 256x256 cta 128x256 cluster 2x1 sf /0", **fields)
    # 148 units, 8192 FLOP a clock each, 98.5 % of it.
    light_us = 2.0 * 8192**3 / (148 * 8192 * 0.985 * 1300e6) * 1e6
    assert light_us < outcome.predicted < 1.25 * light_us
    free = project(**{**fields, "clock_note": ""})
    assert free.predicted != outcome.predicted


def test_the_named_tile_is_the_only_one():
    small, large = (
        project(kernel_config=f"mma 128x64 cta {tile} cluster 2x1 sf /0", **LOCKED).predicted
        for tile in ("64x64", "128x256")
    )
    best = gemm_time(4096, 7168, 2048, device="b200", dtype="fp16", clock_mhz=1300.0) * 1e6
    assert small > large >= best * (1.0 - 1e-12)


def test_a_named_tile_does_not_split_k():
    # One tile on one unit: without a split it does all of the work alone.
    fields = {**LOCKED, "m": "64", "n": "64", "k": "65536"}
    outcome = project(kernel_config="cta 64x64 cluster 1x1", **fields)
    assert outcome.predicted > 2.0 * 64 * 64 * 65536 / (8192 * 1300e6) * 1e6


TURBO = {
    "gpu": "MI300X",
    "library": "Primus-Turbo gemm (hipBLASLt), torch Timer x100",
    "layout": "TN (y = x W^T)",
    **dict(zip("mnk", ("4096", "7168", "2048"), strict=True)),
}


def accumulating_us(*elements):
    """Time to add gradients of so many elements: two are read and one is written, 2 bytes each."""
    device = load_device("mi300x")
    rate = device.hbm_peak_tb_per_s * (device.elementwise_efficiency or device.hbm_efficiency)
    return sum(device.kernel_start_us + 6.0 * each / rate * 1e-6 for each in elements)


def test_a_backward_is_both_gradients_and_their_sums():
    outcome = project(**TURBO, op="gemm backward (dgrad+wgrad)", runtime_us="", tflops="500")
    # 4 * 4096 * 7168 * 2048 FLOP at 500 TFLOP/s.
    assert outcome.measured == pytest.approx(481.04, rel=1e-4)
    shapes = (4096, 2048, 7168), (7168, 2048, 4096)
    known = load_device("mi300x").gemm_libraries
    library = "hipblaslt" if "hipblaslt" in known else "default"
    expected, loaded = (
        sum(gemm_time(*shape, device="mi300x", library=library, run=run) for shape in shapes)
        for run in ("training", "loaded")
    )
    assert outcome.predicted == pytest.approx(
        expected * 1e6 + accumulating_us(4096 * 2048, 7168 * 2048)
    )
    # Another benchmark need not keep the gradients, nor meet the clock of training.
    other = project(**{**TURBO, "library": "hipBLASLt"}, op="gemm backward (dgrad+wgrad)")
    assert other.predicted == pytest.approx(loaded * 1e6 + 4.0)


def test_a_grouped_backward_is_both_gradients_of_every_group():
    row = {**TURBO, "groups": "8", "m": "512"}
    names = "bwd_grad_act", "bwd_grad_w", "bwd dgrad+wgrad"
    both = [project(**row, op=f"grouped gemm ({name})").predicted for name in names]
    added_us = accumulating_us(8 * 512 * 2048, 8 * 7168 * 2048)
    assert both[2] == pytest.approx(both[0] + both[1] + added_us)


GROUPED = {
    **TURBO,
    "library": "Primus-Turbo grouped_gemm (CK), balanced groups, torch Timer x100",
    "op": "grouped gemm (fwd)",
}


def test_a_grouped_kernel_of_ck_is_taken_by_rule():
    # 2 groups of 2 x 11 tiles of 256 x 256: one wave of 44 units, each through all of K.
    device = load_device("mi300x")
    row = {**GROUPED, "groups": "2", "m": "512", "n": "2816", "k": "8192"}
    rate = 2048 * max(device.sustained_clock_mhz.values()) * 1e6
    tile_us = 2.0 * 256 * 256 * 8192 / rate * 1e6
    assert project(**row).predicted > tile_us
    # Columns that 256 does not divide are cut by 128, so that a tile takes half as long.
    narrow = project(**{**row, "n": "2688"}).predicted
    assert narrow == pytest.approx(0.5 * project(**row).predicted, rel=0.25)
    # A library that chooses is faster with so few tiles.
    free = project(**{**row, "library": "hipBLASLt"})
    assert free.predicted - 4.0 < 0.7 * project(**row).predicted


def test_a_lone_group_of_16_bits_is_chosen_for():
    row = {**GROUPED, "groups": "1", "m": "512", "n": "4096", "k": "14336"}
    assert project(**row).predicted < 200.0
    assert project(**row, in_dtype="fp8").predicted > 200.0


def test_one_group_is_one_gemm():
    row = {**TURBO, "op": "grouped gemm (fwd)"}
    assert project(**row, groups="1").predicted == project(**TURBO).predicted
    assert project(**row, groups="2").predicted > 2.0 * 0.99 * project(**TURBO).predicted


def test_a_training_operator_quantises_activation_and_weight():
    # Its weights are not kept quantised: 4096 x 2048 and 7168 x 2048 elements forward, and the
    # gradient of the output backward, 4096 x 7168.
    device = load_device("mi300x")
    row = {**TURBO, "library": "Primus-Turbo gemm_fp8 tensorwise, torch Timer", "in_dtype": "fp8"}
    kernel = device.quantising["fp8"]
    start_us, moved = kernel.start_us, kernel.bytes_per_element
    rate = kernel.tb_per_s * 1e6
    forward = project(**row, op="linear (time includes quantising A from bf16)")
    matrices = (4096 + 7168) * 2048
    plain = project(**row)
    assert forward.predicted - plain.predicted == pytest.approx(
        2 * start_us + moved * matrices / rate, rel=1e-6
    )
    op = "linear (time includes quantising A from bf16) backward (dgrad+wgrad)"
    backward, both = project(**row, op=op), project(**row, op="gemm backward (dgrad+wgrad)")
    assert backward.predicted - both.predicted == pytest.approx(
        start_us + moved * 4096 * 7168 / rate, rel=1e-6
    )
    # With a scale for each block: the gradient along rows and columns, the activation along its
    # columns.
    row |= {"library": "Primus-Turbo gemm_fp8 blockwise (Triton), torch Timer"}
    backward, both = project(**row, op=op), project(**row, op="gemm backward (dgrad+wgrad)")
    elements = 2 * 4096 * 7168 + 4096 * 2048
    assert backward.predicted - both.predicted == pytest.approx(
        3 * start_us + moved * elements / rate, rel=1e-6
    )


def test_the_gradient_of_a_weight_takes_two_scales_an_accumulator():
    device = load_device("mi300x").model_copy(update={"gemm_scale_instructions": 40.0})
    row = {
        **ROW,
        **TURBO,
        "in_dtype": "fp8 (128-block scales)",
        "library": "Primus-Turbo gemm_fp8 blockwise (Triton), torch Timer",
        "op": "gemm backward (dgrad+wgrad)",
        **dict.fromkeys(("m", "n", "k"), "8192"),
    }
    case = read_case(row)
    plain = replace(case, gemms=tuple(gemm._replace(of_weight=False) for gemm in case.gemms))
    alike, twice = (case_times([each], lambda _: device)[0] for each in (plain, case))
    # So many that nothing hides them, for each accumulator and 128 elements of K.
    lanes = 0.5 * device.vector_tflops * 1e12 / (304 * 2100e6)
    clocks = 8192.0**3 / 304 * 40.0 / (128 * lanes)
    slowest, fastest = device.sustained_clock_mhz["fp8"], 2100.0
    assert 0.9 * clocks / fastest * 1e-6 <= twice - alike <= 1.3 * clocks / slowest * 1e-6


def test_a_collective_beside_slows_the_kernel():
    plain, beside = project(**TURBO), project(**TURBO, op="gemm during RCCL all_reduce")
    slowdown = load_device("mi300x").comm_compute_slowdown
    assert beside.predicted == pytest.approx((1.0 + slowdown) * plain.predicted)


AITER = {
    "gpu": "MI300X",
    "library": "AITER asm, fastest of the tuner",
    "layout": "TN, weights shuffled beforehand",
    "m": "256",
    "n": "8192",
    "k": "8192",
}


def test_a_tuners_kernel_is_projected_beside_the_choice():
    free = project(**AITER)
    assert free.as_named is None
    best, poor = (
        project(**AITER, kernel_config=f"bf16gemm_bf16_tn_{tile}") for tile in ("128x128", "32x32")
    )
    assert best.predicted == poor.predicted == free.predicted
    assert poor.as_named > best.as_named
    # What it names may be no better than the choice, if the menu has it.
    assert best.as_named >= free.predicted * (1.0 - 1e-12)


def test_shuffled_weights_have_a_library_of_their_own_where_the_device_has_one():
    plain, shuffled = (
        read_case({**ROW, **AITER, "layout": text}) for text in ("TN", "TN, shuffled")
    )
    known = load_device("mi300x").gemm_libraries
    assert plain.setup.library == "aiter"
    assert shuffled.setup.library == (
        "aiter_preshuffled" if "aiter_preshuffled" in known else "aiter"
    )
    assert read_case({**ROW, "layout": "TN, shuffled"}).setup.library == "default"


def test_the_split_of_a_tuners_kernel_is_taken():
    # 4 x 8 tiles on 304 units: cutting K pays, and more parts pay more.
    row = {**AITER, "m": "256", "n": "512"}
    names = [f"bf16gemm_fp32bf16_tn_64x64_splitk_clean splitK {parts}" for parts in (1, 3, 8)]
    whole, three, eight = (project(**row, kernel_config=name).as_named for name in names)
    assert whole > three > eight


@pytest.mark.parametrize(("kind", "parts"), [("fp8 (128-block scales)", 2), ("fp8", 1)])
def test_what_a_name_leaves_open_is_chosen_where_the_library_splits_k(kind, parts):
    row = {**AITER, "m": "256", "n": "512", "in_dtype": kind}
    name = "a8w8_rowwise_256x64x64x128_16x16_1x1_32x8x1_32x8x1_1x16x1x16_4x4x1_1x1_intrawave_v3"
    # One halving is not named, and better here than none.
    same = project(**row, kernel_config=f"macro tile 64x64x128 global split-U {parts}").as_named
    assert project(**row, kernel_config=name).as_named == pytest.approx(same)


def test_the_only_kernel_of_a_row_is_the_projection():
    outcome = project(**LOCKED, kernel_config="mma 128x64 cta 128x64 cluster 2x1 sf /0")
    assert outcome.as_named is None


def test_a_bad_row_fails_alone():
    rows = [
        ROW,
        {**ROW, "gpu": "abacus"},
        {**ROW, "in_dtype": "fp7"},
        {**ROW, "m": "many"},
        {**ROW, "m": "0"},
        {**ROW, "k": "1e300"},
        {**ROW, "groups": "-4"},
        {**ROW, "out_dtype": "int3"},
        {**ROW, "runtime_us": "", "tflops": ""},
        {**ROW, "runtime_us": "0"},
        {**ROW, "runtime_us": "nan"},
        {**ROW, "runtime_us": "5e-324"},
        {**ROW, "tflops": "-1"},
        {**ROW, "clock_note": "locked 0 MHz"},
        {**ROW, "kernel_config": "cta 0x64"},
        {**ROW, "kernel_config": "macro tile 0x64x64 global split-U 1"},
        ROW,
    ]
    outcomes = KIND.project(rows)
    assert [outcome.status == OK for outcome in outcomes] == [True] + [False] * 15 + [True]
    assert outcomes[0] == outcomes[-1] == project()
    assert "abacus" in outcomes[1].status
    assert "'many'" in outcomes[3].status


@pytest.mark.parametrize(
    "clock", ["-1300", "0", "0.5", "9000", "1e9", "nan", "many", "9" * 400, "1300,5"]
)
def test_a_clock_that_the_device_cannot_be_locked_to(clock):
    # A minus once made the clock a free one.
    bad, good = KIND.project([{**ROW, "clock_note": f"locked {clock} MHz"}, ROW])
    assert bad.status == (
        f"clock_note: 'locked {clock} MHz' must be from 1 to 1965 MHz on {load_device('b200').name}"
    )
    assert good == project()


@pytest.mark.parametrize(
    ("config", "word"),
    [
        ("cta -128x64", "tile"),
        ("cta 0x64", "tile"),
        ("cta 128x99999", "tile"),
        ("cta 2048x64 cluster 2x1", "tile"),
        (f"cta {'9' * 400}x64", "tile"),
        ("cta 128", "tile"),
        ("mma 128x64 cta 128x64 cluster 0x1", "cluster"),
        ("cta 128x64 cluster 17x1", "cluster"),
        ("cta 128x64 cluster -2x1", "cluster"),
        ("cta 128x64 cluster 2", "cluster"),
    ],
)
def test_a_tile_that_no_unit_holds(config, word):
    # One such row once failed all that were read with it.
    bad, good = KIND.project([{**ROW, "kernel_config": config}, ROW])
    named = config[config.index("cta") :]
    assert bad.status.startswith(f"kernel_config: {word} '{named}' must be from 1x1 to ")
    assert good == project()


def test_no_rows_no_outcomes():
    assert KIND.project([]) == []


@pytest.mark.parametrize(
    ("missing", "why"), [((), ""), (("n",), "no n"), (("m", "n", "k"), "no m, n, k")]
)
def test_rows_with_all_extents_are_eligible(missing, why):
    assert KIND.why_not_eligible({**ROW, **dict.fromkeys(missing, " ")}) == why
