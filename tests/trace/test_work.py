"""The work that extents of operators tell."""

import numpy as np
import pytest

from projector.trace.activity import GEMM
from projector.trace.work import work_of, works_of
from synthetic import activities, compute

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
        ("aten::mm", [[], []]),
        ("aten::mm", [[0, 4], [4, 4]]),
        ("aten::mm", ["ab", "cd"]),
        ("aten::add", [[4], [4]]),
        ("aten::bmm", [[3], [3]]),
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
