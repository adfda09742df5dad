"""The full search: every tile of a menu with every number of parts of K, timed and compared.

It uses the model of the kernels, so that what it finds must be found by them bit for bit.
"""

import math

import numpy as np

from projector.kernels._jit import helper, kernel
from projector.kernels.gemm import MAX_SPLIT_K
from projector.kernels.gemm.model import busy_seconds, cost_of, joined_seconds
from projector.kernels.gemm.problem import MENU, candidate, columns_of, load_menu, meet
from projector.kernels.gemm.search import bound_closer, bound_row, survey
from projector.kernels.gemm.times import count_splits

SLACK = 1.0 + 1e-12


@helper
def candidate_seconds(problem, menu, t, split):
    """Seconds of one candidate at the full clock."""
    cost = cost_of(problem, candidate(menu, t, split))
    joined_s = joined_seconds(problem, busy_seconds(cost.core, 1.0), cost.memory_s)
    return problem.start_s + joined_s + cost.reduce_s


@kernel
def bounds_hold(device, code, m, n, k, batch, share, scratch):
    """Whether no candidate beats what the search bounds it with."""
    menu = scratch["menu"]
    tiles = load_menu(device, menu)
    columns = columns_of(tiles)
    problem = meet(device, code, m, n, k, batch, 2.0, share)
    survey(problem, columns, scratch)
    for closer in range(2):
        if closer:
            bound_closer(problem, columns, scratch)
        for row in range(count_splits(device, k) + 1):
            split = device["gemm_splits"][row - 1] if row > 0 else 1.0
            bound_row(problem, row, split, math.inf, columns, scratch)
            for t in range(tiles):
                cost = cost_of(problem, candidate(menu, t, split))
                if scratch["memory_s"][t] > SLACK * cost.memory_s:
                    return False
                time_s = candidate_seconds(problem, menu, t, split)
                if scratch["bound_s"][row, t] > SLACK * time_s:
                    return False
    return True


@kernel
def _search_all(extent_G4, code, share, device, menu, time_s_G, choice_G):
    tiles = load_menu(device, menu)
    for g in range(extent_G4.shape[0]):
        m, n = float(extent_G4[g, 0]), float(extent_G4[g, 1])
        k, batch = float(extent_G4[g, 2]), float(extent_G4[g, 3])
        problem = meet(device, code, m, n, k, batch, 2.0, share)
        best_s, choice = math.inf, -1
        for s in range(-1, count_splits(device, k)):
            split = 1.0 if s < 0 else device["gemm_splits"][s]
            for t in range(tiles):
                time_s = candidate_seconds(problem, menu, t, split)
                if time_s < best_s:
                    best_s, choice = time_s, t * MAX_SPLIT_K + int(split) - 1
        # What the kernels return: the padded work never falls below the exact one.
        light_s = 2.0 * m * n * k * batch / device["matrix_flop_per_s"][code]
        time_s_G[g] = max(best_s, light_s)
        choice_G[g] = choice


def search_all(extent_G4, code, share, device):
    """Return seconds at the full clock and choices, as `gemm_time_columns` does."""
    count = len(extent_G4)
    time_s_G, choice_G = np.empty(count), np.empty(count, np.int64)
    _search_all(extent_G4, code, share, device[0], np.empty(1, MENU)[0], time_s_G, choice_G)
    return time_s_G, choice_G
