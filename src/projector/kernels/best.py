"""Which row of each group is the best.

Shape suffixes
    N   rows
    G   groups
"""

import math

from projector.arrays import Flags, Floats, Ints

from ._jit import inlined, kernel


@inlined
def _order(value: float, other: float) -> int:
    """Return -1 where a value goes before another, 1 behind it; what is not finite goes last."""
    if not math.isfinite(value):
        return 1 if math.isfinite(other) else 0
    if value < other or not math.isfinite(other):
        return -1
    return 1 if value > other else 0


@kernel
def best_of_groups(
    group_N: Ints, fits_N: Flags, safe_N: Flags, rate_N: Floats, peak_N: Floats, best_G: Ints
) -> int:
    """Find the best row of each group: the first of equal ones.

    What fits goes before what does not, and of these what is safe before what is not. Then the
    highest rate of rows that fit, the lowest peak of others; then the lowest peak.

    Parameters
    ----------
    group_N : int64[N]
        Equal ones follow one another.
    fits_N, safe_N : bool[N]
    rate_N, peak_N : float64[N]
    best_G : int64[N]
        Output: row of each group, in their order; beyond the returned count it means nothing.

    Returns
    -------
    int
        Groups.
    """
    count = 0
    for row in range(group_N.shape[0]):
        if row == 0 or group_N[row] != group_N[row - 1]:
            best_G[count] = row
            count += 1
            continue
        best = best_G[count - 1]
        fits = fits_N[row]
        if fits != fits_N[best]:
            better = fits
        elif safe_N[row] != safe_N[best]:
            better = safe_N[row]
        else:
            order = _order(-rate_N[row], -rate_N[best]) if fits else 0
            if order == 0:
                order = _order(peak_N[row], peak_N[best])
            better = order < 0
        if better:
            best_G[count - 1] = row
    return count
