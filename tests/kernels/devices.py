"""Devices for kernel tests: one of round numbers, random ones, and all that ship."""

import numpy as np
from hypothesis import strategies as st

from projector.config import resources
from projector.config.device_file import load_device
from projector.kernels.device import DEVICE, MATRIX_TYPES, MAX_TILES
from projector.lower.hardware import device_record

NUM_TYPES = len(MATRIX_TYPES)
FP32, TF32, FP16, BF16, FP8, MXFP8, NVFP4, INT8, FP8_BLOCK, MXFP6, MXFP4 = range(NUM_TYPES)

ROUND = {
    "compute_units": 128.0,
    "dies": 1.0,
    "matrix_flop_per_s": (
        16e12,
        256e12,
        512e12,
        512e12,
        *[1024e12] * 2,
        2048e12,
        *[1024e12] * 2,
        *[2048e12] * 2,
    ),
    "clock_hz": (1e9,) * NUM_TYPES,
    "vector_flop_per_s": 64e12,
    "transcendental_per_s": 2e12,
    "l2_fill_bytes_per_clk_per_cu": 64.0,
    "l2_bytes": 64e6,
    "l2_bytes_per_s": 8e12,
    "mall_bytes": 0.0,
    "mall_bytes_per_s": 0.0,
    "hbm_bytes_per_s": 2e12,
    "elementwise_bytes_per_s": 1.5e12,
    "hbm_latency_s": 1e-6,
    "gemm_overhead_s": 2e-6,
    "gemm_split_k_s": 2e-6,
    "gemm_overlap_loss": 0.1,
    "gemm_epilogue_clk": 300.0,
    "gemm_epilogue_bytes_per_clk_per_cu": 20.0,
    "gemm_epilogue_exposed": 0.5,
    "gemm_clk_per_k": (1.0,) * NUM_TYPES,
    "gemm_scale_clk": (0.0,) * NUM_TYPES,
    "gemm_unaligned_loads": 3.0,
    "gemm_l2_miss_share": 0.03,
    "gemm_hbm_bytes_per_s": 1.6e12,
    "gemm_die_stride": 1.0,
    "gemm_group_m": 0.0,
    "gemm_splits": (2.0, 4.0, 8.0, 16.0),
    "power_cap_w": 0.0,
    "power_idle_w": 200.0,
    "power_voltage_floor": 0.4,
    "power_clock_share": (0.9,) * NUM_TYPES,
    "joule_per_flop": (0.8e-12,) * NUM_TYPES,
    "joule_per_hbm_byte": 60e-12,
    "grouped_forward_efficiency": 0.9,
    "grouped_backward_efficiency": 0.8,
    "tiles": (
        (128.0, 256.0, 128.0, 1.0, 2.0, 1.0, 1.0, 0.5, 128.0, 0.0),
        (256.0, 128.0, 128.0, 1.0, 1.0, 2.0, 1.0, 1.0, 120.0, 0.0),
        (64.0, 64.0, 128.0, 0.9, 1.0, 1.0, 1.0, 1.0, 128.0, 0.0),
    ),
    "attention_forward_rows": 128.0,
    "attention_forward_columns": 64.0,
    "attention_backward_columns": 128.0,
    "attention_backward_rows": 64.0,
    "attention_forward_efficiency": 0.8,
    "attention_backward_efficiency": 0.6,
    "attention_softmax_exposed": 0.3,
    "attention_tile_overhead_s": 1e-6,
    "attention_atomic_bytes_per_s": 4e12,
    "attention_atomic_contention": 0.0,
    "attention_flop_per_s": (
        16e12,
        256e12,
        512e12,
        512e12,
        *[1024e12] * 2,
        2048e12,
        *[1024e12] * 2,
        *[2048e12] * 2,
    ),
    "attention_exp_per_s": 2e12,
    "attention_vector_per_s": 16e12,
    "attention_backward_softmax_exposed": 0.4,
    "attention_backward_tile_overhead_s": 2e-6,
    "attention_longest_first": 0.0,
    "attention_backward_longest_first": 1.0,
    "attention_vector_saving": 1.0,
    "attention_mask_exposed": 0.0,
    "attention_packs_heads": 0.0,
    "attention_half_efficiency": 0.0,
    "attention_dq_order_exposed": 0.0,
    "attention_start_s": 2e-6,
    "attention_backward_start_s": 4e-6,
    "attention_query_passes": 0.0,
    "attention_key_passes": 0.0,
    "attention_token_s": 0.0,
    "attention_forward_score_passes": 0.0,
    "attention_backward_score_passes": 0.0,
    "attention_mask_score_passes": 0.0,
    "attention_dims": (),
}
"""128 units of 4 TFLOP/s in bf16."""

