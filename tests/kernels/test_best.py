import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from projector.sweeps.rows import Merits
from reference.best import best_rows

number = st.sampled_from([1.0, 2.0, 3.0, math.inf, -math.inf, math.nan])
rows = st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.booleans(), number, number))


@given(rows)
def test_the_best_of_each_group_is_found(rows):
    """However the groups are mixed, those of several evaluations in turn."""
    columns = [*zip(*rows, strict=True)] or [[]] * 5
    kinds = (np.int64, np.bool_, np.bool_, np.float64, np.float64)
    merits = Merits(*(np.array(*each) for each in zip(columns, kinds, strict=True)))
    best = dict(zip(dict.fromkeys(columns[0]), best_rows(*columns), strict=True))
    assert merits.best().tolist() == [best[group] for group in sorted(best)]
