"""How measures group and spread numbers."""

import numpy as np

from projector.trace.groups import group as group_of
from projector.trace.measures.statistics import spreads


def test_bands_are_numpys_quantiles():
    rng = np.random.default_rng(7)
    group = rng.integers(0, 20, 500)
    group = group[group != 3]
    values = rng.integers(0, 10**12, len(group))
    found = spreads(values, group, 20)
    assert np.isnan(found[3]).all()
    for each in set(range(20)) - {3}:
        expected = np.quantile(values[group == each], [0.5, 0.25, 0.75, 0.0, 1.0])
        np.testing.assert_allclose(found[each], expected, rtol=1e-12)


def test_distinct_combinations():
    found = group_of(np.array([5, -1, 5, 5]), np.array([0, 2**62, 0, 1]))
    assert found.first.tolist() == [1, 0, 3]
    assert found.of.tolist() == [1, 0, 1, 2]
