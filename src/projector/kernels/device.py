"""The numbers of a device that kernels read: one record for each device, in SI units."""

import numpy as np

MATRIX_TYPES = ("fp32", "tf32", "fp16", "bf16", "fp8", "mxfp8", "nvfp4")
"""Order of the per-type sub-arrays; a type's position here is its code in every column."""

OPERAND_BYTES = np.array([4.0, 4.0, 2.0, 2.0, 1.0, 1.0 + 1.0 / 32.0, 0.5 + 1.0 / 16.0])
"""Bytes of one operand element with its share of the block scales: MXFP8 has an 8-bit scale
for every 32 elements (OCP MX v1.0), NVFP4 one for every 16."""

MAX_TILES = 24
"""Longest tile menu a device may have."""

TILE_M, TILE_N, TILE_K_BYTES, TILE_EFFICIENCY = 0, 1, 2, 3
"""Columns of a row of ``tiles``."""

DEVICE = np.dtype(
    [
        ("compute_units", np.float64),
        ("dies", np.float64),
        # FLOP/s of the whole device at the sustained clock, by matrix type; a type the device
        # lacks holds the rate of the type that stands in for it.
        ("matrix_flop_per_s", np.float64, (len(MATRIX_TYPES),)),
        # Sustained clock [Hz] by matrix type.
        ("clock_hz", np.float64, (len(MATRIX_TYPES),)),
        ("vector_flop_per_s", np.float64),
        # Exponentials per second of the whole device, at the sustained bf16 clock.
        ("transcendental_per_s", np.float64),
        ("l2_fill_bytes_per_clk_per_cu", np.float64),
        ("l2_bytes", np.float64),
        ("l2_bytes_per_s", np.float64),
        ("mall_bytes", np.float64),
        ("mall_bytes_per_s", np.float64),
        # Achievable, not peak.
        ("hbm_bytes_per_s", np.float64),
        # What memory-bound operators of a framework reach of it.
        ("elementwise_bytes_per_s", np.float64),
        ("hbm_latency_s", np.float64),
        ("gemm_overhead_s", np.float64),
        ("gemm_split_k_s", np.float64),
        ("gemm_overlap_loss", np.float64),
        # Share of a tile's first loads and last store that the next wave waits for.
        ("gemm_wave_exposed", np.float64),
        # Rate of grouped GEMMs over dense ones: forward, and both gradients.
        ("grouped_forward_efficiency", np.float64),
        ("grouped_backward_efficiency", np.float64),
        # Compute units that share one load of the longer operand from L2.
        ("l2_multicast", np.float64),
        ("num_tiles", np.int64),
        # tile_m, tile_n, k_bytes, efficiency; rows past num_tiles are unused.
        ("tiles", np.float64, (MAX_TILES, 4)),
        ("attention_forward_rows", np.float64),
        ("attention_forward_columns", np.float64),
        ("attention_backward_columns", np.float64),
        ("attention_backward_rows", np.float64),
        ("attention_forward_efficiency", np.float64),
        ("attention_backward_efficiency", np.float64),
        ("attention_softmax_exposed", np.float64),
        ("attention_tile_overhead_s", np.float64),
        # 0 where dQ is written without atomics.
        ("attention_atomic_bytes_per_s", np.float64),
    ]
)
"""One device. ``matrix_flop_per_s`` already holds the share that a large GEMM reaches
(``gemm_efficiency``); attention has efficiencies of its own and divides by nothing."""
