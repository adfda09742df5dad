"""The numbers of a device that kernels read: one record for each device, in SI units."""

import numpy as np

MATRIX_TYPES = (
    "fp32",
    "tf32",
    "fp16",
    "bf16",
    "fp8",
    "mxfp8",
    "nvfp4",
    "int8",
    "fp8_block",
    "mxfp6",
    "mxfp4",
)
"""Order of the per-type sub-arrays; a type's position here is its code in every column."""

OPERAND_BYTES = np.array(
    [
        4.0,
        4.0,
        2.0,
        2.0,
        1.0,
        1.0 + 1.0 / 32.0,
        0.5 + 1.0 / 16.0,
        1.0,
        1.0 + 4.0 / 128.0,
        0.75 + 1.0 / 32.0,
        0.5 + 1.0 / 32.0,
    ]
)
"""Bytes of one operand element with its share of the block scales: MX types have an 8-bit scale
for every 32 elements (OCP MX v1.0), NVFP4 one for every 16, block-scaled FP8 one of 32 bits for
every 128 (of B even fewer: one for 128 x 128). Scales of whole tensors, rows and columns are too
few to count."""

ALIGNED_BYTES = 16.0
"""Rows of a matrix that are a multiple of this are loaded in whole vectors and by copy engines."""

FIRST_NARROW = MATRIX_TYPES.index("fp8")
"""Types from here on have fewer than 16 bits, and a 16-bit operand is quantised first."""

MAX_TILES = 64
"""Longest tile menu a device may have."""

MAX_SPLITS = 24
"""Most numbers of parts above one that a library may cut K into."""

MAX_HEAD_DIMS = 8
"""Most head widths with a tile of their own in an attention kernel."""

BASE_HEAD_DIM = 128.0
"""Head width that an attention kernel's own fields describe."""

(
    HEAD_DIM,
    FORWARD_ROWS,
    FORWARD_COLUMNS,
    BACKWARD_COLUMNS,
    BACKWARD_ROWS,
    FORWARD_SCALE,
    BACKWARD_SCALE,
    MASK_ROWS,
) = range(8)
"""Columns of a row of ``attention_dims``; the scales multiply the efficiencies."""

(
    TILE_M,
    TILE_N,
    TILE_K_BYTES,
    TILE_EFFICIENCY,
    TILE_CLUSTER_M,
    TILE_CLUSTER_N,
    TILE_SHARE_M,
    TILE_SHARE_N,
    TILE_UNITS,
    TILE_STEP_CLK,
) = range(10)
"""Columns of a row of ``tiles``: its extents, step and efficiency; units of its cluster along M
and N; share of a tile's rows of A and columns of B that each unit takes in itself; compute units
that such clusters can fill; and clocks that each step adds."""

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
        # Clocks of an epilogue whatever its size, the rate of its output, and the share of it that
        # the next wave waits for.
        ("gemm_epilogue_clk", np.float64),
        ("gemm_epilogue_bytes_per_clk_per_cu", np.float64),
        ("gemm_epilogue_exposed", np.float64),
        # Least clocks of a tile for one element of K, by matrix type.
        ("gemm_clk_per_k", np.float64, (len(MATRIX_TYPES),)),
        # Clocks that the vector pipes of a compute unit take for the block scales of one element of
        # C and of K, by matrix type.
        ("gemm_scale_clk", np.float64, (len(MATRIX_TYPES),)),
        # By how much longer L2 takes to load rows that are no multiple of ALIGNED_BYTES; 1 where
        # operands do not lie along K.
        ("gemm_unaligned_loads", np.float64),
        ("gemm_l2_miss_share", np.float64),
        ("gemm_hbm_bytes_per_s", np.float64),
        # Dies that take the tiles of a wave in turn; 1 where neighbours stay together.
        ("gemm_die_stride", np.float64),
        # Rows of tiles that are worked off together; 0 for near-square groups.
        ("gemm_group_m", np.float64),
        ("num_gemm_splits", np.int64),
        # Numbers of parts above one that K may be cut into, rising; the rest is unused.
        ("gemm_splits", np.float64, (MAX_SPLITS,)),
        # Cap and constants of the power of a single kernel; a cap of 0 sets no bound.
        ("power_cap_w", np.float64),
        ("power_idle_w", np.float64),
        ("power_voltage_floor", np.float64),
        # Clock that the rates hold at, over the highest one, by matrix type.
        ("power_clock_share", np.float64, (len(MATRIX_TYPES),)),
        ("joule_per_flop", np.float64, (len(MATRIX_TYPES),)),
        ("joule_per_hbm_byte", np.float64),
        # Rate of grouped GEMMs over dense ones: forward, and both gradients.
        ("grouped_forward_efficiency", np.float64),
        ("grouped_backward_efficiency", np.float64),
        ("num_tiles", np.int64),
        # Columns TILE_M to TILE_STEP_CLK; rows past num_tiles are unused.
        ("tiles", np.float64, (MAX_TILES, 10)),
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
        # By how much each further writer in flight slows the atomics.
        ("attention_atomic_contention", np.float64),
        # Peak rates at the clock of attention; the efficiencies above are shares of them.
        ("attention_flop_per_s", np.float64, (len(MATRIX_TYPES),)),
        ("attention_exp_per_s", np.float64),
        # Vector instructions (one lane) per second.
        ("attention_vector_per_s", np.float64),
        ("attention_backward_softmax_exposed", np.float64),
        ("attention_backward_tile_overhead_s", np.float64),
        # 1 where the longest work-groups start first.
        ("attention_longest_first", np.float64),
        ("attention_backward_longest_first", np.float64),
        # How many times fewer vector instructions the softmax takes than one a number and step.
        ("attention_vector_saving", np.float64),
        # Share of the softmax work by which a partly masked step is longer.
        ("attention_mask_exposed", np.float64),
        # 1 where the query heads of a key head share blocks.
        ("attention_packs_heads", np.float64),
        # Efficiency of blocks of half the rows over whole ones; 0 where there are none.
        ("attention_half_efficiency", np.float64),
        # Share of the start skew that shows where the parts of dQ are added in a fixed order.
        ("attention_dq_order_exposed", np.float64),
        ("attention_start_s", np.float64),
        ("attention_backward_start_s", np.float64),
        # Passes of Q, and of K and V, through memory before the kernel; seconds a new token.
        ("attention_query_passes", np.float64),
        ("attention_key_passes", np.float64),
        ("attention_token_s", np.float64),
        # Passes over all scores of unfused attention; 0 means fused.
        ("attention_forward_score_passes", np.float64),
        ("attention_backward_score_passes", np.float64),
        # Further ones forward where scores are masked.
        ("attention_mask_score_passes", np.float64),
        ("num_attention_dims", np.int64),
        # Other head widths; rows past num_attention_dims are unused.
        ("attention_dims", np.float64, (MAX_HEAD_DIMS, 8)),
    ]
)
"""One device. ``matrix_flop_per_s`` already holds the share that a large GEMM reaches
(``gemm_efficiency``); attention has rates of its own."""
