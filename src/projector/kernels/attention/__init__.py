"""Fused and unfused attention, forward and backward.

`terms` says what a time is made of, `tiles` how work-groups share an attention, `passes` what
forward and backward take; `times` has the kernels, `columns` what callers use.
"""

from projector.kernels.attention.columns import attention_term_columns, attention_time_columns
from projector.kernels.attention.passes import HIDDEN_LOSS
from projector.kernels.attention.terms import BOUNDS, TERMS, AttentionTerms

__all__ = [
    "BOUNDS",
    "HIDDEN_LOSS",
    "TERMS",
    "AttentionTerms",
    "attention_term_columns",
    "attention_time_columns",
]
