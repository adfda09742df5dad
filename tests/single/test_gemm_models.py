import json
from pathlib import Path

import numpy as np
import pytest

import projector as pj
from projector.config.device_file import load_device
from projector.errors import ConfigError
from projector.single.gemm import MODELS, gemm_case, list_gemms

EXAMPLES = Path(__file__).parents[2] / "examples"
LOCKED = EXAMPLES / "devices" / "b200_1300mhz.yaml"
SHAPES = EXAMPLES / "gemms_deepseek_v3.csv"

# Terms that the write-up of the model prints for two kernels, in us.
PRINTED = [
    (
        "nvfp4", (4096, 4096, 16384), "128x64:2x1", 4.0, 376.1631394230769,
        {
            "setup_s": 6.153846153846154, "first_load_s": 0.1040625, "load_s": 26.64,
            "matrix_s": 6.3015384615384615, "epilogue_s": 1.3612307692307695,
            "last_load_s": 22.32, "last_epilogue_s": 1.2652307692307694,
        },
        "memory",
    ),
    (
        "fp8", (4096, 7168, 257), "64x256:2x1", 1.0, 20.65007692307692,
        {
            "setup_s": 6.153846153846154, "first_load_s": 0.111, "load_s": 0.89146875,
            "matrix_s": 0.3953846153846154, "epilogue_s": 1.0652307692307692,
            "last_load_s": 0.096375, "last_epilogue_s": 0.8012307692307692,
        },
        "epilogue",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "shape", "tile", "out", "time_us", "terms", "bound"), PRINTED)
def test_the_documented_examples_to_every_printed_digit(
    dtype, shape, tile, out, time_us, terms, bound
):
    case = gemm_case(LOCKED, dtype, model="ws_persistent", tile=tile)
    (report,) = case.explain(np.array([[*shape, 1]]), np.array([out]))
    assert report.time_s * 1e6 == pytest.approx(time_us, rel=1e-12)
    assert report.bound == bound
    assert report.clock_mhz == 1300.0
    for name, value in terms.items():
        assert report.terms[name] * 1e6 == pytest.approx(value, rel=1e-12)


def test_the_knob_of_the_documented_model_scales_its_loads():
    dtype, shape, tile, out, *_ = PRINTED[0]
    rows = np.array([[*shape, 1]]), np.array([out])
    (cold,) = gemm_case(LOCKED, dtype, model="ws_persistent", tile=tile).explain(*rows)
    (warm,) = gemm_case(LOCKED, dtype, model="ws_persistent", tile=tile, l2_hit_rate=0.4).explain(
        *rows
    )
    assert warm.terms["load_s"] == pytest.approx(0.6 * cold.terms["load_s"])
    assert warm.time_s < cold.time_s


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("run", ["training", "loaded", "short"])
def test_the_explanation_is_the_time(model, run):
    shape = (4096, 7168, 2048)
    case = gemm_case("b200", "fp8", model=model, run=run)
    (report,) = case.explain(np.array([[*shape, 2]]), np.array([2.0]))
    expected = pj.gemm_time(*shape, batch=2, device="b200", dtype="fp8", model=model, run=run)
    assert report.time_s == expected
    product = np.prod(list(report.factors.values()))
    assert product == pytest.approx(report.time_s, rel=1e-12)
    assert report.flop_per_s == pytest.approx(2 * 2 * 4096 * 7168 * 2048 / report.time_s)


@pytest.mark.parametrize("device", ["b200", "h100", "a100", "mi355x"])
@pytest.mark.parametrize(
    "shape", [(64, 8192, 8192), (4096, 4096, 4096), (1, 1, 1), (9864, 11240, 1)]
)
def test_the_terms_add_up_to_the_time(device, shape):
    case = gemm_case(device, run="training" if device == "mi355x" else "loaded")
    (report,) = case.explain(np.array([[*shape, 1]]), np.array([2.0]))
    terms = report.terms
    pipe = terms["matrix_s"] + terms["scale_s"]
    loop = max(pipe, terms["l2_fill_s"], terms["issue_s"]) + terms["wait_s"]
    core = max(loop + terms["epilogue_s"], terms["epilogues_s"], terms["l2_s"])
    side_by_side = max(core, terms["memory_s"]) + terms["loss_s"]
    whole = terms["start_s"] + side_by_side + terms["reduce_s"]
    assert report.time_s == pytest.approx(whole, rel=1e-9)


