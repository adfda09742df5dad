"""Matrix multiplications: the model of tiles, speed of light, and a documented model.

`terms` says what a time is made of, `problem` what a GEMM meets on a device, `model` what a tile
makes of it; `times` has the kernels, `columns` what callers use.
"""

from projector.kernels.gemm.columns import (
    gemm_term_columns,
    gemm_time_columns,
    seconds_of_terms,
    sol_time_columns,
)
from projector.kernels.gemm.problem import STEP_ELEMENT_BYTES
from projector.kernels.gemm.terms import BOUNDS, MEMORY, OVERHEAD, TERMS, GemmTerms
from projector.kernels.gemm.times import MAX_SPLIT_K

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