RATES = (
    "matrix_flop_per_s",
    "clock_hz",
    "vector_flop_per_s",
    "transcendental_per_s",
    "l2_fill_bytes_per_clk_per_cu",
    "l2_bytes_per_s",
    "mall_bytes_per_s",
    "hbm_bytes_per_s",
    "gemm_hbm_bytes_per_s",
    "gemm_epilogue_bytes_per_clk_per_cu",
    "elementwise_bytes_per_s",
    "attention_atomic_bytes_per_s",
    "attention_flop_per_s",
    "attention_exp_per_s",
    "attention_vector_per_s",
)
"""Fields of which more is never worse; 0 of the last cache or of atomics means there is none."""

_tile_extents = st.sampled_from([16.0, 64.0, 96.0, 128.0, 192.0, 256.0])
_clusters = st.sampled_from([1.0, 2.0, 4.0])
_shares = st.sampled_from([0.5, 1.0])
_tiles = st.lists(
    st.tuples(
        _tile_extents,
        _tile_extents,
        st.sampled_from([64.0, 128.0]),
        st.floats(0.3, 1.0),
        _clusters,
        _clusters,
        _shares,
        _shares,
        st.integers(1, 320).map(float),
        st.sampled_from([0.0, 50.0, 700.0]),
    ),
    min_size=1,
    max_size=4,
)


_switches = st.sampled_from([0.0, 1.0])

_head_dims = st.lists(
    st.tuples(
        st.sampled_from([64.0, 96.0, 192.0, 256.0]), st.sampled_from([64.0, 128.0, 256.0]),
        st.sampled_from([32.0, 64.0, 112.0]), st.sampled_from([64.0, 128.0]),
        st.sampled_from([16.0, 64.0]), st.floats(0.5, 1.5), st.floats(0.5, 1.5),
        st.sampled_from([0.0, 0.0, 512.0]),
    ),
    max_size=3,
    unique_by=lambda entry: entry[0],
)  # fmt: skip


def _consistent(device):
    """GEMMs reach a share of what the memory streams, and no cluster fills more than there is."""
    share, units = device["gemm_hbm_bytes_per_s"], device["compute_units"]
    tiles = [(*tile[:8], min(tile[8], units), tile[9]) for tile in device["tiles"]]
    return device | {"gemm_hbm_bytes_per_s": share * device["hbm_bytes_per_s"], "tiles": tiles}


