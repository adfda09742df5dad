"""Fused and unfused attention, forward and backward.

`passes` says how work-groups share an attention, what forward and backward take, and what a time
is made of; `times` has the kernels, and columns for callers.
"""

from projector.kernels.attention.passes import BOUNDS, HIDDEN_LOSS, TERMS, AttentionTerms
from projector.kernels.attention.times import (
    AttentionColumns,
    attention_term_columns,
    attention_time_columns,
)

__all__ = [
    "BOUNDS",
    "HIDDEN_LOSS",
    "TERMS",
    "AttentionColumns",
    "AttentionTerms",
    "attention_term_columns",
    "attention_time_columns",
]
