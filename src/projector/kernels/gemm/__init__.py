"""Matrix multiplications: the model of tiles, speed of light, and a documented model.

`problem` says what a GEMM meets on a device and what its time is made of, `model` what a tile makes
of it; `times` has the kernels, and columns for callers.
"""

from projector.kernels.gemm.problem import (
    BOUNDS,
    MEMORY,
    OVERHEAD,
    STEP_ELEMENT_BYTES,
    TERMS,
    GemmTerms,
)
from projector.kernels.gemm.times import (
    MAX_SPLIT_K,
    gemm_term_columns,
    gemm_time_columns,
    seconds_of_terms,
    sol_time_columns,
)

__all__ = [
    "BOUNDS",
    "MAX_SPLIT_K",
    "MEMORY",
    "OVERHEAD",
    "STEP_ELEMENT_BYTES",
    "TERMS",
    "GemmTerms",
    "gemm_term_columns",
    "gemm_time_columns",
    "seconds_of_terms",
    "sol_time_columns",
]