def test_a_power_cap_lowers_the_clock_and_is_not_exceeded():
    device = load_device("b200")
    rows = np.array([[8192, 8192, 8192, 1], [64, 64, 64, 1]]), np.full(2, 2.0)
    large, small = gemm_case(device, run="loaded").explain(*rows)
    assert large.clock_mhz < device.power.max_clock_mhz == small.clock_mhz
    assert large.power_w == pytest.approx(0.97 * device.tdp_w)
    assert small.power_w < 0.5 * device.tdp_w
    (short, _) = gemm_case(device, run="short").explain(*rows)
    assert large.time_s > short.time_s
    assert short.power_w > large.power_w
    (sustained, _) = gemm_case(device).explain(*rows)
    assert sustained.power_w is None


def test_models_rank_as_they_should():
    rows = np.array([[4096, 7168, 2048, 1]]), np.array([2.0])
    sol, tile = (gemm_case("h100", model=model).times_s(*rows)[0] for model in ("sol", "tile"))
    assert sol < tile


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"model": "oracle"}, "model"),
        ({"library": "cublasx"}, "library"),
        ({"run": "sprint"}, "run"),
        ({"tile": "128"}, "tile"),
        ({"tile": "0x128"}, "tile"),
        ({"tile": "128x99999"}, "tile"),
        ({"tile": "128x128:20x1"}, "tile"),
        ({"tile": "1" * 5000 + "x1"}, "tile"),
        ({"l2_hit_rate": 0.4}, "l2_hit_rate"),
        ({"l2_hit_rate": 1.4, "model": "ws_persistent"}, "l2_hit_rate"),
        ({"l2_hit_rate": "all", "model": "ws_persistent"}, "l2_hit_rate"),
    ],
)
def test_a_mistake_names_its_key(options, key):
    with pytest.raises(ConfigError) as caught:
        gemm_case("h100", **options)
    assert caught.value.key == key
    assert caught.value.allowed


def test_a_tile_that_is_no_library_s_runs_all_the_same():
    rows = np.array([[4096, 4096, 4096, 1]]), np.array([2.0])
    own = gemm_case("h100", tile="96x96").explain(*rows)[0]
    best = gemm_case("h100").explain(*rows)[0]
    assert own.kernel == "96x96"
    assert own.time_s > best.time_s
    again = gemm_case("h100", tile="128x256:2x1").explain(*rows)[0]
    assert again.kernel.startswith("128x256:2x1")


@pytest.mark.parametrize("library", ["default", "triton", "ck", "aiter"])
@pytest.mark.parametrize("dtype", ["bf16", "fp8_block", "mxfp4"])
def test_the_chosen_tile_given_by_hand_takes_as_long(library, dtype):
    rows = np.array([[4096, 4096, 8192, 1]]), np.array([2.0])
    best = gemm_case("mi355x", dtype, library=library).explain(*rows)[0]
    tile = best.kernel.split(" ")[0]
    again = gemm_case("mi355x", dtype, library=library, tile=tile).explain(*rows)[0]
    assert (again.kernel, again.time_s) == (best.kernel, best.time_s)


def test_a_table_of_shapes():
    found = list_gemms((), str(SHAPES), gpu="b200", dtype="fp8", run="loaded")
    assert len(found.reports) == 21
    one = list_gemms(("4096", "7168", "2048"), None, gpu="b200", dtype="fp8", run="loaded")
    same = next(each for each in found.reports if (each.m, each.n, each.k) == (4096, 7168, 2048))
    assert one.reports[0] == same
    dumped = json.loads(json.dumps(found.to_dict()))
    assert len(dumped["gemms"]) == 21
    assert dumped["gemms"][0]["time_us"] == pytest.approx(found.total_s(0) * 1e6)


