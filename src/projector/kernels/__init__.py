"""Numba on arrays: seconds and bytes of kernels, collectives and schedules, nothing else."""

import os

# numba otherwise makes each of its messages bold, most of which nobody sees: 5 % of compiling.
os.environ.setdefault("NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING", "1")
