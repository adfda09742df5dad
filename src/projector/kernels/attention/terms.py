"""What sets the time of an attention, and what it is made of: declared once, here."""

from typing import NamedTuple

BOUNDS = ("matrix", "softmax", "memory", "atomics", "overhead")
"""What sets the time of an attention, by code."""

MATRIX, SOFTMAX, MEMORY, ATOMICS, OVERHEAD = range(len(BOUNDS))


class AttentionTerms(NamedTuple):
    """Parts of the time of one attention.

    Compute is the sum of matrix, softmax, mask, tile and idle, each a mean over the compute units;
    time is start + passes + the longer of compute (or atomics) and memory, and ``HIDDEN_LOSS`` of
    the shorter.
    """

    time_s: float
    compute_s: float
    """Makespan of the work-groups."""
    memory_s: float
    atomics_s: float
    passes_s: float
    """Passes over operands before and after."""
    start_s: float
    matrix_s: float
    softmax_s: float
    mask_s: float
    """What steps that are partly masked take longer."""
    tile_s: float
    """Starts and finishes of work-groups."""
    idle_s: float
    groups: float
    """Work-groups."""
    waves: float
    """Of work-groups."""
    rows: float
    """Of a tile."""
    columns: float
    steps_per_group: float
    flop: float
    """Exact ones."""
    bytes: float
    """Of memory beside the compute."""
    pass_bytes: float
    """Of the passes."""


TERMS = AttentionTerms._fields
"""Columns of `attention_terms`."""