device_dicts = st.fixed_dictionaries(
    {
        "compute_units": st.integers(1, 320).map(float),
        "dies": st.sampled_from([1.0, 2.0, 8.0]),
        "matrix_flop_per_s": st.tuples(*[st.floats(1e12, 1e16)] * NUM_TYPES),
        "clock_hz": st.tuples(*[st.floats(5e8, 3e9)] * NUM_TYPES),
        "vector_flop_per_s": st.floats(1e12, 2e14),
        "transcendental_per_s": st.floats(1e11, 2e13),
        "l2_fill_bytes_per_clk_per_cu": st.floats(16.0, 256.0),
        "l2_bytes": st.floats(1e6, 2e8),
        "l2_bytes_per_s": st.floats(1e12, 5e13),
        "mall_bytes": st.one_of(st.just(0.0), st.floats(1e7, 1e9)),
        "mall_bytes_per_s": st.one_of(st.just(0.0), st.floats(1e12, 3e13)),
        "hbm_bytes_per_s": st.floats(1e11, 2e13),
        "elementwise_bytes_per_s": st.floats(1e11, 2e13),
        "hbm_latency_s": st.floats(0.0, 1e-5),
        "gemm_overhead_s": st.floats(0.0, 1e-5),
        "gemm_split_k_s": st.floats(0.0, 1e-5),
        "gemm_overlap_loss": st.floats(0.0, 1.0),
        "gemm_epilogue_clk": st.floats(0.0, 5000.0),
        "gemm_epilogue_bytes_per_clk_per_cu": st.floats(4.0, 256.0),
        "gemm_epilogue_exposed": st.floats(0.0, 1.0),
        "gemm_clk_per_k": st.tuples(*[st.floats(0.0, 5.0)] * NUM_TYPES),
        "gemm_scale_clk": st.tuples(*[st.sampled_from([0.0, 1e-4, 1e-3])] * NUM_TYPES),
        "gemm_unaligned_loads": st.sampled_from([1.0, 1.0, 3.0]),
        "gemm_l2_miss_share": st.floats(0.0, 1.0),
        "gemm_hbm_bytes_per_s": st.floats(0.3, 1.0),
        "gemm_die_stride": st.sampled_from([1.0, 8.0]),
        "gemm_group_m": st.sampled_from([0.0, 1.0, 8.0, 4096.0]),
        "gemm_splits": st.sampled_from([(), (2.0, 4.0), (2.0, 3.0, 5.0, 6.0, 7.0, 16.0, 18.0)]),
        "power_cap_w": st.one_of(st.just(0.0), st.floats(300.0, 2000.0)),
        "power_idle_w": st.floats(0.0, 250.0),
        "power_voltage_floor": st.floats(0.0, 0.9),
        "power_clock_share": st.tuples(*[st.floats(0.3, 1.0)] * NUM_TYPES),
        "joule_per_flop": st.tuples(*[st.floats(1e-13, 2e-12)] * NUM_TYPES),
        "joule_per_hbm_byte": st.floats(0.0, 1e-10),
        "grouped_forward_efficiency": st.floats(0.1, 1.0),
        "grouped_backward_efficiency": st.floats(0.1, 1.0),
        "tiles": _tiles,
        "attention_forward_rows": st.sampled_from([16.0, 64.0, 128.0, 256.0]),
        "attention_forward_columns": st.sampled_from([16.0, 64.0, 176.0]),
        "attention_backward_columns": st.sampled_from([16.0, 64.0, 128.0, 256.0]),
        "attention_backward_rows": st.sampled_from([16.0, 64.0, 128.0]),
        "attention_forward_efficiency": st.floats(0.1, 1.0),
        "attention_backward_efficiency": st.floats(0.1, 1.0),
        "attention_softmax_exposed": st.floats(0.0, 2.0),
        "attention_tile_overhead_s": st.floats(0.0, 1e-5),
        "attention_atomic_bytes_per_s": st.one_of(st.just(0.0), st.floats(1e11, 2e13)),
        "attention_atomic_contention": st.sampled_from([0.0, 0.01]),
        "attention_flop_per_s": st.tuples(*[st.floats(1e12, 1e16)] * NUM_TYPES),
        "attention_exp_per_s": st.floats(1e11, 2e13),
        "attention_vector_per_s": st.floats(1e12, 2e14),
        "attention_backward_softmax_exposed": st.floats(0.0, 2.0),
        "attention_backward_tile_overhead_s": st.floats(0.0, 1e-5),
        "attention_longest_first": st.sampled_from([0.0, 1.0]),
        "attention_backward_longest_first": st.sampled_from([0.0, 1.0]),
        "attention_vector_saving": st.sampled_from([1.0, 2.0]),
        "attention_mask_exposed": st.floats(0.0, 4.0),
        "attention_packs_heads": _switches,
        "attention_half_efficiency": st.sampled_from([0.0, 0.8]),
        "attention_dq_order_exposed": st.sampled_from([0.0, 0.4]),
        "attention_start_s": st.floats(0.0, 2e-5),
        "attention_backward_start_s": st.floats(0.0, 2e-5),
        "attention_query_passes": st.floats(0.0, 5.0),
        "attention_key_passes": st.floats(0.0, 6.0),
        "attention_token_s": st.floats(0.0, 6e-9),
        "attention_forward_score_passes": st.just(0.0),
        "attention_backward_score_passes": st.just(0.0),
        "attention_mask_score_passes": st.just(0.0),
        "attention_dims": _head_dims,
    }
).map(_consistent)


def record(*devices):
    """Return one DEVICE record for each dict."""
    rows = np.zeros(len(devices), DEVICE)
    for row, device in zip(rows, devices, strict=True):
        for name, value in device.items():
            if name not in {"tiles", "gemm_splits", "attention_dims"}:
                row[name] = value
        assert len(device["tiles"]) <= MAX_TILES
        row["num_tiles"] = len(device["tiles"])
        row["tiles"][: len(device["tiles"])] = device["tiles"]
        row["num_gemm_splits"] = len(device["gemm_splits"])
        row["gemm_splits"][: len(device["gemm_splits"])] = device["gemm_splits"]
        row["num_attention_dims"] = len(device["attention_dims"])
        for entry, values in enumerate(device["attention_dims"]):
            row["attention_dims"][entry] = values
    return rows


def as_dict(row):
    """Return the dict of one DEVICE record."""
    counts = {"num_tiles", "num_gemm_splits", "num_attention_dims"}
    device = {name: row[name].tolist() for name in DEVICE.names if name not in counts}
    return device | {
        "tiles": device["tiles"][: row["num_tiles"]],
        "gemm_splits": device["gemm_splits"][: row["num_gemm_splits"]],
        "attention_dims": device["attention_dims"][: row["num_attention_dims"]],
    }


def scaled(device, name, factor):
    """Return a device with one field multiplied, in all matrix types where it has them."""
    value = device[name]
    more = tuple(x * factor for x in value) if isinstance(value, tuple | list) else value * factor
    return device | {name: more}


def _shipped():
    return {
        name: as_dict(device_record(load_device(name))[0]) for name in resources.shipped("hardware")
    }


SHIPPED = _shipped()
