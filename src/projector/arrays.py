"""Names of array types that every layer uses; shapes and units stand where an array is declared."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
"""Seconds, bytes, FLOP, rates and shares."""

Ints = NDArray[np.int64]
"""Counts, codes, indices, and picoseconds of schedules."""

Ints32 = NDArray[np.int32]
"""Columns of compiled schedules, which are read often and hold small numbers."""

Ints8 = NDArray[np.int8]
"""Kinds of operation."""

Flags = NDArray[np.bool_]

Records = NDArray[np.void]
"""Rows of a structured type."""

Array = NDArray[Any]
"""A column of any type."""
