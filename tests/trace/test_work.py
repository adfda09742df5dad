"""The work that extents of operators tell."""

import math
from pathlib import Path

import numpy as np
import pytest

from projector import load_trace
from projector.trace.activity import FORWARD, GEMM
from projector.trace.measures.breakdown import breakdown
from projector.trace.work import work_of, works_of
from synthetic import activities, compute

DATA = Path(__file__).parent / "data"
BF16 = ["c10::BFloat16"] * 4


@pytest.mark.parametrize(
    ("operator", "dims", "wanted"),
    [
        ("aten::mm", [[10, 1000], [1000, 512]], (10, 512, 1000, 1)),
        ("aten::addmm", [[640], [888, 2880], [2880, 640], [], []], (888, 640, 2880, 1)),
        ("aten::linear", [[2, 4, 8], [16, 8], [16]], (8, 16, 8, 1)),
        ("aten::bmm", [[32, 7, 64], [32, 64, 9]], (7, 9, 64, 32)),
        ("aten::_scaled_mm", [[128, 256], [256, 512], [], []], (128, 512, 256, 1)),
        ("aten::_grouped_mm", [[100, 8], [4, 8, 16], [4]], (100, 16, 8, 4)),
        ("aten::_grouped_mm", [[16, 100], [100, 8], [4]], (16, 8, 100, 1)),
    ],
)
def test_products(operator, dims, wanted):
    work = work_of(operator, dims, BF16)
    assert (work.m, work.n, work.k, work.batch) == wanted
    assert work.dtype == "bf16"
    products = 1 if "grouped" in operator else work.batch
    assert work.flop() == 2.0 * products * work.m * work.n * work.k


def test_attention():
    query, key = [2, 8, 128, 64], [2, 2, 128, 64]
    operator = "aten::_scaled_dot_product_flash_attention"
    forward = work_of(operator, [query, key, key, [], []], BF16)
    assert forward.flop(causal=False) == 4.0 * 2 * 8 * 128 * 128 * 64
    assert forward.flop() == 0.5 * forward.flop(causal=False)
    backward = work_of(f"{operator}_backward", [query, query, key, key], BF16)
    assert backward.flop() == 2.0 * forward.flop()
    swapped = work_of("aten::_flash_attention_forward", [[2, 128, 8, 64]] + [[2, 128, 2, 64]] * 2)
    assert swapped.flop() == forward.flop()
    packed = work_of("flash_attn::_flash_attn_varlen_forward", [[256, 8, 64]] + [[256, 2, 64]] * 2)
    assert (packed.batch, packed.m, packed.heads, packed.key_heads) == (1, 256, 8, 2)


@pytest.mark.parametrize(
    ("operator", "dims"),
    [
        ("aten::mm", [[10, 1000], [999, 512]]),
        ("aten::mm", [[10, 1000]]),
        ("aten::mm", None),
        ("aten::mm", {"a": [4, 4]}),
        ("aten::mm", [[math.inf, 4], [4, 4]]),
        ("aten::mm", [[], []]),
        ("aten::mm", [[0, 4], [4, 4]]),
        ("aten::mm", ["ab", "cd"]),
        ("aten::add", [[4], [4]]),
        ("aten::bmm", [[3], [3]]),
        ("aten::conv2d", [[10, 256, 14, 14], [512, 256, 3, 3], []]),
        ("aten::convolution_backward", [[10, 512, 7, 7], [10, 250, 14, 14], [512, 256, 3, 3]]),
        ("aten::conv_transpose2d", [[2, 8, 5, 5], [9, 4, 3, 3]]),
        ("aten::conv_transpose2d", [[8, 5], [8, 4]]),
    ],
)
def test_what_is_no_product(operator, dims):
    assert work_of(operator, dims) is None


def test_one_kernel_of_an_operator_does_the_work():
    detail = {"operator": "aten::mm", "dims": [[4, 8], [8, 16]]}
    table = activities(
        compute(0, 10, type=GEMM, detail=detail),
        compute(10, 12, type=GEMM, name="cublasLt::splitKreduce_kernel", detail=detail),
        compute(12, 20),
    )
    works = works_of(table)
    assert len(works.works) == 1
    assert works.of.tolist() == [0, 0, -1]
    assert np.array_equal(works.flop(), [2.0 * 4 * 8 * 16, 0.0, 0.0])


def convolved(x, w, stride, padding, dilation):
    """FLOP of a convolution, counted place by place of its kernel: two for each weight."""
    places = 1
    for extent, size, step, pad, apart in zip(x[2:], w[2:], stride, padding, dilation, strict=True):
        taps = range(0, apart * size, apart)
        padded = extent + 2 * pad
        places *= sum(begin + taps[-1] < padded for begin in range(0, padded, step))
    return 2.0 * x[0] * places * math.prod(w)


