"""Numbers that stand for rows of a product of tables."""

import numpy as np

from projector.arrays import Ints
from projector.kernels.grouping import group_rows


def number_codes(code: Ints, size: int) -> tuple[Ints, Ints]:
    """Return the distinct ones of some codes, and the position of each code among them.

    Parameters
    ----------
    code : int64[n]
        From 0 on, below ``size``. Where that is not much larger than n they rise in the result.
    """
    if size > 4 * len(code) + 64:
        first, number = group_rows(code)
        return code.take(first), number
    used = np.zeros(size, np.bool_)
    used[code] = True
    return np.flatnonzero(used), (np.cumsum(used) - 1).take(code)