def test_narrow_types_pay_for_layouts_that_wide_ones_take_as_they_are():
    shape = ("4096", "7168", "2048")
    wide = [list_gemms(shape, None, layout=layout).total_s(0) for layout in ("tn", "nt")]
    assert wide[0] == wide[1]
    narrow = [
        list_gemms(shape, None, dtype="fp8", layout=layout).total_s(0)
        for layout in ("tn", "nn", "tt", "nt")
    ]
    assert narrow[0] < narrow[1] < narrow[3]
    assert narrow[0] < narrow[2] < narrow[3]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("a,b,c\n1,2,3\n", "lacks the columns m, n, k"),
        ("m,n,k\n1,2,x\n", r":2: k must be an integer from 0 to 2\*\*40, got 'x'"),
        ("m,n,k\n1,2\n", "k must be an integer"),
        ("m,n,k\n", "has no shapes"),
        ("m,n,k,batch\n1,2,3,-4\n", "batch must be an integer"),
        ("", "lacks the columns"),
    ],
)
def test_a_table_that_is_none(tmp_path, text, match):
    path = tmp_path / "shapes.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=match):
        list_gemms((), str(path))


@pytest.mark.parametrize(
    ("extents", "table", "options", "key"),
    [
        ((), None, {}, "extents"),
        (("1", "2"), None, {}, "extents"),
        (("1", "2", "3"), "shapes.csv", {}, "extents"),
        (("1", "2", "3"), None, {"layout": "xy"}, "layout"),
        (("1", "2", "3"), None, {"out_bytes": -1.0}, "out_bytes"),
        (("1", "2", "3"), None, {"out_bytes": float("nan")}, "out_bytes"),
        (("1", "2", "3"), None, {"batch": -1}, "batch"),
        ((), "nowhere.csv", {}, "csv"),
        # Types that are none: once an AttributeError or TypeError, and "123" was 1 x 2 x 3.
        (None, None, {}, "extents"),
        (5, None, {}, "extents"),
        ("123", None, {}, "extents"),
        ({"m": 1, "n": 2, "k": 3}, None, {}, "extents"),
        (("1", None, "3"), None, {}, "n"),
        ((1.5, 2, 3), None, {}, "m"),
        ((True, 2, 3), None, {}, "m"),
        ((), 5, {}, "csv"),
        ((), b"shapes.csv", {}, "csv"),
        ((1, 2, 3), None, {"batch": "x"}, "batch"),
        ((1, 2, 3), None, {"batch": None}, "batch"),
        ((1, 2, 3), None, {"layout": None}, "layout"),
        ((1, 2, 3), None, {"out_bytes": "2"}, "out_bytes"),
        ((1, 2, 3), None, {"out_bytes": None}, "out_bytes"),
        ((1, 2, 3), None, {"gpu": 5}, "device"),
        ((1, 2, 3), None, {"dtype": None}, "dtype"),
        ((1, 2, 3), None, {"tile": 5}, "tile"),
    ],
)
def test_what_cannot_be_listed(extents, table, options, key):
    with pytest.raises(ConfigError) as caught:
        list_gemms(extents, table, **options)
    assert caught.value.key == key
    assert caught.value.allowed is not None


def test_extents_are_texts_or_integers():
    expected = list_gemms(("4096", "7,168", "2048"), None).reports
    assert list_gemms([4096, 7168, 2048], None).reports == expected
    assert list_gemms(np.array([4096, 7168, 2048]), None).reports == expected


def test_a_run_without_a_power_model_is_that_of_training_alone():
    with pytest.raises(ConfigError, match="run 'loaded' needs a power model"):
        gemm_case({"extends": "mi300x", "power": None}, run="loaded")
    # No energy of FP32 is known: nothing is said of its power, its clock is the sustained one.
    (report,) = gemm_case("h100", "fp32", run="loaded").explain(
        np.array([[8192, 8192, 8192, 1]]), np.array([4.0])
    )
    assert report.power_w is None
    assert report.clock_mhz == load_device("h100").sustained_clock_mhz["fp32"]


