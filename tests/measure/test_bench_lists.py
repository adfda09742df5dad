"""Lists of shapes and sweeps become the cases that they ask for, and bad ones say where."""

import pytest

from projector.errors import ConfigError
from projector.measure.bench.cases import aligned_elements, collective_cases
from projector.measure.bench.lists import (
    AttentionOptions,
    GemmOptions,
    attention_list,
    gemm_list,
    read_sizes,
    whole_bytes,
)


def shapes(**options):
    keys = [case.key for case in gemm_list(GemmOptions(**options))]
    return [(key.dtype, key.m, key.n, key.k, key.batch) for key in keys]


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("512", [512]),
        ("512, 64,512", [512, 64]),
        ("256:2048", [256, 512, 1024, 2048]),
        ("256:1500", [256, 512, 1024]),
        ("100:200:50", [100, 150, 200]),
        ("100:400:x1.5", [100, 150, 225, 338]),
        ("8:32,100", [8, 16, 32, 100]),
    ],
)
def test_sizes_are_lists_and_ranges(text, sizes):
    assert read_sizes("sizes", text) == sizes


def test_sizes_of_buffers_have_units():
    assert read_sizes("sizes", "1KiB:4KiB,1MB", whole_bytes) == [1024, 2048, 4096, 10**6]


@pytest.mark.parametrize(
    "text",
    ["", "0", "a", "8:4", "1:2:3:4", "1:8:x1", "1:8:xx", "1:8:0", "1:1000000:1", "-4", "1.5"],
)
def test_sizes_that_are_none_are_refused(text):
    with pytest.raises(ConfigError) as error:
        read_sizes("sizes", text)
    assert error.value.key == "sizes"


def test_a_sweep_is_square_where_no_extent_is_given():
    assert shapes(sizes="256:1024") == [("bf16", size, size, size, 1) for size in (256, 512, 1024)]


def test_given_extents_are_kept_and_the_others_swept_together():
    found = shapes(sizes="64,128", n="4096", k="8192")
    assert found == [("bf16", 64, 4096, 8192, 1), ("bf16", 128, 4096, 8192, 1)]
    assert [each[1:4] for each in shapes(m="8,16", n="32,64", k="128")] == [
        (8, 32, 128), (8, 64, 128), (16, 32, 128), (16, 64, 128),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "elements"),
    [("fp32", 4), ("bf16", 8), ("fp8", 16), ("fp8_block", 16), ("mxfp8", 16), ("nvfp4", 32)],
)
def test_extents_are_padded_to_16_bytes(dtype, elements):
    assert aligned_elements(dtype) == elements
    (case,) = gemm_list(GemmOptions(m="257", n="1", k="100", dtypes=dtype))
    for name, asked in (("m", 257), ("n", 1), ("k", 100)):
        padded = getattr(case.key, name)
        assert padded % elements == 0
        assert padded - elements < asked <= padded
    assert case.asked == {"m": 257, "n": 1, "k": 100}


def test_shapes_that_are_padded_to_the_same_are_measured_once():
    assert shapes(m="250:256:1", n="64", k="64") == [("bf16", 256, 64, 64, 1)]
    assert len(shapes(m="250:256:1", n="64", k="64", pad=False)) == 7


def test_a_list_names_types_and_batches(tmp_path):
    table = tmp_path / "shapes.csv"
    table.write_text(
        "M,N,K,batch,groups,dtype,note\n64,64,64,,,,a\n64,128,64,4,,FP8,b\n8,16,32,,2,,\n"
    )
    options = GemmOptions(str(table), dtypes="bf16,fp32")
    cases = gemm_list(options)
    assert [(each.key.dtype, each.key.n, each.key.batch, each.key.expert) for each in cases] == [
        ("bf16", 64, 1, False), ("fp32", 64, 1, False), ("fp8", 128, 4, False),
        ("bf16", 16, 2, True), ("fp32", 16, 2, True),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        ("m,n\n1,2\n", "", "k"),
        ("m,n,k\n64,64,64\n64,,64\n", ":3: n", "n"),
        ("m,n,k\n64,0,64\n", ":2: n", "n"),
        ("m,n,k\n64,64,1.5\n", ":2: k", "k"),
        ("m,n,k\n64,-3,64\n", ":2: n", "n"),
        ("m,n,k,dtype\n64,64,64,fp9\n", ":2: dtype", "dtype"),
        ("m,n,k\n64,1,024,64\n", ":2: 4 fields", "csv"),
        ("m,n,k,batch,groups\n64,64,64,2,2\n", ":2: groups and batch", "batch"),
        ("m,n,k\n", "has no shapes", "csv"),
    ],
)
def test_a_bad_list_says_where(tmp_path, text, line, key):
    table = tmp_path / "shapes.csv"
    table.write_text(text)
    with pytest.raises(ConfigError) as error:
        gemm_list(GemmOptions(str(table)))
    assert line in str(error.value)
    assert error.value.key == key


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"m": "8", "n": "8"},
        {"m": "8", "n": "8", "k": "8", "sizes": "8"},
        {"table": "x.csv", "sizes": "8"},
        {"sizes": "8", "layout": "tt"},
        {"sizes": "8", "dtypes": "fp9"},
        {"sizes": "8", "dtypes": ""},
        {"sizes": "8", "batch": 0},
        {"sizes": "8", "groups": -1},
        {"sizes": "8", "groups": 2, "batch": 2},
        {"m": "1:1000:1", "n": "1:1000:1", "k": "8"},
    ],
)
def test_options_that_make_no_list_are_refused(options):
    with pytest.raises(ConfigError):
        gemm_list(GemmOptions(**options))


def test_attention_lists_are_those_of_the_model(tmp_path):
    table = tmp_path / "shapes.csv"
    table.write_text(
        "batch,heads,seq,kv_heads,head_dim,dtype\n1,32,2048,8,128,\n2,16,512,,64,fp16\n"
    )
    keys = [case.key for case in attention_list(AttentionOptions(str(table)))]
    assert [(key.phase, key.dtype, key.key_heads, key.k, key.d_v) for key in keys] == [
        ("forward", "bf16", 8, 128, 128), ("backward", "bf16", 8, 128, 128),
        ("forward", "fp16", 16, 64, 64), ("backward", "fp16", 16, 64, 64),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("row", "key"),
    [
        ("1,32,2048,5,128,2048", "kv_heads"),
        ("1,32,2048,8,128,1024", "seq_kv"),
        ("1,0,2048,8,128,2048", "heads"),
    ],
)
def test_a_bad_attention_says_where(tmp_path, row, key):
    table = tmp_path / "shapes.csv"
    table.write_text(f"batch,heads,seq,kv_heads,head_dim,seq_kv\n{row}\n")
    with pytest.raises(ConfigError, match=":2: ") as error:
        attention_list(AttentionOptions(str(table)))
    assert error.value.key == key


def test_collectives_need_ranks_and_names():
    assert len(collective_cases(["all_reduce", "all_gather"], [1024, 2048], 4)) == 4
    with pytest.raises(ConfigError, match="at least 2 ranks"):
        collective_cases(["all_reduce"], [1024], 1)
    with pytest.raises(ConfigError, match="must be one of all_reduce"):
        collective_cases(["gather"], [1024], 2)
