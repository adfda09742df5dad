"""What sets the time of a GEMM, and what it is made of: declared once, here."""

from typing import NamedTuple

BOUNDS = ("compute", "l2_fill", "l2", "memory", "overhead", "issue", "epilogue")
"""What sets the time of a GEMM, by code."""

COMPUTE, L2_FILL, L2, MEMORY, OVERHEAD, ISSUE, EPILOGUE = range(len(BOUNDS))


class GemmTerms(NamedTuple):
    """Parts of the time of one GEMM; seconds are those at the clock that the power cap leaves."""

    start_s: float
    """Launch, first loads and the end of a kernel."""
    matrix_s: float
    """Main loops, as long as the matrix pipe takes."""
    scale_s: float
    """Main loops, as long as vector units multiply block scales after the matrix pipe."""
    l2_fill_s: float
    """Main loops, as long as the loads into a compute unit take."""
    issue_s: float
    """Main loops, as long as their least steps take."""
    wait_s: float
    """What the steps of the main loops add, whatever they do."""
    epilogue_s: float
    """Epilogues that wait: what the main loops do not hide."""
    epilogues_s: float
    """All of a compute unit's epilogues, one after the other."""
    l2_s: float
    """What L2 hands out, for the device as a whole."""
    memory_s: float
    """Traffic behind L2."""
    loss_s: float
    """What the shorter of core and memory adds."""
    reduce_s: float
    """Adding up the parts of a split K."""
    tiles: float
    waves: float
    units: float
    """Compute units that run."""
    hbm_bytes: float
    """Bytes out of memory."""
    cache_bytes: float
    """Bytes through the last cache before it."""
    l2_bytes: float
    """Bytes out of L2."""
    clock_share: float
    """Clock over the one that the rates hold at."""
    power_w: float
    """Watts; 0 where the device has no power model for the type."""


TERMS = GemmTerms._fields
"""Columns of `gemm_terms`."""