def test_a_sustained_clock_above_the_highest_one():
    device = {"extends": "h100", "power": {"max_clock_mhz": 100}}
    extents, out = np.array([[4096, 4096, 4096, 1]]), np.array([2.0])
    gemm_case(device).times_s(extents, out)
    loaded = gemm_case(device, run="loaded")
    with pytest.raises(ConfigError, match=r"below the sustained .* take run training") as caught:
        loaded.times_s(extents, out)
    assert caught.value.key == "power.max_clock_mhz"


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"gemm_efficiency": {"bf16": -1.0}}, "gemm_efficiency.bf16"),
        ({"gemm_efficiency": {"bf16": 1.5}}, "gemm_efficiency.bf16"),
        ({"gemm_libraries": {"my": {"efficiency": {"bf16": 0.0}}}}, "efficiency.bf16"),
        ({"gemm_libraries": {"my": {"tiles": [{"m": 16, "n": 16, "k_bytes": 64}] * 65}}}, "tiles"),
        ({"gemm_libraries": {"default": {}}}, "gemm_libraries.default"),
        ({"tdp_w": 100}, "power.idle_w"),
        ({"attention_clock_mhz": 9000}, "attention_clock_mhz"),
    ],
)
def test_a_device_that_cannot_be(changes, key):
    with pytest.raises(ConfigError) as caught:
        load_device({"extends": "h100", **changes})
    assert key in caught.value.key


@pytest.mark.parametrize("units", [1, 2, 66, 131, 133])
def test_a_device_with_other_units_keeps_its_clusters_in_proportion(units):
    device = load_device({"extends": "h100", "compute_units": units})
    shape = (8192, 8192, 8192)
    rate = 2 * 8192**3 / pj.gemm_time(*shape, device=device)
    whole = 2 * 8192**3 / pj.gemm_time(*shape, device="h100")
    # Within the same cap of power fewer units run at a higher clock.
    clocks = [chip.sustained_clock_mhz["bf16"] for chip in (device, load_device("h100"))]
    assert (clocks[0] > clocks[1]) == (units < 132)
    assert 0.85 < rate / whole / (units / 132) / (clocks[0] / clocks[1]) < 1.15


def test_copies_count_in_the_rate():
    found = list_gemms(("8192", "8192", "256"), None, dtype="fp8", layout="nt")
    assert found.total_s(0) > found.reports[0].time_s
    assert found.flop_per_s(0) == pytest.approx(2 * 8192 * 8192 * 256 / found.total_s(0))


def test_a_table_may_begin_with_a_byte_order_mark(tmp_path):
    path = tmp_path / "shapes.csv"
    path.write_bytes(b"\xef\xbb\xbfM,N,K\r\n128,128,128\r\n")
    assert len(list_gemms((), str(path)).reports) == 1


@pytest.mark.parametrize("spelled", ["fp8-blockwise", "fp8_blockwise", "FP8_block", "fp8_block"])
def test_blockwise_scales_may_be_spelled_as_libraries_do(spelled):
    assert gemm_case("mi300x", spelled).dtype == "fp8_block"
    assert pj.gemm_time(4096, 4096, 4096, device="mi300x", dtype=spelled) == pj.gemm_time(
        4096, 4096, 4096, device="mi300x", dtype="fp8_block"
    )


def test_a_type_that_a_device_lacks_is_named_with_those_it_has():
    with pytest.raises(ConfigError, match="no native fp8-blockwise") as refused:
        gemm_case("a100", "fp8-blockwise")
    assert refused.value.allowed == ["fp32", "tf32", "fp16", "bf16"]


def test_fewer_units_scale_blocks_as_slowly_each():
    chips = [load_device({"extends": "mi300x", "compute_units": units}) for units in (76, 304)]
    few, many = (
        pj.gemm_time(8192, 8192, 8192, device=chip, dtype="fp8_block", library="ck")
        for chip in chips
    )
    clocks = [chip.sustained_clock_mhz["fp8"] for chip in chips]
    # Within the same cap of power they run at a higher clock, as far as the clock binds.
    assert 0.85 * clocks[1] / clocks[0] < few / (4.0 * many) < 1.15


def test_scales_by_block_slow_a_kernel():
    def tflops(dtype):
        return 2 * 8192**3 / pj.gemm_time(8192, 8192, 8192, device="mi355x", dtype=dtype) / 1e12

    assert tflops("bf16") < tflops("fp8_block") < tflops("fp8") < tflops("mxfp4")
