"""Attentions of given shapes: terms that add up, packed documents, ranks that share a sequence."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from projector import attention_time
from projector.config.device_file import load_device
from projector.errors import ConfigError
from projector.kernels.attention import HIDDEN_LOSS
from projector.single.attention import (
    packed_time_s,
    project_attention,
)
from thoroughness import examples

COMPUTE = ("matrix_s", "softmax_s", "mask_s", "tile_s", "idle_s")


def project(*shape, **options):
    return project_attention(*shape, **{"head_dim": 128, "device": "h100", **options})


@settings(max_examples=examples(60))
@given(
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(1, 5000),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["default", "fa2", "trtllm_fmha", "vllm_fa3", "unfused", "fa3_deterministic"]),
    st.sampled_from([64, 128, 256]),
)
def test_terms_add_up_to_the_time(batch, groups, length, causal, backward, impl, width):
    options = {"kv_heads": 4, "causal": causal, "backward": backward, "impl": impl}
    found = project(batch, 4 * groups, length, head_dim=width, **options)
    term = {name: float(column[0]) for name, column in found.terms.items()}
    busy = max(term["compute_s"], term["atomics_s"])
    time_s = max(busy, term["memory_s"]) + HIDDEN_LOSS * min(busy, term["memory_s"])
    time_s += term["passes_s"] + term["start_s"]
    assert term["time_s"] == pytest.approx(time_s)
    assert sum(term[name] for name in COMPUTE) == pytest.approx(term["compute_s"])
    assert min(term.values()) >= 0.0
    alone = attention_time(batch, 4 * groups, length, head_dim=width, device="h100", **options)
    assert found.time_s[0] == alone


FUSED = [
    (stem, name)
    for stem in ("a100", "h100", "b200", "mi300x", "mi355x")
    for name, kernel in load_device(stem).attention_kernels.items()
    if not kernel.forward_score_passes
]


@pytest.mark.parametrize(("stem", "impl"), FUSED)
@pytest.mark.parametrize("backward", [False, True])
def test_softmax_that_shows_shrinks_where_exponentials_double(stem, impl, backward):
    device = load_device(stem)
    types = device.attention_kernels[impl].dtypes
    options = {"impl": impl, "dtype": types[0] if types else "bf16", "backward": backward}
    options |= {"causal": False, "clock_mhz": 1000.0}
    rate = device.transcendental_per_clk_per_cu
    twice = device.model_copy(update={"transcendental_per_clk_per_cu": 2.0 * rate})
    now, then = (
        project_attention(4, 16, 8192, head_dim=128, device=each, **options)
        for each in (device, twice)
    )
    kernel = device.attention_kernels[impl]
    shown = kernel.softmax_exposed
    if backward and kernel.backward_softmax_exposed is not None:
        shown = kernel.backward_softmax_exposed
    lost = float(now.terms["softmax_s"][0] - then.terms["softmax_s"][0])
    exponentials_s = 4 * 16 * 8192**2 / (rate * device.compute_units * 1e9)
    # Whole tiles hold a few more scores than are visible; a step is never shorter than its
    # exponentials, so more may be won where they bound it.
    assert lost >= 0.5 * shown * exponentials_s * 0.999
    assert then.time_s[0] <= now.time_s[0]
    if now.bound[0] == "matrix":
        assert lost <= 0.5 * shown * exponentials_s * 1.03


@pytest.mark.parametrize(
    ("device", "impl", "width", "backward", "evidence"),
    [
        ("mi300x", "aiter", 128, True, "width"),
        ("mi300x", "aiter", 256, True, "device"),
        ("mi325x", "aiter", 128, False, "family"),
        ("mi355x", "aiter", 128, True, "none"),
        ("mi355x", "ck", 128, True, "none"),
        ("b300", "te", 192, True, "family"),
        ("h100", "unfused", 128, False, "none"),
    ],
)
def test_a_kernel_says_where_it_was_measured(device, impl, width, backward, evidence):
    found = project(1, 8, 1024, head_dim=width, device=device, impl=impl, backward=backward)
    assert found.evidence == evidence
    assert found.uncertainty["basis"] == found.basis
    known = project(1, 8, 1024, device="mi300x", impl="aiter")
    assert (found.uncertainty["relative"] > known.uncertainty["relative"]) == (evidence != "width")


def test_of_several_widths_the_one_known_least_counts():
    found = project(1, 8, 1024, head_dim=[128, 256], device="mi300x")
    assert found.evidence == "device"
    assert "64 and 128 and 192" in found.basis


def test_the_object_is_plain_and_complete():
    found = project([1, 2], 8, 1024, window=[0, 128])
    plain = json.loads(json.dumps(found.to_dict()))
    assert [row["batch"] for row in plain["rows"]] == [1, 2]
    assert plain["time_ms"] == pytest.approx(sum(row["time_ms"] for row in plain["rows"]))
    assert plain["rows"][0]["tflops"] == pytest.approx(found.flop_per_s[0] * 1e-12)
    assert (plain["pass"], plain["impl"], plain["clock_mhz"]) == ("forward", "default", 1723.0)
    assert 0.0 < plain["rows"][0]["tflops"] < plain["peak_tflops"]


def test_short_runs_are_faster_than_training():
    assert project(4, 16, 4096, run="short").time_s < project(4, 16, 4096).time_s
    assert project(4, 16, 4096, clock_mhz=1980).time_s == project(4, 16, 4096, run="short").time_s


def test_nothing_costs_nothing():
    found = project(0, 16, 4096)
    assert (found.time_s[0], found.flop_per_s[0]) == (0.0, 0.0)


def test_an_implementation_the_device_lacks_is_refused_with_what_it_has():
    with pytest.raises(ConfigError, match="has no attention implementation 'ck'") as error:
        project(1, 8, 64, impl="ck")
    assert error.value.key == "impl"
    assert {"default", "fa2", "fa3", "cudnn", "unfused"} <= set(error.value.allowed)
    with pytest.raises(ConfigError, match="1980 MHz"):
        project(1, 8, 64, clock_mhz=1990)


@pytest.mark.parametrize("device", ["h100", "b200"])
@pytest.mark.parametrize(
    ("impl", "dtype", "takes"),
    [("trtllm_fmha_fp8", "bf16", ["fp8"]), ("trtllm_fmha", "fp8", ["fp16", "bf16"])],
)
def test_a_kernel_of_other_types_is_refused_with_those_that_have_it(device, impl, dtype, takes):
    options = {"head_dim": 128, "device": device, "impl": impl}
    for call in (project_attention, attention_time):
        with pytest.raises(ConfigError, match=f"{dtype} has .*(te|cudnn)") as error:
            call(1, 8, 64, dtype=dtype, **options)
        assert (error.value.key, error.value.value) == ("dtype", dtype)
        assert error.value.allowed == takes
        assert call(1, 8, 64, dtype=takes[0], **options)


def test_a_type_that_no_row_of_a_kernel_has_is_noted():
    assert project(1, 8, 64).warnings == ()
    assert project(1, 8, 64, dtype="fp8", impl="trtllm_fmha_fp8").warnings == ()
    (note,) = project(1, 8, 64, dtype="fp8").warnings
    assert "known for fp16 and bf16; fp8 was given the same shares" in note


def test_documents_packed_in_one_kernel_cost_less_than_in_turn_and_no_less_than_their_work():
    documents = project(1, 16, np.array([100, 700, 1500, 300, 1496]))
    packed = packed_time_s(documents)
    assert packed < documents.time_s.sum()
    whole = project(1, 16, int(documents.extents[:, 3].sum()))
    assert packed < whole.time_s[0]
    one = project(1, 16, 4096)
    assert packed_time_s(one) == pytest.approx(one.time_s[0])
    assert packed_time_s(project(1, 16, np.zeros(0, int))) == 0.0
