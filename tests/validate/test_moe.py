import pytest

from projector.config.device_file import load_device
from projector.validate.kind import FROM_ROW, OK
from projector.validate.moe import KIND

ROW = {
    "gpu": "H200", "dtype": "bf16", "gated": "True", "num_tokens": "2048", "hidden": "4096",
    "inter": "1536", "topk": "8", "experts": "128", "tp": "1", "ep": "4",
    "distribution": "balanced", "time_us": "300.0", "library": "x", "source": "made up",
}  # fmt: skip


def project(**changes):
    (outcome,) = KIND.project([{**ROW, **changes}])
    return outcome


def test_a_row_is_projected_in_its_unit():
    outcome = project()
    assert outcome.status == OK
    assert outcome.mark == FROM_ROW
    assert outcome.measured == 300.0
    assert 50.0 < outcome.predicted < 1000.0
    assert outcome.ratio == outcome.predicted / 300.0


def test_every_row_counts():
    assert set(KIND.columns) <= set(ROW)
    assert KIND.why_not_eligible({}) == ""
    assert KIND.precision == "dtype"


def test_uneven_routing_takes_longer():
    assert project(distribution="power_law_1.2").predicted > 1.2 * project().predicted


def test_a_row_does_not_depend_on_its_neighbours():
    row = {**ROW, "distribution": "power_law_1.01"}
    alone = KIND.project([row])[0].predicted
    assert KIND.project([ROW, row, row])[2].predicted == alone


def test_block_scales_need_passes_of_their_own():
    plain, blocks = project(dtype="fp8"), project(dtype="fp8 (128-block scales)")
    assert blocks.predicted > plain.predicted


def test_low_latency_kernels_route_by_groups():
    outcome = project(library="TensorRT-LLM 1 (moe_torch_flow_min_latency)")
    assert outcome.status == OK
    assert "groups" in outcome.note


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("num_tokens", "many"), ("num_tokens", "0"), ("num_tokens", "-3"), ("hidden", ""),
        ("hidden", "nan"), ("topk", "2.5"), ("topk", "200"), ("ep", "3"), ("time_us", ""),
        ("time_us", "0"), ("time_us", "inf"), ("gpu", "Z9000"), ("dtype", "int3"),
        ("gated", "maybe"), ("distribution", "zipf"), ("num_tokens", "1e12"), ("experts", "1e9"),
        ("distribution", "power_law_x"), ("inter", "1e30"),
    ],
)  # fmt: skip
def test_a_bad_value_fails_its_row_only(column, text):
    good, bad, again = KIND.project([ROW, {**ROW, column: text}, ROW])
    assert good == again
    assert good.status == OK
    assert bad.status != OK
    assert bad.predicted is None


AITER = {
    **ROW, "gpu": "MI355X", "ep": "1", "num_tokens": "64", "distribution": "random",
    "library": "AITER, fastest of the tuner (two kernels; per_1x32 scales)",
    "notes": "the two grouped GEMMs with activation and weighted sum alone: no routing",
}  # fmt: skip


def tuner(**changes):
    (outcome,) = KIND.project([{**AITER, **changes}])
    assert outcome.status == OK
    return outcome.predicted


def test_tuners_time_the_gemms_alone():
    assert tuner() < tuner(notes="") - 10.0


def test_random_routing_leaves_experts_idle():
    assert tuner(num_tokens="8") < 0.9 * tuner(num_tokens="8", distribution="balanced")
    assert tuner(num_tokens="4096") == pytest.approx(
        tuner(num_tokens="4096", distribution="balanced"), rel=0.3
    )
    assert tuner() == tuner()


def test_types_of_weights_and_activations():
    mixed = tuner(dtype="mxfp4 weights, bf16 activations")
    assert mixed < tuner(dtype="bf16")
    assert tuner(dtype="mxfp4") != tuner(dtype="mxfp4 weights, fp8 activations")
    one = "AITER, fastest of the tuner (one kernel; per_Token scales)"
    assert tuner(dtype="fp8", library=one) != tuner(dtype="fp8")
    integers, floats = (tuner(dtype=name, library=one) for name in ("int8", "fp8"))
    assert integers == pytest.approx(floats, rel=0.1)
    assert KIND.project([{**AITER, "dtype": "int3 weights, bf16 activations"}])[0].status != OK


def test_rows_faster_than_their_device_are_doubtful():
    assert KIND.doubt is not None
    assert KIND.doubt(ROW) == ""
    assert "matrix units" in KIND.doubt({**ROW, "time_us": "1.0"})
    # All but a few of 128 experts are read: 4.5 GB beside what caches keep, 560 us at 8 TB/s.
    streamed = {**AITER, "dtype": "fp8", "inter": "3072", "time_us": "600"}
    assert KIND.doubt(streamed) == ""
    assert "memory" in KIND.doubt({**streamed, "time_us": "500"})
    assert KIND.doubt({**ROW, "num_tokens": "many"}) == ""


def test_libraries_that_nobody_measured_have_a_band_of_their_own():
    device = load_device("b200")
    known = {**ROW, "library": "TensorRT-LLM 1.3.0rc20 (moe_torch_flow_cutlass)"}
    assert KIND.classes is not None
    assert KIND.classes(known, device)[0] == "blackwell.16_bit"
    assert KIND.classes(ROW, device)[:2] == ("other_library", "blackwell.16_bit")


def test_nothing_is_projected_as_nothing():
    assert KIND.project([]) == []