@pytest.mark.parametrize(
    ("x", "w", "stride", "padding", "dilation"),
    [
        ((10, 256, 14, 14), (512, 256, 3, 3), (2, 2), (1, 1), (1, 1)),
        ((2, 3, 30, 17), (8, 3, 5, 3), (3, 1), (0, 2), (2, 1)),
        ((4, 32, 9, 9), (64, 1, 3, 3), (1, 1), (1, 1), (1, 1)),  # each channel by itself
        ((4, 32, 9, 9), (64, 8, 1, 1), (2, 2), (0, 0), (1, 1)),
        ((1, 6, 100), (6, 6, 7), (4,), (3,), (1,)),
        ((2, 4, 5, 6, 7), (8, 2, 3, 3, 3), (1, 2, 1), (1, 0, 1), (1, 1, 2)),
    ],
)
def test_convolutions(x, w, stride, padding, dilation):
    texts = [str(list(each)) for each in (stride, padding, dilation)]
    wanted = convolved(x, w, stride, padding, dilation)
    names = {3: "aten::conv1d", 4: "aten::conv2d", 5: "aten::conv3d"}
    tensors = [x, w, []]
    plain = work_of(names[len(x)], tensors, BF16, ["", "", "", *texts, "1"])
    assert (plain.flop(), plain.dtype, plain.kind) == (wanted, "bf16", "convolution")
    inner = ["", "", "", *texts, "False", "[0]", "1"]
    assert work_of("aten::_convolution", tensors, BF16, inner) == plain
    by_cudnn = ["", "", texts[1], texts[0], texts[2], "1"]
    assert work_of("aten::cudnn_convolution", tensors[:2], BF16, by_cudnn) == plain
    by_miopen = ["", "", "", texts[1], texts[0], texts[2], "1"]
    assert work_of("aten::miopen_convolution", tensors, BF16, by_miopen) == plain
    unbatched = work_of(names[len(x)], [x[1:], w, []], BF16, ["", "", "", *texts, "1"])
    assert unbatched.flop() * x[0] == wanted
    # A backward has the extents of the output, and each gradient takes as many FLOP.
    places = plain.m // x[0]
    output = (x[0], w[0], places, *[1] * (len(x) - 3))
    tensors = [output, x, w]
    for mask, many in (("[True, True, False]", 2), ("[False, True, True]", 1), (None, 2)):
        told = ["", "", "", "[0]", *texts, "False", "[0]", "1", mask] if mask else ()
        back = work_of("aten::convolution_backward", tensors, BF16, told)
        assert (back.flop(), back.gradients) == (many * wanted, many)
    told = [*[""] * 7, "False", "[0]", "1", "[False, False, True]"]
    assert work_of("aten::convolution_backward", tensors, BF16, told) is None


def test_what_pads_a_convolution_may_be_a_word():
    tensors = [[2, 3, 8, 8], [4, 3, 3, 3], []]

    def places(padding, stride="[1, 1]"):
        return work_of("aten::conv2d", tensors, (), ["", "", "", stride, padding, "[1]", "1"]).m

    assert places("same") == 2 * 8 * 8
    assert places("valid") == 2 * 6 * 6
    assert places("[1]", "[2]") == 2 * 4 * 4


def test_transposed_convolutions():
    # Each place of the input reaches all weights of its channel once.
    wanted = 2.0 * 2 * 5 * 5 * (8 * 4 * 3 * 3)
    tensors = [[2, 8, 5, 5], [8, 4, 3, 3], []]
    assert work_of("aten::conv_transpose2d", tensors).flop() == wanted
    told = ["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "True", "[0, 0]", "1"]
    assert work_of("aten::convolution", tensors, (), told).flop() == wanted
    back = [[2, 4, 11, 11], *tensors[:2]]
    told = ["", "", "", "[0]", *told[3:], "[True, True, False]"]
    assert work_of("aten::convolution_backward", back, (), told).flop() == 2 * wanted


def test_gradients_of_a_convolution_share_its_work():
    detail = {
        "operator": "aten::convolution_backward",
        "dims": ((2, 4, 8, 8), (2, 3, 8, 8), (4, 3, 3, 3)),
    }
    more = {"type": GEMM, "detail": detail, "iteration": 0}
    table = activities(
        compute(0, 10, instance=5, **more), compute(10, 20, instance=5, **more),
        compute(30, 40, instance=6, **more),
    )  # fmt: skip
    whole = 2 * 2.0 * 2 * 8 * 8 * (4 * 3 * 3 * 3)
    assert works_of(table).flop().tolist() == [whole / 2, whole / 2, whole]
    (part,) = breakdown(table, ("type",))
    assert part.tflop_per_s == pytest.approx(2 * whole / 30e-9 / 1e12)


def test_flop_of_a_real_network():
    # ResNet-18 on ten images: 1.814e9 multiply-adds each (torchvision), and recomputed without its
    # first convolution. Of that one the backward takes no gradient of the input.
    table = load_trace(DATA / "mi300x_resnet_ddp8.json.gz").everything
    flop, works = works_of(table).flop(), works_of(table)
    convolves = np.array([*(work.kind == "convolution" for work in works.works), False])[works.of]
    one = convolves & (table.iteration == 16)
    first = 2.0 * 10 * 112 * 112 * 64 * 147
    forward = float(flop[one & (table.phase == FORWARD)].sum())
    assert forward == pytest.approx(2 * 10 * 1.814e9, rel=1e-3)
    again = one & table.recompute
    assert float(flop[again].sum()) == forward - first
    assert float(flop[one].sum()) == 4 * forward - 2 * first


def test_rates_stand_beside_times():
    run = load_trace(DATA / "mi300x_resnet_ddp8.json.gz")
    rows = run.operations("type").rows
    rates = {row["type"]: row["tflop_per_s"] for row in rows}
    assert [name for name, rate in rates.items() if rate is not None] == ["gemm"]
    # Convolutions of a forward, twice, and a backward; the last layer's products on ten images.
    convolutions, first = 2 * 10 * 1.8136e9, 2.0 * 10 * 112 * 112 * 64 * 147
    step = 4 * convolutions - 2 * first + 3 * 2.0 * 10 * 512 * 1000
    table = run.everything
    timed = (table.iteration >= 0) & (table.type == GEMM)
    seconds = float((table.end_ps - table.start_ps)[timed].sum()) * 1e-12
    assert rates["gemm"] == pytest.approx(3 * step / seconds / 1e12, rel=1e-3)
