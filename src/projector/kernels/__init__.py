"""Numba on arrays: seconds and bytes of kernels, collectives and schedules, nothing else."""
