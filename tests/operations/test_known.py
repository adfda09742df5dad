"""Numbers under which costs are kept from one batch to the next."""

import numpy as np
import pytest

from projector.operations import known


def test_keys_are_told_apart_or_refused():
    most = (1 << known._BITS) - 1
    parts = np.array([[0, 0, most], [0, most, 0], [most, 0, 0], [most, most, most]])
    keys = known.packed(*parts.T)
    assert len({*keys.tolist()}) == len(parts)
    assert keys.max() == np.iinfo(np.int64).max
    np.testing.assert_array_equal(known.unpacked(keys, 3), parts.T)
    with pytest.raises(OverflowError, match="layouts, trainings or machines"):
        known.packed(np.array([0]), np.array([most + 1]), np.array([0]))
